//! Shrink: empty slabs go back to the page layer.
//!
//! A cache keeps empty slabs up to a target that it learns. The functions here release those beyond
//! it, beyond the last of each node, or all. Each slab leaves under the lists' lock and is freed
//! without it.

use super::lists::Lists;
use super::pool::Slabs;
use crate::pages::Temperature;
use crate::sync::in_flight::InFlight;
use core::sync::atomic::Ordering::Relaxed;

impl Slabs {
    /// Gives all empty slabs to the page layer; returns the bytes.
    pub fn shrink(&self) -> usize {
        self.shrink_beyond(usize::MAX, |_| 0)
    }

    /// Bytes of empty slabs beyond the last of each node, which the next object may come from.
    /// Takes no lock.
    pub fn spare_bytes(&self) -> usize {
        self.spare.load(Relaxed) * self.slab_bytes()
    }

    /// Gives so many of these to the page layer, rounded down to whole slabs; returns the bytes.
    pub fn shrink_by(&self, bytes: usize) -> usize {
        match bytes / self.slab_bytes() {
            0 => 0,
            most => self.shrink_beyond(most, |_| 1),
        }
    }

    /// The same for those beyond the target, which fades with time.
    pub fn shrink_to_target(&self) -> usize {
        self.shrink_beyond(usize::MAX, |lists| {
            lists.decay();
            lists.target
        })
    }

    /// Releases empty slabs until each node has no more than `kept` says, or `most` are gone.
    fn shrink_beyond(&self, most: usize, kept: impl Fn(&mut Lists) -> u32) -> usize {
        let (mut gone, mut in_flight) = (0, None);
        for (index, node) in self.nodes().iter().enumerate() {
            loop {
                let mut lists = node.lock();
                let beyond = gone < most && lists.empty() > 0 && lists.empty() > kept(&mut lists);
                if beyond {
                    in_flight.get_or_insert_with(InFlight::begin);
                }
                let Some(slab) = beyond.then(|| self.take_empty_slab(&mut lists)).flatten() else {
                    self.publish(&mut lists, index);
                    break;
                };
                drop(lists);
                // Past the CPU page lists: what is not wanted is not kept warm.
                self.free_slab(slab, Temperature::Cold);
                gone += 1;
            }
        }
        gone * self.slab_bytes()
    }
}
