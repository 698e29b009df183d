//! The three caches of `three-caches`, in two kinds: those that shrink when asked, and those that never do.
//!
//! Entries have 1 to 4 KiB, are written in full, and say whose they are, so that memory given away while in use shows as another's
//! entry. An entry in use outlives its cache's interest in it: what is returned is a reference that counts.

use super::traffic::mixed;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use uslab::RegisterError;
use uslab::reclaim::LruCache;

/// How many bytes an entry has: 1 to 4 KiB, always the same for one key.
pub fn entry_bytes(cache: usize, key: u32) -> usize {
    1024 + (mixed(u64::from(key) * 3 + cache as u64) % 3073) as usize
}

/// What caches hold.
#[derive(Clone)]
pub struct Entry(Arc<[u8]>);

impl Entry {
    /// The entry of a key, written from end to end.
    pub fn new(cache: usize, key: u32) -> Entry {
        let pattern = Self::pattern(cache, key);
        Entry(std::iter::repeat_n(pattern, entry_bytes(cache, key)).collect())
    }

    fn pattern(cache: usize, key: u32) -> u8 {
        mixed((u64::from(key) << 2) | cache as u64) as u8
    }

    /// Whether it is the entry of that key: its size, and its bytes at both ends.
    pub fn is_of(&self, cache: usize, key: u32) -> bool {
        let pattern = Self::pattern(cache, key);
        self.0.len() == entry_bytes(cache, key)
            && self.0.first() == Some(&pattern)
            && self.0.last() == Some(&pattern)
    }
}

/// Three caches.
pub trait Caches: Sync {
    /// The entry of a key, made if it is not there.
    fn get(&self, cache: usize, key: u32, make: impl FnOnce() -> Entry) -> Entry;
    /// Entries that each holds, and that each has given up.
    fn held_and_given_up(&self) -> [[u64; 2]; 3];
    /// What a miss of each took lately, as it measured it; 0 where it does not.
    fn miss_us(&self) -> [u64; 3];
}

/// Maps that keep everything.
#[derive(Default)]
pub struct Plain([[Mutex<HashMap<u32, Entry>>; 16]; 3]);

impl Caches for Plain {
    fn get(&self, cache: usize, key: u32, make: impl FnOnce() -> Entry) -> Entry {
        let shard = &self.0[cache][key as usize % 16];
        let there = shard.lock().expect("nobody panics with it").get(&key).cloned();
        there.unwrap_or_else(|| {
            let entry = make();
            shard.lock().expect("nobody panics with it").insert(key, entry.clone());
            entry
        })
    }

    fn held_and_given_up(&self) -> [[u64; 2]; 3] {
        let held =
            |shard: &Mutex<HashMap<u32, Entry>>| shard.lock().expect("nobody panics with it").len() as u64;
        [0, 1, 2].map(|cache: usize| [self.0[cache].iter().map(held).sum(), 0])
    }

    fn miss_us(&self) -> [u64; 3] {
        [0; 3]
    }
}

/// The library's ready-made caches, which are shrinkers.
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
