//! The memory of slab lists, descriptors and bitmaps; see [`crate::os::region`].

use super::pool::Slabs;
use crate::os::region::{Region, Visit};

impl Slabs {
    /// Calls `visit` for the lists of each group, and the descriptor and bitmap of each slab. No
    /// other thread may use the cache.
    pub fn for_each_region(&self, visit: &mut Visit<'_>) {
        for (_, group) in self.used_groups() {
            let lists = group.lock();
            visit(Region::of("slab lists", &*lists));
            for slab in lists.all() {
                // SAFETY: the descriptor is mapped, and the lists are locked.
                visit(Region::of("slab descriptor", unsafe { &*slab.head() }));
                visit(Region::of("bitmap", slab.words(self.geometry())));
            }
        }
    }
}
