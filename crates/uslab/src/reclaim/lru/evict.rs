//! Eviction: a cache gives up its coldest entries, behind any lock that can be tried.
//!
//! ```text
//!   try lock ──▶ take out up to 32 of the coldest ──unlock──▶ drop them ──▶ again, until it is done
//!      └─ the lock is held ──▶ None
//! ```
//!
//! Every LRU cache here evicts by [`evict`]: the shards of `LruCache`, the caches of other crates,
//! and those of the program. The lock is only tried: the reclaiming thread may hold it itself.
//! Entries are dropped without it, so that their destructors may use the cache.
//!
//! Must never: block on the lock; call the program's code under it, the cache's own apart;
//! allocate, since a refusal would end the program where memory is shortest.

use super::dropping::EachDropped;
use std::sync::{Arc, Mutex, RwLock, TryLockError};

/// Entries taken out under one hold of the lock: no user of the cache waits for a long eviction.
const AT_ONCE: usize = 32;

/// Bytes of the stack for the entries between the lock and their end. Larger entries are taken one
/// at a time.
const ON_STACK_BYTES: usize = 4096;

/// A cache that can give up the entry that it would miss least.
///
/// Features bring it for the caches of some crates. For a cache of the program's own it is two
/// functions, and [`Shared`](super::adaptors::Shared) does the rest:
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

    /// Takes out the entry that is missed least; `None` if there is none that could go. Runs under
    /// the lock.
    fn evict_coldest(&mut self) -> Option<Self::Evicted>;
}

/// A lock around a cache, which can be tried: `std`'s are; for another, wrap it and say how.
pub trait EvictLock: Send + Sync + 'static {
    /// What it guards.
    type Cache: EvictColdest;

    /// Calls `with` on the cache, locked; returns `None` at once if it is locked already. Must
    /// never wait: the calling thread may hold the lock.
    fn try_with<R>(&self, with: impl FnOnce(&mut Self::Cache) -> R) -> Option<R>;
}

// A panic under the lock left a cache that is safe to use, as its type promises, and whose memory
// is wanted as before.
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

/// Takes out and drops up to `wanted` of the coldest entries. Calls `note` with the number that was
/// taken out at a time, before they are dropped. Returns how many went; `None` if the lock was held
/// before one did.
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
    // Made before the lock and dropped after it, also when the cache's code panics.
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
