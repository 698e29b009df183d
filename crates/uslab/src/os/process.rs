//! State about the library's own threads, which must not survive a `fork`, and the test for being
//! in a child.
//!
//! A fork child has the parent's memory and none of its threads. Fork handlers could reset the
//! state, but a raw `clone` or `fork` system call, or glibc's `_Fork`, runs none. So the state
//! stands in one page that the kernel wipes in every child with a copy of the memory
//! (`MADV_WIPEONFORK`, Linux 4.14). In the child the background thread is then "not started",
//! without a test on any path. A child that *shares* the memory (`vfork`, `clone(CLONE_VM)`) sees
//! the page unchanged, but has another process id.
//!
//! Limit: with system pages of more than 4 KiB the library does not give this advice, and such a
//! child takes the parent's threads for its own.

use super::calls;
use super::rest::Rest;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering::Relaxed};

const PAGE_BYTES: usize = 4096;

/// The state that the kernel wipes in a fork child; all zero at the start.
#[repr(C, align(4096))]
pub struct Threads {
    /// The process that last claimed the page; 0 before the first claim and in a wiped copy.
    owner: AtomicU32,
    /// The sleep state of the background thread; see [`super::sleep`].
    pub(super) sleep: AtomicU32,
    /// Whether a background thread runs that can take over work.
    pub(super) has_background_thread: AtomicBool,
    /// The state of the background thread; see `cache::background`.
    pub reaper: AtomicU8,
    /// The number of passes that run in the background.
    pub passes: AtomicU32,
    /// Whether a thread changes the program's action for faults; see [`super::fault`].
    pub(super) writes_action: AtomicBool,
    /// Whether the first thread of the process has ended; see [`super::first`].
    pub(super) first_has_ended: AtomicBool,
    /// The rests of the background thread, and the forks that keep it there.
    pub(super) rest: Rest,
    /// The background thread's number.
    pub(super) background_id: AtomicU32,
    /// Fills the page, so that no other static shares it.
    _rest: [u8; PAGE_BYTES - 44],
}

const _: () = assert!(size_of::<Threads>() == PAGE_BYTES);

/// The page, in the image's zeroed memory (`.bss`), which no file backs; among large tables, since
/// its boundary would part small variables.
#[unsafe(link_section = ".bss.uslab_tables")]
pub static THREADS: Threads = Threads {
    owner: AtomicU32::new(0),
    sleep: AtomicU32::new(0),
    has_background_thread: AtomicBool::new(false),
    reaper: AtomicU8::new(0),
    passes: AtomicU32::new(0),
    writes_action: AtomicBool::new(false),
    first_has_ended: AtomicBool::new(false),
    rest: Rest::new(),
    background_id: AtomicU32::new(0),
    _rest: [0; PAGE_BYTES - 44],
};

/// How the calling thread's process relates to the process that claimed the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// The same process.
    This,
    /// A fork child without fork handlers. It has claimed the page now.
    Copied,
    /// A child that shares the memory of the process: it must not start threads.
    Sharing,
}

/// Claims the page for this process, and asks the kernel to wipe it in fork children. Called at
/// start-up, and by the fork handler in a child.
pub fn claim() {
    // The kernel rounds the length up to its own page size: a larger page would wipe other statics
    // too.
    if super::memory::page_bytes() == PAGE_BYTES {
        // A refusal changes nothing.
        // SAFETY: the page is a static of this module, page-aligned, and valid when wiped.
        unsafe { calls::madvise((&raw const THREADS).cast_mut().cast(), PAGE_BYTES, libc::MADV_WIPEONFORK) };
    }
    THREADS.owner.store(super::file::process_id(), Relaxed);
}

/// Makes the process, which is in `exit`, end with another status: once the exit handlers have run
/// that are left, and before streams are flushed. A C library that takes no more handlers flushes
/// its streams and ends at once. A request to cancel the thread no longer counts: streams are
/// written by cancellation points.
pub fn end_with(status: i32) {
    static STATUS: AtomicI32 = AtomicI32::new(0);
    extern "C" fn end(_: *mut c_void) {
        // glibc allows a handler to call `exit`: the handlers that are left run, then the process
        // ends with the status of the last call.
        // SAFETY: no preconditions.
        unsafe { libc::exit(STATUS.load(Relaxed)) }
    }
    unsafe extern "C" {
        fn __cxa_atexit(
            function: extern "C" fn(*mut c_void),
            argument: *mut c_void,
            object: *mut c_void,
        ) -> c_int;
        safe fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    /// `PTHREAD_CANCEL_DISABLE`.
    const CANCEL_DISABLE: c_int = 1;
    pthread_setcancelstate(CANCEL_DISABLE, &mut 0);
    STATUS.store(status, Relaxed);
    // The handler belongs to no object, so the end of this one does not run it early.
    let null = core::ptr::null_mut();
    // SAFETY: the handler is a function that stays mapped.
    let is_taken = cfg!(target_env = "gnu") && unsafe { __cxa_atexit(end, null, null) } == 0;
    if !is_taken {
        // SAFETY: no preconditions.
        unsafe {
            libc::fflush(core::ptr::null_mut());
            libc::_exit(status)
        }
    }
}

/// Ends the process without exit handlers.
pub fn end_at_once() -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::_exit(127) }
}

/// Whether this is the process that claimed the page: no child, with a copy of the memory or with
/// the memory itself. One system call.
pub fn is_own() -> bool {
    THREADS.owner.load(Relaxed) == super::file::process_id()
}

/// The [`Relation`] of the calling thread; one system call.
pub fn relation() -> Relation {
    let this = super::file::process_id();
    match THREADS.owner.compare_exchange(0, this, Relaxed, Relaxed) {
        Ok(_) => Relation::Copied,
        Err(owner) if owner == this => Relation::This,
        Err(_) => Relation::Sharing,
    }
}
