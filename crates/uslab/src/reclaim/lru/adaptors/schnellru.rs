//! [`schnellru::LruMap`](::schnellru::LruMap) of the crate `schnellru`: strict LRU, entries in one
//! table.
//!
//! The table does not shrink when entries go: eviction frees only the memory that keys and values
//! own. The adaptor uses only the map's public interface.

use crate::reclaim::lru::evict::EvictColdest;
use ::schnellru::{Limiter, LruMap};
use core::hash::{BuildHasher, Hash};

/// Eviction frees only the memory that keys and values own: the map's table keeps its size.
///
/// ```standalone_crate
/// use schnellru::{LruMap, Unlimited};
/// use uslab::reclaim::adaptors::Shared;
///
/// let rows = Shared::new("rows", LruMap::new(Unlimited)).unwrap();
/// rows.lock().insert(7, vec![7; 1000]);
/// assert!(rows.lock().get(&7).is_some());
/// uslab::reclaim(usize::MAX);
/// assert!(rows.lock().get(&7).is_none());
/// ```
impl<K, V, L, S> EvictColdest for LruMap<K, V, L, S>
where
    K: Hash + PartialEq + 'static,
    V: 'static,
    L: Limiter<K, V> + 'static,
    S: BuildHasher + 'static,
{
    type Evicted = (K, V);

    fn entries(&self) -> usize {
        self.len()
    }

    fn evict_coldest(&mut self) -> Option<(K, V)> {
        self.pop_oldest()
    }
}
