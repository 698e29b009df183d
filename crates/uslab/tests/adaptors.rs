//! Adaptors for caches of other crates: one macro runs the same tests on each crate's cache and on
//! each lock around it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::thread;
use uslab::reclaim;
use uslab::reclaim::adaptors::{EvictColdest, EvictLock, Locked, Shared};
use uslab::{Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker};

/// Memory that an entry owns then returns to this allocator when the entry is evicted.
#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

/// Reclaim acts on the whole process, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

type Log = Arc<Mutex<Vec<u32>>>;

/// A value that records its key when it is dropped.
struct Value {
    key: u32,
    log: Log,
    _page: Box<[u8; 4096]>,
}

impl Value {
    fn new(key: u32, log: &Log) -> Self {
        Value { key, log: Arc::clone(log), _page: Box::new([1; 4096]) }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.log.lock().unwrap().push(self.key);
    }
}

/// The operations of a cache that the tests use.
trait Subject: EvictColdest + Send + Sync {
    fn empty() -> Self;
    fn put(&mut self, value: Value);
    /// Looks a key up, which makes it the newest.
    fn touch(&mut self, key: u32) -> bool;
}

impl Subject for lru::LruCache<u32, Value> {
    fn empty() -> Self {
        lru::LruCache::unbounded()
    }
    fn put(&mut self, value: Value) {
        self.push(value.key, value);
    }
    fn touch(&mut self, key: u32) -> bool {
        self.get(&key).is_some()
    }
}

impl Subject for schnellru::LruMap<u32, Value, schnellru::Unlimited> {
    fn empty() -> Self {
        schnellru::LruMap::new(schnellru::Unlimited)
    }
    fn put(&mut self, value: Value) {
        assert!(self.insert(value.key, value));
    }
    fn touch(&mut self, key: u32) -> bool {
        self.get(&key).is_some()
    }
}

fn filled<C: Subject>(keys: u32, log: &Log) -> C {
    let mut cache = C::empty();
    (0..keys).for_each(|key| cache.put(Value::new(key, log)));
    cache
}

/// A light pass, as under pressure: its goal is one page.
fn press() {
    reclaim(1);
}

const SCAN: ShrinkControl = scan_of(100);

const fn scan_of(nr_to_scan: usize) -> ShrinkControl {
    ShrinkControl { nr_to_scan, priority: 12, flags: 0 }
}

fn the_coldest_go_first<C: Subject>() {
    let _turn = alone();
    let log = Log::default();
    let cache = Shared::new("ages", filled::<C>(3000, &log)).unwrap();
    (0..3000).step_by(3).for_each(|key| assert!(cache.lock().touch(key)));
    while log.lock().unwrap().len() < 2200 {
        press();
    }
    let gone = log.lock().unwrap().clone();
    assert!(gone.len() < 3000, "light passes took everything");
    let order = (0..3000).filter(|key| key % 3 != 0).chain((0..3000).step_by(3));
    assert!(order.take(gone.len()).eq(gone.iter().copied()), "not the order of use");
    assert_eq!(cache.evicted(), gone.len() as u64);
    reclaim(usize::MAX);
    assert_eq!(cache.lock().entries(), 0);
}

fn equal_seeks_age_alike<C: Subject>() {
    let _turn = alone();
    let log = Log::default();
    let options = ShrinkerOptions { batch: 16, ..ShrinkerOptions::default() };
    let caches = [2000, 6000]
        .map(|keys| (keys, Shared::with_options("sizes", options, filled::<C>(keys, &log)).unwrap()));
    let fraction = |of: &(u32, Shared<C>)| of.1.evicted() as f64 / f64::from(of.0);
    while fraction(&caches[1]) < 0.4 {
        press();
    }
    let (small, large) = (fraction(&caches[0]), fraction(&caches[1]));
    assert!((small / large - 1.0).abs() < 0.03, "{small} of the small one, {large} of the large one");
}

fn expensive_entries_stay<C: Subject>() {
    let _turn = alone();
    let log = Log::default();
    let [cheap, dear] = [5_000, 50_000].map(|cost_ns| {
        let cache = Shared::new("costs", filled::<C>(3000, &log)).unwrap();
        cache.set_miss_cost_ns(cost_ns);
        cache
    });
    while cheap.evicted() < 1500 {
        press();
    }
    assert!(dear.evicted() * 5 < cheap.evicted(), "{} {}", cheap.evicted(), dear.evicted());
}

fn a_held_lock_postpones_eviction<C: Subject>() {
    let _turn = alone();
    let log = Log::default();
    let cache = Shared::new("busy", filled::<C>(500, &log)).unwrap();
    let held = cache.lock();
    // On the thread that holds the lock, and on another one.
    reclaim(usize::MAX);
    thread::scope(|scope| scope.spawn(|| reclaim(usize::MAX)).join().unwrap());
    assert_eq!((held.entries(), log.lock().unwrap().len()), (500, 0));
    drop(held);
    reclaim(usize::MAX);
    assert_eq!((cache.lock().entries(), log.lock().unwrap().len()), (0, 500));

    let lock = Locked::new(Arc::new(RwLock::new(filled::<C>(500, &log))));
    assert_eq!(lock.count(&scan_of(0)), 500);
    let shared = Arc::new(Mutex::new(filled::<C>(500, &log)));
    let mutex = Locked::new(Arc::clone(&shared));
    let held = shared.lock().unwrap();
    assert_eq!((mutex.count(&scan_of(0)), mutex.scan(&SCAN)), (0, Scan::Stop));
    drop(held);
    assert_eq!(mutex.count(&scan_of(0)), 500);
    assert_eq!(mutex.scan(&SCAN), Scan::Freed(100));
    let held = shared.lock().unwrap();
    assert_eq!(mutex.scan(&SCAN), Scan::Stop);
    assert!(mutex.count(&scan_of(0)) > 0, "a cache whose lock is held still counts its entries");
    drop(held);
    assert_eq!(mutex.scan(&scan_of(1000)), Scan::Freed(400));
    assert_eq!(mutex.scan(&SCAN), Scan::Freed(0));
}

fn a_reader_is_not_disturbed<C: Subject>() {
    let _turn = alone();
    let log = Log::default();
    let lock = Arc::new(RwLock::new(filled::<C>(50, &log)));
    let registration = Locked::register("read", Arc::clone(&lock)).unwrap();
    let reading = lock.read().unwrap();
    reclaim(usize::MAX);
    assert_eq!((reading.entries(), registration.evicted()), (50, 0));
    drop(reading);
    reclaim(usize::MAX);
    assert_eq!((lock.read().unwrap().entries(), registration.evicted()), (0, 50));
}

fn dropping_it_unregisters<C: Subject>() {
    let _turn = alone();
    let log = Log::default();
    let lock = Arc::new(Mutex::new(filled::<C>(50, &log)));
    let registration = Locked::register("left", Arc::clone(&lock)).unwrap();
    drop(registration);
    assert_eq!(Arc::strong_count(&lock), 1);
    reclaim(usize::MAX);
    assert_eq!(lock.lock().unwrap().entries(), 50);
    let shared = Shared::new("gone", filled::<C>(50, &log)).unwrap();
    drop(shared);
    assert_eq!(log.lock().unwrap().len(), 50);
    reclaim(usize::MAX);
    drop(lock);
    assert_eq!(log.lock().unwrap().len(), 100);
}

/// An entry that uses the other cache when it is dropped. If it were dropped under a lock, the test
/// would hang.
struct UsesOtherOnDrop<C: Subject> {
    own: Weak<Mutex<C>>,
    other: Arc<Shared<C>>,
    told: Arc<AtomicUsize>,
    log: Log,
}

impl<C: Subject> EvictColdest for UsesOtherOnDrop<C> {
    type Evicted = Variable<C>;
    fn entries(&self) -> usize {
        self.own.upgrade().map_or(0, |own| own.lock().unwrap().entries())
    }
    fn evict_coldest(&mut self) -> Option<Variable<C>> {
        let own = self.own.upgrade()?;
        let evicted = own.lock().unwrap().evict_coldest()?;
        let (other, told, log) = (Arc::clone(&self.other), Arc::clone(&self.told), Arc::clone(&self.log));
        Some(Variable { own, other, told, log, _evicted: evicted })
    }
}

struct Variable<C: Subject> {
    own: Arc<Mutex<C>>,
    other: Arc<Shared<C>>,
    told: Arc<AtomicUsize>,
    log: Log,
    _evicted: C::Evicted,
}

impl<C: Subject> Drop for Variable<C> {
    fn drop(&mut self) {
        assert_eq!(reclaim(usize::MAX), 0, "reclaim re-entered itself");
        self.other.lock().put(Value::new(self.told.fetch_add(1, SeqCst) as u32, &self.log));
        self.own.lock().unwrap().touch(0);
    }
}

fn it_can_be_used_in_a_callback_of_another<C: Subject>() {
    let _turn = alone();
    let log = Log::default();
    let own = Arc::new(Mutex::new(filled::<C>(1000, &log)));
    let other = Arc::new(Shared::new("other", filled::<C>(1000, &log)).unwrap());
    let told = Arc::new(AtomicUsize::new(0));
    let telling = UsesOtherOnDrop {
        own: Arc::downgrade(&own),
        other: Arc::clone(&other),
        told: Arc::clone(&told),
        log: Arc::clone(&log),
    };
    let registration = Locked::register("telling", Mutex::new(telling)).unwrap();
    thread::scope(|scope| {
        (0..4).for_each(|_| {
            scope.spawn(|| (0..20).map(|_| reclaim(64 << 10)).sum::<usize>());
        });
    });
    reclaim(usize::MAX);
    assert_eq!((told.load(SeqCst), registration.evicted()), (1000, 1000));
    assert_eq!(own.lock().unwrap().entries(), 0);
    reclaim(usize::MAX);
    assert_eq!(other.lock().entries(), 0);
}

fn many_threads_use_it_while_memory_is_wanted<C: Subject>() {
    let _turn = alone();
    let log = Log::default();
    let cache = Shared::new("many", C::empty()).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                press();
            }
        });
        let users: Vec<_> = (0..4)
            .map(|user| {
                let (cache, log) = (&cache, &log);
                scope.spawn(move || {
                    for key in user * 5000..(user + 1) * 5000 {
                        cache.lock().put(Value::new(key, log));
                        cache.lock().touch(key / 2);
                    }
                })
            })
            .collect();
        users.into_iter().for_each(|user| user.join().unwrap());
        stop.store(true, SeqCst);
    });
    let live = cache.lock().entries();
    assert_eq!(live + log.lock().unwrap().len(), 20_000);
    assert_eq!(cache.evicted() as usize, 20_000 - live);
    drop(cache);
    assert_eq!(log.lock().unwrap().len(), 20_000);
}

macro_rules! subjects {
    ($($name:ident: $cache:ty),* ; $tests:tt) => { $(subjects!(@ $name, $cache, $tests);)* };
    (@ $name:ident, $cache:ty, [$($test:ident),* $(,)?]) => {
        mod $name {
            $(#[test] fn $test() { super::$test::<$cache>(); })*
        }
    };
}

subjects!(
    of_lru: lru::LruCache<u32, super::Value>,
    of_schnellru: schnellru::LruMap<u32, super::Value, schnellru::Unlimited>;
    [
        the_coldest_go_first,
        equal_seeks_age_alike,
        expensive_entries_stay,
        a_held_lock_postpones_eviction,
        a_reader_is_not_disturbed,
        dropping_it_unregisters,
        it_can_be_used_in_a_callback_of_another,
        many_threads_use_it_while_memory_is_wanted,
    ]
);

/// A lock of another kind, for which no thread ever waits.
struct FlagLock<C>(AtomicBool, std::cell::UnsafeCell<C>);

// SAFETY: only the thread that set the flag accesses the cache. The cache moves between threads,
// which `C: Send` allows.
unsafe impl<C: Send> Sync for FlagLock<C> {}

impl<C: EvictColdest + Send> EvictLock for FlagLock<C> {
    type Cache = C;
    fn try_with<R>(&self, with: impl FnOnce(&mut C) -> R) -> Option<R> {
        if self.0.swap(true, SeqCst) {
            return None;
        }
        // SAFETY: this thread has just set the flag.
        let result = with(unsafe { &mut *self.1.get() });
        self.0.store(false, SeqCst);
        Some(result)
    }
}

#[test]
fn a_lock_of_the_programs_own_works() {
    let _turn = alone();
    let log = Log::default();
    let cache: lru::LruCache<u32, Value> = filled(100, &log);
    let spot = Arc::new(FlagLock(AtomicBool::new(true), cache.into()));
    let _registration = Locked::register("spot", Arc::clone(&spot)).unwrap();
    reclaim(usize::MAX);
    assert_eq!(log.lock().unwrap().len(), 0);
    spot.0.store(false, SeqCst);
    reclaim(usize::MAX);
    assert_eq!(log.lock().unwrap().len(), 100);
}

/// A cache that panics when its third entry is evicted.
struct Failing(u32);

impl EvictColdest for Failing {
    type Evicted = u32;
    fn entries(&self) -> usize {
        100
    }
    fn evict_coldest(&mut self) -> Option<u32> {
        self.0 += 1;
        assert!(self.0 < 3, "panics for the test");
        Some(self.0)
    }
}

#[test]
fn a_cache_that_panics_is_left_alone_and_can_be_used() {
    let _turn = alone();
    let log = Log::default();
    let other = Shared::new("sound", filled::<lru::LruCache<u32, Value>>(100, &log)).unwrap();
    let failing = Shared::new("failing", Failing(0)).unwrap();
    reclaim(usize::MAX);
    reclaim(usize::MAX);
    assert_eq!(failing.lock().0, 3);
    assert_eq!(other.lock().len(), 0);
}

#[test]
fn adaptors_and_the_ready_made_cache_age_alike() {
    let _turn = alone();
    let log = Log::default();
    let options = ShrinkerOptions { batch: 16, ..ShrinkerOptions::default() };
    let adapted = filled::<lru::LruCache<u32, Value>>(4000, &log);
    let adapted = register_shrinker("adapted", options, Locked::new(Mutex::new(adapted))).unwrap();
    let ready = reclaim::LruCache::new("ready").unwrap();
    (0..4000).for_each(|key| drop(ready.insert(key, Value::new(key, &log))));
    while adapted.evicted() < 2000 {
        press();
    }
    let ready = ready.stats().evicted as f64;
    // `LruCache` evicts in batches of 128.
    assert!((ready - adapted.evicted() as f64).abs() <= 300.0, "{ready} of {}", adapted.evicted());
}
