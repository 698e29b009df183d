//! The lists of chunks, node by node, and the node of a chunk.

use super::{Buddy, LEVELS, ORDERS, PINNED_LEVEL};
use crate::os::corruption::is_whole;
use crate::pages::arena;
use crate::pages::chunk::NONE;
use crate::rseq::Cpu;
use core::sync::atomic::Ordering::Relaxed;

/// Nodes whose chunks have lists of their own; on machines with more, nodes share them.
pub(super) const NODES: usize = 8;

/// The lists of the chunks whose memory is on one node.
pub(super) struct NodeLists {
    pub heads: [[u32; ORDERS]; LEVELS],
    pub not_empty: [u16; LEVELS],
}

impl NodeLists {
    pub const EMPTY: NodeLists = NodeLists { heads: [[NONE; ORDERS]; LEVELS], not_empty: [0; LEVELS] };

    /// The first chunk of the fullest list with room for a run of `order`.
    pub fn fullest_with(&self, order: u32) -> Option<usize> {
        self.not_empty.iter().zip(&self.heads).find_map(|(&orders, heads)| {
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

/// The node that takes memory: the calling thread's.
pub(super) fn this_node() -> usize {
    Cpu::current().node()
}

/// The place of a chunk's node among the lists.
pub(super) fn lists_of(index: usize) -> usize {
    usize::from(arena::node_of_chunk(index).load(Relaxed)) % NODES
}

impl Buddy {
    /// The fullest chunk of this node with room for a run of `order`, or any node's without memory.
    pub(super) fn fullest_with(&self, order: u32) -> Option<usize> {
        let own = self.lists[this_node() % NODES].fullest_with(order);
        let index = own.or_else(|| self.lists.iter().find_map(NodeLists::untouched))?;
        self.whole_index(index)
    }

    /// The index of a listed chunk, if that is whole.
    fn whole_index(&self, index: usize) -> Option<usize> {
        let is_listed = index < arena::chunks_committed() && self.is_chunk_whole(index);
        is_listed.then_some(index).or_else(|| {
            is_whole(false, "buddy", self, "a list leads to a chunk within the bound");
            None
        })
    }

    /// The fullest chunk of any node with room for a run of `order`: memory of another node is
    /// better than none.
    pub(super) fn fullest_anywhere(&self, order: u32) -> Option<usize> {
        self.whole_index(self.lists.iter().find_map(|lists| lists.fullest_with(order))?)
    }
}
