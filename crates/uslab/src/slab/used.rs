//! The groups whose lists have had slabs. Forks, walks and figures visit these alone.
//!
//! A thread marks a group before it takes the lists' lock, if it makes a slab there or keeps the
//! addresses of one. No other thread marks groups. So a group without a mark has no slab, and no
//! thread holds or waits for its lock. A fork keeps other threads from marking until the memory is
//! copied (`sync/marks.rs`). The only group of a cache is marked from the start.

use super::group::Group;
use super::pool::Slabs;
use crate::os::Lock;
use crate::sync::Rank;

/// A thread that marks a group holds this lock, and so does a fork.
static MARKING: Lock<()> = Lock::new(Rank::ListMarks, ());

/// Keeps threads from marking groups for the duration of a fork.
pub fn lock_marks_for_fork() {
    MARKING.acquire_for_fork();
}

/// Undoes [`lock_marks_for_fork`]; `child` is true in the child.
pub fn unlock_marks_after_fork(child: bool) {
    if child { MARKING.reset_in_child() } else { MARKING.release_after_fork() }
}

impl Slabs {
    /// A group, marked. May sleep until a fork has copied the memory.
    pub(super) fn use_group(&self, group: usize) -> &Group {
        self.used_groups.add(group, &MARKING);
        &self.groups()[group]
    }

    /// A group, if it is marked.
    pub(super) fn used_group(&self, group: usize) -> Option<&Group> {
        self.groups().get(group).filter(|_| self.used_groups.has(group))
    }

    /// The number of marked groups, at least one.
    pub(super) fn used_group_count(&self) -> usize {
        self.used_groups.ranges().map(|range| range.len()).sum::<usize>().max(1)
    }

    /// The marked groups, and their numbers.
    pub(super) fn used_groups(&self) -> impl Iterator<Item = (usize, &Group)> {
        let groups = self.used_groups.ranges().flatten();
        groups.filter_map(|index| Some((index, self.groups().get(index)?)))
    }
}
