//! The figures of one cache, and the iterator over all of them.

use crate::cache::{self, Cache, RawCache};
use crate::counters::layout::{NAME_BYTES, Record, STATE_LIVE, STATE_UNUSED};
use crate::counters::{has_record, record, records};
use crate::pages::PAGE_BYTES;
use core::fmt;
use core::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The figures of one cache, copied out of its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Number of the cache. The number of a destroyed cache is used again.
    pub id: u32,
    /// Name of the cache.
    pub name: CacheName,
    /// Whether the cache is gone. Its last figures stay until the number is used again.
    pub is_destroyed: bool,
    /// Bytes of an object that the program asked for.
    pub user_bytes: u64,
    /// Bytes from one object of a slab to the next.
    pub object_bytes: u64,
    /// Objects of one slab.
    pub objects_per_slab: u64,
    /// Pages of 4 KiB of one slab.
    pub pages_per_slab: u64,
    /// Bytes of all slabs.
    pub slab_bytes: u64,
    /// Objects that a sheaf has room for now; 0 for a cache without sheaves.
    pub sheaf_capacity: u64,
    /// Slabs now.
    pub slabs: u64,
    /// Slabs with some objects free and some in use.
    pub partial_slabs: u64,
    /// Slabs with every object free.
    pub empty_slabs: u64,
    /// Empty slabs that the cache keeps; it learns the number.
    pub empty_target: u64,
    /// Objects of all slabs.
    pub total_objects: u64,
    /// Objects that the program holds, and freed ones in the quarantine of a hardened cache.
    pub active_objects: u64,
    /// Objects free in slabs.
    pub slab_free: u64,
    /// Objects free in sheaves.
    pub sheaf_free: u64,
    /// Times that the slow path of allocation ran.
    pub alloc_slow: u64,
    /// Times that the slow path of free ran.
    pub free_slow: u64,
    /// Times that a CPU took objects from slabs.
    pub refills: u64,
    /// Times that objects of a sheaf went to slabs.
    pub flushes: u64,
    /// Sheaves that drains took out of slots, of any CPU.
    pub drains: u64,
    /// Slabs taken from the page layer.
    pub grows: u64,
    /// Slabs given back to it.
    pub shrinks: u64,
    /// Allocations that failed for lack of memory.
    pub failures: u64,
    /// Objects that CPUs of other nodes gave back to the barns and slabs of the objects' own node.
    pub home_objects: u64,
    /// The whole sheaves by which barns got such objects.
    pub home_sheaves: u64,
}

/// The figures of all live caches, in the order of their numbers. Caches that are made or destroyed
/// while the iterator lives may be missed.
///
/// A cache for whose counters there was no memory is not listed.
pub fn caches() -> impl Iterator<Item = CacheStats> {
    all_caches().filter(|cache| !cache.is_destroyed)
}

/// As [`caches`], with destroyed caches whose number is not used again yet.
pub(super) fn all_caches() -> impl Iterator<Item = CacheStats> {
    cache::account_all();
    counted_caches()
}

/// As [`all_caches`], for a caller that counted what the sheaves hold before.
pub(super) fn counted_caches() -> impl Iterator<Item = CacheStats> {
    records().filter(|record| record.state.load(Relaxed) != STATE_UNUSED).map(CacheStats::of)
}

impl CacheStats {
    /// The figures of the live cache `id`; `None` if it has no counters of its own.
    fn of_cache(id: u16) -> Option<CacheStats> {
        cache::with_accounts(|| has_record(id).then(|| CacheStats::of(record(id))))
    }

    /// The figures in `record`, made consistent: the difference of two counters that change
    /// meanwhile may be below 0.
    fn of(record: &Record) -> CacheStats {
        let signed = |counter: &AtomicI64| counter.load(Relaxed).max(0) as u64;
        let plain = |counter: &AtomicU64| counter.load(Relaxed);
        let word = |counter: &AtomicU32| u64::from(counter.load(Relaxed));
        let slabs = signed(&record.slabs);
        let total_objects = slabs * word(&record.objects_per_slab);
        let (slab_free, sheaf_free) = (signed(&record.slab_free), signed(&record.sheaf_free));
        CacheStats {
            id: record.id.load(Relaxed),
            name: CacheName::of(&record.name),
            is_destroyed: record.state.load(Relaxed) != STATE_LIVE,
            user_bytes: word(&record.user_bytes),
            object_bytes: word(&record.object_bytes),
            objects_per_slab: word(&record.objects_per_slab),
            pages_per_slab: word(&record.pages_per_slab),
            slab_bytes: slabs * word(&record.pages_per_slab) * PAGE_BYTES as u64,
            sheaf_capacity: word(&record.sheaf_capacity),
            slabs,
            partial_slabs: signed(&record.partial_slabs),
            empty_slabs: signed(&record.empty_slabs),
            empty_target: word(&record.empty_target),
            total_objects,
            active_objects: total_objects.saturating_sub(slab_free + sheaf_free),
            slab_free,
            sheaf_free,
            alloc_slow: plain(&record.alloc_slow),
            free_slow: plain(&record.free_slow),
            refills: plain(&record.refills),
            flushes: plain(&record.flushes),
            drains: plain(&record.drains),
            grows: plain(&record.grows),
            shrinks: plain(&record.shrinks),
            failures: plain(&record.failures),
            home_objects: plain(&record.home_objects),
            home_sheaves: plain(&record.home_sheaves),
        }
    }
}

impl RawCache {
    /// The figures of this cache; `None` where there was no memory for its counters. See
    /// [`crate::stats`].
    pub fn stats(&self) -> Option<CacheStats> {
        CacheStats::of_cache(self.core().id())
    }
}

impl<T> Cache<T> {
    /// The figures of this cache; `None` before its first use, and where there was no memory for
    /// its counters. See [`crate::stats`].
    pub fn stats(&self) -> Option<CacheStats> {
        CacheStats::of_cache(self.core_if_set_up()?.id())
    }
}

/// The name of a cache: at most 47 bytes of text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CacheName([u8; NAME_BYTES]);

impl CacheName {
    pub(super) fn of(name: &[AtomicU8; NAME_BYTES]) -> CacheName {
        let mut bytes = [0; NAME_BYTES];
        for (place, byte) in bytes.iter_mut().zip(name) {
            *place = byte.load(Relaxed);
        }
        CacheName(bytes)
    }

    /// The name; `?` where it was being replaced at that moment.
    pub fn as_str(&self) -> &str {
        let used = self.0.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
        core::str::from_utf8(&self.0[..used]).unwrap_or("?")
    }
}

impl fmt::Display for CacheName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for CacheName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
