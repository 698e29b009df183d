//! Caches without a lock of their own: any that can give up its coldest entry, behind any lock that can be tried.
//!
//! ```text
//!   count ──try lock──▶ entries; if somebody is in it: as many as there were last time
//!   scan  ──try lock──▶ take out some of the coldest ──unlock──▶ drop them ──▶ again, until it is done
//!            └─ somebody is in it ──▶ Stop: the share stays owed
//! ```
//!
//! The lock is only ever tried: the reclaiming thread may be the one that holds it. Evicted entries are dropped without it, so
//! that their destructors may use the cache. Must never: block on the lock in a callback; call the user's code under it, the cache's own apart;
//! allocate in a callback, which is where there is least to be had, and where a refusal would end the program.

use crate::reclaim::dropping::EachDropped;
use crate::reclaim::{
    RegisterError, Registration, Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker,
};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

/// Entries taken out under one hold of the lock: users of the cache wait for no long eviction.
const AT_ONCE: usize = 32;

/// Bytes of the stack that they may take between the lock and their end. Of larger entries one is taken at a time.
const ON_STACK_BYTES: usize = 4096;

/// A cache that can give up the entry that it would miss least.
///
/// Features bring it for the caches of some crates; for a cache of one's own it is two functions, and [`Shared`] does the rest:
///
/// ```
/// use std::collections::VecDeque;
/// use uslab::reclaim::adaptors::{EvictColdest, Shared};
///
/// struct Recent(VecDeque<String>);
///
/// impl EvictColdest for Recent {
///     type Evicted = String;
///     fn entries(&self) -> usize {
///         self.0.len()
///     }
///     fn evict_coldest(&mut self) -> Option<String> {
///         self.0.pop_front()
///     }
/// }
///
/// let recent = Shared::new("recent", Recent(VecDeque::new())).unwrap();
/// recent.lock().0.push_back("first".into());
/// uslab::reclaim(usize::MAX);
/// assert!(recent.lock().0.is_empty());
/// ```
pub trait EvictColdest: 'static {
    /// What comes out of it; dropped by the adaptor, after the lock.
    type Evicted;

    /// Entries it holds. Runs under the lock.
    fn entries(&self) -> usize;

    /// Takes out the entry that is missed least; `None` if there is none that could go. Runs under the lock.
    fn evict_coldest(&mut self) -> Option<Self::Evicted>;
}

/// A lock around a cache, which can be tried: `std`'s are; for another, wrap it and say how.
pub trait EvictLock: Send + Sync + 'static {
    /// What it guards.
    type Cache: EvictColdest;

    /// Calls `with` on the cache, locked; `None`, at once, if somebody has it locked. Must never wait: it may be the calling thread who has.
    fn try_with<R>(&self, with: impl FnOnce(&mut Self::Cache) -> R) -> Option<R>;
}

// Whoever panicked under the lock left a cache that is safe to use, as its type promises; and it is as much in the way as before.
impl<C: EvictColdest + Send> EvictLock for Mutex<C> {
    type Cache = C;

    fn try_with<R>(&self, with: impl FnOnce(&mut C) -> R) -> Option<R> {
        match self.try_lock() {
            Ok(mut cache) => Some(with(&mut cache)),
            Err(TryLockError::Poisoned(poisoned)) => Some(with(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<C: EvictColdest + Send + Sync> EvictLock for RwLock<C> {
    type Cache = C;

    fn try_with<R>(&self, with: impl FnOnce(&mut C) -> R) -> Option<R> {
        match self.try_write() {
            Ok(mut cache) => Some(with(&mut cache)),
            Err(TryLockError::Poisoned(poisoned)) => Some(with(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<L: EvictLock> EvictLock for Arc<L> {
    type Cache = L::Cache;

    fn try_with<R>(&self, with: impl FnOnce(&mut L::Cache) -> R) -> Option<R> {
        (**self).try_with(with)
    }
}

/// The shrinker of a cache behind a lock, for programs that have the lock already.
///
/// ```
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
    /// As many as there were when it was last looked at.
    entries: AtomicUsize,
    evicted: AtomicU64,
}

impl<L: EvictLock> Locked<L> {
    /// The shrinker of the cache in `lock`, for [`register_shrinker`].
    pub fn new(lock: L) -> Self {
        Locked { lock, entries: AtomicUsize::new(0), evicted: AtomicU64::new(0) }
    }

    /// The same, registered under `name` with the usual options.
    ///
    /// # Errors
    /// There is no memory for it.
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
        // With somebody in it there is still a share to ask for, which scan will put off.
        if let Some(entries) = self.lock.try_with(|cache| cache.entries()) {
            self.entries.store(entries, Relaxed);
        }
        self.entries.load(Relaxed)
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        let are_small = const { size_of::<[Option<Evicted<L>>; AT_ONCE]>() <= ON_STACK_BYTES };
        let mut gone = 0;
        while gone < control.nr_to_scan {
            let wanted = control.nr_to_scan - gone;
            match if are_small { self.evict::<AT_ONCE>(wanted) } else { self.evict::<1>(wanted) } {
                None if gone == 0 => return Scan::Stop,
                None | Some(0) => break,
                Some(taken) => gone += taken,
            }
        }
        Scan::Freed(gone)
    }
}

type Evicted<L> = <<L as EvictLock>::Cache as EvictColdest>::Evicted;

impl<L: EvictLock> Locked<L> {
    /// Takes out and drops `wanted` entries, `N` at most; says how many, `None` if somebody is in the cache.
    fn evict<const N: usize>(&self, wanted: usize) -> Option<usize> {
        // Made before the lock and dropped after it, also when the cache's code panics.
        let mut some = EachDropped([const { None::<Evicted<L>> }; N]);
        let taken = self.lock.try_with(|cache| {
            let mut taken = 0;
            for place in some.0.iter_mut().take(wanted) {
                let Some(entry) = cache.evict_coldest() else { break };
                *place = Some(entry);
                taken += 1;
            }
            taken
        })?;
        self.evicted.fetch_add(taken as u64, Relaxed);
        Some(taken)
    }
}

/// A cache behind a mutex, registered as a shrinker as long as it lives.
///
/// Dropping it unregisters, and waits for a running callback of it. Any thread may use it.
pub struct Shared<C: EvictColdest + Send> {
    inner: Registration<Locked<Mutex<C>>>,
}

impl<C: EvictColdest + Send> Shared<C> {
    /// `cache`, registered under `name` with the usual options.
    ///
    /// # Errors
    /// There is no memory for it. The cache is dropped then.
    pub fn new(name: &str, cache: C) -> Result<Self, RegisterError> {
        Self::with_options(name, ShrinkerOptions::default(), cache)
    }

    /// The same, with options.
    ///
    /// # Errors
    /// There is no memory for it. The cache is dropped then.
    pub fn with_options(name: &str, options: ShrinkerOptions, cache: C) -> Result<Self, RegisterError> {
        Ok(Shared { inner: register_shrinker(name, options, Locked::new(Mutex::new(cache)))? })
    }

    /// The cache, locked. Blocks while another thread has it; a thread that has it already must not ask again.
    ///
    /// While it is locked reclaim passes the cache by, and remembers its share.
    pub fn lock(&self) -> MutexGuard<'_, C> {
        self.inner.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a miss costs the program, in nanoseconds: see [`Registration::set_miss_cost_ns`].
    pub fn set_miss_cost_ns(&self, cost_ns: u64) {
        self.inner.set_miss_cost_ns(cost_ns);
    }

    /// Entries that reclaim took out so far.
    pub fn evicted(&self) -> u64 {
        self.inner.evicted()
    }
}
