//! Threads as the kernel knows them, and the library's own.

use super::scheduling;
use core::ffi::{CStr, c_void};
use core::ptr;

/// The calling thread's id: not 0, below 2^31, and no other live thread's.
pub fn id() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Stack of a thread of ours: what Rust gives its own. It runs callbacks of programs.
const STACK_BYTES: usize = 2 << 20;

/// What a thread of ours runs.
pub type Body = extern "C" fn(*mut c_void) -> *mut c_void;

/// What the processor or the kernel answers an instruction with, on the thread that ran it. Blocked, these end the process instead of waiting: the callbacks that
/// run on a thread of ours may rely on a handler, of write barriers or of guard pages for instance.
const SYNCHRONOUS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a detached thread with all signals blocked but those of `SYNCHRONOUS`, so that the
/// program's handlers run on it only for what it did itself; false if the system has none to give.
/// It is an ordinary thread of the process, whatever the calling one is; its body must begin with
/// [`begin`].
///
/// The C library allocates for it: the caller must hold no lock, and must not itself have been called from inside the C library, which may hold
/// some of its own.
pub fn spawn(body: Body, argument: usize) -> bool {
    // SAFETY: the attribute and the masks are initialised by the calls that are given them; the
    // body is a function and its argument a number. The C library keeps its own two signals out of
    // the mask. The thread is detached once, here.
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

/// The beginning of a thread of ours: names it, in 15 bytes at most, and takes back what it
/// inherited beyond what [`spawn`] could.
pub fn begin(name: &CStr) {
    // SAFETY: the name is NUL-terminated; a longer one is cut.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    scheduling::set_defaults();
}
