//! [`lru::LruCache`](::lru::LruCache) of the crate `lru`: strict LRU, an entry a box.
//!
//! The adaptor uses only the cache's public interface.

use crate::reclaim::lru::evict::EvictColdest;
use ::lru::LruCache;
use core::hash::{BuildHasher, Hash};

/// ```standalone_crate
/// use uslab::reclaim::adaptors::Shared;
///
/// // No capacity: it grows until memory is wanted.
/// let rows = Shared::new("rows", lru::LruCache::unbounded()).unwrap();
/// rows.lock().put(7, "seven");
/// assert_eq!(rows.lock().get(&7), Some(&"seven"));
/// uslab::reclaim(usize::MAX);
/// assert_eq!(rows.lock().get(&7), None);
/// ```
impl<K, V, S> EvictColdest for LruCache<K, V, S>
where
    K: Hash + Eq + 'static,
    V: 'static,
    S: BuildHasher + 'static,
{
    type Evicted = (K, V);

    fn entries(&self) -> usize {
        self.len()
    }

    fn evict_coldest(&mut self) -> Option<(K, V)> {
        self.pop_lru()
    }
}
