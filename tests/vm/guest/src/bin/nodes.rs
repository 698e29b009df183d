//! `nodes NODES CHANGES`: objects go home on a machine of so many nodes, CPUs come and go so often
//! meanwhile, and at the end the sums agree.
//!
//! First each node's CPUs allocate, and those of the next node free. After a flush every node
//! allocates again: no CPU may be handed an object of another node. Then CPUs go offline and come
//! back while threads on all nodes stamp objects and hand some of them to the next thread. At last
//! nothing is in use, and every structure is whole. One line of JSON has the figures. It must never
//! be run outside a guest.

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

use std::collections::HashMap;
use std::io::Error;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use uslab::internal::{cpu, home_of};
use uslab::{CacheBuilder, RawCache};

/// Objects that each node allocates.
const OBJECTS: usize = 20_000;
const BYTES: usize = 192;
/// Objects that a thread of the second part holds at a time.
const HELD: usize = 48;
/// Objects that may wait for a thread, which may get no time on a busy host.
const MAX_HANDED: usize = 20_000;
/// With 64 busy CPUs, emulated in turn, one of them needs a minute to go offline.
const MAX_THREADS: usize = 24;
const RUN: Duration = Duration::from_secs(8);

/// One object in so many stays in use, so that no slab goes: it would come back on any node.
const KEPT: usize = 16;

/// An object that another thread may free, and the word by which its owner knows it.
#[derive(Clone, Copy)]
struct Object(NonNull<u8>, usize);
// SAFETY: objects may be freed by any thread.
unsafe impl Send for Object {}
// SAFETY: as above; nothing is changed through a reference.
unsafe impl Sync for Object {}

fn main() -> ExitCode {
    let argument = |at: usize| std::env::args().nth(at).and_then(|number| number.parse().ok());
    let (wanted, Some(least)) = (argument(1), argument(2)) else {
        println!("usage: nodes NODES CHANGES");
        return ExitCode::FAILURE;
    };
    let cache = CacheBuilder::new("nodes").build_raw(BYTES).expect("there is memory");
    let nodes = uslab::internal::header().nodes.load(Relaxed) as usize;
    if wanted != Some(nodes) {
        println!("the library sees {nodes} nodes");
        return ExitCode::FAILURE;
    }
    let (freed_away, home, foreign) = go_home(&cache, nodes);
    eprintln!("{home} of {freed_away} objects that another node freed are home");
    let (toggles, doubled) = storm(&cache, least);
    let (mut stats, mut left) = (cache.stats().expect("a cache has figures"), 1);
    for _ in 0..100 {
        cache.shrink();
        stats = cache.stats().expect("a cache has figures");
        left = stats.active_objects + stats.sheaf_free + stats.slabs;
        if left == 0 {
            break;
        }
        // The library's own thread may have had a sheaf in flight.
        std::thread::sleep(Duration::from_millis(50));
    }
    println!(
        r#"{{"mode":"{}","nodes":{nodes},"groups":{},"freed_away":{freed_away},"home":{home},"foreign":{foreign},"sent_home":{},"sheaves_home":{},"toggles":{toggles},"least":{least},"doubled":{doubled},"left":{left}}}"#,
        uslab::mode(),
        uslab::internal::groups(),
        stats.home_objects,
        stats.home_sheaves
    );
    if let Err(invalid) = uslab::debug::validate() {
        println!("{invalid}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The CPUs of a node that are online, of which there is at least one; of a machine of one node,
/// all. On a busy host emulated CPUs may fail to start.
fn cpus_of(node: usize, nodes: usize) -> Vec<usize> {
    let mut cpus = Vec::new();
    match nodes {
        1 => cpus.extend(0..cpu::possible_cpus().unwrap_or(1)),
        _ => cpu::for_each_cpu_of_node(node, |cpu| cpus.push(cpu)),
    }
    cpus.retain(|&cpu| run_on(cpu));
    assert!(!cpus.is_empty(), "node {node} has a CPU");
    cpus
}

/// Moves the calling thread to a CPU; false if that is offline.
fn run_on(cpu: usize) -> bool {
    // SAFETY: zeroes are an empty set, which has room for the CPU.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    }
}

/// Lets the next emulated CPU run.
///
/// QEMU emulates many CPUs in turn by one thread. A turn ends with a `pause`, or after a tenth of a
/// second: an interrupt to all CPUs would take seconds where each of them is busy.
fn end_turn() {
    std::hint::spin_loop();
}

/// Runs `work(node)` on a thread for each node, on its CPUs in turn.
///
/// `work` calls its second argument before each step, with the number of the step.
fn on_each_node<R: Send>(nodes: usize, work: impl Fn(usize, &mut dyn FnMut(usize)) -> R + Sync) -> Vec<R> {
    let each = |node: usize| {
        let cpus = cpus_of(node, nodes);
        work(node, &mut |turn| {
            if turn.is_multiple_of(500) {
                assert!(run_on(cpus[turn / 500 % cpus.len()]), "it is online");
            }
            if turn.is_multiple_of(50) {
                end_turn();
            }
        })
    };
    std::thread::scope(|scope| {
        let each = &each;
        let threads: Vec<_> = (0..nodes).map(|node| scope.spawn(move || each(node))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Lets each node allocate, the next one free most of it, and each allocate as much again. Returns
/// the objects that another node freed, how many of them their own node was handed out afterwards,
/// and how often a node was handed an object of another.
fn go_home(cache: &RawCache, nodes: usize) -> (usize, usize, usize) {
    let foreign = AtomicUsize::new(0);
    let take = |count: usize, node: usize, turn: &mut dyn FnMut(usize)| -> Vec<Object> {
        let objects = (0..count).map(|n| {
            turn(n);
            let object = cache.alloc().expect("there is memory");
            if home_of(object.as_ptr()) != Some(node) {
                foreign.fetch_add(1, Relaxed);
            }
            Object(object, 0)
        });
        objects.collect()
    };
    // SAFETY: each object is freed once.
    let free = |object: &Object| unsafe { cache.free(object.0) };
    let first = on_each_node(nodes, |node, turn| take(OBJECTS, node, turn));
    let (mut kept, mut freed, mut were) = (Vec::new(), vec![Vec::new(); nodes], HashMap::new());
    for (node, objects) in first.iter().enumerate() {
        for (n, &object) in objects.iter().enumerate() {
            if n % KEPT == 0 {
                kept.push(object);
            } else {
                freed[node].push(object);
                were.insert(object.0.addr().get(), node);
            }
        }
    }
    on_each_node(nodes, |node, turn| {
        for (n, object) in freed[(node + nodes - 1) % nodes].iter().enumerate() {
            turn(n);
            free(object);
        }
    });
    // A walk flushes all sheaves first, and leaves the slabs.
    let flush = || cache.for_each_live(|_| std::ops::ControlFlow::Break(()));
    let is_of = |object: &Object, node: usize| were.get(&object.0.addr().get()) == Some(&node);
    // Objects in the sheaves of CPUs that the thread left are home as well: the second round takes
    // them.
    let (mut home, mut again) = (vec![0; nodes], Vec::new());
    for _ in 0..2 {
        flush();
        let taken = on_each_node(nodes, |node, turn| take(freed[node].len() - home[node], node, turn));
        for (node, objects) in taken.into_iter().enumerate() {
            home[node] += objects.iter().filter(|object| is_of(object, node)).count();
            again.extend(objects);
        }
    }
    again.iter().chain(&kept).for_each(free);
    (were.len(), home.iter().sum(), foreign.into_inner())
}

/// CPUs go and come back, at least `least` times, while threads allocate and hand objects on.
/// Returns the number of changes, and how many objects had two owners.
fn storm(cache: &RawCache, least: usize) -> (usize, usize) {
    let cpus = cpu::possible_cpus().unwrap_or(1);
    let threads = cpus.clamp(2, MAX_THREADS);
    let (stop, doubled) = (AtomicBool::new(false), AtomicUsize::new(0));
    let handed: Vec<Mutex<Vec<Object>>> = (0..threads).map(|_| Mutex::new(Vec::new())).collect();
    let toggles = std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, doubled, handed) = (&stop, &doubled, &handed);
            scope.spawn(move || {
                let mut word = thread << 32;
                while !stop.load(Relaxed) {
                    let take = |n: usize| stamped(cache, word + n);
                    let objects: Vec<Object> = (0..HELD).map(take).collect();
                    word += HELD;
                    let lost = objects.iter().filter(|object| !is_stamped(object)).count();
                    doubled.fetch_add(lost, Relaxed);
                    let (mine, others) = objects.split_at(HELD / 3);
                    let given = std::mem::take(&mut *handed[thread].lock().expect("no panic"));
                    doubled.fetch_add(given.iter().filter(|object| !is_stamped(object)).count(), Relaxed);
                    // SAFETY: each is freed once, by the thread that has it.
                    given.iter().chain(mine).for_each(|object| unsafe { cache.free(object.0) });
                    let mut next = handed[(thread + 1) % threads].lock().expect("no panic");
                    if next.len() < MAX_HANDED {
                        next.extend(others);
                    } else {
                        // SAFETY: as above.
                        others.iter().for_each(|object| unsafe { cache.free(object.0) });
                    }
                    drop(next);
                    std::thread::yield_now();
                    end_turn();
                }
            });
        }
        let toggles = toggle(cpus, least);
        stop.store(true, Relaxed);
        toggles
    });
    for objects in handed {
        // SAFETY: as above.
        objects.into_inner().expect("no panic").iter().for_each(|object| unsafe { cache.free(object.0) });
    }
    (toggles, doubled.into_inner())
}

/// Allocates an object and writes `word` and its address to it.
fn stamped(cache: &RawCache, word: usize) -> Object {
    let object = cache.alloc().expect("there is memory");
    // SAFETY: of more bytes than that, aligned to 8, and this thread's.
    unsafe { object.cast::<[usize; 2]>().write_volatile([word, object.addr().get()]) };
    Object(object, word)
}

/// Whether an object still has what its owner wrote.
fn is_stamped(object: &Object) -> bool {
    // SAFETY: as in `stamped`; threads that hand objects on synchronise by a lock.
    unsafe { object.0.cast::<[usize; 2]>().read_volatile() == [object.1, object.0.addr().get()] }
}

/// Takes CPUs offline and online in turn, at least `least` times, and drains after each fourth;
/// returns the number of changes. All other CPUs wait for a change: with 64 emulated ones it takes
/// seconds.
fn toggle(cpus: usize, least: usize) -> usize {
    let begin = Instant::now();
    // Some that did not start with the guest may be offline.
    let is_on = |cpu| std::fs::read_to_string(online_file(cpu)).is_ok_and(|text| text.trim() == "1");
    let mut is_online: Vec<bool> = (0..cpus).map(|cpu| cpu == 0 || is_on(cpu)).collect();
    let (mut toggles, mut tries) = (0, 0);
    while begin.elapsed() < RUN || toggles < least && tries < 10 * least {
        // The first one cannot go. The steps reach every node in turn.
        let cpu = 1 + tries * 5 % (cpus - 1);
        tries += 1;
        // An emulated CPU that does not come back in time stays away.
        if set_online(cpu, !is_online[cpu]).is_ok() {
            is_online[cpu] = !is_online[cpu];
            toggles += 1;
        }
        if tries.is_multiple_of(4) {
            uslab::trim(0);
        }
    }
    for cpu in (1..cpus).filter(|&cpu| !is_online[cpu]) {
        // As above.
        let _ = set_online(cpu, true);
    }
    toggles
}

fn online_file(cpu: usize) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/online")
}

fn set_online(cpu: usize, is_online: bool) -> Result<(), Error> {
    std::fs::write(online_file(cpu), if is_online { "1" } else { "0" })
}
