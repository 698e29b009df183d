//! Address space and pages.

use core::ptr;

/// Bytes of a system page, read at run time (4, 16 or 64 KiB).
pub fn page_bytes() -> usize {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if bytes > 0 { bytes as usize } else { 4096 }
}

/// Reserves `bytes` of address space that nobody can touch yet and that counts against no commit limit.
pub fn reserve(bytes: usize) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address.cast())
}

/// Keeps the kernel from backing `[start, start + bytes)` with huge pages of its own accord (`transparent_hugepage=always`, the default of some
/// distributions). Parts of one that are given back stay charged to the process's cgroup until the kernel splits it, which it does
/// when it is short itself, at some later time. A refusal (a kernel without huge pages) is as good.
///
/// # Safety
/// The range must lie in a reservation and be a whole number of system pages.
pub unsafe fn refuse_huge_pages(start: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise; the advice changes no contents.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_NOHUGEPAGE) };
}

/// Gives address space back.
///
/// # Safety
/// `[start, start + bytes)` must be (part of) a reservation that nothing uses any more.
pub unsafe fn unreserve(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(start.cast(), bytes) };
    }
}

/// Makes reserved pages readable: zeroes without memory behind them, which count against no commit limit. False if the kernel refuses.
///
/// # Safety
/// As [`commit`].
pub unsafe fn make_readable(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::mprotect(start.cast(), bytes, libc::PROT_READ) == 0 }
}

/// Makes reserved pages readable and writable; they read as zero. False if a limit (overcommit, RLIMIT_DATA) forbids it.
///
/// # Safety
/// `[start, start + bytes)` must lie in a reservation and be a whole number of system pages.
pub unsafe fn commit(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise; protection of our own pages changes nothing else.
    unsafe { libc::mprotect(start.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

/// Gives the memory behind committed pages back at once; they read as zero afterwards.
///
/// MADV_DONTNEED and not MADV_FREE, so that the resident size tells the truth.
///
/// # Safety
/// Nothing may use the contents of `[start, start + bytes)`, a whole number of system pages.
pub unsafe fn purge(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise. EINVAL (locked pages) leaves the contents, which the caller learns.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

/// Moves the pages of `[from, from + bytes)` to `to`, replacing what is mapped there, and leaves zero, committed pages at
/// `from`. False, with nothing changed, where the kernel cannot (`MREMAP_DONTUNMAP`, Linux 5.7).
///
/// The old range stays mapped throughout, so that no other mapping of the process can slip into a hole.
///
/// # Safety
/// Both ranges must be whole system pages of one committed reservation, not overlap, and nothing may use the contents of `to`.
pub unsafe fn move_pages(from: *mut u8, to: *mut u8, bytes: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller's promise.
    unsafe { libc::mremap(from.cast(), bytes, bytes, flags, to) != libc::MAP_FAILED }
}

/// Bytes of address space that the process may still map, if a limit is set (`ulimit -v`).
pub fn address_space_limit() -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place to write to.
    let ok = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } == 0;
    (ok && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as usize)
}
