//! Scheduling of the library's threads: they run like an ordinary thread of the process, even if a
//! real-time or pinned thread created them.
//!
//! A new thread inherits its creator's policy, CPUs, nice value, I/O priority and memory policy.
//! The creator may be a real-time thread that spins on one CPU: its copy would take that CPU's
//! time, or never run at all.
//!
//! ```text
//!   note_first()   library start: CPUs, policy and nice value of the process's first thread
//!   free_thread()  creator, after it created a thread: policy and CPUs, which could starve the thread
//!   set_defaults() the new thread itself: nice value, I/O priority, memory policy
//! ```
//!
//! The library makes each setting call only where the value differs. A seccomp filter may end the
//! process for such a call (systemd's `SystemCallFilter=~@resources` does). A program under such a
//! filter did not change its own scheduling, so no value differs. Under a filter the library keeps
//! the values that the process was started with.
//!
//! A refused call changes nothing. Must never: allocate, or make a setting call in a program that
//! changed nothing.

use super::{calls, filter};
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// CPUs that a mask has bits for: the kernel's own limit.
const MAX_CPUS: usize = 8192;
const WORDS: usize = MAX_CPUS / 64;

type Mask = [u64; WORDS];

/// The first thread's CPUs, and how many bytes of them the kernel reported; 0 before [`note_first`]
/// and after a refusal.
static FIRST_CPUS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static FIRST_CPUS_BYTES: AtomicUsize = AtomicUsize::new(0);
static FIRST_POLICY: AtomicI32 = AtomicI32::new(libc::SCHED_OTHER);
static FIRST_NICE: AtomicI32 = AtomicI32::new(0);
static FIRST_MEMORY_MODE: AtomicI32 = AtomicI32::new(libc::MPOL_DEFAULT);

/// Records the scheduling of the process's first thread. Five system calls; safe before the C
/// library is set up.
pub fn note_first() {
    let first = calls::getpid();
    let mut cpus = [0; WORDS];
    let bytes = read_cpus(first, &mut cpus);
    for (place, word) in FIRST_CPUS.iter().zip(cpus) {
        place.store(word, Relaxed);
    }
    FIRST_CPUS_BYTES.store(bytes, Relaxed);
    FIRST_POLICY.store(policy(first), Relaxed);
    FIRST_NICE.store(nice(first), Relaxed);
    if !filter::is_on() {
        FIRST_MEMORY_MODE.store(memory_mode(), Relaxed);
    }
}

/// Gives a thread that the calling thread has just created, and not yet detached, the ordinary
/// policy and the CPUs that the process was started with.
///
/// Not inlined: its masks take 2 KiB of stack, which the creation of the thread must not find
/// taken.
#[inline(never)]
pub(super) fn free_thread(thread: libc::pthread_t) {
    // The new thread inherited the calling thread's values.
    let policy = policy(0);
    let is_ordinary = matches!(policy, libc::SCHED_OTHER | libc::SCHED_BATCH);
    if !is_ordinary && may_change(policy != FIRST_POLICY.load(Relaxed)) {
        // SAFETY: zero is a valid parameter, and the only one of this policy; the thread is not yet
        // detached.
        unsafe {
            let parameter = core::mem::zeroed::<libc::sched_param>();
            libc::pthread_setschedparam(thread, libc::SCHED_OTHER, &parameter);
        }
    }
    let mut now = [0; WORDS];
    let bytes = read_cpus(0, &mut now);
    let first: Mask = core::array::from_fn(|word| FIRST_CPUS[word].load(Relaxed));
    if bytes != 0 && FIRST_CPUS_BYTES.load(Relaxed) == bytes && now != first {
        // SAFETY: length and pointer describe `first`; the C library passes both to the kernel.
        unsafe { libc::pthread_setaffinity_np(thread, bytes, first.as_ptr().cast()) };
    }
}

/// Resets the calling thread's inherited nice value, I/O priority and memory policy to the ordinary
/// ones. A nice value of 0 or more stays.
pub(super) fn set_defaults() {
    let (nice, first) = (nice(0), FIRST_NICE.load(Relaxed));
    if nice < 0 && may_change(nice != first) {
        // SAFETY: no preconditions. Raising the value needs no privilege.
        unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, first.max(0)) };
    }
    if !filter::is_on() {
        settle_io_priority();
        settle_memory_policy();
    }
}

/// Whether a setting call is safe: the program made such a call itself, or the thread has no
/// seccomp filter.
fn may_change(differs_from_first: bool) -> bool {
    differs_from_first || !filter::is_on()
}

/// Reads the CPUs of `thread` (0: the calling one) into `cpus`. Returns the number of bytes that
/// the kernel wrote, 0 if it refused.
fn read_cpus(thread: libc::pid_t, cpus: &mut Mask) -> usize {
    // SAFETY: length and pointer describe `cpus`. The raw call reports how many bytes it wrote.
    let bytes =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, thread, size_of::<Mask>(), cpus.as_mut_ptr()) };
    usize::try_from(bytes).unwrap_or(0)
}

fn policy(thread: libc::pid_t) -> i32 {
    // SAFETY: no preconditions.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) as i32 };
    if policy < 0 { libc::SCHED_OTHER } else { policy & !libc::SCHED_RESET_ON_FORK }
}

/// The nice value of `thread`, 0 for the calling one.
fn nice(thread: libc::pid_t) -> i32 {
    // SAFETY: no preconditions. The raw call returns 20 minus the nice value, which is never
    // negative.
    let value = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, thread) as i32 };
    if value < 1 { 0 } else { 20 - value }
}

/// Resets an explicit I/O priority above the ordinary one, so that the priority follows the nice
/// value.
fn settle_io_priority() {
    const WHO_PROCESS: i32 = 1;
    const CLASS_SHIFT: i32 = 13;
    const CLASS_REALTIME: i32 = 1;
    const CLASS_BEST_EFFORT: i32 = 2;
    /// Of eight levels, 0 being the highest.
    const ORDINARY_LEVEL: i32 = 4;
    // SAFETY: no preconditions; a kernel without I/O priorities refuses both calls.
    unsafe {
        let value = libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) as i32;
        let (class, level) = (value >> CLASS_SHIFT, value & 7);
        if class == CLASS_REALTIME || class == CLASS_BEST_EFFORT && level < ORDINARY_LEVEL {
            libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, 0);
        }
    }
}

/// Resets a memory policy that the program set for the creator. A policy that the process was
/// started under (numactl) stays.
fn settle_memory_policy() {
    let was_given = FIRST_MEMORY_MODE.load(Relaxed) != libc::MPOL_DEFAULT;
    if !was_given && memory_mode() != libc::MPOL_DEFAULT {
        let no_nodes = core::ptr::null::<u64>();
        // SAFETY: this mode takes no mask.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, no_nodes, 0) };
    }
}

/// The mode of the calling thread's memory policy, without its nodes.
fn memory_mode() -> i32 {
    let (mut mode, nothing) = (libc::MPOL_DEFAULT, core::ptr::null::<u64>());
    // SAFETY: `mode` is a valid place to write to; the null pointers request the mode alone. A
    // refusal leaves the default.
    unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, nothing, 0, nothing, 0) };
    mode
}

/// Whether the calling thread's memory can come from node 0 only. False also under a seccomp
/// filter, which may end the process for the call.
pub(super) fn may_use_one_node_only() -> bool {
    const MEMS_ALLOWED: libc::c_int = 1 << 2;
    const BITS: usize = 1024;
    let (mut nodes, nothing) = ([0u64; BITS / 64], core::ptr::null_mut::<libc::c_int>());
    if filter::is_on() {
        return false;
    }
    // SAFETY: the mask has `BITS` bits; the kernel refuses if it has more nodes.
    let result = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, nothing, nodes.as_mut_ptr(), BITS, nothing, MEMS_ALLOWED)
    };
    result == 0 && nodes[0] == 1 && nodes[1..].iter().all(|&word| word == 0)
}
