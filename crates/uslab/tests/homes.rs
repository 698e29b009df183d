//! Objects go home: on a machine of several nodes, which this machine need not be, an object that
//! another node's CPU freed is handed out on its own node alone. One thread acts on each CPU in
//! turn. And threads on this machine's CPUs, each of which is said to be a node, free what others
//! allocated.
//!
//! Each test runs in a process of its own: the library learns the CPUs and nodes once.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;

use again::again;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use uslab::internal::{cpu, fake::FakeCpu, home_of, node_of_memory, record};
use uslab::malloc::{free, free_sized, malloc};
use uslab::{Cache, CacheBuilder, RawCache};

const CPUS: usize = 32;
const NODES: usize = 4;
const CPUS_OF_NODE: usize = CPUS / NODES;
/// Objects of one node: many sheaves, more than its barn has room for.
const OBJECTS: usize = 3000;

/// One way to allocate and free.
trait Way {
    fn alloc(&self) -> NonNull<u8>;
    fn free(&self, object: NonNull<u8>);
    fn free_all(&self, objects: &[NonNull<u8>]) {
        objects.iter().for_each(|&object| self.free(object));
    }
    fn flush(&self) {
        uslab::trim(0);
    }
}

impl Way for RawCache {
    fn alloc(&self) -> NonNull<u8> {
        self.alloc().expect("memory")
    }
    fn free(&self, object: NonNull<u8>) {
        // SAFETY: the test allocated it, and frees it once.
        unsafe { self.free(object) };
    }
}

/// A cache of a type.
struct Typed(Cache<[u64; 6]>);

impl Way for Typed {
    fn alloc(&self) -> NonNull<u8> {
        self.0.alloc().expect("memory").cast()
    }
    fn free(&self, object: NonNull<u8>) {
        // SAFETY: as above.
        unsafe { self.0.free(object.cast()) };
    }
}

/// As [`Typed`], freed 100 at a time.
struct Bulk(Cache<[u64; 6]>);

impl Way for Bulk {
    fn alloc(&self) -> NonNull<u8> {
        let mut objects = [null_mut(); 1];
        assert!(self.0.alloc_bulk(&mut objects), "memory");
        NonNull::new(objects[0]).expect("an object").cast()
    }
    fn free(&self, object: NonNull<u8>) {
        // SAFETY: as above.
        unsafe { self.0.free_bulk(&[object.cast().as_ptr()]) };
    }
    fn free_all(&self, objects: &[NonNull<u8>]) {
        let objects: Vec<_> = objects.iter().map(|object| object.cast().as_ptr()).collect();
        // SAFETY: as above.
        objects.chunks(100).for_each(|objects| unsafe { self.0.free_bulk(objects) });
    }
}

/// The malloc family; with the size at each free, or without.
struct Malloc {
    bytes: usize,
    is_sized: bool,
}

impl Way for Malloc {
    fn alloc(&self) -> NonNull<u8> {
        NonNull::new(malloc(self.bytes)).expect("memory")
    }
    fn free(&self, object: NonNull<u8>) {
        // SAFETY: as above.
        unsafe {
            match self.is_sized {
                true => free_sized(object.as_ptr(), self.bytes),
                false => free(object.as_ptr()),
            }
        }
    }
}

/// The node of a CPU of the pretended machine.
fn node_of(cpu: usize) -> usize {
    cpu / CPUS_OF_NODE
}

/// The slabs of a cache on each node of the machine, as observers read them.
fn slabs_by_node(cache: &RawCache) -> Vec<usize> {
    let id = cache.stats().expect("a cache has figures").id as u16;
    record(id).node_slabs[..NODES].iter().map(|slabs| slabs.load(Relaxed) as usize).collect()
}

/// Whether `object` is at home on the node of `cpu`, and its memory too.
fn is_home(object: NonNull<u8>, cpu: usize) -> bool {
    let node = Some(node_of(cpu));
    home_of(object.as_ptr()) == node && node_of_memory(object.as_ptr()) == node
}

fn objects_come_home(way: &impl Way, fake: &FakeCpu) {
    let mut live: Vec<Vec<NonNull<u8>>> = vec![Vec::new(); NODES];
    for round in 0..3 {
        // Each node allocates, on all of its CPUs.
        for cpu in 0..CPUS {
            fake.set(cpu);
            for _ in 0..OBJECTS / CPUS_OF_NODE {
                let object = way.alloc();
                assert!(is_home(object, cpu), "CPU {cpu} got an object of another node in round {round}");
                live[node_of(cpu)].push(object);
            }
        }
        // The CPUs of the next node free them, a few on each in turn.
        for (node, live) in live.iter_mut().enumerate() {
            for (n, objects) in std::mem::take(live).chunks(77).enumerate() {
                fake.set((node + 1) % NODES * CPUS_OF_NODE + n % CPUS_OF_NODE);
                way.free_all(objects);
                // What they allocate beside it is their own.
                let mine = way.alloc();
                let cpu = (node + 1) % NODES * CPUS_OF_NODE + n % CPUS_OF_NODE;
                assert!(is_home(mine, cpu), "CPU {cpu} got what it freed for another node");
                way.free(mine);
            }
        }
        if round == 1 {
            way.flush();
        }
    }
    // After a flush every object is in a slab of its home: no node needs a new one.
    way.flush();
}

#[test]
fn objects_that_another_node_freed_are_handed_out_at_home() {
    let name = "objects_that_another_node_freed_are_handed_out_at_home";
    if is_done_by_a_child(name, &[("USLAB_REAPER", "0")]) {
        return;
    }
    cpu::pretend(CPUS, NODES, 0);
    let raw = CacheBuilder::new("raw").build_raw(64).expect("memory");
    // SAFETY: the library is set up, and this process has one thread.
    let fake = unsafe { FakeCpu::start(0) };
    objects_come_home(&raw, &fake);
    let stats = raw.stats().expect("a cache has figures");
    assert!(stats.home_objects > 0 && stats.home_sheaves > 0, "whole sheaves went home: {stats:?}");
    assert_eq!((stats.active_objects, stats.sheaf_free), (0, 0));

    objects_come_home(&Typed(Cache::new("typed")), &fake);
    objects_come_home(&Bulk(Cache::new("bulk")), &fake);
    objects_come_home(&Malloc { bytes: 200, is_sized: false }, &fake);
    objects_come_home(&Malloc { bytes: 400, is_sized: true }, &fake);
    objects_come_home(&Malloc { bytes: 2000, is_sized: false }, &fake);
    drop(fake);
    uslab::debug::validate().expect("the structures are whole");
}

#[test]
fn observers_read_how_many_slabs_lie_on_each_node() {
    let name = "observers_read_how_many_slabs_lie_on_each_node";
    if is_done_by_a_child(name, &[("USLAB_REAPER", "0")]) {
        return;
    }
    cpu::pretend(CPUS, NODES, 0);
    // Slabs of a page, of several that count pages, and of one object.
    for bytes in [64, 3000, 40_000] {
        let raw = CacheBuilder::new("counted").build_raw(bytes).expect("memory");
        // SAFETY: the library is set up, and this process has one thread.
        let fake = unsafe { FakeCpu::start(0) };
        let mut live = Vec::new();
        for node in 0..NODES {
            fake.set(node * CPUS_OF_NODE);
            // No two nodes allocate as much.
            live.extend((0..500 * (node + 1)).map(|_| raw.alloc().expect("memory")));
        }
        let slabs = slabs_by_node(&raw);
        let stats = raw.stats().expect("a cache has figures");
        assert_eq!(slabs.iter().sum::<usize>() as u64, stats.slabs, "{bytes}: {slabs:?}");
        for (node, &slabs) in slabs.iter().enumerate() {
            let here = live.iter().filter(|object| node_of_memory(object.as_ptr()) == Some(node)).count();
            let needed = here.div_ceil(stats.objects_per_slab as usize);
            assert!((needed..=needed + 2).contains(&slabs), "{bytes}: {slabs} slabs for {here} objects");
        }
        // Freed by CPUs of one node, they leave the nodes where they lay.
        // SAFETY: each was allocated above, and is freed once.
        live.into_iter().for_each(|object| unsafe { raw.free(object) });
        raw.shrink();
        assert_eq!((slabs_by_node(&raw), raw.stats().expect("figures").slabs), (vec![0; NODES], 0));
    }
}

/// Pairs go round objects of their CPU: they take the slow path once in 31 calls or more, and it
/// visits neither barn nor slabs. Each free finds the row of the object's node without it.
#[test]
fn local_pairs_exchange_nothing_with_other_cpus() {
    const PAIRS: usize = 3100;
    let name = "local_pairs_exchange_nothing_with_other_cpus";
    if is_done_by_a_child(name, &[("USLAB_REAPER", "0")]) {
        return;
    }
    cpu::pretend(CPUS, NODES, 0);
    let raw = CacheBuilder::new("raw").build_raw(64).expect("memory");
    if uslab::mode() != uslab::Mode::Rseq {
        return;
    }
    // SAFETY: the library is set up, and this process has one thread.
    let fake = unsafe { FakeCpu::start(0) };
    let pairs = || {
        for cpu in 0..CPUS {
            fake.set(cpu);
            for _ in 0..PAIRS {
                let object = raw.alloc().expect("memory");
                assert!(is_home(object, cpu));
                // SAFETY: allocated above, and freed once.
                unsafe { raw.free(object) };
            }
        }
        raw.stats().expect("a cache has figures")
    };
    let (before, after) = (pairs(), pairs());
    assert_eq!(after.refills + after.flushes, before.refills + before.flushes);
    let (allocs, frees) = (after.alloc_slow - before.alloc_slow, after.free_slow - before.free_slow);
    assert!(allocs <= (CPUS * PAIRS / 31) as u64 && frees == 0, "{allocs} and {frees} slow calls");
    assert_eq!((after.home_objects, after.active_objects), (before.home_objects, 0));
}

/// Runs the test in a child; false in that child.
fn is_done_by_a_child(name: &str, environment: &[(&str, &str)]) -> bool {
    let Some(output) = again(name, environment) else { return false };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    true
}

const THREADS: usize = 4;
const ROUNDS: usize = 3000;

#[test]
fn threads_free_what_other_nodes_allocated() {
    if is_done_by_a_child("threads_free_what_other_nodes_allocated", &[]) {
        return;
    }
    let cpus = cpu::possible_cpus().expect("a number of CPUs");
    cpu::pretend(cpus, cpus.clamp(2, 8), 0);
    let cache = CacheBuilder::new("handed").build_raw(96).expect("memory");
    // Each thread frees what the one before it put there.
    let handed: Vec<Mutex<Vec<(usize, usize)>>> = (0..THREADS).map(|_| Mutex::default()).collect();
    let free_all = |objects: &mut Vec<(usize, usize)>| {
        for (object, stamp) in objects.drain(..) {
            let object =
                NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(object)).expect("an object");
            // SAFETY: of 96 bytes, aligned to 8, and freed once by the thread that took it out.
            unsafe {
                assert_eq!(object.cast::<usize>().read(), stamp, "an object has one owner");
                cache.free(object);
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (handed, cache, free_all) = (&handed, &cache, &free_all);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut mine = Vec::new();
                    for n in 0..40 {
                        let (object, stamp) = (cache.alloc().expect("memory"), thread << 48 | round << 8 | n);
                        // SAFETY: of 96 bytes, aligned to 8, and this thread's.
                        unsafe { object.cast::<usize>().write(stamp) };
                        mine.push((object.expose_provenance().get(), stamp));
                    }
                    let mut given = std::mem::take(&mut *handed[thread].lock().unwrap());
                    free_all(&mut given);
                    let mut kept = mine.split_off(30);
                    handed[(thread + 1) % THREADS].lock().unwrap().append(&mut mine);
                    free_all(&mut kept);
                    if round % 500 == 0 {
                        uslab::trim(0);
                    }
                    if round % 100 == 0 {
                        // Most threads change CPUs here, and so nodes.
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    handed.iter().for_each(|objects| free_all(&mut objects.lock().unwrap()));
    uslab::debug::validate().expect("the structures are whole");
    cache.shrink();
    let stats = cache.stats().expect("a cache has figures");
    assert_eq!((stats.active_objects, stats.sheaf_free, stats.slabs), (0, 0, 0));
}
