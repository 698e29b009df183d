//! Shrink: releases empty slabs to the page layer.
//!
//! A cache keeps empty slabs up to a target that it learns. The functions here release the empty
//! slabs beyond the target, those beyond the last of each group, or all. A shrink takes a slab out
//! of the lists under their lock, and frees its pages without the lock.

use super::lists::Lists;
use super::pool::Slabs;
use crate::counters;
use crate::pages::{self, PAGE_BYTES, Temperature};
use crate::sync::in_flight::InFlight;
use core::sync::atomic::Ordering::Relaxed;

// Upper bounds on the bytes of a group's empty slabs, up to which new slabs raise its target.
// [`Slabs::free_and_keep`] may raise it further.

/// For slabs of [`MANY_OBJECTS`] or more, for each CPU in use. To release such a slab and make it
/// again costs 0.4 µs, little for each object; meanwhile all caches can have its pages (ADR 0071).
const MAX_EMPTY_CPU_BYTES: usize = 128 << 10;
/// The least such bound.
const MIN_EMPTY_BYTES: usize = 256 << 10;
/// For slabs of fewer objects, and for those with a constructor, which would run again.
const MAX_EMPTY_BYTES: usize = 64 << 20;
/// For slabs that are runs, for each CPU in use. Other runs can use the pages of those released:
/// each of 20 classes would hold back its own.
const MAX_EMPTY_RUN_CPU_BYTES: usize = 512 << 10;
/// The least such bound.
const MIN_EMPTY_RUN_BYTES: usize = 1 << 20;

const MANY_OBJECTS: usize = 128;

/// [`Slabs::is_nearly_free`] is false for less: 1 MiB.
const MIN_NEARLY_FREE_BYTES: usize = 1 << 20;

impl Slabs {
    /// Empty slabs of a group, up to which new slabs raise its target.
    pub(super) fn most_empty_slabs(&self) -> u32 {
        let cpus = || self.used_cpu_count().div_ceil(self.used_group_count().max(1));
        let bytes = match () {
            () if self.is_shared => 0,
            // Free memory is bounded: new slabs do not raise the target.
            () if self.geometry.is_run() && pages::is_bounded() && !pages::is_small() => 0,
            () if self.geometry.is_run() => (cpus() * MAX_EMPTY_RUN_CPU_BYTES).max(MIN_EMPTY_RUN_BYTES),
            () if self.constructor.is_some() || self.geometry.objects < MANY_OBJECTS => MAX_EMPTY_BYTES,
            () => (cpus() * MAX_EMPTY_CPU_BYTES).max(MIN_EMPTY_BYTES),
        };
        (bytes / self.slab_bytes()) as u32
    }

    /// Releases all empty slabs to the page layer; returns the bytes of memory that they had.
    pub fn shrink(&self) -> usize {
        self.shrink_beyond(usize::MAX, |_| 0).1
    }

    /// Bytes of empty slabs, of which some pages may have no memory. Leaves out the last slab of
    /// each group: the next object may come from that one. Takes no lock.
    pub fn spare_bytes(&self) -> usize {
        self.spare.load(Relaxed) * self.slab_bytes()
    }

    /// Whether the slabs take [`MIN_NEARLY_FREE_BYTES`] or more, and at most an eighth of their
    /// bytes is in use. Takes no lock. False for slabs that share their record with those of other
    /// caches.
    pub fn is_nearly_free(&self) -> bool {
        let slabs = counters::record(self.id()).slabs.load(Relaxed).max(0) as usize;
        let bytes = slabs * self.slab_bytes();
        !self.is_shared
            && counters::has_record(self.id())
            && bytes >= MIN_NEARLY_FREE_BYTES
            && self.taken() * self.geometry().object_bytes <= bytes / 8
    }

    /// Releases up to `bytes` of the [`Slabs::spare_bytes`], rounded down to whole slabs. Returns
    /// the bytes of these slabs, and of their pages that had memory.
    pub fn shrink_by(&self, bytes: usize) -> (usize, usize) {
        match bytes / self.slab_bytes() {
            0 => (0, 0),
            most => self.shrink_beyond(most, |_| 1),
        }
    }

    /// Releases the empty slabs beyond each group's target, which halves each second; returns the
    /// bytes of memory that they had.
    pub fn shrink_to_target(&self) -> usize {
        self.shrink_beyond(usize::MAX, |lists| {
            lists.halve_target();
            lists.target
        })
        .1
    }

    /// Releases empty slabs until each group has at most `kept(lists)` of them, or `most` slabs are
    /// gone. Returns the bytes of these slabs, and of their pages that had memory.
    fn shrink_beyond(&self, most: usize, kept: impl Fn(&mut Lists) -> u32) -> (usize, usize) {
        let (mut gone, mut pages, mut in_flight) = (0, 0, None);
        for (index, group) in self.used_groups() {
            loop {
                let mut lists = group.lock();
                let beyond = gone < most && lists.empty() > 0 && lists.empty() > kept(&mut lists);
                if beyond {
                    in_flight.get_or_insert_with(InFlight::begin);
                }
                let Some(slab) = beyond.then(|| self.take_empty_slab(&mut lists)).flatten() else {
                    self.publish(&mut lists, index);
                    break;
                };
                drop(lists);
                // Cold: the cache does not need these pages, so they bypass the CPU page lists,
                // which keep pages warm.
                pages += self.free_slab(slab, Temperature::Cold);
                gone += 1;
            }
        }
        (gone * self.slab_bytes(), pages * PAGE_BYTES)
    }
}
