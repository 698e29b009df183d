//! The home of a chunk: whose pages it has, and which policy the kernel has for it.
//!
//! ```text
//!   0 … 63    memory of this node, for all CPUs of it       the kernel's default policy
//!   64        interleaved over all nodes                     MPOL_INTERLEAVE
//!   65 … 128  bound to node 0 … 63                           MPOL_BIND
//! ```
//!
//! A chunk gets its home with its first page, while it has no memory, and keeps it until it has
//! none again. A run of pages comes from a chunk of the home that the caller asks for, so that
//! memory of one policy never serves another one. See `buddy/nodes.rs`.

use crate::os::numa::NumaPolicy;
use crate::rseq::Cpu;

/// The home of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home(u8);

const INTERLEAVED: u8 = 64;
const BOUND: u8 = INTERLEAVED + 1;
/// Nodes that homes are told apart for.
pub const MAX_NODES: usize = INTERLEAVED as usize;

impl Home {
    /// The memory that [`NumaPolicy::Local`] gives to the CPU that the thread runs on.
    pub fn here() -> Home {
        Home::of_node(Cpu::current().node())
    }

    /// Memory of `node`, for the CPUs there.
    pub fn of_node(node: usize) -> Home {
        Home((node % MAX_NODES) as u8)
    }

    /// The memory that `policy` gives to the CPU that the thread runs on.
    pub fn of(policy: NumaPolicy) -> Home {
        match policy {
            NumaPolicy::Local => Home::here(),
            NumaPolicy::Bind(node) => Home(BOUND + (node % MAX_NODES) as u8),
            NumaPolicy::Interleave => Home(INTERLEAVED),
        }
    }

    /// The policy of such memory.
    pub fn policy(self) -> NumaPolicy {
        match self.0 {
            ..INTERLEAVED => NumaPolicy::Local,
            INTERLEAVED => NumaPolicy::Interleave,
            bound => NumaPolicy::Bind(usize::from(bound - BOUND)),
        }
    }

    /// The node of such memory; `None` of interleaved memory.
    pub fn node(self) -> Option<usize> {
        match self.policy() {
            NumaPolicy::Local => Some(usize::from(self.0)),
            NumaPolicy::Bind(node) => Some(node),
            NumaPolicy::Interleave => None,
        }
    }

    /// Whether the kernel has a policy for such memory.
    pub fn has_policy(self) -> bool {
        self.0 >= INTERLEAVED
    }

    /// The number of the policy, from 0 on; `None` of a node's own memory.
    pub(super) fn policy_number(self) -> Option<usize> {
        self.0.checked_sub(INTERLEAVED).map(usize::from)
    }

    /// Policies of a machine of `nodes` nodes.
    pub(super) fn policies(nodes: usize) -> usize {
        usize::from(BOUND - INTERLEAVED) + nodes.min(MAX_NODES)
    }

    pub(super) fn byte(self) -> u8 {
        self.0
    }

    /// Undoes [`Home::byte`].
    pub(super) fn from_byte(byte: u8) -> Home {
        Home(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_tells_its_policy_and_node() {
        for node in [0, 1, 63] {
            let (own, bound) = (Home::of_node(node), Home::of(NumaPolicy::Bind(node)));
            assert_eq!((own.policy(), own.node()), (NumaPolicy::Local, Some(node)));
            assert_eq!((bound.policy(), bound.node()), (NumaPolicy::Bind(node), Some(node)));
            assert_eq!((own.policy_number(), bound.policy_number()), (None, Some(node + 1)));
            assert_ne!(own, bound);
        }
        let interleaved = Home::of(NumaPolicy::Interleave);
        assert_eq!((interleaved.policy(), interleaved.node()), (NumaPolicy::Interleave, None));
        assert_eq!(interleaved.policy_number(), Some(0));
    }

    #[test]
    fn each_policy_of_a_machine_has_a_number_below_their_count() {
        assert_eq!(Home::policies(4), 5);
        assert_eq!(Home::of(NumaPolicy::Bind(3)).policy_number(), Some(4));
    }
}
