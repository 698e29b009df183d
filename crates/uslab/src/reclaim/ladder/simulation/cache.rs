//! A cache of the model: entries on pages, and the behaviour of its callbacks.

use super::model::Place;
use crate::reclaim::balance::{Owed, Weight};
use std::vec::Vec;

/// The behaviour of a cache's callbacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    Honest,
    /// Another thread is inside for this time.
    Busy {
        ms: u64,
    },
    /// Answers "not now" for this time.
    Stops {
        ms: u64,
    },
    /// Off its CPU: this many asks take longer than their budget and free nothing.
    Late {
        asks: usize,
    },
    /// Each ask takes longer than its budget, and frees entries.
    Slow,
    /// Counts its entries, but frees none.
    Liar,
    /// Claims to free entries, but keeps them.
    Faker,
    /// Unregisters itself in the ask after this many.
    Leaves {
        asks: usize,
    },
}

/// A cache and its shrinker.
pub struct Cache {
    pub is_registered: bool,
    pub manner: Manner,
    pub until_ns: u64,
    pub weight: Weight,
    pub batch: usize,
    pub per_page: usize,
    /// Distance, in entries, between one eviction and the next.
    pub stride: usize,
    pub lands: Place,
    /// The page of each entry.
    pub entries: Vec<usize>,
    /// Entries on each page.
    pub live: Vec<usize>,
    pub owed: Owed,
    pub evicted: usize,
    /// The last answer was "not now".
    pub has_stopped: bool,
    /// Asks of this pass that took too long and freed nothing.
    pub late: usize,
}

impl Cache {
    pub fn pages(&self) -> usize {
        self.live.iter().filter(|&&live| live > 0).count()
    }

    pub fn is_busy(&self, now_ns: u64) -> bool {
        matches!(self.manner, Manner::Busy { .. }) && now_ns < self.until_ns
    }

    /// Whether its entries could go, as far as the pass could have known.
    pub fn is_willing(&self, now_ns: u64) -> bool {
        self.is_registered
            && !self.is_busy(now_ns)
            && !self.has_stopped
            && !matches!(self.manner, Manner::Liar | Manner::Faker)
            && self.late < 2
    }

    /// Evicts the next entry; returns whether its page comes free.
    pub fn evict(&mut self) -> bool {
        self.evicted += self.stride;
        let page = self.entries.swap_remove(self.evicted % self.entries.len());
        self.live[page] -= 1;
        self.live[page] == 0
    }
}
