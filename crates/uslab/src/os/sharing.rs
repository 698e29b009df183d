//! Groups of CPUs: those of one node that share a last-level cache.
//!
//! ```text
//!   cpu 0 … 7 │ 8 … 15 │ 16 … 23 │ 24 … 31        0-7,32-39: parts of 8 CPUs, which repeat after 32
//!      32 … 39│ 40 … 47│ 48 … 55 │ 56 … 63
//!    group 0     1         2         3
//! ```
//!
//! The kernel lists the CPUs that share CPU 0's last-level cache. CPUs are numbered evenly, so that
//! list tells all groups: its first range has the CPUs of a part, and the distance of its ranges is
//! the number after which parts repeat. One small file is read where a file for each cache would
//! cost a process of 256 CPUs some hundred system calls at its start. On a machine that numbers its
//! CPUs unevenly, CPUs of different caches share a group: slower, but not wrong.
//!
//! A process on up to [`FEW_CPUS`] CPUs reads nothing, and has one group for each node. So has one
//! whose kernel shows no such file, or shows caches of fewer than [`MIN_SHARED_CPUS`] CPUs.

use super::cpu::{self, CPUS_OF_TABLES};
use super::file::Reader;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

/// CPUs that always share a group, if they are on one node.
const FEW_CPUS: usize = 8;
/// A cache of fewer CPUs is not the one that a machine shares.
const MIN_SHARED_CPUS: usize = 4;
/// Upper bound on the groups of a machine.
const MAX_GROUPS: usize = 255;

static GROUP_OF_CPU: [AtomicU8; CPUS_OF_TABLES] = [const { AtomicU8::new(0) }; CPUS_OF_TABLES];
/// The first group of each node, and behind the last node the number of groups.
static FIRST_OF_NODE: [AtomicU8; 65] = [const { AtomicU8::new(0) }; 65];
/// The node of each group; the group's own number where each node is one group.
static NODE_OF_GROUP: [AtomicU8; MAX_GROUPS + 1] = [const { AtomicU8::new(0) }; MAX_GROUPS + 1];
/// Groups of the machine.
static COUNT: AtomicUsize = AtomicUsize::new(1);
/// CPUs of the largest group; 0 where each node is one group.
static LARGEST_GROUP_CPUS: AtomicUsize = AtomicUsize::new(0);

/// CPUs that share a cache: CPU `c` belongs to part `c % period / cpus`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parts {
    pub cpus: usize,
    pub period: usize,
}

impl Parts {
    /// The parts of a machine on which the CPUs of `list`, CPU 0's, share a cache, out of the CPUs
    /// that are `online`. `None` if the list has another form, as where some of CPU 0's neighbours
    /// are offline, or if one part has all of them. CPUs that are possible, but not there, share
    /// the groups of those that are.
    pub fn of(list: &[u8], online: &[u8]) -> Option<Parts> {
        let count = |first: usize, last: usize| (last - first).saturating_add(1);
        let (mut all, mut end) = (0usize, 0);
        cpu::parse_ranges(online, &mut |first, last| {
            all = all.saturating_add(count(first, last));
            end = end.max(last.saturating_add(1));
        });
        let mut parts = Parts { cpus: 0, period: end };
        let (mut ranges, mut members, mut is_even) = (0, 0usize, true);
        cpu::parse_ranges(list, &mut |first, last| {
            match ranges {
                0 => parts.cpus = count(first, last),
                1 => parts.period = first,
                _ => {}
            }
            ranges += 1;
            is_even &= count(first, last) <= parts.cpus;
            members = members.saturating_add(count(first, last));
        });
        let is_plausible = is_even && parts.cpus > 0 && parts.period >= parts.cpus;
        (is_plausible && members >= MIN_SHARED_CPUS && members < all).then_some(parts)
    }

    fn of_cpu(self, cpu: usize) -> usize {
        cpu % self.period / self.cpus
    }
}

/// The parts of a machine of `cpus` CPUs; `None` if all CPUs share a cache, or the kernel does not
/// show it.
#[inline(never)]
fn parts_of(cpus: usize) -> Option<Parts> {
    if let Some(shared) = cpu::pretended_cpus_of_cache() {
        return (shared > 0 && shared < cpus).then_some(Parts { cpus: shared, period: cpus });
    }
    // Index 3 is the third level; on machines without it the second may be the last.
    let mut list = Reader::open(c"/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list")
        .or_else(|| Reader::open(c"/sys/devices/system/cpu/cpu0/cache/index2/shared_cpu_list"))?;
    let (mut text, mut online) = ([0u8; 256], [0u8; 256]);
    let n = list.read(&mut text);
    let online_bytes = Reader::open(c"/sys/devices/system/cpu/online")?.read(&mut online);
    Parts::of(&text[..n], &online[..online_bytes])
}

/// Finds the groups of a machine of `cpus` possible CPUs on `nodes` nodes.
/// The node of each CPU must be known. Start-up calls it, before there is a cache.
pub fn init(cpus: usize, nodes: usize) {
    let parts = if cpus > FEW_CPUS { parts_of(cpus) } else { None };
    let cpus = cpus.min(CPUS_OF_TABLES);
    let count = parts.filter(|_| nodes < FIRST_OF_NODE.len()).and_then(|parts| assign(cpus, nodes, parts));
    if count.is_none_or(|count| count == nodes) {
        (0..=nodes.min(64)).for_each(|node| FIRST_OF_NODE[node].store(node as u8, Relaxed));
        NODE_OF_GROUP.iter().enumerate().for_each(|(group, node)| node.store(group as u8, Relaxed));
        LARGEST_GROUP_CPUS.store(0, Relaxed);
    }
    COUNT.store(count.unwrap_or(nodes), Relaxed);
}

/// Groups of the machine, at least one.
pub fn count() -> usize {
    COUNT.load(Relaxed)
}

/// Numbers the groups, node by node; returns how many there are, and `None` if they are too many.
fn assign(cpus: usize, nodes: usize, parts: Parts) -> Option<usize> {
    let (mut groups, mut most_cpus) = (0, 0);
    for (node, first) in FIRST_OF_NODE.iter().enumerate().take(nodes) {
        first.store(groups as u8, Relaxed);
        // The parts of this node that have a group, in the order of the groups, and their CPUs.
        let mut found = [(usize::MAX, 0usize); MAX_GROUPS];
        let mut count = 0;
        for cpu in (0..cpus).filter(|&cpu| cpu::node_of(cpu) == node) {
            let part = parts.of_cpu(cpu);
            let known = found[..count].iter().rposition(|&(other, _)| other == part);
            let at = known.unwrap_or(count);
            if groups + at >= MAX_GROUPS {
                return None;
            }
            count = count.max(at + 1);
            found[at] = (part, found[at].1 + 1);
            most_cpus = most_cpus.max(found[at].1);
            GROUP_OF_CPU[cpu].store((groups + at) as u8, Relaxed);
        }
        // A node of memory alone has a group as well.
        let end = groups + count.max(1);
        NODE_OF_GROUP.get(groups..end)?.iter().for_each(|it| it.store(node as u8, Relaxed));
        groups = end;
    }
    FIRST_OF_NODE[nodes].store(groups as u8, Relaxed);
    LARGEST_GROUP_CPUS.store(most_cpus, Relaxed);
    (groups <= MAX_GROUPS).then_some(groups)
}

/// CPUs of the largest group; 0 where each node is one group.
pub fn most_cpus() -> usize {
    LARGEST_GROUP_CPUS.load(Relaxed)
}

/// The group of a CPU.
pub fn group_of(cpu: usize) -> usize {
    match LARGEST_GROUP_CPUS.load(Relaxed) {
        0 => cpu::node_of(cpu),
        _ => GROUP_OF_CPU.get(cpu).map_or(0, |group| group.load(Relaxed) as usize),
    }
}

/// The node of a group.
pub fn node_of_group(group: usize) -> usize {
    NODE_OF_GROUP.get(group).map_or(0, |node| node.load(Relaxed) as usize)
}

/// The group that serves `cpu` with memory of `node`: its own, or one of the groups there.
pub fn group_for(cpu: usize, node: usize) -> usize {
    if cpu::node_of(cpu) == node {
        return group_of(cpu);
    }
    let groups = groups_of_node(node);
    groups.start + cpu % groups.len().max(1)
}

/// The groups of a node, which are numbered in a row.
pub fn groups_of_node(node: usize) -> core::ops::Range<usize> {
    let first = |node: usize| FIRST_OF_NODE.get(node).map_or(0, |first| first.load(Relaxed) as usize);
    first(node)..first(node + 1)
}
