//! Thread ids of the kernel, and the start of the library's own threads.

use super::scheduling;
use core::ffi::{CStr, c_void};
use core::ptr;

/// The calling thread's id: not 0, below 2^31, unique among live threads.
pub fn id() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Lets another thread run.
pub fn give_way() {
    // SAFETY: no preconditions.
    unsafe { libc::sched_yield() };
}

/// Stack of a library thread: Rust's default, because the thread runs the program's callbacks.
const STACK_BYTES: usize = 2 << 20;

/// The main function of a library thread.
pub type Body = extern "C" fn(*mut c_void) -> *mut c_void;

/// Signals that an instruction of the thread itself raises. They stay unblocked: a blocked one ends
/// the process. Callbacks on a library thread may rely on a handler, of write barriers or of guard
/// pages for instance.
const SYNCHRONOUS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a detached thread that runs `body(argument)`. False if the system refuses.
///
/// All signals but those of `SYNCHRONOUS` are blocked, so the program's handlers run on it only for
/// its own faults. It is scheduled like an ordinary thread of the process, even if the calling one
/// is not. `body` must begin with [`begin`].
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
        for signal in SYNCHRONOUS {
            libc::sigdelset(&mut all, signal);
        }
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
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    scheduling::set_defaults();
}
