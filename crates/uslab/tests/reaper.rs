//! The background thread: idle memory returns to the system by itself, busy memory stays, and
//! nothing depends on the thread.
//!
//! A process has one reaper, so each test runs in a process of its own, in both modes. Deadlines
//! are long; the tests print the times.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;
#[path = "support/pinned.rs"]
mod pinned;

use modes::in_both_modes;
use pinned::stay_on_this_cpu;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use std::{fs, ptr};
use uslab::internal::entry::{Program, malloc_for};
use uslab::internal::layout::Record;
use uslab::malloc::{free, malloc};
use uslab::{CacheBuilder, RawCache};

const MIB: usize = 1 << 20;

/// Resident bytes. `smaps_rollup` sums up page tables and is exact; `statm` may lag by a batch a
/// CPU.
fn resident_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/smaps_rollup").expect("/proc is mounted");
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).expect("it has the line");
    line.split_whitespace().next().and_then(|n| n.parse::<usize>().ok()).expect("a number") * 1024
}

/// Names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(|task| name(task).trim().to_owned()).collect()
}

fn has_reaper() -> bool {
    threads().iter().any(|name| name == "uslab-reaper")
}

/// Waits until `holds` returns true. Returns the time that took.
fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(120), "in 120 s: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    start.elapsed()
}

/// Allocates `total` bytes in objects of `bytes`, touched and linked through their first words.
fn fill(total: usize, bytes: usize) -> *mut u8 {
    let mut first = ptr::null_mut::<u8>();
    for _ in 0..total / bytes {
        let object = malloc_for::<Program>(bytes);
        assert!(!object.is_null());
        // SAFETY: allocated by this test, with that size, aligned to 16.
        unsafe {
            (0..bytes).step_by(4096).for_each(|at| object.add(at).write(1));
            object.cast::<*mut u8>().write(first);
        }
        first = object;
    }
    first
}

fn free_all(mut first: *mut u8) {
    while !first.is_null() {
        // SAFETY: `fill` wrote the link; each object is freed once.
        unsafe {
            let next = first.cast::<*mut u8>().read();
            free(first);
            first = next;
        }
    }
}

#[test]
fn a_gigabyte_freed_goes_back_while_the_program_sleeps() {
    in_both_modes("a_gigabyte_freed_goes_back_while_the_program_sleeps", &[], || {
        free_all(fill(MIB, 64));
        let baseline = resident_bytes();
        for bytes in [64, 4096, 100_000] {
            free_all(fill(1 << 30, bytes));
            let right_after = resident_bytes();
            let allowed = baseline + 4 * MIB + baseline / 20;
            let took = until("memory is back", || resident_bytes() <= allowed);
            println!(
                "1 GiB in objects of {bytes} bytes: {} MiB above the baseline when freed, {:.1} after {took:.1?}",
                (right_after - baseline.min(right_after)) / MIB,
                (resident_bytes() as f64 - baseline as f64) / MIB as f64,
            );
        }
        assert!(has_reaper(), "{:?}", threads());
    });
}

#[test]
fn a_small_program_has_no_thread_more() {
    in_both_modes("a_small_program_has_no_thread_more", &[], || {
        let list = fill(4 * MIB, 64);
        let cache = CacheBuilder::new("small").build_raw(64).unwrap();
        let object = cache.alloc().unwrap();
        assert!(!has_reaper(), "{:?}", threads());
        // SAFETY: from this cache, and unused.
        unsafe { cache.free(object) };
        free_all(list);
    });
}

#[test]
fn malloc_alone_never_starts_a_thread() {
    // The C library may hold its own locks when it calls malloc.
    in_both_modes("malloc_alone_never_starts_a_thread", &[], || {
        let blocks: Vec<*mut u8> = (0..100_000).map(|_| malloc(1000)).collect();
        assert!(!has_reaper(), "{:?}", threads());
        // SAFETY: allocated by this test, freed once.
        blocks.into_iter().for_each(|block| unsafe { free(block) });
    });
}

#[test]
fn a_cache_of_the_programs_own_starts_it() {
    in_both_modes("a_cache_of_the_programs_own_starts_it", &[], || {
        let cache = CacheBuilder::new("own").build_raw(4096).unwrap();
        let mut objects = vec![ptr::null_mut(); 10_000];
        assert!(cache.alloc_bulk(&mut objects));
        let more = cache.alloc().unwrap();
        until("there is a reaper", has_reaper);
        // SAFETY: from this cache, and unused.
        unsafe {
            cache.free(more);
            cache.free_bulk(&objects);
        }
        until("all slabs are released", || record_of("own").slabs.load(Relaxed) == 0);
    });
}

#[test]
fn it_can_be_forbidden_and_everything_works() {
    let environment = [("USLAB_REAPER", "0")];
    in_both_modes("it_can_be_forbidden_and_everything_works", &environment, || {
        free_all(fill(64 * MIB, 4096));
        uslab::set_limit(512 * MIB, 0).unwrap();
        free_all(fill(64 * MIB, 64));
        assert!(!has_reaper(), "{:?}", threads());
        assert!(uslab::trim(0) > 0);
    });
}

/// The figures of the newest cache called `name`.
fn record_of(name: &str) -> &'static Record {
    let records = uslab::internal::header().records_used.load(Relaxed) as u16;
    let named = |record: &&Record| {
        record.name.iter().map(|byte| byte.load(Relaxed)).take_while(|&byte| byte != 0).eq(name.bytes())
    };
    (0..records).map(uslab::internal::record).rfind(named).expect("the cache is listed")
}

/// Slabs that a cache has made and released so far: its calls of the page layer.
fn page_calls_of(name: &str) -> u64 {
    let record = record_of(name);
    record.grows.load(Relaxed) + record.shrinks.load(Relaxed)
}

#[test]
fn a_cache_that_crosses_empty_over_and_over_does_not_thrash() {
    in_both_modes("a_cache_that_crosses_empty_over_and_over_does_not_thrash", &[], || {
        // The reaper runs, and visits the cache.
        free_all(fill(64 * MIB, 4096));
        until("there is a reaper", has_reaper);
        // The thread's first visit to another CPU may need a slab for that CPU's sheaves.
        stay_on_this_cpu();
        let cache = CacheBuilder::new("cliff").build_raw(4096).unwrap();
        let mut objects = [ptr::null_mut(); 4];
        let mut run = |time: Duration| {
            let start = Instant::now();
            let mut rounds = 0u64;
            while start.elapsed() < time {
                for _ in 0..1000 {
                    for object in &mut objects {
                        *object = cache.alloc().unwrap().as_ptr();
                    }
                    for &object in &objects {
                        // SAFETY: from this cache, and unused.
                        unsafe { cache.free(ptr::NonNull::new_unchecked(object)) };
                    }
                }
                rounds += 1000;
            }
            rounds
        };
        run(Duration::from_millis(600));
        let before = page_calls_of("cliff");
        let rounds = run(Duration::from_secs(2));
        println!(
            "0 to 4 live and back, {rounds} times: {} page-layer calls",
            page_calls_of("cliff") - before
        );
        assert_eq!(page_calls_of("cliff"), before);
    });
}

#[test]
fn objects_in_use_stay() {
    in_both_modes("objects_in_use_stay", &[], || {
        let list = fill(64 * MIB, 4096);
        until("there is a reaper", has_reaper);
        std::thread::sleep(Duration::from_secs(2));
        let (mut at, mut count) = (list, 0);
        while !at.is_null() {
            // SAFETY: `fill` wrote the link.
            at = unsafe { at.cast::<*mut u8>().read() };
            count += 1;
        }
        assert_eq!(count, 64 * MIB / 4096);
        free_all(list);
    });
}

#[test]
fn a_fork_child_starts_its_own() {
    in_both_modes("a_fork_child_starts_its_own", &[], || {
        free_all(fill(64 * MIB, 4096));
        until("there is a reaper", has_reaper);
        // SAFETY: the child allocates, which this library supports, reads /proc and exits.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let alone = !has_reaper();
            free_all(fill(64 * MIB, 4096));
            until("the child has one", has_reaper);
            let rss = resident_bytes();
            until("the child's memory is returned", || resident_bytes() <= rss.min(32 * MIB));
            // SAFETY: no exit handler needs to run.
            unsafe { libc::_exit(if alone { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place to write to.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0, "the child's reaper was not its parent's");
    });
}

/// Processor time of the reaper so far, in nanoseconds; `None` where the kernel does not count it.
fn reaper_ns() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let read = |path: &Path, file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
    let reaper =
        tasks.flatten().map(|task| task.path()).find(|path| read(path, "comm") == "uslab-reaper\n")?;
    read(&reaper, "schedstat").split_whitespace().next()?.parse().ok()
}

#[test]
fn it_costs_next_to_nothing_beside_a_busy_program() {
    in_both_modes("it_costs_next_to_nothing_beside_a_busy_program", &[], || {
        let caches: Vec<RawCache> =
            (1..100).map(|n| CacheBuilder::new("busy").build_raw(16 * n).unwrap()).collect();
        let lru = uslab::reclaim::LruCache::<u64, u64>::new("registered").unwrap();
        lru.insert(1, 1);
        let list = fill(64 * MIB, 4096);
        until("there is a reaper", has_reaper);
        let Some(before) = reaper_ns() else {
            return println!("skipped: this kernel counts no threads' time");
        };
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            for cache in &caches {
                let object = cache.alloc().unwrap();
                // SAFETY: from this cache, and unused.
                unsafe { cache.free(object) };
            }
        }
        let (used_ns, all_ns) = (reaper_ns().unwrap() - before, start.elapsed().as_nanos() as u64);
        println!(
            "the reaper beside 99 busy caches and a shrinker: {:.3} % of a CPU, {used_ns} ns in {all_ns}",
            used_ns as f64 * 100.0 / all_ns as f64
        );
        assert!(used_ns < all_ns / 10, "a tenth of a CPU would be far too much");
        free_all(list);
    });
}

/// A named pipe like a service manager's; removed at the end of the test.
struct Fifo(std::ffi::CString);

impl Fifo {
    fn new(name: &str) -> Fifo {
        let path = std::env::temp_dir().join(format!("uslab-{name}-{}", std::process::id()));
        let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: the path is NUL-terminated.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        Fifo(path)
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::unlink(self.0.as_ptr()) };
    }
}

/// Counts the passes that ask it; has entries that never go.
struct Pinned(std::sync::atomic::AtomicUsize);

impl uslab::Shrinker for Pinned {
    fn count(&self, control: &uslab::ShrinkControl) -> usize {
        // Twice in each pass: a look, and a share.
        self.0.fetch_add(usize::from(control.priority == 12), Relaxed);
        1000
    }
    fn scan(&self, _: &uslab::ShrinkControl) -> uslab::Scan {
        uslab::Scan::Freed(0)
    }
}

#[test]
fn pressure_that_takes_nothing_is_left_alone_for_a_growing_time() {
    let fifo = Fifo::new("unrelieved");
    let path = fifo.0.to_str().unwrap();
    let environment = [("MEMORY_PRESSURE_WATCH", path), ("USLAB_PRESSURE", "systemd")];
    let test = "pressure_that_takes_nothing_is_left_alone_for_a_growing_time";
    in_both_modes(test, &environment, || {
        use std::io::Write;
        let path = std::env::var("MEMORY_PRESSURE_WATCH").unwrap();
        let mut fifo = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let pinned = Pinned(std::sync::atomic::AtomicUsize::new(0));
        let pinned = uslab::register_shrinker("pinned", Default::default(), pinned).unwrap();
        let start = Instant::now();
        until("there were three passes", || {
            fifo.write_all(b"!").unwrap();
            pinned.0.load(Relaxed) >= 6
        });
        // A rest of half a second and one of a second, each minus a tick of the coarse clock.
        assert!(start.elapsed() >= Duration::from_millis(1478), "{:?}", start.elapsed());
    });
}

#[test]
fn a_fork_child_with_a_shrinker_starts_its_own_however_small_it_is() {
    in_both_modes("a_fork_child_with_a_shrinker_starts_its_own_however_small_it_is", &[], || {
        let lru = uslab::reclaim::LruCache::<u64, u64>::new("inherited").unwrap();
        lru.insert(1, 1);
        until("there is a reaper", has_reaper);
        // SAFETY: the child allocates, which this library supports, reads /proc and exits.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let alone = !has_reaper();
            free_all(fill(MIB, 4096));
            until("the child has one", has_reaper);
            // SAFETY: no exit handler needs to run.
            unsafe { libc::_exit(if alone { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place to write to.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0, "the child's reaper was not its parent's");
    });
}

#[test]
fn sources_that_the_environment_names_count_from_the_start() {
    let test = "sources_that_the_environment_names_count_from_the_start";
    in_both_modes(test, &[("USLAB_PRESSURE", "cgroup")], || {
        uslab::reclaim::start();
        assert!(!has_reaper(), "the loader may hold locks that a new thread needs");
        free_all(fill(MIB, 4096));
        until("there is a reaper", has_reaper);
    });
}

#[test]
fn no_source_needs_no_thread() {
    in_both_modes("no_source_needs_no_thread", &[("USLAB_PRESSURE", "off")], || {
        uslab::reclaim::start();
        free_all(fill(MIB, 4096));
        assert!(!uslab::reclaim::has_reaper(), "{:?}", threads());
    });
}

#[test]
fn pressure_takes_from_caches_without_a_call() {
    let fifo = Fifo::new("pressure");
    let path = fifo.0.to_str().unwrap();
    let environment = [("MEMORY_PRESSURE_WATCH", path), ("USLAB_PRESSURE", "systemd")];
    in_both_modes("pressure_takes_from_caches_without_a_call", &environment, || {
        use std::io::Write;
        let cache = uslab::reclaim::LruCache::<u64, [u8; 1000]>::new("pressed").unwrap();
        for key in 0..50_000 {
            cache.insert(key, [1; 1000]);
        }
        assert_eq!(cache.len(), 50_000);
        let path = std::env::var("MEMORY_PRESSURE_WATCH").unwrap();
        let mut fifo = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut press = || fifo.write_all(b"!").unwrap();
        press();
        // The manager repeats its message as long as memory is short; each message asks for more.
        let mut last = cache.len();
        for _ in 0..3 {
            until("the cache evicted entries", || {
                press();
                cache.len() < last
            });
            last = cache.len();
        }
        println!("three messages of pressure: {last} of 50000 entries are left");
        assert_eq!(cache.get(&0), None, "the oldest went first");
    });
}
