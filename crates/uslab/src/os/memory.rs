//! Address space and pages.

use super::file::Reader;
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Bytes of a system page, read at run time (4, 16 or 64 KiB).
pub fn page_bytes() -> usize {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if bytes > 0 { bytes as usize } else { 4096 }
}

/// What became of a mapping for which the caller chose the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placed {
    /// It stands there.
    Mapped,
    /// Another mapping stands in the way, or the address is none that a program can have; nothing
    /// was changed.
    Taken,
    /// A limit forbids it (`RLIMIT_AS`, `RLIMIT_DATA`, `RLIMIT_MEMLOCK`, overcommit); nothing was
    /// changed.
    Refused,
}

/// Maps `bytes` of private anonymous memory at `start`, replacing nothing. With `fixed` 0 the
/// address is a hint, which the kernel follows where nothing stands in the way.
fn place(start: usize, bytes: usize, protection: i32, fixed: i32) -> Placed {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: a fresh mapping: a hint replaces nothing, nor does MAP_FIXED_NOREPLACE, which kernels
    // before 4.17 take for a hint.
    let address = unsafe { libc::mmap(start as *mut _, bytes, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return if super::errno::get() == libc::EEXIST { Placed::Taken } else { Placed::Refused };
    }
    if address as usize == start {
        return Placed::Mapped;
    }
    // SAFETY: the mapping was just made, and no other code knows it.
    unsafe { unmap(address.cast(), bytes) };
    Placed::Taken
}

/// Maps `bytes` of zeroed memory, readable and writable, at `start`; both must be whole system
/// pages.
///
/// Where the mapping meets an earlier one of this function, the kernel makes one mapping of both.
///
/// The kernel is kept from backing the range with huge pages of its own accord
/// (`transparent_hugepage=always`, the default of some distributions). Parts of one that are given
/// back stay charged to the process's cgroup until the kernel splits it, which it does when it is
/// short itself.
pub fn map_at(start: usize, bytes: usize) -> Placed {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let placed = place(start, bytes, access, libc::MAP_FIXED_NOREPLACE);
    if placed == Placed::Mapped {
        // SAFETY: the range was just mapped; the advice changes no contents, and a refusal (a kernel
        // without huge pages) is as good.
        unsafe { libc::madvise(start as *mut _, bytes, libc::MADV_NOHUGEPAGE) };
    }
    placed
}

/// What [`map_at`] would find at `start`, but for limits on memory.
///
/// By a hint: where the address is outside of a program's ranges, ThreadSanitizer's interceptor
/// would make of `MAP_FIXED_NOREPLACE` a mapping at address zero.
pub fn look_at(start: usize, bytes: usize) -> Placed {
    let placed = place(start, bytes, libc::PROT_NONE, 0);
    if placed == Placed::Mapped {
        // SAFETY: the mapping was just made, and no other code knows it.
        unsafe { unmap(start as *mut u8, bytes) };
    }
    placed
}

/// Where the kernel would put a new mapping of `bytes` now; nothing stays mapped there.
pub fn next_address(bytes: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping was just made, and no other code knows it.
    unsafe { unmap(address.cast(), bytes) };
    Some(address as usize)
}

/// Whether there is memory behind the page at `start`: in a fresh mapping only where the program
/// asked the kernel for it beforehand (`mlockall(MCL_FUTURE)`).
pub fn is_resident(start: usize) -> bool {
    let mut residence = 0u8;
    // SAFETY: the answer for one page is one byte; an address that is not mapped is an error.
    let ok = unsafe { libc::mincore(start as *mut _, 1, &raw mut residence) } == 0;
    ok && residence & 1 != 0
}

/// Unmaps whole system pages, and gives back the memory behind them and what limits counted for
/// them. False, with nothing changed, where the process has too many mappings to split one.
///
/// # Safety
/// The library must have mapped `[start, start + bytes)`, and no code may touch it any more.
pub unsafe fn unmap(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(start.cast(), bytes) == 0 }
}

/// Gives the memory behind mapped pages back at once; they read as zero afterwards. False, with the
/// contents left or zeroed in part, where the kernel refuses: pages that `mlock` or `mlockall`
/// locked.
///
/// MADV_DONTNEED and not MADV_FREE, so that the resident size tells the truth.
///
/// # Safety
/// Nothing may use the contents of `[start, start + bytes)`, a whole number of system pages.
pub unsafe fn purge(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

/// As [`purge`], for locked pages too (Linux 5.18): the range stays locked, and the next touch
/// brings a locked page.
///
/// # Safety
/// As [`purge`].
pub unsafe fn purge_locked(start: *mut u8, bytes: usize) -> bool {
    /// `MADV_DONTNEED_LOCKED`.
    const DONTNEED_LOCKED: i32 = 24;
    // SAFETY: the caller's promise.
    unsafe { purge(start, bytes) || libc::madvise(start.cast(), bytes, DONTNEED_LOCKED) == 0 }
}

/// Moves the pages of `[from, from + bytes)` to `to`, replacing what is mapped there, and leaves
/// zero, mapped pages at `from`. False, with `from` as it was and `to` zeroed or as it was, where
/// the kernel cannot (`MREMAP_DONTUNMAP`, Linux 5.7) or the pages are locked: it would unlock those
/// at `from`.
///
/// The old range stays mapped throughout, so that no other mapping of the process can slip into a
/// hole.
///
/// # Safety
/// Both ranges must be whole system pages that the library mapped, not overlap, and nothing may use
/// the contents of `to`.
pub unsafe fn move_pages(from: *mut u8, to: *mut u8, bytes: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller's promise.
    unsafe {
        purge(to, page_bytes()) && libc::mremap(from.cast(), bytes, bytes, flags, to) != libc::MAP_FAILED
    }
}

/// How the kernel counts private writable pages, as of the first [`learn_commit_mode`].
static COMMIT_MODE: AtomicU8 = AtomicU8::new(COMMIT_UNKNOWN);
const COMMIT_UNKNOWN: u8 = 0;
/// Modes 0 and 1: address space alone is not counted.
const COMMIT_LOOSE: u8 = 1;
/// Every one counts against a limit: overcommit mode 2.
const COMMIT_STRICT: u8 = 2;

/// Reads the kernel's mode of overcommit, once, when the heap grows beyond its first chunks: small
/// programs never pay for it. Not on the background thread, whose descriptor the program could take
/// for its own.
pub fn learn_commit_mode() {
    if COMMIT_MODE.load(Relaxed) != COMMIT_UNKNOWN {
        return;
    }
    let mut mode = [0u8; 1];
    let is_read = Reader::open(c"/proc/sys/vm/overcommit_memory")
        .is_some_and(|mut file| file.read(&mut mode) == mode.len());
    let is_strict = is_read && mode == *b"2";
    COMMIT_MODE.store(if is_strict { COMMIT_STRICT } else { COMMIT_LOOSE }, Relaxed);
}

/// Whether a limit counts what is mapped, with or without memory behind it: overcommit mode 2,
/// `RLIMIT_AS` or `RLIMIT_DATA`. Then free address space is worth giving back as well.
pub fn is_mapping_limited() -> bool {
    let is_limited = |resource| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a valid place to write to.
        let ok = unsafe { libc::getrlimit(resource, &mut limit) } == 0;
        ok && limit.rlim_cur != libc::RLIM_INFINITY
    };
    COMMIT_MODE.load(Relaxed) == COMMIT_STRICT || is_limited(libc::RLIMIT_AS) || is_limited(libc::RLIMIT_DATA)
}
