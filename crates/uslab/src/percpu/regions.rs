//! The memory of slots, sheaves and barns; see [`crate::os::region`].

use super::CpuCache;
use super::counted::sheaf_region;
use super::local;
use crate::os::region::{Region, Visit};
use crate::rseq::Which;
use core::sync::atomic::Ordering::Relaxed;

impl CpuCache {
    /// Calls `visit` for each slot, those of threads and of the counted and hidden rows too, each
    /// barn, each sheaf in them, and the slabs' structures. No other thread may use the cache.
    pub fn for_each_region(&self, visit: &mut Visit<'_>) {
        for slot in self.all_slots() {
            visit(Region::of("slot", slot));
            let sheaves = [Which::Main, Which::Spare].map(|which| slot.place(which).load(Relaxed));
            sheaves.into_iter().filter_map(sheaf_region).for_each(&mut *visit);
        }
        local::for_each_region(self, visit);
        for barn in self.barns() {
            visit(Region::of("barn", barn));
            barn.for_each_sheaf(|sheaf| sheaf_region(sheaf).into_iter().for_each(&mut *visit));
        }
        self.slabs().for_each_region(visit);
    }
}
