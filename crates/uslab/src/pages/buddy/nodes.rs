//! The lists of chunks, node by node, and the node of a chunk.

use super::{LEVELS, ORDERS, PINNED_LEVEL};
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

/// The node that takes memory: the calling thread's.
pub(super) fn this_node() -> usize {
    Cpu::current().node()
}

/// The place of a chunk's node among the lists.
pub(super) fn lists_of(index: usize) -> usize {
    usize::from(arena::node_of_chunk(index).load(Relaxed)) % NODES
}
