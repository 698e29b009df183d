//! The machine's CPUs and NUMA nodes: how many there can be, and which node a CPU belongs to.

use super::file::Reader;
use super::path::Path;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

/// CPUs that tables of this layer have an entry for.
pub(super) const CPUS_OF_TABLES: usize = 1024;

/// The CPUs, the nodes, and the CPUs of a last-level cache, of [`pretend`]; 0 where there are none.
static PRETENDED: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// Makes the library believe in a machine of `cpus` CPUs on `nodes` nodes, the same number on each,
/// of which `cpus_of_cache` in a row share a last-level cache.
///
/// For models that run one thread on a fake CPU (`rseq::fake`). Must be called before the library's
/// first use. No thread may run on a CPU beyond the pretended ones.
pub fn pretend(cpus: usize, nodes: usize, cpus_of_cache: usize) {
    PRETENDED[0].store(cpus, Relaxed);
    PRETENDED[1].store(nodes, Relaxed);
    PRETENDED[2].store(cpus_of_cache, Relaxed);
}

/// The CPUs and nodes of [`pretend`], if it was called.
fn pretended() -> Option<(usize, usize)> {
    let [cpus, nodes, _] = PRETENDED.each_ref().map(|place| place.load(Relaxed));
    (cpus > 0).then_some((cpus, nodes.max(1)))
}

/// Whether the machine is one of [`pretend`].
pub(super) fn is_pretended() -> bool {
    pretended().is_some()
}

/// Upper bound of the CPU numbers that the kernel can ever report: the highest one plus 1. `None`
/// where neither source gives a plausible answer.
///
/// The number is fixed at boot: CPUs that are offline or come later lie below it, and so do the
/// CPUs outside this process's set. Two sources are compared, because either may be missing or
/// wrong:
///
/// * sysfs lists the possible CPUs. It may not be mounted, and containers lay files of their own
///   over it.
/// * `sched_getaffinity` copies the kernel's whole mask and returns its length, a multiple of 64
///   CPUs: an upper bound that needs no file system. A seccomp filter may refuse the call.
pub fn possible_cpus() -> Option<usize> {
    if let Some((cpus, _)) = pretended() {
        return Some(cpus);
    }
    believable(listed_cpus(), mask_cpus(), current())
}

/// The number of possible CPUs, from the count `listed` by sysfs and the upper bound `bound` of the
/// kernel's mask. The calling thread runs on CPU `current`, so an answer at or below that number is
/// wrong. A list beyond the bound is wrong too.
pub(super) fn believable(listed: Option<usize>, bound: Option<usize>, current: usize) -> Option<usize> {
    let bound = bound.filter(|&bound| bound > current);
    let fits = |listed: usize| listed > current && bound.is_none_or(|bound| listed <= bound);
    listed.filter(|&listed| fits(listed)).or(bound)
}

/// The number of possible CPUs that sysfs lists. `None` where the file lies on another file system,
/// as in containers that lay files of their own over it.
fn listed_cpus() -> Option<usize> {
    const SYSFS_MAGIC: i64 = 0x6265_6572;
    let mut reader = Reader::open(c"/sys/devices/system/cpu/possible")?;
    (reader.file_system() == Some(SYSFS_MAGIC)).then(|| highest_in(&mut reader)?.checked_add(1)).flatten()
}

/// The number of CPUs that the kernel's masks have bits for.
fn mask_cpus() -> Option<usize> {
    // The largest number that a kernel can be built for. The kernel refuses a mask shorter than its
    // own with EINVAL.
    let mut mask = [0u64; 8192 / 64];
    // SAFETY: the kernel writes at most the length that it is given. The C library's function does
    // not return the length, which is needed here.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&mask), &raw mut mask) };
    usize::try_from(bytes).ok().filter(|&bytes| bytes > 0).map(|bytes| bytes * 8)
}

/// The highest number of a node whose memory the process may use, plus 1. It is 1 where the kernel
/// reports no nodes.
///
/// On most machines one system call answers. Reading sysfs takes ten times as long, at the start of
/// every process.
pub fn nodes() -> usize {
    if super::scheduling::may_use_one_node_only() {
        return 1;
    }
    let highest =
        Reader::open(c"/sys/devices/system/node/possible").and_then(|mut list| highest_in(&mut list));
    highest.map_or(1, |highest| highest.saturating_add(1))
}

/// Calls `visit(cpu)` for each CPU of `node` that is online.
pub fn for_each_cpu_of_node(node: usize, mut visit: impl FnMut(usize)) {
    if let Some(mut list) = open(format_args!("/sys/devices/system/node/node{node}/cpulist")) {
        parse_list(&mut list, &mut |first, last| {
            (first..=last.min(first.saturating_add(65_535))).for_each(&mut visit);
        });
    }
}

/// Opens a file of sysfs, or a folder, by a short path.
fn open(path: fmt::Arguments<'_>) -> Option<Reader> {
    Reader::open(Path::formatted(path)?.as_c())
}

/// Nodes that memory may come from.
static MEMORY_NODES: AtomicUsize = AtomicUsize::new(1);

/// The number of nodes that memory may come from, after [`init_nodes`]; 1 before it.
#[inline]
pub fn memory_nodes() -> usize {
    MEMORY_NODES.load(Relaxed)
}

/// Whether memory may come from more than one node, as far as the library heeds nodes.
#[inline]
pub fn has_nodes() -> bool {
    memory_nodes() > 1
}

static NODE_OF_CPU: [AtomicU8; CPUS_OF_TABLES] = [const { AtomicU8::new(0) }; CPUS_OF_TABLES];

/// Reads which node each CPU belongs to, and returns the highest number of a node with CPUs plus 1,
/// 64 at most. Nodes behind it have memory alone: they take part in policies ([`memory_nodes`]).
/// Before this call all CPUs are on node 0.
pub fn init_nodes() -> usize {
    if let Some((cpus, nodes)) = pretended() {
        for (cpu, place) in NODE_OF_CPU.iter().enumerate().take(cpus) {
            place.store((cpu * nodes / cpus) as u8, Relaxed);
        }
        MEMORY_NODES.store(nodes, Relaxed);
        return nodes;
    }
    let nodes = nodes().min(64);
    MEMORY_NODES.store(nodes, Relaxed);
    if nodes == 1 { 1 } else { read_nodes(nodes) }
}

/// [`init_nodes`] on a machine of several. Not inlined: its table is on the stack.
#[inline(never)]
fn read_nodes(nodes: usize) -> usize {
    let mut is_known = [false; CPUS_OF_TABLES];
    let mut note = |cpu: usize, node: usize| {
        if let Some(place) = NODE_OF_CPU.get(cpu) {
            place.store(node as u8, Relaxed);
            is_known[cpu] = true;
        }
    };
    for node in 0..nodes {
        for_each_cpu_of_node(node, |cpu| note(cpu, node));
    }
    init_offline(nodes, &is_known);
    let highest = NODE_OF_CPU.iter().map(|node| node.load(Relaxed)).max();
    highest.map_or(1, |highest| usize::from(highest) + 1)
}

/// Reads the node of each CPU that is there, but offline: the nodes' lists leave these out. A
/// folder of the CPU has the node's name, whether the CPU is online or not.
fn init_offline(nodes: usize, is_known: &[bool; CPUS_OF_TABLES]) {
    let Some(mut present) = Reader::open(c"/sys/devices/system/cpu/present") else { return };
    parse_list(&mut present, &mut |first, last| {
        for cpu in (first..=last.min(CPUS_OF_TABLES - 1)).filter(|&cpu| !is_known[cpu]) {
            let is_of =
                |&node: &usize| open(format_args!("/sys/devices/system/cpu/cpu{cpu}/node{node}")).is_some();
            let node = (0..nodes).find(is_of).unwrap_or(0);
            NODE_OF_CPU[cpu].store(node as u8, Relaxed);
        }
    });
}

/// The node of a CPU.
#[inline]
pub fn node_of(cpu: usize) -> usize {
    NODE_OF_CPU.get(cpu).map_or(0, |node| node.load(Relaxed) as usize)
}

/// The CPUs of a last-level cache, of [`pretend`], if it was called.
pub(super) fn pretended_cpus_of_cache() -> Option<usize> {
    pretended().map(|_| PRETENDED[2].load(Relaxed))
}

/// The CPU that the calling thread runs on. The thread may migrate at any time, so the answer may
/// be stale.
pub fn current() -> usize {
    // SAFETY: no preconditions.
    let cpu = unsafe { libc::sched_getcpu() };
    cpu.max(0) as usize
}

fn highest_in(list: &mut Reader) -> Option<usize> {
    let mut highest = None;
    parse_list(list, &mut |_, last| highest = Some(highest.unwrap_or(0).max(last)));
    highest
}

/// Parses the kernel's list format, `0-3,8,10-11`. Not inlined: start-up calls it several times,
/// and its stack may be small.
#[inline(never)]
fn parse_list(list: &mut Reader, range: &mut dyn FnMut(usize, usize)) {
    // A machine lists few ranges. A larger buffer would cost each process one more page of stack.
    let mut text = [0u8; 1024];
    let mut used = 0;
    // The line's end saves the call that would find the file's.
    while used < text.len() && !text[..used].ends_with(b"\n") {
        let n = list.read(&mut text[used..]);
        if n == 0 {
            break;
        }
        used += n;
    }
    parse_ranges(&text[..used], range);
}

pub(super) fn parse_ranges(text: &[u8], range: &mut dyn FnMut(usize, usize)) {
    for part in text.split(|&b| b == b',' || b == b'\n') {
        let mut ends = part.split(|&b| b == b'-').map(parse_number);
        if let Some(Some(first)) = ends.next() {
            let last = ends.next().flatten().unwrap_or(first);
            if first <= last {
                range(first, last);
            }
        }
    }
}

fn parse_number(text: &[u8]) -> Option<usize> {
    core::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Whether this kernel's restartable sequences cannot be trusted. 64-bit Arm on Linux 6.19 to 7.0
/// aborts them on migration only, not on preemption.
pub fn distrusts_rseq() -> bool {
    if !cfg!(target_arch = "aarch64") {
        return false;
    }
    let mut text = [0u8; 32];
    let Some(mut reader) = Reader::open(c"/proc/sys/kernel/osrelease") else { return true };
    let n = reader.read(&mut text);
    let mut parts = text[..n].split(|b| !b.is_ascii_digit()).map(parse_number);
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(6), Some(minor)) => minor >= 19,
        (Some(7), Some(minor)) => minor == 0,
        (Some(_), Some(_)) => false,
        _ => true,
    }
}

/// Pins the calling thread to its CPU, for tests. [`unpin`] undoes it, given the value returned.
#[cfg(test)]
pub fn pin_to_current() -> libc::cpu_set_t {
    // SAFETY: the sets are valid memory of the right size, and zero is an empty set.
    unsafe {
        let mut before: libc::cpu_set_t = core::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut before);
        let mut one: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(current(), &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one);
        before
    }
}

/// Undoes [`pin_to_current`].
#[cfg(test)]
pub fn unpin(before: libc::cpu_set_t) {
    // SAFETY: the set came from `sched_getaffinity`.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &before) };
}
