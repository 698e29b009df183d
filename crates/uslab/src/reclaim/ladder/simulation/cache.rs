//! A cache of the model: entries on pages, and how its callbacks behave.

use super::model::Place;
use crate::reclaim::balance::{Owed, Weight};
use std::vec::Vec;

/// How a cache's callbacks behave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    Honest,
    /// Another thread is inside for so long.
    Busy {
        ms: u64,
    },
    /// Cannot give now, for so long.
    Stops {
        ms: u64,
    },
    /// Kept from its CPU: so many asks take longer than their budget and give nothing.
    Late {
        asks: usize,
    },
    /// Each ask takes longer than its budget, and gives.
    Slow,
    /// Counts what it has and gives nothing.
    Liar,
    /// Says that it gives, and keeps everything.
    Faker,
    /// Unregisters itself in the ask after so many.
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
    /// Steps between neighbours in the order of eviction.
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
    /// Asks of this pass that took too long and gave nothing.
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

    /// Lets the next entry go; true if its page comes free.
    pub fn evict(&mut self) -> bool {
        self.evicted += self.stride;
        let page = self.entries.swap_remove(self.evicted % self.entries.len());
        self.live[page] -= 1;
        self.live[page] == 0
    }
}
