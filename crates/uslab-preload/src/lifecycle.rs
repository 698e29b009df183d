//! Start, exit and `vfork`.

use core::ffi::c_int;

/// Sets the library up early, and with it the fork handlers: before the program's own, so that at a fork ours run last, after
/// handlers that still allocate, and in parent and child first. Earlier allocations set it up themselves.
extern "C" fn at_load() {
    uslab::malloc::start();
    crate::caller::look_around();
}

/// Leaves final figures for `uslab run --stats`. Allocation goes on working: other libraries' destructors come later.
extern "C" fn at_unload() {
    uslab::cache::account_all();
    uslab::stats::finish();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_UNLOAD: extern "C" fn() = at_unload;

/// `vfork` as POSIX allows it to be: `fork`.
///
/// A real `vfork` child runs in its parent's memory without being registered for restartable sequences: the kernel would neither restart
/// its sequences nor keep its CPU number up to date, and a child that allocates (which POSIX forbids and programs do) could take an
/// object at the same instant as another thread of the parent.
#[unsafe(no_mangle)]
pub extern "C" fn vfork() -> c_int {
    // SAFETY: no preconditions.
    unsafe { libc::fork() }
}
