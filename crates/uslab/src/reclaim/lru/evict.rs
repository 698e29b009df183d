//! Eviction: takes the coldest entries out of a cache behind any lock that can be tried.
//!
//! ```text
//!   try lock ──▶ take out up to 32 of the coldest ──unlock──▶ drop them ──▶ again, until it is done
//!      └─ the lock is held ──▶ None
//! ```
//!
//! Every LRU cache here evicts by [`evict`]: the shards of `LruCache`, the caches of other crates,
//! and those of the program. It only tries the lock, because the reclaiming thread may hold it. It
//! drops entries without the lock, so their destructors may use the cache.
//!
//! It calls no code of the program under the lock except the cache's own. It never allocates: a
//! failed allocation would end the program when memory is shortest.

use super::dropping::EachDropped;
use std::sync::{Arc, Mutex, RwLock, TryLockError};

/// Upper bound on the entries that one hold of the lock takes out, so that no user of the cache
/// waits for a long eviction.
const AT_ONCE: usize = 32;

/// Bytes of stack for entries that were taken out and not dropped yet. Larger entries are taken out
/// one at a time.
const ON_STACK_BYTES: usize = 4096;

/// A cache that can evict its coldest entry.
///
/// Features implement it for the caches of some crates. A program implements two functions for its
/// own cache, and [`Shared`](super::adaptors::Shared) does the rest:
///
/// ```standalone_crate
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
    /// An evicted entry. The adaptor drops it after it released the lock.
    type Evicted;

    /// Returns the number of entries. Runs under the lock.
    fn entries(&self) -> usize;

    /// Takes the coldest entry out of the cache; `None` if no entry can go. Runs under the lock.
    fn evict_coldest(&mut self) -> Option<Self::Evicted>;
}

/// A lock around a cache that can be tried, as those of `std`. For another lock, implement this for
/// a wrapper.
pub trait EvictLock: Send + Sync + 'static {
    /// The cache that the lock guards.
    type Cache: EvictColdest;

    /// Calls `with` on the cache, locked; returns `None` at once if it is locked already. Must
    /// never wait: the calling thread may hold the lock.
    fn try_with<R>(&self, with: impl FnOnce(&mut Self::Cache) -> R) -> Option<R>;
}

// A poisoned lock is used like any other: after a panic the cache is still safe to use, as its type
// promises, and its memory is still needed.
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

type Evicted<L> = <<L as EvictLock>::Cache as EvictColdest>::Evicted;

/// Takes out and drops up to `wanted` of the coldest entries. Each time it took some out, it calls
/// `note` with their number before it drops them. Returns how many went; `None` if the lock was
/// held at the first attempt.
pub(super) fn evict<L: EvictLock>(lock: &L, wanted: usize, note: impl Fn(usize)) -> Option<usize> {
    let are_small = const { size_of::<[Option<Evicted<L>>; AT_ONCE]>() <= ON_STACK_BYTES };
    let mut gone = 0;
    while gone < wanted {
        let left = wanted - gone;
        let taken =
            if are_small { take::<L, AT_ONCE>(lock, left, &note) } else { take::<L, 1>(lock, left, &note) };
        match taken {
            None if gone == 0 => return None,
            None | Some(0) => break,
            Some(taken) => gone += taken,
        }
    }
    Some(gone)
}

/// Takes out and drops `wanted` entries, but `N` at most.
fn take<L: EvictLock, const N: usize>(lock: &L, wanted: usize, note: &impl Fn(usize)) -> Option<usize> {
    // Made before the lock is taken, so it is dropped after the lock, even if the cache's code
    // panics.
    let mut some = EachDropped([const { None::<Evicted<L>> }; N]);
    let taken = lock.try_with(|cache| {
        let mut taken = 0;
        for place in some.0.iter_mut().take(wanted) {
            let Some(entry) = cache.evict_coldest() else { break };
            *place = Some(entry);
            taken += 1;
        }
        taken
    })?;
    note(taken);
    Some(taken)
}
