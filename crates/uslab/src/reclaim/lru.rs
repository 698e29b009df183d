//! A concurrent cache that forgets what was used longest ago when memory is short, and only then.
//!
//! ```text
//!   key ──hash──▶ shard (16, a mutex each) ──index──▶ entry ◀─▶ entry ◀─▶ …   newest to oldest, linked
//!                                                       └── in one slab cache for all shards
//! ```
//!
//! It has no capacity: it registers itself as a shrinker, is asked for its share when memory is wanted, and drops its oldest entries.
//! What a miss costs is measured where the cache makes the value itself ([`LruCache::get_or_insert_with`]), and weighs its share.
//!
//! Values are dropped without a lock held. Must never: call the user's code (hashing, comparing and closures of `get` apart) under a shard's lock.

use super::{RegisterError, Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker};
use crate::cache::{Cache, CacheBuilder};
use core::hash::{BuildHasher, Hash};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use hashbrown::HashTable;
use std::borrow::Borrow;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;
use std::vec::Vec;

const SHARDS: usize = 16;

/// A cache of the program that gives its oldest entries up under memory pressure.
///
/// Any thread may use it; operations lock one shard of 16 for a moment. It grows until memory is wanted back: by [`reclaim`](super::reclaim).
///
/// ```
/// use uslab::reclaim::LruCache;
/// let squares = LruCache::new("squares").unwrap();
/// assert_eq!(squares.get_or_insert_with(7u64, || 49u64), 49);
/// assert_eq!(squares.get(&7), Some(49));
/// uslab::reclaim(usize::MAX);
/// assert_eq!(squares.get(&7), None);
/// ```
pub struct LruCache<K, V, S = RandomState>
where
    K: Hash + Eq + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    inner: Registration<Inner<K, V, S>>,
}

/// What an [`LruCache`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LruStats {
    /// Entries it holds.
    pub entries: usize,
    /// Look-ups that found their key.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Entries given up for memory.
    pub evicted: u64,
    /// What making a value cost, on average, in nanoseconds; 0 as long as none was made here.
    pub miss_ns: u64,
}

struct Inner<K, V, S> {
    shards: [Mutex<Shard<K, V>>; SHARDS],
    /// Memory of all entries.
    memory: Cache<MaybeUninit<Node<K, V>>>,
    hasher: S,
    entries: AtomicUsize,
    next_shard: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
    evicted: AtomicU64,
    miss_ns: AtomicU64,
}

struct Node<K, V> {
    hash: u64,
    newer: Link<K, V>,
    older: Link<K, V>,
    key: K,
    value: V,
}

type Link<K, V> = Option<NonNull<Node<K, V>>>;

struct Shard<K, V> {
    index: HashTable<NonNull<Node<K, V>>>,
    newest: Link<K, V>,
    oldest: Link<K, V>,
}

// SAFETY: a shard owns the nodes that it points to, and with them keys and values.
unsafe impl<K: Send, V: Send> Send for Shard<K, V> {}

impl<K, V> LruCache<K, V>
where
    K: Hash + Eq + Send + 'static,
    V: Send + 'static,
{
    /// An empty cache called `name`, registered as a shrinker.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(name: &str) -> Result<Self, RegisterError> {
        Self::with_hasher(name, RandomState::new())
    }
}

impl<K, V, S> LruCache<K, V, S>
where
    K: Hash + Eq + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// The same, with a hasher of the user's.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn with_hasher(name: &str, hasher: S) -> Result<Self, RegisterError> {
        let memory = CacheBuilder::new(name).build().map_err(|_| RegisterError::OutOfMemory)?;
        let shard = || Mutex::new(Shard { index: HashTable::new(), newest: None, oldest: None });
        let inner = Inner {
            shards: core::array::from_fn(|_| shard()),
            memory,
            hasher,
            entries: AtomicUsize::new(0),
            next_shard: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            miss_ns: AtomicU64::new(0),
        };
        Ok(LruCache { inner: register_shrinker(name, ShrinkerOptions::default(), inner)? })
    }

    /// What `look` makes of the value of `key`, which is now the newest; `None` if it is not there. `look` runs under the shard's lock: it
    /// should be short and not use this cache.
    pub fn look<Q, R>(&self, key: &Q, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.inner.hasher.hash_one(key);
        let mut shard = self.inner.shard(hash);
        let Some(node) = shard.find(hash, key) else {
            drop(shard);
            self.inner.misses.fetch_add(1, Relaxed);
            return None;
        };
        shard.make_newest(node);
        // SAFETY: the shard owns the node, and its lock is held.
        let found = look(unsafe { &node.as_ref().value });
        drop(shard);
        self.inner.hits.fetch_add(1, Relaxed);
        Some(found)
    }

    /// A clone of the value of `key`, which is now the newest.
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        self.look(key, V::clone)
    }

    /// The value of `key`, or what `make` makes, which is kept. What making it took is measured and weighs this cache's share of pressure.
    ///
    /// No lock is held while `make` runs: two threads that miss the same key may both make it, and one is dropped.
    pub fn get_or_insert_with(&self, key: K, make: impl FnOnce() -> V) -> V
    where
        V: Clone,
    {
        if let Some(value) = self.get(&key) {
            return value;
        }
        let started = Instant::now();
        let value = make();
        self.note_cost(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        self.insert(key, value.clone());
        value
    }

    /// Keeps `value` for `key`; says what was there before. Without memory for it nothing is kept: this is a cache.
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        let hash = self.inner.hasher.hash_one(&key);
        let node = self.inner.memory.alloc();
        let mut shard = self.inner.shard(hash);
        if let Some(mut there) = shard.find(hash, &key) {
            shard.make_newest(there);
            // SAFETY: the shard owns the node, and its lock is held.
            let before = core::mem::replace(unsafe { &mut there.as_mut().value }, value);
            drop(shard);
            if let Some(node) = node {
                // SAFETY: from this cache, never initialised.
                unsafe { self.inner.memory.free(node) };
            }
            return Some(before);
        }
        let node = node?.cast::<Node<K, V>>();
        // SAFETY: fresh memory of the type's size and alignment.
        unsafe { node.write(Node { hash, newer: None, older: None, key, value }) };
        // SAFETY: the shard owns the nodes of its index.
        shard.index.insert_unique(hash, node, |node| unsafe { node.as_ref().hash });
        shard.link_newest(node);
        self.inner.entries.fetch_add(1, Relaxed);
        None
    }

    /// Takes `key` out; says its value.
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.inner.hasher.hash_one(key);
        let mut shard = self.inner.shard(hash);
        let node = shard.find(hash, key)?;
        shard.take_out(node);
        drop(shard);
        self.inner.entries.fetch_sub(1, Relaxed);
        Some(self.inner.open(node).1)
    }

    /// Drops all entries.
    pub fn clear(&self) {
        self.inner.clear();
    }

    /// Entries it holds.
    pub fn len(&self) -> usize {
        self.inner.entries.load(Relaxed)
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it has done.
    pub fn stats(&self) -> LruStats {
        LruStats {
            entries: self.len(),
            hits: self.inner.hits.load(Relaxed),
            misses: self.inner.misses.load(Relaxed),
            evicted: self.inner.evicted.load(Relaxed),
            miss_ns: self.inner.miss_ns.load(Relaxed),
        }
    }

    /// One value took `cost_ns` to make: a sixteenth of it enters the average.
    fn note_cost(&self, cost_ns: u64) {
        let cost_ns = cost_ns.clamp(1, u64::MAX / 32);
        let before = self.inner.miss_ns.load(Relaxed);
        let mean = if before == 0 { cost_ns } else { (before * 15 + cost_ns) / 16 };
        self.inner.miss_ns.store(mean, Relaxed);
        self.inner.set_miss_cost_ns(mean);
    }
}

impl<K, V, S> Inner<K, V, S> {
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, V>> {
        // The index uses the upper and the lowest bits.
        let shard = &self.shards[(hash >> 32) as usize % SHARDS];
        // A panic in a user's comparison leaves the shard whole.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Key and value of a node that is in no shard; its memory goes back.
    fn open(&self, node: NonNull<Node<K, V>>) -> (K, V) {
        // SAFETY: the caller has taken it out, so that it is nobody else's; it is read once and its memory freed.
        unsafe {
            let Node { key, value, .. } = node.read();
            self.memory.free(node.cast());
            (key, value)
        }
    }

    /// Takes out up to `wanted` of the oldest entries of a shard; `None` if somebody was in it before one was.
    fn evict(&self, shard: &Mutex<Shard<K, V>>, wanted: usize) -> Option<usize> {
        let mut gone = 0;
        while gone < wanted {
            // A few at a time, so that users of the shard wait for no long eviction, and drops happen without the lock.
            let mut some = Vec::new();
            let mut locked = match shard.try_lock() {
                Ok(locked) => locked,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return (gone > 0).then_some(gone),
            };
            while some.len() < 32.min(wanted - gone) {
                let Some(oldest) = locked.oldest else { break };
                locked.take_out(oldest);
                some.push(oldest);
            }
            drop(locked);
            if some.is_empty() {
                break;
            }
            gone += some.len();
            self.entries.fetch_sub(some.len(), Relaxed);
            some.into_iter().for_each(|node| drop(self.open(node)));
        }
        Some(gone)
    }

    fn clear(&self) {
        for shard in &self.shards {
            loop {
                let mut guard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(oldest) = guard.oldest else { break };
                guard.take_out(oldest);
                drop(guard);
                self.entries.fetch_sub(1, Relaxed);
                drop(self.open(oldest));
            }
        }
    }
}

impl<K, V, S> Drop for Inner<K, V, S> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<K, V, S> Shrinker for Inner<K, V, S>
where
    K: Hash + Eq + Send + 'static,
    V: Send + 'static,
    S: Send + Sync + 'static,
{
    fn count(&self, _: &ShrinkControl) -> usize {
        self.entries.load(Relaxed)
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        let (mut gone, mut busy) = (0, false);
        // Around until it is done or a round finds nothing: shards are not all of one size.
        while gone < control.nr_to_scan {
            let before = gone;
            let share = (control.nr_to_scan - gone).div_ceil(SHARDS);
            for _ in 0..SHARDS {
                // They take turns in beginning, so that they age alike.
                let at = self.next_shard.fetch_add(1, Relaxed) % SHARDS;
                match self.evict(&self.shards[at], share.min(control.nr_to_scan - gone)) {
                    Some(n) => gone += n,
                    None => busy = true,
                }
            }
            if gone == before {
                break;
            }
        }
        self.evicted.fetch_add(gone as u64, Relaxed);
        if gone == 0 && busy { Scan::Stop } else { Scan::Freed(gone) }
    }
}

impl<K, V> Shard<K, V> {
    fn find<Q>(&self, hash: u64, key: &Q) -> Link<K, V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        // SAFETY: the shard owns the nodes of its index.
        self.index.find(hash, |node| unsafe { node.as_ref().key.borrow() } == key).copied()
    }

    fn link_newest(&mut self, node: NonNull<Node<K, V>>) {
        // SAFETY: the node and the newest one are this shard's, which `&mut self` locks.
        unsafe {
            (*node.as_ptr()).newer = None;
            (*node.as_ptr()).older = self.newest;
            match self.newest {
                Some(newest) => (*newest.as_ptr()).newer = Some(node),
                None => self.oldest = Some(node),
            }
        }
        self.newest = Some(node);
    }

    fn unlink(&mut self, node: NonNull<Node<K, V>>) {
        // SAFETY: the node and its neighbours are this shard's, which `&mut self` locks.
        unsafe {
            let (newer, older) = ((*node.as_ptr()).newer, (*node.as_ptr()).older);
            match newer {
                Some(newer) => (*newer.as_ptr()).older = older,
                None => self.newest = older,
            }
            match older {
                Some(older) => (*older.as_ptr()).newer = newer,
                None => self.oldest = newer,
            }
        }
    }

    fn make_newest(&mut self, node: NonNull<Node<K, V>>) {
        if self.newest != Some(node) {
            self.unlink(node);
            self.link_newest(node);
        }
    }

    /// Out of the list and the index: the node is the caller's.
    fn take_out(&mut self, node: NonNull<Node<K, V>>) {
        self.unlink(node);
        // SAFETY: the node is this shard's.
        let hash = unsafe { node.as_ref().hash };
        if let Ok(entry) = self.index.find_entry(hash, |&there| there == node) {
            entry.remove();
        }
    }
}
