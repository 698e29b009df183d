//! Fork children of a stress test: how a child runs its checks, and how the parent waits for it.
//!
//! A child must not panic, because a thread that does not exist there may hold the lock of standard
//! error. It reports an error by a plain `write(2)` and its exit status.

use std::time::{Duration, Instant};

/// The time after which a child counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// The stack size of `std`'s threads. So a child's thread gets the stack, and the address, of a
/// thread that exists only in the parent.
const STACK_BYTES: usize = 2 << 20;

/// Forks; the child runs `work` and exits with status 0, or with 1 after a message.
pub fn fork(work: impl FnOnce() -> Result<(), &'static str>) -> libc::pid_t {
    // SAFETY: the child of a threaded program may call async-signal-safe functions, and, by their
    // own guarantees, the C library's allocator and this one. `work` does no more.
    match unsafe { libc::fork() } {
        0 => {
            // Ends a stuck child whose parent has ended too: it holds the test's output open.
            // SAFETY: no preconditions.
            unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
            let status = match work() {
                Ok(()) => 0,
                Err(what) => {
                    say(&["child: ", what, "\n"]);
                    1
                }
            };
            // SAFETY: no preconditions; no exit handler runs.
            unsafe { libc::_exit(status) }
        }
        child => {
            assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
            child
        }
    }
}

fn say(parts: &[&str]) {
    for part in parts {
        // SAFETY: the bytes are valid for the length given.
        unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
    }
}

/// Waits until a child ends; `Err` describes its failure.
pub fn wait(child: libc::pid_t) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid memory.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if Instant::now() < end => std::thread::sleep(Duration::from_micros(200)),
            0 => {
                // SAFETY: it is a child of this process, and has not been waited for.
                unsafe { libc::kill(child, libc::SIGKILL) };
                // SAFETY: as above.
                unsafe { libc::waitpid(child, &mut status, 0) };
                return Err(format!("the child was stuck for {PATIENCE:?}"));
            }
            -1 => return Err(std::io::Error::last_os_error().to_string()),
            _ if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 => return Ok(()),
            _ => return Err(format!("the child ended with wait status {status:#x}")),
        }
    }
}

/// Runs `work` on a new thread of a child. It does not use `std`, whose thread creation may take a
/// lock that a thread of the parent held.
pub fn on_a_thread(
    work: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    argument: *mut libc::c_void,
) -> bool {
    let mut result = std::ptr::null_mut();
    // SAFETY: the out-pointers are valid; the thread is joined before `argument` is dropped.
    unsafe {
        let (mut thread, mut attributes) = (std::mem::zeroed(), std::mem::zeroed());
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES);
        libc::pthread_create(&mut thread, &attributes, work, argument) == 0
            && libc::pthread_join(thread, &mut result) == 0
            && result.is_null()
    }
}
