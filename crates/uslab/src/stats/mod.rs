//! Figures of this process, read from inside it: of each cache, of the whole, as JSON, and as
//! `/proc/slabinfo` prints them.
//!
//! ```
//! let cache = uslab::Cache::<[u64; 5]>::new("orders");
//! let order = cache.insert([0; 5]).unwrap();
//! for cache in uslab::stats::caches() {
//!     println!("{:<20} {:>8} objects {:>10} bytes", cache.name, cache.active_objects, cache.slab_bytes);
//! }
//! print!("{}", uslab::stats::slabinfo());
//! # assert!(uslab::stats::caches().any(|cache| cache.name.as_str() == "orders"));
//! ```
//!
//! The counters change on slow paths only, so a figure may be as old as its CPU's last slow path.
//! Each function here first counts what the sheaves hold, which is exact while no other thread
//! allocates or frees. For that it takes the lock under which caches are made and destroyed, and
//! reads two cache lines for each cache and CPU.
//!
//! Nothing here allocates but `Publisher`, of the feature `metrics`. All of it may be called from
//! any thread and in fork children, but not in signal handlers and not while the caller creates or
//! destroys a cache.

mod at_exit;
mod caches;
#[cfg(feature = "prometheus-client")]
mod collector;
mod families;
mod openmetrics;
#[cfg(feature = "metrics")]
mod publisher;
mod text;

pub use crate::counters::Usage;
#[doc(hidden)]
pub use at_exit::report_at_exit;
pub use caches::{CacheName, CacheStats, caches};
#[cfg(feature = "prometheus-client")]
pub use collector::Collector;
pub use openmetrics::write_openmetrics;
#[cfg(feature = "metrics")]
pub use publisher::Publisher;
pub use text::{Json, Slabinfo, json, slabinfo};

use crate::{cache, counters};

/// The bytes and objects that the allocator holds now. Sums of counters that other threads change
/// meanwhile: close, not exact.
///
/// ```
/// let usage = uslab::stats::usage();
/// assert!(usage.committed_bytes >= usage.used_bytes);
/// ```
pub fn usage() -> Usage {
    cache::account_all();
    counters::usage()
}
