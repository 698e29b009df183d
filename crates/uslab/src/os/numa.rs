//! Memory policies: which nodes the kernel takes the memory of a range from.
//!
//! A policy belongs to a range of addresses (`mbind`), and holds for pages that are touched from
//! then on. The kernel keeps it in the mapping, so that neighbours with another policy are another
//! mapping. A fork child inherits it. When the process's set of nodes changes (`cpuset`), the
//! kernel moves the policy to the nodes that the process has then.

use super::memory;
use core::ffi::{c_int, c_ulong};

/// The nodes of a machine from which a cache takes its memory.
///
/// A policy has an effect only on a machine of several nodes, and not with `USLAB_NUMA=0`.
/// Elsewhere every policy is accepted and ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NumaPolicy {
    /// Each CPU allocates memory of its own node, and objects return to the node that they came
    /// from. A policy of the whole process (`numactl`, `set_mempolicy`) holds.
    #[default]
    Local,
    /// Memory of this node alone, whichever CPU allocates (`MPOL_BIND`).
    ///
    /// The kernel takes no memory of another node: if the node is full, it reclaims there, and in
    /// the end kills a process, as with `numactl --membind`. If an administrator takes the node
    /// away from the running process, the kernel binds the memory to the nodes that are left.
    Bind(usize),
    /// Pages of all nodes in turn (`MPOL_INTERLEAVE`): for objects that the CPUs of all nodes use
    /// alike. Neighbours of 4 KiB, or of a huge page where one backs them, are on different nodes.
    Interleave,
}

/// Bits of a mask of nodes: as many as the library heeds.
pub const MAX_NODES: usize = c_ulong::BITS as usize;
/// Bits of the masks that the kernel writes: it refuses a mask shorter than its own.
const KERNEL_NODES: usize = 1024;

/// Sets the policy of `[start, start + bytes)` on a machine of `nodes` nodes. With `moves`, pages
/// that have memory move as well: where the kernel backs mappings at once, because the program
/// locks what it maps.
///
/// Returns false if the kernel refuses: a seccomp filter, too many mappings, or a node that the
/// process may not use any more. Part of the range may then have the new policy.
///
/// # Safety
/// The library must have mapped the range, whole system pages, and the caller must own it.
pub unsafe fn set_policy(start: usize, bytes: usize, policy: NumaPolicy, nodes: usize, moves: bool) -> bool {
    let all: c_ulong = if nodes >= MAX_NODES { c_ulong::MAX } else { (1 << nodes) - 1 };
    let (mode, mask) = match policy {
        NumaPolicy::Local => (libc::MPOL_DEFAULT, 0),
        NumaPolicy::Bind(node) => (libc::MPOL_BIND, 1u64.checked_shl(node as u32).unwrap_or(0) as c_ulong),
        NumaPolicy::Interleave => (libc::MPOL_INTERLEAVE, all),
    };
    // The default takes no mask. The kernel reads one bit less than it is told.
    let (place, bits) = if mask == 0 { (core::ptr::null(), 0) } else { (&raw const mask, MAX_NODES + 1) };
    /// `MPOL_MF_MOVE`.
    const MOVE: c_ulong = 1 << 1;
    let flags = if moves { MOVE } else { 0 };
    // SAFETY: the kernel reads the mask of as many bits. The policy changes no contents.
    unsafe { libc::syscall(libc::SYS_mbind, start, bytes, mode, place, bits, flags) == 0 }
}

/// Whether the kernel accepts `policy` on a machine of `nodes` nodes, now: each node exists, has
/// memory and is the process's to use, and no filter forbids the call. Tries it on a page of its
/// own: three system calls. A pretended machine accepts each of its nodes.
pub fn is_accepted(policy: NumaPolicy, nodes: usize) -> bool {
    if matches!(policy, NumaPolicy::Bind(node) if node >= nodes) {
        return false;
    }
    if policy == NumaPolicy::Local || super::cpu::is_pretended() {
        return true;
    }
    let bytes = memory::page_bytes();
    let Some(page) = memory::map_shared(bytes) else { return false };
    // SAFETY: just mapped, and no other code knows it.
    unsafe {
        let is_set = set_policy(page.addr(), bytes, policy, nodes, false);
        memory::unmap(page, bytes);
        is_set
    }
}

/// The mode of the policy of the page at `address`, and the mask of its first 64 nodes; `None`
/// where the kernel has no policies or refuses to answer. For tests and for questions about a
/// running process.
pub fn policy_at(address: usize) -> Option<(c_int, u64)> {
    const OF_ADDRESS: c_int = 1 << 1;
    let (mut mode, mut mask) = (0 as c_int, [0u64; KERNEL_NODES / 64]);
    // SAFETY: the mask has as many bits as the kernel is told; it only looks at the address.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            KERNEL_NODES,
            address,
            OF_ADDRESS,
        )
    };
    (result == 0).then_some((mode, mask[0]))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// A range of the test's own has the policy that the kernel is told, and then the default.
    #[test]
    fn the_kernel_knows_the_policy_of_a_range() {
        const BYTES: usize = 2 << 20;
        let start = memory::map_shared(BYTES).expect("there is memory");
        let set = |policy| {
            // SAFETY: just mapped, and the test's.
            unsafe { set_policy(start.addr(), BYTES, policy, 1, false) }
        };
        match policy_at(start.addr()) {
            None => std::println!("skipped: the kernel has no memory policies, or does not tell them"),
            Some(_) if !set(NumaPolicy::Bind(0)) => std::println!("skipped: the kernel refuses mbind"),
            Some(before) => {
                assert_eq!(before.0, libc::MPOL_DEFAULT);
                assert_eq!(policy_at(start.addr()), Some((libc::MPOL_BIND, 1)));
                assert!(set(NumaPolicy::Interleave));
                assert_eq!(policy_at(start.addr()), Some((libc::MPOL_INTERLEAVE, 1)));
                assert!(!set(NumaPolicy::Bind(MAX_NODES - 1)), "there is no such node");
                assert!(set(NumaPolicy::Local));
                assert_eq!(policy_at(start.addr()), Some((libc::MPOL_DEFAULT, 0)));
            }
        }
        // SAFETY: the test's, and not used any more.
        assert!(unsafe { memory::unmap(start, BYTES) });
    }

    #[test]
    fn a_node_that_the_machine_lacks_is_not_accepted() {
        assert!(is_accepted(NumaPolicy::Local, 1));
        assert!(!is_accepted(NumaPolicy::Bind(1), 1));
        assert!(!is_accepted(NumaPolicy::Bind(MAX_NODES - 1), MAX_NODES), "64 nodes are not there");
        assert!(!is_accepted(NumaPolicy::Bind(usize::MAX), MAX_NODES));
    }
}
