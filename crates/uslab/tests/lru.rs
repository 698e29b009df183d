//! `LruCache`: against a naive model, with many threads, and under reclaim.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use uslab::reclaim;
use uslab::reclaim::LruCache;

/// Reclaim acts on the whole process, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A value that counts its live instances.
struct Value(u64, Arc<AtomicIsize>);

impl Value {
    fn new(value: u64, alive: &Arc<AtomicIsize>) -> Self {
        alive.fetch_add(1, SeqCst);
        Value(value, Arc::clone(alive))
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.1.fetch_sub(1, SeqCst);
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn it_is_a_map_as_long_as_memory_is_not_short() {
    let _turn = alone();
    let alive = Arc::new(AtomicIsize::new(0));
    let cache = LruCache::new("map").unwrap();
    let mut model = HashMap::new();
    let mut state = 1;
    for _ in 0..50_000 {
        let (what, key, value) = (random(&mut state) % 10, random(&mut state) % 500, random(&mut state));
        match what {
            0..=4 => assert_eq!(cache.look(&key, |value: &Value| value.0), model.get(&key).copied()),
            5..=7 => {
                let before = cache.insert(key, Value::new(value, &alive)).map(|value| value.0);
                assert_eq!(before, model.insert(key, value));
            }
            8 => assert_eq!(cache.remove(&key).map(|value| value.0), model.remove(&key)),
            _ => assert_eq!(cache.len(), model.len()),
        }
        assert_eq!(alive.load(SeqCst), model.len() as isize);
    }
    cache.clear();
    assert!(cache.is_empty() && alive.load(SeqCst) == 0);
    cache.insert(1, Value::new(1, &alive));
    drop(cache);
    assert_eq!(alive.load(SeqCst), 0);
}

#[test]
fn keys_are_found_by_borrowed_forms() {
    let _turn = alone();
    let cache = LruCache::new("strings").unwrap();
    cache.insert(String::from("key"), 1);
    assert_eq!(cache.get("key"), Some(1));
    assert_eq!(cache.remove("key"), Some(1));
    assert_eq!((cache.stats().hits, cache.stats().misses), (1, 0));
}

#[test]
fn the_oldest_go_first_and_everything_if_it_must() {
    let _turn = alone();
    let cache = LruCache::new("ages").unwrap();
    (0..20_000u32).for_each(|key| {
        cache.insert(key, key);
    });
    // A lookup makes an entry the newest.
    (0..1000).for_each(|key| assert!(cache.get(&key).is_some()));
    // Goals slightly above the free memory, until half of the entries are evicted: none of the
    // newest may be among them.
    while cache.len() > 10_000 {
        thread::sleep(std::time::Duration::from_millis(15));
        reclaim(64 << 10);
    }
    assert!(cache.len() > 1000, "a pass evicted more than its goal");
    (0..1000).for_each(|key| assert!(cache.get(&key).is_some(), "{key} was among the newest"));
    reclaim(usize::MAX);
    assert_eq!(cache.len(), 0);
    assert_eq!(cache.stats().evicted, 20_000);
}

#[test]
fn entries_that_are_expensive_to_make_are_kept_longer() {
    let _turn = alone();
    let (cheap, dear) = (LruCache::new("cheap").unwrap(), LruCache::new("dear").unwrap());
    for key in 0..20_000u32 {
        cheap.get_or_insert_with(key, || key);
    }
    dear.get_or_insert_with(0, || {
        thread::sleep(std::time::Duration::from_millis(2));
        0
    });
    (1..20_000u32).for_each(|key| {
        dear.insert(key, key);
    });
    assert!(dear.stats().miss_ns >= 2_000_000 && cheap.stats().miss_ns < 1_000_000);
    // Goals slightly above the free memory, until the cheap cache has half of its entries.
    while cheap.len() > 10_000 {
        thread::sleep(std::time::Duration::from_millis(15));
        reclaim(256 << 10);
    }
    assert!(dear.len() > 15_000, "{} {}", cheap.len(), dear.len());
}

#[test]
fn many_threads_use_it_while_memory_is_wanted() {
    let _turn = alone();
    let alive = Arc::new(AtomicIsize::new(0));
    let cache = LruCache::new("busy").unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                reclaim(1 << 20);
            }
        });
        let users: Vec<_> = (1..=8)
            .map(|seed| {
                let (cache, alive) = (&cache, &alive);
                scope.spawn(move || {
                    let mut state = seed;
                    for _ in 0..20_000 {
                        let key = random(&mut state) % 2000;
                        match random(&mut state) % 8 {
                            0 => drop(cache.remove(&key)),
                            1..=4 => drop(cache.insert(key, Value::new(key, alive))),
                            _ => assert!(cache.look(&key, |value| value.0 == key).unwrap_or(true)),
                        }
                    }
                })
            })
            .collect();
        users.into_iter().for_each(|user| user.join().unwrap());
        stop.store(true, SeqCst);
    });
    assert_eq!(alive.load(SeqCst), cache.len() as isize);
    drop(cache);
    assert_eq!(alive.load(SeqCst), 0);
}
