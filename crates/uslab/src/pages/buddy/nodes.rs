//! The lists of chunks, home by home, and how a chunk changes its home.
//!
//! ```text
//!   lists     node 0 │ node 1 │ … │ node 7       nodes from 8 on share them
//!   policies  interleaved │ bound to node 0 │ bound to node 1 │ …     made with the first policy
//! ```
//!
//! A chunk without memory serves any home. The first allocation from it gives it a home, and tells
//! the kernel the policy before a thread touches the page. Once the chunk is wholly free and
//! without memory, the kernel forgets the policy, so that the mapping joins its neighbours again.
//!
//! Pages of a chunk with a policy must never serve another home while the chunk has memory. So they
//! stay out of the CPUs' page lists, out of large runs and out of runs that grow in place. Memory
//! of a node without a policy may serve another node's CPU, if there is no other.

use super::{Buddy, LEVELS, ORDERS, PINNED_LEVEL};
use crate::os;
use crate::os::invariant::invariant;
use crate::pages::chunk::{Chunk, NONE};
use crate::pages::home::Home;
use crate::pages::{CHUNK_BYTES, arena, boot};

/// Nodes whose chunks have lists of their own; on machines with more, nodes share them.
pub(super) const NODES: usize = 8;

/// The lists of the chunks of one home.
pub(super) struct NodeLists {
    pub heads: [[u32; ORDERS]; LEVELS],
    pub not_empty: [u16; LEVELS],
}

impl NodeLists {
    pub const EMPTY: NodeLists = NodeLists { heads: [[NONE; ORDERS]; LEVELS], not_empty: [0; LEVELS] };

    /// The first chunk of the fullest list below level `end` with room for a run of `order`.
    pub fn fullest_with(&self, order: u32, end: usize) -> Option<usize> {
        self.not_empty.iter().zip(&self.heads).take(end).find_map(|(&orders, heads)| {
            let fitting = orders >> order << order;
            (fitting != 0).then(|| *heads.get(fitting.trailing_zeros() as usize).unwrap_or(&NONE) as usize)
        })
    }

    /// A wholly free chunk without memory.
    pub fn untouched(&self) -> Option<usize> {
        (PINNED_LEVEL..LEVELS).find_map(|level| {
            let head = self.heads[level][ORDERS - 1];
            let is_chunk = (head as usize) < arena::chunks_committed();
            // SAFETY: such a chunk is committed; `&self` is the lock's.
            (is_chunk && unsafe { (*arena::chunk(head as usize)).dirty_pages } == 0).then_some(head as usize)
        })
    }
}

/// Makes the lists of all policies of a machine of `nodes` nodes, unless there are any. False
/// without memory. A cache with a policy is made after that; callers hold the registry's lock.
pub(in crate::pages) fn make_policies(nodes: usize) -> bool {
    if super::lock().has_policies() {
        return true;
    }
    let count = Home::policies(nodes);
    let memory = boot::alloc(count * size_of::<NodeLists>(), align_of::<NodeLists>()).cast::<NodeLists>();
    if memory.is_null() {
        return false;
    }
    for at in 0..count {
        // SAFETY: memory for so many lists, which no other thread knows yet.
        unsafe { memory.add(at).write(NodeLists::EMPTY) };
    }
    // SAFETY: just written; boot memory lives for ever, and the buddy alone gets it.
    super::lock().policies = unsafe { core::slice::from_raw_parts_mut(memory, count) };
    true
}

/// Whether chunk `index` has a policy. The caller holds the lock.
fn has_policy(index: usize) -> bool {
    arena::home_of_chunk(index).has_policy()
}

/// A chunk, of which the caller holds the lock, and which it does not change.
fn at<'a>(index: usize) -> &'a Chunk {
    // SAFETY: callers pass committed indices, and hold the lock.
    unsafe { &*arena::chunk(index) }
}

/// Whether a chunk has a policy that its memory, or pages in use, still have.
pub(super) fn is_taken(index: usize) -> bool {
    has_policy(index) && !is_untouched(at(index))
}

/// Whether a chunk is wholly free and without memory.
pub(super) fn is_untouched(chunk: &Chunk) -> bool {
    chunk.is_all_free() && chunk.dirty_pages == 0
}

impl Buddy {
    /// Whether any cache ever had a policy.
    pub(super) fn has_policies(&self) -> bool {
        !self.policies.is_empty()
    }

    /// The lists of all homes.
    pub(super) fn all_lists(&self) -> impl Iterator<Item = &NodeLists> {
        self.lists.iter().chain(&*self.policies)
    }

    /// The lists of a home.
    pub(super) fn lists_of(&self, home: Home) -> &NodeLists {
        match home.policy_number().and_then(|number| self.policies.get(number)) {
            Some(lists) => lists,
            None => &self.lists[usize::from(home.byte()) % NODES],
        }
    }

    /// As [`Buddy::lists_of`], to change them.
    pub(super) fn lists_of_mut(&mut self, home: Home) -> &mut NodeLists {
        match home.policy_number().and_then(|number| self.policies.get_mut(number)) {
            Some(lists) => lists,
            None => &mut self.lists[usize::from(home.byte()) % NODES],
        }
    }

    /// Whether chunks of these homes stand in the same lists.
    pub(super) fn share_lists(&self, one: Home, other: Home) -> bool {
        one == other || core::ptr::eq(self.lists_of(one), self.lists_of(other))
    }

    /// Gives chunk `index`, which is wholly free, without memory and in no list, to `home`, and
    /// tells the kernel where one of both has a policy. False where the kernel refuses: then the
    /// chunk's memory comes as its old policy, or the process's own, has it.
    pub(super) fn settle(&mut self, index: usize, home: Home) -> bool {
        let before = arena::home_of_chunk(index);
        arena::set_home_of_chunk(index, home);
        !(before.has_policy() || home.has_policy()) || self.change_policy(index, before, home)
    }

    #[cold]
    fn change_policy(&mut self, index: usize, before: Home, home: Home) -> bool {
        invariant!(is_untouched(at(index)), "a chunk that changes its policy has no memory", index);
        if before == home || at(index).is_unmapped {
            return true;
        }
        let nodes = self.policies.len().saturating_sub(Home::policies(0));
        let moves = home.has_policy() && arena::is_populated();
        let start = arena::address_of_chunk(index);
        // SAFETY: the chunk is mapped, and ours. Memory by another policy is better than none.
        unsafe { os::numa::set_policy(start, CHUNK_BYTES, home.policy(), nodes, moves) }
    }

    /// Takes the policy away from chunk `index` if it has no memory any more. It must be in a list.
    /// Where the kernel refuses, the chunk keeps its home until it is needed elsewhere.
    pub fn leave_policy(&mut self, index: usize) {
        if self.has_policies() && has_policy(index) && is_untouched(at(index)) {
            let before = arena::home_of_chunk(index);
            self.unlink(index);
            if !self.settle(index, Home::here()) {
                arena::set_home_of_chunk(index, before);
            }
            self.link(index);
        }
    }

    /// The end of the first chunks of `first..end` that have no policy's pages: these alone may
    /// serve a large run.
    pub(super) fn end_without_policy(&self, first: usize, end: usize) -> usize {
        match self.has_policies() {
            true => (first..end).find(|&index| is_taken(index)).unwrap_or(end),
            false => end,
        }
    }
}
