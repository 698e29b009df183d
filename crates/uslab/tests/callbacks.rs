//! Callbacks and destructors that misbehave: they unregister each other's shrinkers, panic, fault,
//! or insert into a cache that a caller further up the stack uses. Nothing hangs, aborts or leaks.
//!
//! A watchdog ends the process if a test hangs.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use uslab::reclaim::LruCache;
use uslab::reclaim::adaptors::{EvictColdest, Shared};
use uslab::{Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, reclaim, register_shrinker};

/// Ends the process after a time that no test here takes.
fn watchdog() {
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(60));
        eprintln!("a thread hangs");
        std::process::abort();
    });
}

/// A shrinker that knows its number in the ring.
struct Member {
    number: usize,
    ring: Arc<Ring>,
}

/// Shrinkers whose callbacks each unregister the next one's shrinker, all at the same time.
struct Ring {
    members: Vec<Mutex<Option<Registration<Member>>>>,
    together: Barrier,
    dropped: AtomicUsize,
    waited: AtomicUsize,
    left: AtomicUsize,
}

impl Shrinker for Member {
    fn count(&self, _: &ShrinkControl) -> usize {
        1000
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        let ring = &self.ring;
        ring.together.wait();
        let next = ring.members[(self.number + 1) % ring.members.len()].lock().unwrap().take();
        let has_ended = next.expect("each is unregistered once").unregister();
        if has_ended { &ring.waited } else { &ring.left }.fetch_add(1, SeqCst);
        Scan::Stop
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.ring.dropped.fetch_add(1, SeqCst);
    }
}

/// Makes a ring of `members` shrinkers; a thread for each calls it.
fn unregister_in_a_ring(members: usize) -> Arc<Ring> {
    let ring = Arc::new(Ring {
        members: (0..members).map(|_| Mutex::new(None)).collect(),
        together: Barrier::new(members),
        dropped: AtomicUsize::new(0),
        waited: AtomicUsize::new(0),
        left: AtomicUsize::new(0),
    });
    for number in 0..members {
        let member = Member { number, ring: Arc::clone(&ring) };
        let registered = register_shrinker("member", ShrinkerOptions::default(), member);
        *ring.members[number].lock().unwrap() = Some(registered.expect("there is memory"));
    }
    thread::scope(|scope| {
        for _ in 0..members {
            scope.spawn(|| reclaim(usize::MAX));
        }
    });
    ring
}

#[test]
fn callbacks_that_unregister_each_other_all_return() {
    in_both_modes("callbacks_that_unregister_each_other_all_return", &[], || {
        watchdog();
        for round in 0..300 {
            let ring = unregister_in_a_ring(2 + round % 4);
            let (waited, left) = (ring.waited.load(SeqCst), ring.left.load(SeqCst));
            assert_eq!(waited + left, ring.members.len(), "round {round}");
            assert!(left >= 1, "one thread of a cycle must not wait");
            assert_eq!(ring.dropped.load(SeqCst), ring.members.len(), "each went once");
            assert_eq!(Arc::strong_count(&ring), 1);
        }
    });
}

/// Calls its function in `scan`; frees nothing.
struct Asked<F>(F);

impl<F: Fn() + Send + Sync + 'static> Shrinker for Asked<F> {
    fn count(&self, _: &ShrinkControl) -> usize {
        1000
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        (self.0)();
        Scan::Stop
    }
}

fn when_asked<F: Fn() + Send + Sync + 'static>(call: F) -> Registration<Asked<F>> {
    register_shrinker("asked", ShrinkerOptions::default(), Asked(call)).expect("there is memory")
}

#[test]
fn a_callback_changes_a_cache_in_use_further_up_the_stack() {
    in_both_modes("a_callback_changes_a_cache_in_use_further_up_the_stack", &[], || {
        watchdog();
        static CACHE: OnceLock<LruCache<u64, u64>> = OnceLock::new();
        let cache = CACHE.get_or_init(|| LruCache::new("looked at").unwrap());
        let changes: [fn(&LruCache<u64, u64>); 3] = [
            |cache| assert_eq!(cache.insert(1, 10), None, "the shard is in use"),
            |cache| assert_eq!(cache.remove(&1), None, "the shard is in use"),
            |cache| cache.clear(),
        ];
        for change in changes {
            for key in 0..1000 {
                cache.insert(key, key);
            }
            let asked = when_asked(move || change(CACHE.get().unwrap()));
            // An allocation at this point would reclaim like this, where memory is used up.
            let seen = cache.look(&1, |value| {
                reclaim(1 << 40);
                *value
            });
            assert_eq!(seen, Some(1), "an entry in use was evicted");
            assert_eq!(cache.get(&1), None, "a changed entry was found with its old value");
            drop(asked);
            cache.insert(1, 11);
            assert_eq!(cache.get(&1), Some(11));
            cache.clear();
            assert!(cache.is_empty(), "{} are counted", cache.len());
        }
    });
}

#[test]
fn entries_changed_in_a_callback_or_by_another_thread_have_the_new_value() {
    let name = "entries_changed_in_a_callback_or_by_another_thread_have_the_new_value";
    in_both_modes(name, &[], || {
        watchdog();
        static CACHE: OnceLock<LruCache<u64, u64>> = OnceLock::new();
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let cache = CACHE.get_or_init(|| LruCache::new("shared").unwrap());
        // The value of a key only grows: the thread that raised it never sees an older one.
        let _asked = when_asked(|| {
            for key in 0..64 {
                let value = 1 + NEXT.fetch_add(1, SeqCst) as u64;
                CACHE.get().unwrap().insert(key, value);
                let found = CACHE.get().unwrap().get(&key);
                assert!(found.is_none_or(|found| found >= value), "{found:?} before {value}");
            }
        });
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..20_000u64 {
                        cache.look(&(round % 64), |value| std::hint::black_box(*value));
                    }
                });
            }
            scope.spawn(|| (0..300).for_each(|_| _ = reclaim(1 << 40)));
        });
    });
}

/// Inserts another value of its kind when it is dropped.
struct Successor(u64);

static SUCCESSORS: OnceLock<LruCache<u64, Successor>> = OnceLock::new();

impl Drop for Successor {
    fn drop(&mut self) {
        SUCCESSORS.get().unwrap().insert(self.0 + 1, Successor(self.0 + 1));
    }
}

#[test]
fn entries_that_insert_on_drop_do_not_hang() {
    in_both_modes("entries_that_insert_on_drop_do_not_hang", &[], || {
        watchdog();
        let cache = SUCCESSORS.get_or_init(|| LruCache::new("successors").unwrap());
        for key in 0..1000 {
            std::mem::forget(cache.insert(key << 32, Successor(key << 32)));
        }
        reclaim(usize::MAX);
        cache.clear();
        assert_eq!(cache.len(), 1000, "each drop must insert one entry");
    });
}

static ALIVE: AtomicIsize = AtomicIsize::new(0);

/// Panics on drop, with a payload that does the same.
#[derive(PartialEq, Eq, Hash)]
struct Bomb(u64);

impl Bomb {
    fn new(number: u64) -> Bomb {
        ALIVE.fetch_add(1, SeqCst);
        Bomb(number)
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, SeqCst);
        panic_any(Payload);
    }
}

struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        panic!("panics for the test");
    }
}

/// Silences the panic messages, of which there are thousands.
fn quietly() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// Whether `run` panicked. The payload is not dropped.
fn panics(run: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(run)).map_err(std::mem::forget).is_err()
}

#[test]
fn keys_and_values_that_all_panic_on_drop_end_only_their_shrinker() {
    let name = "keys_and_values_that_all_panic_on_drop_end_only_their_shrinker";
    in_both_modes(name, &[], || {
        watchdog();
        quietly();
        let cache = LruCache::new("bombs").unwrap();
        for number in 0..1000 {
            cache.insert(Bomb::new(number), Bomb::new(number));
        }
        reclaim(usize::MAX);
        assert!(cache.len() < 1000, "some went");
        assert_eq!(ALIVE.load(SeqCst), 2 * cache.len() as isize);
        assert!(panics(|| cache.clear()));
        assert_eq!((ALIVE.load(SeqCst), cache.len()), (0, 0), "evicted entries were not all dropped");
        cache.insert(Bomb::new(1), Bomb::new(1));
        drop(cache);
        assert_eq!(ALIVE.load(SeqCst), 0);

        struct Queue(VecDeque<Bomb>);
        impl EvictColdest for Queue {
            type Evicted = Bomb;
            fn entries(&self) -> usize {
                self.0.len()
            }
            fn evict_coldest(&mut self) -> Option<Bomb> {
                assert!(self.0.len() != 990, "panics for the test, in the cache's own code");
                self.0.pop_front()
            }
        }
        let queue = Shared::new("queue", Queue((0..1000).map(Bomb::new).collect())).unwrap();
        reclaim(usize::MAX);
        assert_eq!((ALIVE.load(SeqCst), queue.lock().0.len()), (990, 990));
        std::mem::take(&mut queue.lock().0).into_iter().for_each(std::mem::forget);
        drop(queue);
    });
}

#[test]
fn a_panic_on_a_thread_of_the_library_ends_only_the_shrinker() {
    in_both_modes("a_panic_on_a_thread_of_the_library_ends_only_the_shrinker", &[], || {
        watchdog();
        quietly();
        static CALLED: OnceLock<String> = OnceLock::new();
        let cache = LruCache::new("bombs").unwrap();
        for number in 0..1000 {
            cache.insert(number, (Bomb::new(number), [1u8; 5000]));
        }
        let _asked = when_asked(|| {
            CALLED.get_or_init(|| std::fs::read_to_string("/proc/thread-self/comm").unwrap());
        });
        uslab::set_limit(1 << 20, 0).unwrap();
        let start = Instant::now();
        while cache.len() == 1000 || CALLED.get().is_none() {
            assert!(start.elapsed() < Duration::from_secs(120), "the background thread evicts nothing");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(CALLED.get().unwrap(), "uslab-shrink\n");
        uslab::set_limit(0, 0).unwrap();
        std::mem::forget(cache);
    });
}

static CLOSED_PAGE: AtomicUsize = AtomicUsize::new(0);
static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// Opens the page that the instruction could not write to.
extern "C" fn open_page(_: libc::c_int) {
    FAULTS.fetch_add(1, SeqCst);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the page is the test's; the call is async-signal-safe.
    unsafe { libc::mprotect(CLOSED_PAGE.load(SeqCst) as *mut _, 4096, access) };
}

/// The library's thread blocks all signals, but not those of the callback's own instructions.
#[test]
fn a_callback_in_the_background_may_rely_on_the_handler_of_its_faults() {
    in_both_modes("a_callback_in_the_background_may_rely_on_the_handler_of_its_faults", &[], || {
        watchdog();
        static CALLED: OnceLock<String> = OnceLock::new();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping; the handler is a function of that type.
        unsafe {
            let page = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0);
            CLOSED_PAGE.store(page as usize, SeqCst);
            libc::signal(libc::SIGSEGV, open_page as *const () as usize);
        }
        let _asked = when_asked(|| {
            CALLED.get_or_init(|| {
                // SAFETY: the handler opens the page.
                unsafe { (CLOSED_PAGE.load(SeqCst) as *mut u8).write_volatile(1) };
                std::fs::read_to_string("/proc/thread-self/comm").unwrap()
            });
        });
        let objects: Vec<*mut u8> = (0..2000).map(|_| uslab::malloc::malloc(4000)).collect();
        uslab::set_limit(1 << 20, 0).unwrap();
        let start = Instant::now();
        while CALLED.get().is_none() {
            assert!(start.elapsed() < Duration::from_secs(120), "the background thread calls no shrinker");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((CALLED.get().unwrap().as_str(), FAULTS.load(SeqCst)), ("uslab-shrink\n", 1));
        uslab::set_limit(0, 0).unwrap();
        // SAFETY: each was allocated above.
        objects.into_iter().for_each(|object| unsafe { uslab::malloc::free(object) });
    });
}

#[test]
fn a_box_whose_value_panics_on_drop_frees_its_object() {
    in_both_modes("a_box_whose_value_panics_on_drop_frees_its_object", &[], || {
        quietly();
        let cache = uslab::CacheBuilder::new("boxes").build::<Bomb>().unwrap();
        assert!(panics(|| drop(cache.insert(Bomb::new(1)).ok())));
        // A cache with a live object would stay.
        assert!(cache.destroy().is_ok());
    });
}
