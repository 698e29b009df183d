//! The end of a thread with musl: it ends its registration before it unmaps its stack.
//!
//! A destructor of thread-specific data does that. What later destructors of the thread allocate or
//! free goes to the slabs.
//!
//! musl calls destructors in up to four rounds, as long as they set values anew. A thread that
//! first calls the library in a destructor of the fourth round stays registered. If the kernel
//! preempts it between its last two system calls, `munmap` and `exit`, the process gets SIGSEGV.

use super::{area, refuse};
use crate::os::{errno, signal, thread_exit};
use core::ffi::c_void;

/// Prepares [`expect`]; false if that cannot be.
pub(super) fn begin() -> bool {
    thread_exit::begin(on_exit)
}

/// Has the calling thread, which is registered, call [`on_exit`] at its end.
pub(super) fn expect() {
    thread_exit::expect();
}

unsafe extern "C" fn on_exit(_: *mut c_void) {
    let _errno = errno::Preserved::new();
    // Between the two steps a handler would register the area again.
    let before = signal::block_all();
    area().unregister();
    refuse();
    signal::restore(before);
}
