//! Thread ids of the kernel, and the start of the library's own threads.

use super::{calls, scheduling};
use core::ffi::{CStr, c_ulong, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The calling thread's id: not 0, below 2^31, unique among live threads.
pub fn id() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether a thread of this process has the number; true where the kernel does not tell.
pub fn exists(id: u32) -> bool {
    // SAFETY: signal 0 is none: the call only looks the thread up.
    let status = unsafe { libc::syscall(libc::SYS_tgkill, super::file::process_id(), id, 0) };
    status == 0 || super::errno::get() != libc::ESRCH
}

/// Bytes from the start of glibc's descriptor of a thread to the thread's number; 0 for other C
/// libraries.
const ID_OFFSET: usize = match () {
    () if !cfg!(target_env = "gnu") => 0,
    () if cfg!(target_arch = "x86_64") => 0x2d0,
    () if cfg!(target_arch = "aarch64") => 0xd0,
    () => 0,
};

/// The number of threads of the process; `None` without `/proc`.
pub fn count() -> Option<usize> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    let path = c"/proc/self/task";
    // SAFETY: `status` is a place for the answer.
    if unsafe { calls::fstatat(libc::AT_FDCWD, path, status.as_mut_ptr(), 0) } != 0 {
        return None;
    }
    // SAFETY: the call filled it.
    let links = unsafe { status.assume_init() }.st_nlink;
    // Each thread has a directory there, whose parent link counts, beside the two of any directory.
    (links as usize).checked_sub(2)
}

/// The address of the calling thread's descriptor.
pub fn descriptor() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as usize }
}

/// The address of the descriptor of a thread with this thread pointer; 0 if that is not known. On
/// x86-64 they are the same.
pub fn descriptor_of(thread_pointer: usize) -> usize {
    if cfg!(all(target_env = "gnu", target_arch = "x86_64")) { thread_pointer } else { 0 }
}

/// Whether `address` is glibc's descriptor of a thread, and the thread's number, which is 0 if it
/// has ended. `read` copies words from an address on. `None` where it is not known.
pub fn id_of(address: usize, read: impl Fn(usize, &mut [usize]) -> usize) -> Option<u32> {
    // The first words of a descriptor are its own address, a vector, and its own address again.
    let mut head = [0; 3];
    let mut number = [0];
    let is_descriptor = cfg!(all(target_env = "gnu", target_arch = "x86_64"))
        && address.is_multiple_of(64)
        && read(address, &mut head) == head.len()
        && (head[0], head[2]) == (address, address)
        && read(address + ID_OFFSET, &mut number) == 1;
    is_descriptor.then_some(number[0] as u32)
}

/// [`id`] without a system call where the C library's own copy is found, for callers that need it
/// with every operation. In a child that shares the memory of its parent it may be the parent's.
///
/// glibc keeps the number in the structure that `pthread_self` returns, at a place that has not
/// changed since 2006. The first call compares it with the kernel's number.
pub fn own_id() -> u32 {
    const OFFSET: usize = ID_OFFSET;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const IS_THERE: u8 = 1;
    const IS_NOT: u8 = 2;
    // SAFETY: the structure of the calling thread has more than that many bytes.
    let kept = || unsafe { (libc::pthread_self() as *const u8).add(OFFSET).cast::<u32>().read_volatile() };
    match STATE.load(Relaxed) {
        IS_THERE => kept(),
        IS_NOT => id(),
        _ => {
            let this = id();
            let is_there = OFFSET != 0 && kept() == this;
            STATE.store(if is_there { IS_THERE } else { IS_NOT }, Relaxed);
            this
        }
    }
}

/// Lets another thread run.
pub fn give_way() {
    calls::sched_yield();
}

/// Stack of a library thread: Rust's default, because the thread runs the program's callbacks.
const STACK_BYTES: usize = 2 << 20;

/// The main function of a library thread.
pub type Body = extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts a detached thread that runs `body(argument)`. False if the system refuses.
///
/// All signals but one are blocked: a program that blocks them in each of its threads, and waits
/// for them by `sigwaitinfo`, gets every one. SIGSYS is not: by a filter of system calls
/// (`SECCOMP_RET_TRAP`) it asks a handler of the program what a call shall return, and the kernel
/// ends the process where it is blocked. Other code of the program runs by
/// [`super::signal::with_faults`]. The thread is scheduled like an ordinary thread of the process,
/// even if the calling one is not. `body` must begin with [`begin`].
///
/// The C library allocates for the thread: the caller must hold no lock. It must not have been
/// called from inside the C library either, which may hold locks of its own.
pub fn spawn(body: Body, argument: usize) -> bool {
    // SAFETY: the calls initialise the attribute and the masks that they are given; the body is a
    // function and its argument a number. The C library excludes its own two signals from the mask.
    // The thread is detached once, here.
    unsafe {
        let mut attributes = core::mem::zeroed::<libc::pthread_attr_t>();
        if libc::pthread_attr_init(&mut attributes) != 0 {
            return false;
        }
        let mut all = core::mem::zeroed::<libc::sigset_t>();
        let mut before = core::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&mut all);
        libc::sigdelset(&mut all, libc::SIGSYS);
        // A refusal leaves the default, which is larger.
        libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        let mut thread = core::mem::zeroed::<libc::pthread_t>();
        let started = masked
            && libc::pthread_create(&mut thread, &attributes, body, ptr::without_provenance_mut(argument))
                == 0;
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        }
        if started {
            scheduling::free_thread(thread);
            libc::pthread_detach(thread);
        }
        libc::pthread_attr_destroy(&mut attributes);
        started
    }
}

/// Must be called first on a library thread: sets its name, 15 bytes at most, and resets the
/// inherited values that only the thread itself can reset.
pub fn begin(name: &CStr) {
    // SAFETY: the name is NUL-terminated; a longer one is cut.
    unsafe { calls::prctl(libc::PR_SET_NAME, name.as_ptr().addr() as c_ulong) };
    scheduling::set_defaults();
}
