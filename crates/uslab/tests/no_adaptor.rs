//! Why `quick_cache` has no adaptor: its only way to evict on demand, a step of the capacity down
//! and up, damages its policy.
//!
//! The guide states this (`docs/guide/caches-that-shrink.md`). If one of these tests fails with a
//! newer version, an adaptor has become possible: then change the guide, not the test.

use quick_cache::sync::Cache;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const ENTRIES: u64 = 10_000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Evicts `entries` by a step of the capacity.
fn step(cache: &Cache<u32, u32>, entries: u64) {
    let capacity = cache.capacity();
    cache.set_capacity(cache.weight().saturating_sub(entries).max(cache.num_shards() as u64));
    cache.set_capacity(capacity);
}

/// The hit rate of Zipf requests in the last two thirds of a run. After every second request, a key
/// is inserted that is never requested again.
fn hit_rate(cache: &Cache<u32, u32>, cumulated: &[f64], random: &mut Random, mut pressed: bool) -> f64 {
    let (mut hits, mut asked) = (0, 0);
    let mut never_again = 1_000_000;
    for request in 0..600_000 {
        // With `pressed`, every 1000 requests of the first third, a light pass: 128 of 10 000
        // entries.
        if pressed && request % 1000 == 0 {
            step(cache, 128);
            pressed = request < 200_000;
        }
        let key =
            cumulated.partition_point(|&sum| sum < random.next() * cumulated[cumulated.len() - 1]) as u32;
        let hit = cache.get(&key).is_some();
        if !hit {
            cache.insert(key, key);
        }
        if request % 2 == 0 {
            never_again += 1;
            cache.insert(never_again, 0);
        }
        if request >= 200_000 {
            asked += 1;
            hits += u32::from(hit);
        }
    }
    f64::from(hits) / f64::from(asked)
}

#[test]
fn steps_of_quick_caches_capacity_wear_its_policy_out_for_good() {
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=100_000)
        .map(|rank| {
            sum += f64::from(rank).powf(-0.9);
            sum
        })
        .collect();
    let rate = |pressed: bool, emptied: bool| {
        let cache = Cache::new(ENTRIES as usize);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        (0..ENTRIES as u32).for_each(|key| cache.insert(key, key));
        if emptied {
            step(&cache, u64::MAX);
        }
        hit_rate(&cache, &cumulated, &mut random, pressed)
    };
    let (untouched, pressed, emptied) = (rate(false, false), rate(true, false), rate(false, true));
    println!(
        "hit rate, the pressure long over: never pressed {untouched:.3}; 200 light passes {pressed:.3}; once emptied {emptied:.3}"
    );
    assert!(pressed < untouched - 0.02, "light passes do it no harm any more: {pressed} of {untouched}");
    assert!(emptied < untouched - 0.02, "emptying does it no harm any more: {emptied} of {untouched}");
}

/// A value whose clone takes long; the cache clones it under its lock.
struct Slow(Arc<Gate>);

struct Gate {
    inside: Mutex<Sender<()>>,
    go: Mutex<Receiver<()>>,
}

impl Clone for Slow {
    fn clone(&self) -> Self {
        self.0.inside.lock().unwrap().send(()).unwrap();
        self.0.go.lock().unwrap().recv().unwrap();
        Slow(Arc::clone(&self.0))
    }
}

#[test]
fn quick_cache_waits_for_its_lock_to_change_the_capacity() {
    let (inside, is_inside) = channel();
    let (go, may_go) = channel();
    let cache = Arc::new(Cache::new(100));
    cache.insert(1, Slow(Arc::new(Gate { inside: inside.into(), go: may_go.into() })));
    let changed = Arc::new(AtomicBool::new(false));
    let reading = thread::spawn({
        let cache = Arc::clone(&cache);
        move || drop(cache.get(&1))
    });
    is_inside.recv().unwrap();
    let changing = thread::spawn({
        let (cache, changed) = (Arc::clone(&cache), Arc::clone(&changed));
        move || {
            cache.set_capacity(50);
            changed.store(true, SeqCst);
        }
    });
    // If the reading thread itself did this, in an allocation that reclaims, it would deadlock.
    thread::sleep(Duration::from_millis(100));
    assert!(!changed.load(SeqCst), "set_capacity does not wait for the lock any more");
    go.send(()).unwrap();
    reading.join().unwrap();
    changing.join().unwrap();
    assert!(changed.load(SeqCst));
}
