//! The tasks of a child (child.rs). A new kind of measurement is a variant of [`Task`] and its arm
//! in [`measure`].

use crate::lineup::{find, find_heaps};
use crate::measure::Sample;
use crate::programs::Job;
use crate::rounds::beside::Beside;
use crate::rounds::heaps::HeapLoad;
use crate::rounds::memory::{self, Crowd, Load};
use crate::rounds::orders::Slabs;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// How much memory a contestant holds under a load and after it.
    Rss { contestant: String, load: Load },
    /// How much memory a contestant holds in many threads.
    Crowd { contestant: String, crowd: Crowd },
    /// What a pair of a large size costs beside live objects.
    Beside { contestant: String, beside: Beside },
    /// What private heaps cost.
    Heaps { contestant: String, load: HeapLoad },
    /// What a cache of one slab order costs in time and memory.
    Order(Slabs),
    /// What a whole program takes under an allocator.
    Program(Job),
}

/// Does the [`Task`] that `json` is, in this process. An error is one line.
pub fn measure(json: &str) -> Result<Sample, String> {
    match serde_json::from_str(json).map_err(|error| format!("--child: no such task ({error})"))? {
        Task::Rss { contestant, load } => memory::run(&find(&contestant, load.largest_bytes)?, &load),
        Task::Crowd { contestant, crowd } => memory::run_crowd(&find(&contestant, 0)?, crowd),
        Task::Beside { contestant, beside } => beside.run(&find(&contestant, beside.object_bytes)?),
        Task::Heaps { contestant, load } => Ok((find_heaps(&contestant)?.run)(&load)),
        Task::Order(slabs) => slabs.run(),
        Task::Program(job) => job.run(),
    }
}
