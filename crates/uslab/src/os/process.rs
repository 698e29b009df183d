//! Which process this is, for state that must not outlive a `fork`.
//!
//! A fork child has the parent's memory and none of its threads. Fork handlers tell it so, but a
//! raw `clone` or `fork` system call, or glibc's `_Fork`, runs none. So what the library knows of
//! its own threads stands in one page that the kernel wipes in every child that gets a copy of the
//! memory (`MADV_WIPEONFORK`, Linux 4.14): there the background thread is "not started" again, with
//! no test on any path. A child that *shares* the memory (`vfork`, `clone(CLONE_VM)`) sees the page
//! as it is, and another process id.
//!
//! With pages of more than 4 KiB the advice is not given, and such a child takes the parent's threads
//! for its own.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};

const PAGE_BYTES: usize = 4096;

/// What is forgotten in a fork child; all zero at the start.
#[repr(C, align(4096))]
pub struct Threads {
    /// The process that the page was last written for; 0: none, or a copy of it that was wiped.
    owner: AtomicU32,
    /// How the background thread sleeps; see [`super::sleep`].
    pub(super) sleep: AtomicU32,
    /// Whether there is a background thread to which work can be left.
    pub(super) has_background_thread: AtomicBool,
    /// The state of the background thread; see `cache::background`.
    pub reaper: AtomicU8,
    /// Passes that run in the background.
    pub passes: AtomicU32,
    /// The page is nothing else's.
    _rest: [u8; PAGE_BYTES - 16],
}

const _: () = assert!(size_of::<Threads>() == PAGE_BYTES);

/// The page. Zeroed memory of the image, which no file stands behind.
pub static THREADS: Threads = Threads {
    owner: AtomicU32::new(0),
    sleep: AtomicU32::new(0),
    has_background_thread: AtomicBool::new(false),
    reaper: AtomicU8::new(0),
    passes: AtomicU32::new(0),
    _rest: [0; PAGE_BYTES - 16],
};

/// The process that the calling thread belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// The process that the library runs in.
    This,
    /// A fork child whose handlers did not run: it owns what it has, from now on.
    Copied,
    /// A child that runs in the memory of the process: it may start nothing.
    Sharing,
}

/// At start-up, and in a fork child by its handler: the page is this process's.
pub fn claim() {
    // The kernel rounds the length up to its own page: a larger one would take other statics along.
    if super::memory::page_bytes() == PAGE_BYTES {
        // SAFETY: the page is a static of this module's, page-aligned, and valid when wiped. A refusal
        // leaves it as it is.
        unsafe { libc::madvise((&raw const THREADS).cast_mut().cast(), PAGE_BYTES, libc::MADV_WIPEONFORK) };
    }
    THREADS.owner.store(super::file::process_id(), Relaxed);
}

/// Ends the process, without handlers of exit.
pub fn end_at_once() -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::_exit(127) }
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
