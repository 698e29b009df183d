//! The knobs of a cache under loads that were tuned for in 2009: slabs of more pages, deeper
//! queues.
//!
//! ```text
//!   suites/order.rs ── loopback.rs   messages over UDP and TCP, each in its own buffer
//!                  └── oltp.rs       transactions of SQLite, in a child: sqlite.rs loads it,
//!                                    memory.rs serves it
//! ```
//!
//! Each configuration allocates behind `Memory`, a call through a table for everybody; the loads
//! spend microseconds between two of them.
//!
//! Must never: give a knob's value to all configurations, or set one that a user of the library
//! could not.

pub mod loopback;
pub mod memory;
pub mod oltp;
pub mod sqlite;

use serde::{Deserialize, Serialize};
use uslab::{CacheBuilder, RawCache};

/// Who allocates, and how it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Configuration {
    /// uslab's caches as they come.
    Vanilla,
    /// Slabs of 128 KiB and more, up to 1 MiB, in place of 32 KiB at most.
    HighOrder,
    /// Sheaves of so many objects that no load here leaves them, in place of the adaptive number.
    DeepQueue,
    /// The C library's malloc: what percents are against.
    Glibc,
}

pub const CONFIGURATIONS: [Configuration; 4] =
    [Configuration::Vanilla, Configuration::HighOrder, Configuration::DeepQueue, Configuration::Glibc];

const HIGH_ORDER: (u32, u32) = (5, 8);
const DEEP_QUEUE: usize = 256;

impl Configuration {
    pub fn name(self) -> &'static str {
        match self {
            Configuration::Vanilla => "uslab",
            Configuration::HighOrder => "uslab, high order",
            Configuration::DeepQueue => "uslab, deep queue",
            Configuration::Glibc => crate::preload::GLIBC.name,
        }
    }

    /// A cache set so; `None` for who has none.
    pub fn cache(self, size: usize) -> Result<Option<RawCache>, String> {
        let builder = CacheBuilder::new("bench-order");
        let builder = match self {
            Configuration::Vanilla => builder,
            Configuration::HighOrder => builder.min_order(HIGH_ORDER.0).max_order(HIGH_ORDER.1),
            Configuration::DeepQueue => builder.sheaf_capacity(DEEP_QUEUE),
            Configuration::Glibc => return Ok(None),
        };
        let cannot = |error| format!("no cache of {size} bytes: {error}");
        builder.build_raw(size).map(Some).map_err(cannot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_has_a_name_and_ours_have_caches() {
        for configuration in CONFIGURATIONS {
            let cache = configuration.cache(4096).unwrap();
            assert_eq!(cache.is_none(), configuration == Configuration::Glibc, "{}", configuration.name());
        }
    }
}
