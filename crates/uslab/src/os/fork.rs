//! Fork handlers, through the C library.

/// Registers the three handlers; false if the C library has no memory for them.
///
/// May call `malloc`, which is us: the caller must be able to serve it.
pub fn register(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> bool {
    // The `libc` crate declares the arguments as unsafe functions; ours are safe to call at any time.
    // SAFETY: the handlers live as long as the process: the library is linked so that it is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
}

/// Whether `check` holds in a fork child, in which it may use this library and nothing else: other threads of the parent may have left locked what they had locked. For
/// tests.
#[cfg(test)]
pub fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child does what is said above, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!check())) };
    }
    let mut status = -1;
    // SAFETY: `status` is a valid place.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    waited == child && status == 0
}
