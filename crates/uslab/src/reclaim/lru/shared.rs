//! Wraps a cache and a lock as a shrinker.
//!
//! ```text
//!   count ──try lock──▶ the number of entries; if the lock is held: the last number read
//!   scan  ──evict()───▶ the number evicted; if the lock is held: Stop, so the share stays owed
//! ```

use super::evict::{EvictColdest, EvictLock, evict};
use crate::reclaim::{
    RegisterError, Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker,
};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The shrinker of a cache behind a lock that the program already has.
///
/// ```standalone_crate
/// use std::sync::{Arc, Mutex};
/// use uslab::reclaim::adaptors::Locked;
/// # use uslab::reclaim::adaptors::EvictColdest;
/// # struct Rows(Vec<u64>);
/// # impl EvictColdest for Rows {
/// #     type Evicted = u64;
/// #     fn entries(&self) -> usize { self.0.len() }
/// #     fn evict_coldest(&mut self) -> Option<u64> { self.0.pop() }
/// # }
///
/// let rows = Arc::new(Mutex::new(Rows(vec![1, 2, 3])));
/// let registration = Locked::register("rows", Arc::clone(&rows)).unwrap();
/// registration.set_miss_cost_ns(5_000);
/// uslab::reclaim(usize::MAX);
/// assert_eq!(registration.evicted(), 3);
/// drop(registration); // The cache is the program's alone again.
/// assert_eq!(Arc::strong_count(&rows), 1);
/// ```
pub struct Locked<L: EvictLock> {
    lock: L,
    /// The number of entries when a callback last held the lock.
    entries: AtomicUsize,
    evicted: AtomicU64,
}

impl<L: EvictLock> Locked<L> {
    /// The shrinker of the cache in `lock`, for [`register_shrinker`].
    pub fn new(lock: L) -> Self {
        Locked { lock, entries: AtomicUsize::new(0), evicted: AtomicU64::new(0) }
    }

    /// Makes the shrinker and registers it under `name` with the default options.
    ///
    /// # Errors
    /// Memory is used up.
    pub fn register(name: &str, lock: L) -> Result<Registration<Self>, RegisterError> {
        register_shrinker(name, ShrinkerOptions::default(), Self::new(lock))
    }

    /// Entries that reclaim took out so far.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }
}

impl<L: EvictLock> Shrinker for Locked<L> {
    fn count(&self, _: &ShrinkControl) -> usize {
        // If the lock is held, the pass still asks for the share; `scan` then defers it.
        if let Some(entries) = self.lock.try_with(|cache| cache.entries()) {
            self.entries.store(entries, Relaxed);
        }
        self.entries.load(Relaxed)
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        let note = |taken| {
            self.evicted.fetch_add(taken as u64, Relaxed);
        };
        evict(&self.lock, control.nr_to_scan, note).map_or(Scan::Stop, Scan::Freed)
    }
}

/// A cache behind a mutex, registered as a shrinker as long as it lives.
///
/// Dropping it unregisters, and waits for a running callback of it. Any thread may use it.
pub struct Shared<C: EvictColdest + Send> {
    inner: Registration<Locked<Mutex<C>>>,
}

impl<C: EvictColdest + Send> Shared<C> {
    /// Wraps `cache` and registers it under `name` with the default options.
    ///
    /// # Errors
    /// Memory is used up. Then this drops the cache.
    pub fn new(name: &str, cache: C) -> Result<Self, RegisterError> {
        Self::with_options(name, ShrinkerOptions::default(), cache)
    }

    /// As [`Shared::new`], with options.
    ///
    /// # Errors
    /// Memory is used up. Then this drops the cache.
    pub fn with_options(name: &str, options: ShrinkerOptions, cache: C) -> Result<Self, RegisterError> {
        Ok(Shared { inner: register_shrinker(name, options, Locked::new(Mutex::new(cache)))? })
    }

    /// Locks the cache. Blocks while another thread holds the lock; a thread that holds it must not
    /// call this again.
    ///
    /// While the cache is locked, reclaim takes nothing from it, and its share stays owed.
    pub fn lock(&self) -> MutexGuard<'_, C> {
        self.inner.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the cost of a miss, in nanoseconds: see [`Registration::set_miss_cost_ns`].
    pub fn set_miss_cost_ns(&self, cost_ns: u64) {
        self.inner.set_miss_cost_ns(cost_ns);
    }

    /// Entries that reclaim took out so far.
    pub fn evicted(&self) -> u64 {
        self.inner.evicted()
    }
}
