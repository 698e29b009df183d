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
//! Each function here first counts what the sheaves hold. For that it takes the lock under which
//! caches are made and destroyed, and reads two cache lines for each cache and CPU. The count is
//! exact while no other thread allocates, frees or trims. The figures of one cache
//! ([`Cache::stats`](crate::Cache::stats)) are exact while no thread uses that cache, also beside a
//! trim.
//!
//! In a process that publishes ([`publish`]), a fork child begins with a copy of the parent's file.
//! The parent runs meanwhile, and what it counts before the copy is complete is in the child's
//! figures too. So these may stay off by what the parent allocated and freed in that time. They are
//! exact where the parent publishes nothing. A program that the child executes begins anew.
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

pub use crate::counters::{PublishError, Usage};
#[doc(hidden)]
pub use at_exit::{finish as finish_at_exit, report_at_exit};
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

/// Lets the command `uslab` see this process from now on, as `USLAB_SNAPSHOT` does from the start:
/// `uslab top`, `info` and `record` read its figures, and `uslab shrink`, `validate`, `debug`,
/// `limit` and `profile` ask it.
///
/// The file is made in the directory that `USLAB_SNAPSHOT` names, else in the user's own:
/// `/dev/shm/uslab-UID`, `/run/user/UID/uslab-UID` or `/tmp/uslab-UID`, the first that can be used.
/// Only this process's user and root can read it or ask. A call in a process that publishes already
/// does nothing.
///
/// The call allocates nothing. It takes the lock under which caches are made and destroyed, makes a
/// file of 16 MiB, of which only the used part takes memory, and sends a barrier to all threads. It
/// may run on any thread and in fork children, but not in signal handlers. Children that are forked
/// later publish too; their figures may be off by what the parent does while they begin (see the
/// [module](self)).
///
/// # Errors
/// See [`PublishError`]. Then the process goes on as before.
///
/// ```
/// if let Err(reason) = uslab::stats::publish() {
///     eprintln!("uslab cannot be asked about this process: {reason}");
/// }
/// ```
pub fn publish() -> Result<(), PublishError> {
    cache::publish()
}
