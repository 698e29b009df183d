//! A concurrent LRU cache that evicts entries when memory is short, and only then.
//!
//! ```text
//!   key ──hash──▶ shard (16, a mutex each) ──index──▶ entry ◀─▶ entry ◀─▶ …   newest to oldest, linked
//!                                                       └── in one slab cache for all shards
//! ```
//!
//! The cache has no capacity. It registers itself as a shrinker, and drops its oldest entries when
//! a pass asks for its share. If the cache makes a value itself ([`LruCache::get_or_insert_with`]),
//! it measures the cost of the miss, which weighs its share.
//!
//! **No allocation under a shard's lock reclaims**, because reclaim runs callbacks of the program,
//! which may use this cache. A thread allocates an entry's memory before it takes the lock. An
//! index grows under the lock, but only from free memory. If that is too little, the thread drops
//! the lock, reclaims, and starts again. Eviction, which runs when memory is shortest, never
//! allocates.
//!
//! **Inside a callback no thread waits for a shard.** A callback may run under a shard's lock, if
//! the program's code allocates while it looks at a value. So inside a callback a look at a locked
//! shard misses. An insertion or removal there *dooms* the entry that it would have changed: the
//! next thread that locks the shard drops the entry first. So no thread finds a value that should
//! have been replaced. One bit dooms a group of a shard's entries.
//!
//! The cache drops keys and values without a lock. Under a shard's lock it calls the program's code
//! only to compare keys and to look at a value. Its own callbacks never allocate. An allocation
//! that fails never costs an entry that is already in the cache.

use super::evict::evict;
use super::shard::{ALL_GROUPS, Chain, Node, Shard, TakenOut, can_be_had, group_of};
use crate::cache::{Cache, CacheBuilder};
use crate::reclaim::registry;
use crate::reclaim::{
    RegisterError, Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker,
};
use core::hash::{BuildHasher, Hash};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::borrow::Borrow;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

const SHARDS: usize = 16;

/// Upper bound on the reclaims of one insertion for its shard's index. After that the cache does
/// not keep the entry.
const GROW_TRIES: usize = 4;

/// A cache that evicts its oldest entries under memory pressure.
///
/// Any thread may use it; each operation locks one of 16 shards for a moment. The cache grows until
/// [`reclaim`](crate::reclaim()), pressure or a limit takes memory back.
///
/// The cache runs `Eq` of keys, the function given to [`look`](LruCache::look), and `Clone` of
/// values in [`get`](LruCache::get) under the shard's lock; never `Hash`, and never `Drop` of keys
/// or values. None of these three may use the same cache. They may allocate, and so may reclaim at
/// a limit. Then callbacks of shrinkers, and `Drop` of the evicted entries, run under that lock
/// too.
///
/// Those callbacks may use any cache, even this one, because no call inside a callback waits for a
/// shard. If the shard is locked there, by another thread or by this one, a look misses,
/// [`insert`](LruCache::insert) keeps nothing, and [`remove`](LruCache::remove) returns nothing.
/// The cache forgets the old entry of the key nevertheless, and some other entries with it.
///
/// If a destructor of a key or value panics during an eviction, no pass asks this cache again, as
/// after any panic in a callback. All entries that were taken out are dropped. The cache remains
/// usable, but evicts nothing any more.
///
/// Not for signal handlers. A fork copies the cache as it is: a shard that another thread has
/// locked stays locked in the child.
///
/// ```standalone_crate
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

/// Statistics of an [`LruCache`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LruStats {
    /// Entries in the cache.
    pub entries: usize,
    /// Look-ups that found their key.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Entries evicted for memory.
    pub evicted: u64,
    /// The average cost of making a value, in nanoseconds; 0 until the cache has made one.
    pub miss_ns: u64,
}

struct Inner<K, V, S> {
    shards: [Mutex<Shard<K, V>>; SHARDS],
    /// For each shard, the doomed groups: the next thread that locks the shard drops them first.
    doomed: [AtomicU64; SHARDS],
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

impl<K, V> LruCache<K, V>
where
    K: Hash + Eq + Send + 'static,
    V: Send + 'static,
{
    /// Makes an empty cache called `name` and registers it as a shrinker.
    ///
    /// # Errors
    /// [`RegisterError::OutOfMemory`], also where an entry is larger or more aligned than 256 KiB,
    /// or all ids of caches are in use.
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
    /// As [`LruCache::new`], with the caller's hasher.
    ///
    /// # Errors
    /// [`RegisterError::OutOfMemory`], also where an entry is larger or more aligned than 256 KiB,
    /// or all ids of caches are in use.
    pub fn with_hasher(name: &str, hasher: S) -> Result<Self, RegisterError> {
        let memory = CacheBuilder::new(name).build().map_err(|_| RegisterError::OutOfMemory)?;
        let inner = Inner {
            shards: core::array::from_fn(|_| Mutex::new(Shard::new())),
            doomed: core::array::from_fn(|_| AtomicU64::new(0)),
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

    /// Calls `look` on the value of `key`, makes the entry the newest, and returns the result;
    /// `None` if the cache does not have the key. `look` runs under the shard's lock: it should be
    /// short, and must not use this cache.
    ///
    /// Inside a shrinker's callback, a look at a locked shard misses. This very thread may hold the
    /// lock: its allocation under the lock may have caused the callback.
    pub fn look<Q, R>(&self, key: &Q, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.inner.hasher.hash_one(key);
        let shard = self.inner.shard(hash);
        let found = shard.and_then(|shard| shard.find(hash, key).map(|node| (shard, node)));
        let Some((mut shard, node)) = found else {
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

    /// Returns a clone of the value of `key`, and makes the entry the newest.
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        self.look(key, V::clone)
    }

    /// Returns the value of `key`. If the cache does not have it, calls `make` and keeps the
    /// result. The time that `make` takes weighs this cache's share of pressure.
    ///
    /// `make` runs without a lock: two threads that miss the same key may both make a value, and
    /// one of the values is dropped.
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

    /// Keeps `value` for `key`, and returns the old value. If memory is used up, the cache keeps no
    /// key that it does not have yet.
    ///
    /// May reclaim, and so run callbacks of shrinkers, but not under the lock. Inside such a
    /// callback it does not reclaim, and keeps nothing if the shard is locked.
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        let hash = self.inner.hasher.hash_one(&key);
        let memory = self.inner.memory.insert(MaybeUninit::uninit()).ok();
        let mut tries = 0;
        // On every path the lock is dropped before key, value and memory, because it was taken
        // after them.
        loop {
            let mut shard = self.inner.shard_to_change(hash)?;
            if let Some(mut there) = shard.find(hash, &key) {
                shard.make_newest(there);
                // SAFETY: the shard owns the node, and its lock is held.
                return Some(core::mem::replace(unsafe { &mut there.as_mut().value }, value));
            }
            memory.as_ref()?;
            match shard.make_room() {
                Ok(()) => {
                    let node = memory?.into_raw().cast::<Node<K, V>>();
                    // SAFETY: fresh memory of the type's size and alignment.
                    unsafe { node.write(Node::new(hash, key, value)) };
                    shard.link(node);
                    self.inner.entries.fetch_add(1, Relaxed);
                    return None;
                }
                Err(bytes) => {
                    drop(shard);
                    // Another thread may take the memory that came free first: try again.
                    tries += 1;
                    if tries > GROW_TRIES || !can_be_had(bytes) {
                        return None;
                    }
                }
            }
        }
    }

    /// Removes `key` and returns its value. Inside a callback of a shrinker it returns `None` if
    /// the shard is locked; the cache forgets the key nevertheless.
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.inner.hasher.hash_one(key);
        let mut shard = self.inner.shard_to_change(hash)?;
        let node = shard.find(hash, key)?;
        shard.take_out(node);
        drop(shard);
        self.inner.entries.fetch_sub(1, Relaxed);
        Some(TakenOut(node).open().1)
    }

    /// Drops all present entries. Entries that their destructors insert stay.
    pub fn clear(&self) {
        self.inner.clear();
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.inner.entries.load(Relaxed)
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The statistics of the cache.
    pub fn stats(&self) -> LruStats {
        LruStats {
            entries: self.len(),
            hits: self.inner.hits.load(Relaxed),
            misses: self.inner.misses.load(Relaxed),
            evicted: self.inner.evicted.load(Relaxed),
            miss_ns: self.inner.miss_ns.load(Relaxed),
        }
    }

    /// Notes that a value took `cost_ns` to make; a sixteenth of it enters the average.
    fn note_cost(&self, cost_ns: u64) {
        let cost_ns = cost_ns.clamp(1, u64::MAX / 32);
        let before = self.inner.miss_ns.load(Relaxed);
        let mean = if before == 0 { cost_ns } else { (before * 15 + cost_ns) / 16 };
        self.inner.miss_ns.store(mean, Relaxed);
        self.inner.set_miss_cost_ns(mean);
    }
}

/// A shard, locked.
type Locked<'a, K, V> = MutexGuard<'a, Shard<K, V>>;

impl<K, V, S> Inner<K, V, S> {
    /// The index uses the upper and the lowest bits of a hash.
    fn shard_of(hash: u64) -> usize {
        (hash >> 32) as usize % SHARDS
    }

    /// Locks the shard of `hash`, and drops its doomed entries. Inside a callback returns `None` if
    /// the thread would have to wait.
    fn shard(&self, hash: u64) -> Option<Locked<'_, K, V>> {
        self.lock(Self::shard_of(hash))
    }

    /// As `shard`, for a change of the entry of `hash`. If the thread would have to wait, dooms
    /// that entry.
    fn shard_to_change(&self, hash: u64) -> Option<Locked<'_, K, V>> {
        let at = Self::shard_of(hash);
        let locked = self.lock(at);
        if locked.is_none() {
            self.doomed[at].fetch_or(group_of(hash), SeqCst);
        }
        locked
    }

    fn lock(&self, at: usize) -> Option<Locked<'_, K, V>> {
        loop {
            // This is dropped after the lock.
            let mut chain = Chain::new();
            // A panic in a comparison of the program leaves the shard consistent.
            let mut locked = match self.shards[at].try_lock() {
                Ok(locked) => locked,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if registry::is_inside() => return None,
                Err(TryLockError::WouldBlock) => {
                    self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
                }
            };
            if self.doomed[at].load(SeqCst) == 0 {
                return Some(locked);
            }
            locked.take_out_groups(self.doomed[at].swap(0, SeqCst), &mut chain);
            drop(locked);
            self.entries.fetch_sub(chain.entries, Relaxed);
        }
    }

    fn clear(&self) {
        let mut chain = Chain::new();
        for at in 0..SHARDS {
            match self.lock(at) {
                Some(mut shard) => {
                    let before = chain.entries;
                    shard.take_out_groups(ALL_GROUPS, &mut chain);
                    // Count at once: a destructor that panics may end this loop.
                    self.entries.fetch_sub(chain.entries - before, Relaxed);
                }
                None => {
                    self.doomed[at].fetch_or(ALL_GROUPS, SeqCst);
                }
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
        let note = |taken| {
            self.entries.fetch_sub(taken, Relaxed);
            self.evicted.fetch_add(taken as u64, Relaxed);
        };
        let (mut gone, mut busy) = (0, false);
        // Go around until enough went or a round finds nothing, since shards differ in size.
        while gone < control.nr_to_scan {
            let before = gone;
            let share = (control.nr_to_scan - gone).div_ceil(SHARDS);
            for _ in 0..SHARDS {
                // Each scan starts at another shard, so that all shards age alike.
                let at = self.next_shard.fetch_add(1, Relaxed) % SHARDS;
                match evict(&self.shards[at], share.min(control.nr_to_scan - gone), note) {
                    Some(n) => gone += n,
                    None => busy = true,
                }
            }
            if gone == before {
                break;
            }
        }
        if gone == 0 && busy { Scan::Stop } else { Scan::Freed(gone) }
    }
}
