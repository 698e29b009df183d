//! Shrinkers in correct use and in misuse: callbacks that block, return wrong counts, panic, or
//! unregister themselves.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread;
use uslab::{Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, reclaim, register_shrinker};

/// Reclaim acts on the whole process, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A cache that is only a number of entries, and a record of the calls.
#[derive(Default)]
struct Counted {
    entries: AtomicUsize,
    scanned: AtomicUsize,
    calls: AtomicUsize,
    _drops: Drops,
}

/// Counts its drops.
#[derive(Default)]
struct Drops(Arc<AtomicUsize>);

impl Drop for Drops {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Counted {
    fn of(entries: usize) -> Self {
        Counted { entries: AtomicUsize::new(entries), ..Counted::default() }
    }
}

impl Shrinker for Counted {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.entries.load(SeqCst)
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        let freed = control.nr_to_scan.min(self.entries.load(SeqCst));
        self.entries.fetch_sub(freed, SeqCst);
        self.scanned.fetch_add(freed, SeqCst);
        self.calls.fetch_add(1, SeqCst);
        Scan::Freed(freed)
    }
}

/// A shrinker whose `scan` is a closure.
struct Scripted<F>(F);

impl<F: Fn(&ShrinkControl) -> Scan + Send + Sync + 'static> Shrinker for Scripted<F> {
    fn count(&self, _: &ShrinkControl) -> usize {
        1000
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        (self.0)(control)
    }
}

fn register<S: Shrinker>(name: &str, shrinker: S) -> Registration<S> {
    register_shrinker(name, ShrinkerOptions::default(), shrinker).expect("there is memory")
}

#[test]
fn everything_goes_when_everything_is_asked_for() {
    let _turn = alone();
    let caches = [7, 1000, 100_000].map(|entries| register("all", Counted::of(entries)));
    reclaim(usize::MAX);
    assert!(caches.iter().all(|cache| cache.entries.load(SeqCst) == 0));
}

#[test]
fn dear_entries_go_as_well_when_everything_is_asked_for() {
    let _turn = alone();
    let dear = register("dear", Counted::of(10_000));
    dear.set_miss_cost_ns(200_000_000);
    reclaim(usize::MAX);
    assert_eq!(dear.entries.load(SeqCst), 0);
}

#[test]
fn a_goal_that_free_memory_meets_costs_no_entry() {
    let _turn = alone();
    let cache = register("kept", Counted::of(1000));
    let objects = uslab::CacheBuilder::new("reclaimed").build_raw(2048).expect("a cache");
    let live: Vec<_> = (0..500).map(|_| objects.alloc().expect("memory")).collect();
    for object in live {
        // SAFETY: a live object of this cache, freed once. The write puts memory behind it.
        unsafe {
            object.as_ptr().write_bytes(1, 2048);
            objects.free(object);
        }
    }
    assert!(reclaim(64 << 10) >= 64 << 10);
    assert_eq!(cache.calls.load(SeqCst), 0);
}

/// Entries with memory behind them.
struct Pages {
    cache: uslab::RawCache,
    entries: Mutex<Vec<usize>>,
    scanned: AtomicUsize,
}

impl Pages {
    fn new() -> Pages {
        let cache = uslab::CacheBuilder::new("pages").build_raw(4096).expect("a cache");
        Pages { cache, entries: Mutex::default(), scanned: AtomicUsize::new(0) }
    }

    /// Adds entries until there are `count`. Returns the number added.
    fn fill(&self, count: usize) -> usize {
        let mut entries = self.entries.lock().expect("no thread panics while it holds the lock");
        let before = entries.len();
        while entries.len() < count {
            let object = self.cache.alloc().expect("memory");
            // SAFETY: just allocated from the cache, with that size.
            unsafe { object.as_ptr().write_bytes(1, 4096) };
            entries.push(object.as_ptr() as usize);
        }
        count - before
    }

    fn free(&self, address: usize) {
        let object = std::ptr::NonNull::new(address as *mut u8).expect("an object");
        // SAFETY: allocated from the cache in `fill`, and removed from the list once.
        unsafe { self.cache.free(object) };
    }
}

impl Shrinker for Pages {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.entries.lock().map_or(0, |entries| entries.len())
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        let Ok(mut entries) = self.entries.lock() else { return Scan::Stop };
        let keep = entries.len().saturating_sub(control.nr_to_scan);
        let gone = entries.split_off(keep);
        self.scanned.fetch_add(gone.len(), SeqCst);
        gone.iter().for_each(|&address| self.free(address));
        Scan::Freed(gone.len())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let entries =
            std::mem::take(&mut *self.entries.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        entries.into_iter().for_each(|address| self.free(address));
    }
}

#[test]
fn entries_that_come_back_are_worth_more() {
    let _turn = alone();
    let [plain, wanted] = ["plain", "wanted"].map(|name| register(name, Pages::new()));
    for _ in 0..30 {
        // The program refills the first cache after each pass; it never refills the second.
        plain.fill(4000);
        wanted.note_refaults(wanted.fill(4000) as u64);
        uslab::trim(0);
        reclaim(1 << 20);
    }
    let (plain, wanted) = (plain.scanned.load(SeqCst), wanted.scanned.load(SeqCst));
    println!("{wanted} went of the cache whose entries come back, {plain} of the other");
    assert!(wanted * 2 < plain && wanted > 0);
}

#[test]
fn a_shrinker_may_allocate_from_its_own_cache() {
    struct Own(uslab::RawCache, AtomicUsize);
    impl Shrinker for Own {
        fn count(&self, _: &ShrinkControl) -> usize {
            1000
        }
        fn scan(&self, control: &ShrinkControl) -> Scan {
            let objects: Vec<_> = (0..control.nr_to_scan).map_while(|_| self.0.alloc()).collect();
            self.1.fetch_add(objects.len(), SeqCst);
            // SAFETY: just allocated from this cache.
            objects.into_iter().for_each(|object| unsafe { self.0.free(object) });
            Scan::Freed(0)
        }
    }
    let _turn = alone();
    let cache = uslab::CacheBuilder::new("own").build_raw(512).expect("a cache");
    let own = register("own", Own(cache, AtomicUsize::new(0)));
    reclaim(usize::MAX);
    assert!(own.1.load(SeqCst) > 0);
}

#[test]
fn a_blocked_callback_delays_only_its_own_thread() {
    let _turn = alone();
    let (entered, is_inside): (Sender<()>, Receiver<()>) = channel();
    let (go, gate) = channel::<()>();
    let (entered, gate) = (Mutex::new(entered), Mutex::new(gate));
    let first = AtomicBool::new(true);
    let blocking = register(
        "blocking",
        Scripted(move |_: &ShrinkControl| {
            if first.swap(false, SeqCst) {
                entered.lock().unwrap().send(()).unwrap();
                gate.lock().unwrap().recv().unwrap();
            }
            Scan::Stop
        }),
    );
    let stuck = thread::spawn(|| reclaim(usize::MAX));
    is_inside.recv().unwrap();
    let other = register("other", Counted::of(1000));
    reclaim(usize::MAX);
    assert_eq!(other.entries.load(SeqCst), 0);
    go.send(()).unwrap();
    stuck.join().unwrap();
    assert!(blocking.unregister());
}

#[test]
fn unregistering_waits_for_the_callback_and_drops_once() {
    let _turn = alone();
    let dropped = Arc::new(AtomicUsize::new(0));
    for _ in 0..200 {
        let cache =
            register("waited", Counted { _drops: Drops(Arc::clone(&dropped)), ..Counted::of(100_000) });
        let before = dropped.load(SeqCst);
        let reclaimer = thread::spawn(|| reclaim(usize::MAX));
        assert!(cache.unregister());
        assert_eq!(dropped.load(SeqCst), before + 1);
        reclaimer.join().unwrap();
    }
    assert_eq!(dropped.load(SeqCst), 200);
}

#[test]
fn a_panic_ends_the_calls_of_its_shrinker_only() {
    let _turn = alone();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let panicking = register(
        "panicking",
        Scripted(move |_: &ShrinkControl| {
            seen.fetch_add(1, SeqCst);
            panic!("panics for the test")
        }),
    );
    let other = register("other", Counted::of(1000));
    reclaim(usize::MAX);
    other.entries.store(1000, SeqCst);
    reclaim(usize::MAX);
    assert_eq!((calls.load(SeqCst), other.entries.load(SeqCst)), (1, 0));
    assert!(panicking.unregister());
    // A new shrinker reuses its place.
    let next = register("next", Counted::of(10));
    reclaim(usize::MAX);
    assert_eq!(next.entries.load(SeqCst), 0);
}

#[test]
fn unregistering_in_a_callback_takes_effect_when_it_returns() {
    let _turn = alone();
    static OWN: OnceLock<Mutex<Option<Box<dyn Send>>>> = OnceLock::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let cache = register(
        "leaving",
        Scripted(move |_: &ShrinkControl| {
            seen.fetch_add(1, SeqCst);
            drop(OWN.get().unwrap().lock().unwrap().take());
            Scan::Freed(1)
        }),
    );
    OWN.get_or_init(Mutex::default).lock().unwrap().replace(Box::new(cache));
    reclaim(usize::MAX);
    let after = calls.load(SeqCst);
    reclaim(usize::MAX);
    assert!(after >= 1);
    assert_eq!(calls.load(SeqCst), after, "it is gone");
    assert_eq!(Arc::strong_count(&calls), 1, "and was dropped");
}

#[test]
fn callbacks_allocate_reclaim_and_register() {
    let _turn = alone();
    static INNER: Mutex<Vec<Registration<Counted>>> = Mutex::new(Vec::new());
    let outer = register(
        "outer",
        Scripted(|control: &ShrinkControl| {
            let boxes: Vec<Box<[u8; 100]>> = (0..control.nr_to_scan).map(|_| Box::new([1; 100])).collect();
            let own = uslab::malloc::malloc(100);
            // SAFETY: from this malloc, freed once.
            unsafe { uslab::malloc::free(own) };
            assert_eq!(reclaim(usize::MAX), 0, "reclaim does not re-enter itself");
            if INNER.lock().unwrap().len() < 3 {
                INNER.lock().unwrap().push(register("inner", Counted::of(10)));
            }
            Scan::Freed(boxes.len())
        }),
    );
    reclaim(usize::MAX);
    reclaim(usize::MAX);
    let inner = std::mem::take(&mut *INNER.lock().unwrap());
    assert!(!inner.is_empty() && inner.iter().all(|cache| cache.entries.load(SeqCst) == 0));
    drop(outer);
}

/// Always counts entries, and frees nothing.
struct Liar(AtomicUsize);

impl Shrinker for Liar {
    fn count(&self, _: &ShrinkControl) -> usize {
        usize::MAX
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        self.0.fetch_add(1, SeqCst);
        Scan::Freed(0)
    }
}

#[test]
fn a_liar_costs_a_pass_its_budget_and_no_more() {
    let _turn = alone();
    let liar = register("liar", Liar(AtomicUsize::new(0)));
    let honest = register("honest", Counted::of(100));
    reclaim(usize::MAX);
    assert!(liar.0.load(SeqCst) > 0);
    assert_eq!(honest.entries.load(SeqCst), 0);
}

#[test]
fn many_threads_reclaim_while_shrinkers_come_and_go() {
    let _turn = alone();
    let stop = AtomicBool::new(false);
    let dropped = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    reclaim(usize::MAX);
                }
            });
        }
        let makers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let cache = Counted { _drops: Drops(Arc::clone(&dropped)), ..Counted::of(500) };
                        drop(register("passing", cache));
                    }
                })
            })
            .collect();
        makers.into_iter().for_each(|maker| maker.join().unwrap());
        stop.store(true, SeqCst);
    });
    assert_eq!(dropped.load(SeqCst), 1200);
}

#[test]
fn a_fork_child_reclaims_after_a_fork_during_a_callback() {
    let _turn = alone();
    // Flags instead of channels: a child must not use a lock that another thread of the parent may
    // hold.
    let entered = Arc::new(AtomicBool::new(false));
    let go = Arc::new(AtomicBool::new(false));
    let (callback_entered, callback_go) = (Arc::clone(&entered), Arc::clone(&go));
    let stuck = register(
        "inside at the fork",
        Scripted(move |_: &ShrinkControl| {
            if !callback_entered.swap(true, SeqCst) {
                while !callback_go.load(SeqCst) {
                    thread::yield_now();
                }
            }
            Scan::Stop
        }),
    );
    let other = register("in the child", Counted::of(1000));
    let reclaimer = thread::spawn(|| reclaim(usize::MAX));
    while !entered.load(SeqCst) {
        thread::yield_now();
    }
    other.entries.store(1000, SeqCst);
    // SAFETY: the child calls nothing that another thread could have left locked: this library and
    // _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        reclaim(usize::MAX);
        // Unregistering the shrinker whose callback was running shows that the child waits for no
        // thread.
        let ok = other.entries.load(SeqCst) == 0 && stuck.unregister();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    go.store(true, SeqCst);
    reclaimer.join().unwrap();
}

/// Frees a megabyte, which stays in sheaves and slabs, and reclaims it.
fn gives_back(objects: &uslab::RawCache) -> bool {
    let mut live = [std::ptr::null_mut(); 500];
    if !objects.alloc_bulk(&mut live) {
        return false;
    }
    // SAFETY: all are live objects of this cache, freed once. The writes put memory behind them.
    unsafe {
        live.iter().for_each(|object| object.write_bytes(1, 2048));
        objects.free_bulk(&live);
    }
    // Longer than the library remembers that a reclaim found nothing.
    thread::sleep(std::time::Duration::from_millis(30));
    reclaim(usize::MAX) >= 64 << 10
}

#[test]
fn a_fork_in_the_middle_of_a_release_leaves_the_child_able_to_release() {
    let _turn = alone();
    let objects = uslab::CacheBuilder::new("forked").build_raw(2048).expect("a cache");
    let churned = uslab::CacheBuilder::new("churned").build_raw(4096).expect("a cache");
    let stop = AtomicBool::new(false);
    let failed = thread::scope(|scope| {
        scope.spawn(|| {
            let mut live = [std::ptr::null_mut(); 256];
            while !stop.load(SeqCst) {
                assert!(churned.alloc_bulk(&mut live));
                // SAFETY: a live object of this cache, freed once.
                unsafe {
                    live.iter().for_each(|object| object.write_bytes(1, 4096));
                    churned.free_bulk(&live);
                }
                reclaim(usize::MAX);
            }
        });
        let failed = (0..40).any(|_| {
            // SAFETY: the child calls nothing that another thread could have left locked: this
            // library and _exit.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!gives_back(&objects))) };
            }
            let mut status = 0;
            // SAFETY: `status` is a valid place.
            unsafe { libc::waitpid(child, &mut status, 0) };
            status != 0
        });
        stop.store(true, SeqCst);
        failed
    });
    assert!(!failed);
}

#[test]
fn a_destructor_that_panics_does_no_harm() {
    /// Panics when it is dropped; its scan drops its own registration, if there is one in `OWN`.
    struct Panics;
    static OWN: Mutex<Option<Registration<Panics>>> = Mutex::new(None);
    impl Shrinker for Panics {
        fn count(&self, _: &ShrinkControl) -> usize {
            1000
        }
        fn scan(&self, _: &ShrinkControl) -> Scan {
            drop(OWN.lock().unwrap().take());
            Scan::Stop
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("panics for the test")
        }
    }
    let _turn = alone();
    let other = register("other", Counted::of(0));
    let everything_goes = || {
        other.entries.store(1000, SeqCst);
        reclaim(usize::MAX);
        other.entries.load(SeqCst) == 0
    };
    assert!(register("panics, unregistered", Panics).unregister());
    assert!(everything_goes(), "reclaim still takes this thread to be inside a callback");
    drop(register("panics, dropped", Panics));
    assert!(everything_goes());
    OWN.lock().unwrap().replace(register("panics, from within", Panics));
    assert!(everything_goes() && OWN.lock().unwrap().is_none());
    assert!(everything_goes());
    assert!(thread::scope(|scope| scope.spawn(everything_goes).join().unwrap()));
}

#[test]
fn caches_come_and_go_while_threads_look_for_free_memory() {
    let _turn = alone();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    reclaim(1);
                }
            });
        }
        for round in 0..2000 {
            let caches = [64, 200, 4096].map(|bytes| uslab::CacheBuilder::new("passing").build_raw(bytes));
            for cache in caches.into_iter().rev() {
                let cache = cache.expect("memory");
                let object = cache.alloc().expect("memory");
                // SAFETY: an object of this cache, freed once.
                unsafe { cache.free(object) };
                assert!(cache.destroy().is_ok(), "round {round}");
            }
        }
        stop.store(true, SeqCst);
    });
}
