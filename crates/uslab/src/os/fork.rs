//! Fork handlers, through the C library.

/// Registers the three handlers; false if the C library has no memory for them.
///
/// May call `malloc`, which is us: the caller must be able to serve it.
pub fn register(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> bool {
    // The `libc` crate declares the arguments as unsafe functions; ours are safe to call at any time.
    // SAFETY: the handlers live as long as the process: the library is linked so that it is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
}
