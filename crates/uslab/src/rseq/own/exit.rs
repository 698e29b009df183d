//! The end of a thread with musl: it ends its registration before it unmaps its stack.
//!
//! A destructor of thread-specific data does that. What later destructors of the thread allocate or
//! free goes to the slabs.
//!
//! Two kinds of thread stay registered: one whose first call to the library comes from a destructor
//! of musl's fourth and last round, or from a signal handler after that; and one to which a filter
//! of system calls has come to refuse `rseq`. If the kernel preempts such a thread between its last
//! two system calls, `munmap` and `exit`, the process gets SIGSEGV.

use super::{area, refuse};
use crate::os::{errno, signal, thread_exit};
use core::ffi::c_void;

/// Has the calling thread end its registration at its end; false if the process has no more keys.
pub(super) fn expect() -> bool {
    thread_exit::expect(on_exit)
}

extern "C" fn on_exit(_: *mut c_void) {
    let _errno = errno::Preserved::new();
    // Between the two steps a handler would register the area again.
    let before = signal::block_all();
    if let Some(area) = area() {
        area.unregister();
        refuse(area);
    }
    signal::restore(before);
}
