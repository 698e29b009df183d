//! Fork children of a stress: what a child does to prove that it can go on, and how the parent waits for it.
//!
//! A child must not panic: the lock of standard error may be held by a thread that does not exist there. It says what is wrong by bare
//! `write(2)` and its exit status.

use std::time::{Duration, Instant};

/// How long a child may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// What `std` gives its threads: so a child's thread gets the stack, and the address, of one that was left behind in the parent.
const STACK_BYTES: usize = 2 << 20;

/// Forks; the child runs `work` and leaves with status 0, or 1 and a message.
pub fn fork(work: impl FnOnce() -> Result<(), &'static str>) -> libc::pid_t {
    // SAFETY: the child of a threaded program may call what is async-signal-safe, and by their own promise the C library's
    // allocator and ours; `work` does no more.
    match unsafe { libc::fork() } {
        0 => {
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

/// Waits until a child ends; `Err` says how it failed.
pub fn wait(child: libc::pid_t) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid memory.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if Instant::now() < end => std::thread::sleep(Duration::from_micros(200)),
            0 => {
                // SAFETY: the child is ours and has not been waited for.
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

/// Runs `work` on a new thread, in a child, where `std`'s way of making one might meet a lock of the parent's.
pub fn on_a_thread(
    work: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    argument: *mut libc::c_void,
) -> bool {
    let mut result = std::ptr::null_mut();
    // SAFETY: the out-pointers are valid; the thread is joined before `argument` can go away.
    unsafe {
        let (mut thread, mut attributes) = (std::mem::zeroed(), std::mem::zeroed());
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES);
        libc::pthread_create(&mut thread, &attributes, work, argument) == 0
            && libc::pthread_join(thread, &mut result) == 0
            && result.is_null()
    }
}
