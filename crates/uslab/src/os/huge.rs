//! Transparent huge pages: whether the system has them, and the advice for a range.

use super::answer::Answer;
use super::calls;
use super::file::Reader;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the system gives huge pages, as the first [`learn`] found it.
static IS_AVAILABLE: Answer = Answer::unknown();

/// The system page that has huge pages of 2 MiB.
const SMALL_BYTES: usize = 4096;

/// Whether a range that is advised gets huge pages of 2 MiB. The first call finds this out. A call
/// on the background thread does not: the program could take the descriptor of the file that is
/// opened for one of the program's own.
pub fn learn() -> bool {
    if super::background::is_background_thread() {
        return is_available();
    }
    IS_AVAILABLE.learn(|| super::memory::page_bytes() == SMALL_BYTES && is_enabled() && !is_disabled_here());
    is_available()
}

/// Whether a range that is advised gets huge pages; false before [`learn`].
pub fn is_available() -> bool {
    IS_AVAILABLE.is_yes()
}

/// Whether the system's setting is `always` or `madvise`, not `never`. The chosen word stands in
/// brackets.
fn is_enabled() -> bool {
    let mut text = [0u8; 64];
    let Some(mut file) = Reader::open(c"/sys/kernel/mm/transparent_hugepage/enabled") else { return false };
    let bytes = file.read(&mut text);
    let text = &text[..bytes];
    !text.is_empty() && !text.windows(b"[never]".len()).any(|word| word == b"[never]")
}

/// Whether the process has them switched off (`PR_SET_THP_DISABLE`); false before Linux 5.0, which
/// does not show it.
///
/// A program may switch them off as it starts, so that load is too early for the question. And it
/// may forbid `prctl` later, so that the question is put to a file, like the other one.
fn is_disabled_here() -> bool {
    let Some(mut file) = Reader::open(c"/proc/self/status") else { return false };
    file.contains(b"THP_enabled:\t0")
}

/// Advises the kernel to back `[start, start + bytes)` with huge pages from the next touch on, or
/// with small ones. False where it refuses: too many mappings.
///
/// # Safety
/// The library must have mapped the range.
pub unsafe fn advise(start: usize, bytes: usize, is_huge: bool) -> bool {
    let advice = if is_huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: the caller's promise. The advice changes no contents.
    unsafe { calls::madvise(start as *mut _, bytes, advice) == 0 }
}

/// The same on all processors that the library supports; the crate libc has it for glibc only.
const MADV_COLLAPSE: libc::c_int = 25;

/// The kernel has no `MADV_COLLAPSE`: it is older than 6.1.
static LACKS_COLLAPSE: AtomicBool = AtomicBool::new(false);

/// Whether [`collapse`] may do something.
pub fn can_collapse() -> bool {
    !LACKS_COLLAPSE.load(Relaxed)
}

/// The result of [`collapse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collapse {
    /// A huge page holds the contents.
    Done,
    /// The kernel uses some of the pages, for I/O for instance. Later it may do it.
    Busy,
    /// The kernel has no huge page free, or the process's group is at its limit.
    NoMemory,
    /// It cannot be done with this memory.
    Refused,
}

/// Has the kernel move what the huge page's bytes at `start` hold into a huge page, now. The
/// contents stay.
///
/// # Safety
/// The range must be a mapping of the library's, or none.
pub unsafe fn collapse(start: usize, bytes: usize) -> Collapse {
    // SAFETY: the caller's promise. A collapse changes no contents.
    if unsafe { calls::madvise(start as *mut _, bytes, MADV_COLLAPSE) } == 0 {
        return Collapse::Done;
    }
    match super::errno::get() {
        libc::EAGAIN => Collapse::Busy,
        libc::ENOMEM | libc::EBUSY => Collapse::NoMemory,
        error => {
            if error == libc::EINVAL {
                // It refuses the advice, or the range: then it is asked once less.
                LACKS_COLLAPSE.store(lacks_collapse(), Relaxed);
            }
            Collapse::Refused
        }
    }
}

/// Whether the kernel refuses to collapse an empty range, at which it has nothing to do.
fn lacks_collapse() -> bool {
    // SAFETY: an empty range, of which no byte changes.
    unsafe { calls::madvise(core::ptr::null_mut(), 0, MADV_COLLAPSE) != 0 }
}
