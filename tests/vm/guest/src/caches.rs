//! The three caches of `three-caches`, of two kinds: caches that shrink, and caches that keep
//! everything.
//!
//! Entries have 1 to 4 KiB, are written in full, and contain their key. So memory that is allocated
//! twice appears as the entry of another key. An entry in use may be evicted, because `get` returns
//! a counted reference.

use super::traffic::mixed;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use uslab::RegisterError;
use uslab::reclaim::LruCache;

/// Bytes of an entry: 1 to 4 KiB, fixed for each key.
pub fn entry_bytes(cache: usize, key: u32) -> usize {
    1024 + (mixed(u64::from(key) * 3 + cache as u64) % 3073) as usize
}

/// An entry of the caches.
#[derive(Clone)]
pub struct Entry(Arc<[u8]>);

impl Entry {
    /// The entry of a key, with all bytes written.
    pub fn new(cache: usize, key: u32) -> Entry {
        let pattern = Self::pattern(cache, key);
        Entry(std::iter::repeat_n(pattern, entry_bytes(cache, key)).collect())
    }

    fn pattern(cache: usize, key: u32) -> u8 {
        mixed((u64::from(key) << 2) | cache as u64) as u8
    }

    /// Whether it is the entry of that key, by its size and the bytes at both ends.
    pub fn is_of(&self, cache: usize, key: u32) -> bool {
        let pattern = Self::pattern(cache, key);
        self.0.len() == entry_bytes(cache, key)
            && self.0.first() == Some(&pattern)
            && self.0.last() == Some(&pattern)
    }
}

/// Three caches.
pub trait Caches: Sync {
    /// The entry of a key, made if it is not cached.
    fn get(&self, cache: usize, key: u32, make: impl FnOnce() -> Entry) -> Entry;
    /// For each cache, the entries that it holds and those that it has evicted.
    fn held_and_given_up(&self) -> [[u64; 2]; 3];
    /// The time of a recent miss as each cache measured it, in microseconds; 0 where it does not
    /// measure.
    fn miss_us(&self) -> [u64; 3];
}

/// Maps that keep all entries.
#[derive(Default)]
pub struct Plain([[Mutex<HashMap<u32, Entry>>; 16]; 3]);

impl Caches for Plain {
    fn get(&self, cache: usize, key: u32, make: impl FnOnce() -> Entry) -> Entry {
        let shard = &self.0[cache][key as usize % 16];
        let there = shard.lock().expect("no thread panics while it holds the lock").get(&key).cloned();
        there.unwrap_or_else(|| {
            let entry = make();
            shard.lock().expect("no thread panics while it holds the lock").insert(key, entry.clone());
            entry
        })
    }

    fn held_and_given_up(&self) -> [[u64; 2]; 3] {
        let held = |shard: &Mutex<HashMap<u32, Entry>>| {
            shard.lock().expect("no thread panics while it holds the lock").len() as u64
        };
        [0, 1, 2].map(|cache: usize| [self.0[cache].iter().map(held).sum(), 0])
    }

    fn miss_us(&self) -> [u64; 3] {
        [0; 3]
    }
}

/// The library's `LruCache`s, which are shrinkers.
pub struct Shrinking([LruCache<u32, Entry>; 3]);

impl Shrinking {
    /// Three empty caches.
    pub fn new() -> Result<Shrinking, RegisterError> {
        Ok(Shrinking([LruCache::new("cheap")?, LruCache::new("middling")?, LruCache::new("dear")?]))
    }
}

impl Caches for Shrinking {
    fn get(&self, cache: usize, key: u32, make: impl FnOnce() -> Entry) -> Entry {
        self.0[cache].get_or_insert_with(key, make)
    }

    fn held_and_given_up(&self) -> [[u64; 2]; 3] {
        [0, 1, 2].map(|cache: usize| {
            let stats = self.0[cache].stats();
            [stats.entries as u64, stats.evicted]
        })
    }

    fn miss_us(&self) -> [u64; 3] {
        self.0.each_ref().map(|cache| cache.stats().miss_ns / 1000)
    }
}
