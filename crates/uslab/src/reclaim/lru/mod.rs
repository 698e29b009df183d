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
//! Nothing is allocated under a shard's lock in a way that could reclaim: an allocation that reclaims runs callbacks of the program, and those may
//! use this cache. Entries' memory comes before the lock; an index grows under it out of what is free, and if that is too little, the lock is
//! dropped, memory reclaimed, and all done again. Eviction, which runs where memory is shortest, allocates nothing.
//!
//! Keys and values are dropped without a lock held. Must never: call the program's code under a shard's lock, but for comparing keys and what is to look at a
//! value, which cannot be had without it; allocate in a callback; lose an entry for want of memory.

mod shard;

use super::registry;
use super::{RegisterError, Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker};
use crate::cache::{Cache, CacheBuilder};
use core::hash::{BuildHasher, Hash};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use shard::{Node, Shard, TakenOut, can_be_had};
use std::borrow::Borrow;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

const SHARDS: usize = 16;

/// Entries taken out under one hold of a shard's lock: users of the shard wait for no long eviction.
const AT_ONCE: usize = 32;

/// Times that an insertion reclaims for its shard's index before it keeps nothing.
const GROW_TRIES: usize = 4;

/// A cache of the program that gives its oldest entries up under memory pressure.
///
/// Any thread may use it; operations lock one shard of 16 for a moment. It grows until memory is wanted back: by [`reclaim`](super::reclaim), by
/// pressure, at a limit.
///
/// Under the shard's lock run `Eq` of keys, what is given to [`look`](LruCache::look), and `Clone` of values in [`get`](LruCache::get); never `Hash`,
/// and never `Drop` of keys or values. None of the three may use the same cache. They may allocate, and so may have to reclaim at a limit: then
/// callbacks of shrinkers, and `Drop` of what these evict, run under that lock too. Callbacks may look into this cache even then, since looks inside a
/// callback never wait. A program whose callbacks or drops insert into a cache, remove from it or clear it should not allocate where it looks into that cache.
///
/// Not for signal handlers. A fork copies it as it is: a shard that another thread has locked stays locked in the child.
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
        let inner = Inner {
            shards: core::array::from_fn(|_| Mutex::new(Shard::new())),
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
    /// should be short and must not use this cache.
    ///
    /// Inside a shrinker's callback a shard that is in use counts as a miss: its user may be this very thread, whose allocation under the lock brought
    /// the callback about.
    pub fn look<Q, R>(&self, key: &Q, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.inner.hasher.hash_one(key);
        let shard = self.inner.shard_to_look(hash);
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
    ///
    /// May reclaim, and so run callbacks of shrinkers, but not under the lock. Inside such a callback nothing is reclaimed for it.
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        let hash = self.inner.hasher.hash_one(&key);
        let memory = self.inner.memory.insert(MaybeUninit::uninit()).ok();
        let mut tries = 0;
        // Whatever ends this, the lock goes before key, value and memory do: it was made after them.
        loop {
            let mut shard = self.inner.shard(hash);
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
                    // Others may be quicker to take what came free.
                    tries += 1;
                    if tries > GROW_TRIES || !can_be_had(bytes) {
                        return None;
                    }
                }
            }
        }
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
        Some(self.inner.taken_out(node).open().1)
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

    /// The same; inside a callback `None` where it would have to wait.
    fn shard_to_look(&self, hash: u64) -> Option<MutexGuard<'_, Shard<K, V>>> {
        let shard = &self.shards[(hash >> 32) as usize % SHARDS];
        match shard.try_lock() {
            Ok(locked) => Some(locked),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if registry::is_inside() => None,
            Err(TryLockError::WouldBlock) => Some(self.shard(hash)),
        }
    }

    /// A node that the caller has taken out of its shard.
    fn taken_out(&self, node: NonNull<Node<K, V>>) -> TakenOut<'_, K, V> {
        TakenOut { node, memory: &self.memory }
    }

    /// Takes out up to `wanted` of the oldest entries of a shard; `None` if somebody was in it before one was.
    fn evict(&self, shard: &Mutex<Shard<K, V>>, wanted: usize) -> Option<usize> {
        let mut gone = 0;
        while gone < wanted {
            // Dropped after the lock; all of them, also where one panics.
            let mut some = [const { None }; AT_ONCE];
            let mut locked = match shard.try_lock() {
                Ok(locked) => locked,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return (gone > 0).then_some(gone),
            };
            let mut taken = 0;
            for place in some.iter_mut().take(wanted - gone) {
                let Some(oldest) = locked.oldest else { break };
                locked.take_out(oldest);
                *place = Some(self.taken_out(oldest));
                taken += 1;
            }
            drop(locked);
            if taken == 0 {
                break;
            }
            gone += taken;
            self.entries.fetch_sub(taken, Relaxed);
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
                drop(self.taken_out(oldest));
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
