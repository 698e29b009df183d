//! A concurrent cache that forgets what was used longest ago when memory is short, and only then.
//!
//! ```text
//!   key ──hash──▶ shard (16, a mutex each) ──index──▶ entry ◀─▶ entry ◀─▶ …   newest to oldest, linked
//!                                                       └── in one slab cache for all shards
//! ```
//!
//! It has no capacity: it registers itself as a shrinker, is asked for its share when memory is
//! wanted, and drops its oldest entries. Where the cache makes the value itself
//! ([`LruCache::get_or_insert_with`]) it measures the cost of a miss, which weighs its share.
//!
//! No allocation under a shard's lock reclaims: one that does runs callbacks of the program, and
//! those may use this cache. An entry's memory is allocated before the lock is taken. An index
//! grows under the lock out of free memory; if that is too little, the thread drops the lock,
//! reclaims, and begins again. Eviction, which runs where memory is shortest, allocates nothing.
//!
//! A callback may come about under a shard's lock, where the program's code allocates in a look. So
//! inside a callback nothing waits for a shard: a look misses, and what an insertion or a removal
//! would have changed is *doomed*. The next thread that locks the shard drops it first, so that no
//! value is found that should have been replaced. A shard's entries are doomed in groups, by one
//! bit each.
//!
//! Keys and values are dropped without a lock held. Must never: call the program's code under a
//! shard's lock, but to compare keys and to look at a value; allocate in a callback; lose an entry
//! for want of memory.

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

/// Times that an insertion reclaims for its shard's index before it keeps nothing.
const GROW_TRIES: usize = 4;

/// A cache of the program that gives its oldest entries up under memory pressure.
///
/// Any thread may use it; operations lock one shard of 16 for a moment. It grows until memory is
/// wanted back: by [`reclaim`](crate::reclaim()), by pressure, at a limit.
///
/// Under the shard's lock run `Eq` of keys, what is given to [`look`](LruCache::look), and `Clone`
/// of values in [`get`](LruCache::get); never `Hash`, and never `Drop` of keys or values. None of
/// the three may use the same cache. They may allocate, and so may have to reclaim at a limit: then
/// callbacks of shrinkers, and `Drop` of what these evict, run under that lock too. Those may use
/// any cache, also this one, since nothing inside a callback waits for a shard. Where another
/// thread, or this one further up, is in the shard, a look misses, [`insert`](LruCache::insert)
/// keeps nothing, and [`remove`](LruCache::remove) returns nothing; what was there for the key is
/// forgotten all the same, and some other entries with it.
///
/// A destructor of a key or a value that panics while entries are evicted ends the shrinker's
/// calls, as any panic in a callback: all entries that were taken out are dropped, and the cache
/// can be used on, but gives nothing up any more.
///
/// Not for signal handlers. A fork copies it as it is: a shard that another thread has locked stays
/// locked in the child.
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
    /// Of each shard the groups of entries that are to go before it is used again.
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

    /// Calls `look` on the value of `key`, which is now the newest, and returns the result; `None`
    /// if the key is not there. `look` runs under the shard's lock: it should be short and must not
    /// use this cache.
    ///
    /// Inside a shrinker's callback a shard that is in use counts as a miss: its user may be this
    /// very thread, whose allocation under the lock caused the callback.
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

    /// A clone of the value of `key`, which is now the newest.
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        self.look(key, V::clone)
    }

    /// The value of `key`, or the one that `make` returns, which is kept. The time that `make` took
    /// weighs this cache's share of pressure.
    ///
    /// No lock is held while `make` runs: two threads that miss the same key may both make it, and
    /// one value is dropped.
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

    /// Keeps `value` for `key` and returns the value before. Without memory for it nothing is kept:
    /// this is a cache.
    ///
    /// May reclaim, and so run callbacks of shrinkers, but not under the lock. Inside such a
    /// callback nothing is reclaimed for it, and nothing is kept if the shard is in use.
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        let hash = self.inner.hasher.hash_one(&key);
        let memory = self.inner.memory.insert(MaybeUninit::uninit()).ok();
        let mut tries = 0;
        // The lock is dropped before key, value and memory, on every way out: it was taken after
        // them.
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
                    // Others may be quicker to take what came free.
                    tries += 1;
                    if tries > GROW_TRIES || !can_be_had(bytes) {
                        return None;
                    }
                }
            }
        }
    }

    /// Takes `key` out and returns its value. Inside a callback of a shrinker nothing is returned
    /// if the shard is in use; the key is forgotten then, too.
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

    /// Drops all entries that are there now; what their destructors insert stays.
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

/// A shard, locked.
type Locked<'a, K, V> = MutexGuard<'a, Shard<K, V>>;

impl<K, V, S> Inner<K, V, S> {
    /// The index uses the upper and the lowest bits of a hash.
    fn shard_of(hash: u64) -> usize {
        (hash >> 32) as usize % SHARDS
    }

    /// The shard of `hash`, without what was doomed in it; inside a callback `None` where the
    /// calling thread would have to wait.
    fn shard(&self, hash: u64) -> Option<Locked<'_, K, V>> {
        self.lock(Self::shard_of(hash))
    }

    /// The same for a change of what there is for `hash`, which is doomed if that cannot be done
    /// now.
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
            // Dropped after the lock.
            let mut chain = Chain::new();
            // A panic in a user's comparison leaves the shard whole.
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
                    // At once: a destructor that panics may end this loop.
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
        // Around until it is done or a round finds nothing: shards are not all of one size.
        while gone < control.nr_to_scan {
            let before = gone;
            let share = (control.nr_to_scan - gone).div_ceil(SHARDS);
            for _ in 0..SHARDS {
                // They take turns in beginning, so that they age alike.
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
