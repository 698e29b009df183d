//! Address space and pages: map, unmap, purge, move.

use super::answer::Answer;
use super::calls;
use super::file::Reader;
use core::ffi::c_int;
use core::ptr;

/// Bytes of a system page, read at run time (4, 16 or 64 KiB).
pub fn page_bytes() -> usize {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::getauxval(libc::AT_PAGESZ) };
    if bytes > 0 { bytes as usize } else { 4096 }
}

/// The result of a mapping at an address that the caller chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placed {
    /// The memory is mapped there.
    Mapped,
    /// Another mapping overlaps the range, or a program cannot have that address. The call changed
    /// nothing.
    Taken,
    /// A limit forbids it (`RLIMIT_AS`, `RLIMIT_DATA`, `RLIMIT_MEMLOCK`, overcommit). The call
    /// changed nothing.
    Refused,
}

/// The kernel counts mappings of this size or more: by default it refuses one that is larger than
/// memory and swap together, as it does for glibc. It is told not to count smaller ones: it merges
/// neighbours, and would refuse to fork a process once the merged mapping is larger than that.
const COUNTED_BYTES: usize = 1 << 30;

/// Maps `bytes` of private anonymous memory at `start`, replacing no mapping. `fixed` is
/// `MAP_FIXED_NOREPLACE`, or 0, which makes the address a hint: the kernel follows it if the range
/// is free.
fn place(start: usize, bytes: usize, protection: i32, fixed: i32) -> Placed {
    let uncounted = if bytes < COUNTED_BYTES { libc::MAP_NORESERVE } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | uncounted | fixed;
    // Kernels before 4.17 take MAP_FIXED_NOREPLACE for a hint.
    // SAFETY: a fresh mapping: neither a hint nor that flag replaces a mapping.
    let address = unsafe { calls::mmap(start as *mut _, bytes, protection, flags, -1, 0) };
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
/// The kernel merges adjacent mappings of this function into one.
///
/// Transparent huge pages are turned off for the range (`transparent_hugepage=always` is the
/// default of some distributions). Purged parts of a huge page stay charged to the process's cgroup
/// until the kernel splits the page, and it does that only when it is short of memory itself.
pub fn map_at(start: usize, bytes: usize) -> Placed {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let placed = place(start, bytes, access, libc::MAP_FIXED_NOREPLACE);
    if placed == Placed::Mapped {
        // A kernel without huge pages refuses.
        // SAFETY: the range was just mapped, and the advice changes no contents.
        unsafe { calls::madvise(start as *mut _, bytes, libc::MADV_NOHUGEPAGE) };
    }
    placed
}

/// As [`map_at`], but without access: no limit but that on addresses counts the range until
/// [`protect`] opens a part of it.
pub fn map_closed_at(start: usize, bytes: usize) -> Placed {
    place(start, bytes, libc::PROT_NONE, libc::MAP_FIXED_NOREPLACE)
}

/// Opens whole system pages for access, or closes them; the contents stay. False, with nothing
/// changed, where the process has too many mappings or a limit forbids it.
///
/// # Safety
/// The library must have mapped `[start, start + bytes)`, and the caller must own it.
pub unsafe fn protect(start: *mut u8, bytes: usize, is_open: bool) -> bool {
    let access = if is_open { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    // SAFETY: the caller's promise.
    unsafe { calls::mprotect(start.cast(), bytes, access) == 0 }
}

/// Maps `bytes` of zeroed memory that children share, at an address of the kernel's choice. It has
/// memory only where it is touched. `None` if the system refuses.
pub fn map_shared(bytes: usize) -> Option<*mut u8> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let address = unsafe { calls::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address.cast())
}

/// Maps `bytes` of zeroed private memory, at an address of the kernel's choice. It has memory only
/// where it is touched. `None` if the system refuses.
pub fn map_private(bytes: usize) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice; as for the advice,
    // see `map_at`.
    unsafe {
        let address = calls::mmap(ptr::null_mut(), bytes, access, flags, -1, 0);
        (address != libc::MAP_FAILED).then(|| {
            calls::madvise(address, bytes, libc::MADV_NOHUGEPAGE);
            address.cast()
        })
    }
}

/// Maps the `bytes` of a file that begin `skipped` bytes behind the start of the page at `page`, a
/// shared mapping of that file. Needs neither a descriptor nor a name of the file. `None` if the
/// system refuses.
///
/// # Safety
/// `page` must be a page of a mapping that the library made, shared and of a file. `skipped` must
/// be whole pages, one or more.
pub unsafe fn map_behind(page: *mut u8, skipped: usize, bytes: usize) -> Option<*mut u8> {
    // With the old size 0, `mremap` leaves the old mapping alone and maps the same file again.
    // SAFETY: no mapping changes but the new one, whose first pages no other code knows.
    unsafe {
        let both = calls::mremap(page.cast(), 0, skipped + bytes, libc::MREMAP_MAYMOVE, ptr::null_mut());
        (both != libc::MAP_FAILED).then(|| {
            unmap(both.cast(), skipped);
            both.cast::<u8>().add(skipped)
        })
    }
}

/// Gives memory to the system pages of a shared mapping of a file that contain `bytes` bytes from
/// `start` on. False where the file system has none left: the first access would raise SIGBUS. True
/// also where the kernel (before 5.14) cannot tell.
///
/// # Safety
/// The range must lie in mappings that the library made, readable and writable.
pub unsafe fn back(start: *mut u8, bytes: usize) -> bool {
    let (start, bytes) = whole_pages(start, bytes);
    let _errno = super::errno::Preserved::new();
    // SAFETY: the caller's promise; contents do not change.
    let is_done = unsafe { calls::madvise(start.cast(), bytes, POPULATE_WRITE) } == 0;
    is_done || super::errno::get() != libc::EFAULT
}

/// Maps zeroed private memory in place of the system pages that contain `bytes` bytes from `start`
/// on. False, with nothing changed, if the system refuses.
///
/// # Safety
/// The pages must belong to the library, and contain nothing that is in use.
pub unsafe fn replace(start: *mut u8, bytes: usize) -> bool {
    let (start, bytes) = whole_pages(start, bytes);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's promise.
    unsafe { calls::mmap(start.cast(), bytes, access, flags, -1, 0) != libc::MAP_FAILED }
}

/// The system pages that contain `bytes` bytes from `start` on.
fn whole_pages(start: *mut u8, bytes: usize) -> (*mut u8, usize) {
    let page_bytes = page_bytes();
    let before = start.addr() % page_bytes;
    (start.wrapping_sub(before), (before + bytes).next_multiple_of(page_bytes))
}

/// Tests whether a range is free: maps it without access, and unmaps it at once. The result is that
/// of [`map_at`], apart from limits on memory.
///
/// Uses a hint, because of ThreadSanitizer: outside of a program's ranges, its interceptor turns
/// `MAP_FIXED_NOREPLACE` into a mapping at address zero.
pub fn look_at(start: usize, bytes: usize) -> Placed {
    let placed = place(start, bytes, libc::PROT_NONE, 0);
    if placed == Placed::Mapped {
        // SAFETY: the mapping was just made, and no other code knows it.
        unsafe { unmap(start as *mut u8, bytes) };
    }
    placed
}

/// The address at which the kernel would put a new mapping of `bytes` now. Nothing stays mapped.
pub fn next_address(bytes: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let address = unsafe { calls::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping was just made, and no other code knows it.
    unsafe { unmap(address.cast(), bytes) };
    Some(address as usize)
}

/// Whether the program locks what it maps (`mlockall(MCL_FUTURE)`): then the kernel refuses to take
/// memory from the page at `start`. A filter of system calls that lets the program allocate allows
/// this question. It may end the program for `mincore`.
///
/// True also for memory that is locked at its first touch (`MCL_ONFAULT`): `RLIMIT_MEMLOCK` counts
/// that, too, as soon as it is mapped.
///
/// # Safety
/// The library must have mapped the page, and no code may have used it yet.
pub unsafe fn is_locked(start: usize) -> bool {
    let _errno = super::errno::Preserved::new();
    // SAFETY: the caller's promise.
    let is_purged = unsafe { purge(start as *mut u8, page_bytes()) };
    !is_purged && super::errno::get() == libc::EINVAL
}

/// Sets a limit on addresses that no test reaches.
#[cfg(test)]
pub fn limit_addresses() {
    let limit = libc::rlimit { rlim_cur: 1 << 46, rlim_max: 1 << 46 };
    // SAFETY: the limit is valid for the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

/// Whether the page at `start` is mapped. False also where the kernel refuses to answer.
#[cfg(test)]
pub fn is_mapped(start: usize) -> bool {
    let mut residence = 0u8;
    // SAFETY: the kernel writes one byte for one page; an address that is not mapped is an error.
    unsafe { calls::mincore(start as *mut _, 1, &raw mut residence) == 0 }
}

/// Whether there is memory behind the page at `start`.
#[cfg(test)]
pub fn is_resident(start: usize) -> bool {
    let mut residence = 0u8;
    // SAFETY: the kernel writes one byte for one page; an address that is not mapped is an error.
    let ok = unsafe { calls::mincore(start as *mut _, 1, &raw mut residence) } == 0;
    ok && residence & 1 != 0
}

/// The bytes of `[start, start + BYTES)` that have memory behind them; 0 where part of the range is
/// not mapped, or the kernel refuses to answer. `BYTES` is at most 2 MiB.
pub fn resident_bytes<const BYTES: usize>(start: usize) -> usize {
    const MIN_PAGE_BYTES: usize = 4096;
    const { assert!(BYTES <= 512 * MIN_PAGE_BYTES) };
    let mut residence = [0u8; 512];
    // SAFETY: a byte for each page, 512 at most; an address that is not mapped is an error.
    let ok = unsafe { calls::mincore(start as *mut _, BYTES, residence.as_mut_ptr()) } == 0;
    let pages = BYTES / page_bytes().max(MIN_PAGE_BYTES);
    let resident = residence[..pages].iter().filter(|&&page| page & 1 != 0).count();
    if ok { resident * page_bytes() } else { 0 }
}

/// Unmaps whole system pages. The memory behind them and their share of the limits return to the
/// system. False, with nothing changed, where the process has too many mappings to split one.
///
/// # Safety
/// The library must have mapped `[start, start + bytes)`, and no code may touch it any more.
pub unsafe fn unmap(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { calls::munmap(start.cast(), bytes) == 0 }
}

/// Returns the memory behind mapped pages to the system at once; the pages stay mapped and read as
/// zero. False where the kernel refuses, because of pages that `mlock` or `mlockall` locked; the
/// contents are then unchanged or zeroed in part.
///
/// Uses MADV_DONTNEED: after MADV_FREE the resident size would still count the pages.
///
/// # Safety
/// Nothing may use the contents of `[start, start + bytes)`, a whole number of system pages.
pub unsafe fn purge(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { calls::madvise(start.cast(), bytes, libc::MADV_DONTNEED) == 0 }
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
    unsafe { purge(start, bytes) || calls::madvise(start.cast(), bytes, DONTNEED_LOCKED) == 0 }
}

/// `MADV_POPULATE_WRITE`.
const POPULATE_WRITE: i32 = 23;

/// Brings memory behind whole system pages at once, in place of a fault for each (Linux 5.14). A
/// hint: where the kernel cannot do it, touches bring the memory.
///
/// # Safety
/// The library must have mapped `[start, start + bytes)`, and the caller must own it.
pub unsafe fn populate(start: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise; the advice changes no contents.
    unsafe { calls::madvise(start.cast(), bytes, POPULATE_WRITE) };
}

/// The result of [`move_pages`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// The contents are at the new place. The old one is as [`map_at`] maps it, unless that failed.
    Done { is_old_fresh: bool },
    /// The contents are where they were. The new place reads as zero.
    Refused,
    /// The contents are where they were. The new place may belong to another mapping of the
    /// process.
    Lost,
}

/// Moves the contents of `[from, from + bytes)` to `to`, by the pages where the kernel moves them.
/// Refused where pages at `to` are locked, as they are in a process that locks all its memory.
///
/// **A piece at a time.** Since Linux 6.17 a move takes several mappings one by one, and leaves
/// some of them moved when it fails; older kernels refuse several. So each call moves a piece that
/// is one mapping, and moves all of it or nothing. The library changes the advice of whole pieces
/// alone, so it divides none meanwhile. What is several mappings is copied, and so is what the
/// kernel refuses to move (ADR 0065).
///
/// **`from` stays mapped**, so that what was moved can be copied back. At the end it is mapped
/// anew: a program's advice for the contents moves along, and must not stay behind
/// (`MADV_WIPEONFORK`).
///
/// # Safety
/// Both ranges must be whole system pages that the library mapped, not overlap, and nothing may use
/// the contents of `to`.
pub unsafe fn move_pages(from: *mut u8, to: *mut u8, bytes: usize) -> Moved {
    // The purge fails for locked memory, and so prevents the move.
    // SAFETY: the caller's promise.
    if !unsafe { purge(to, bytes) } {
        return Moved::Refused;
    }
    let mut done = 0;
    while done < bytes {
        let start = from.wrapping_add(done);
        let piece = (PIECE_BYTES - start.addr() % PIECE_BYTES).min(bytes - done);
        // SAFETY: the piece lies in both ranges.
        let is_ours = unsafe { move_piece(start, to.add(done), piece) };
        if !is_ours {
            // SAFETY: as above; the pieces before this one are at `to`.
            unsafe { ptr::copy_nonoverlapping(to, from, done) };
            return Moved::Lost;
        }
        done += piece;
    }
    // SAFETY: the contents are at `to`.
    Moved::Done { is_old_fresh: unsafe { map_over(from, bytes) } }
}

/// Bytes whose advice the library changes at once, on a boundary of as many: a chunk.
const PIECE_BYTES: usize = 2 << 20;

/// Moves or copies a piece. False if `to` may no longer be the library's; nothing has changed at
/// `from` then.
///
/// # Safety
/// As [`move_pages`]; the piece must not cross a boundary of [`PIECE_BYTES`].
unsafe fn move_piece(from: *mut u8, to: *mut u8, bytes: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller's promise.
    unsafe {
        if is_one_mapping(from, bytes) {
            if calls::mremap(from.cast(), bytes, bytes, flags, to.cast()) != libc::MAP_FAILED {
                return true;
            }
            // Kernels without MREMAP_DONTUNMAP (before 5.7) changed nothing. Others may have
            // removed what was mapped at `to`. Where that is taken, they left it alone, or another
            // thread has it: these look alike.
            let is_unknown = super::errno::get() == libc::EINVAL;
            if !is_unknown && map_at(to as usize, bytes) != Placed::Mapped {
                return false;
            }
        }
        ptr::copy_nonoverlapping(from, to, bytes);
    }
    true
}

/// Whether whole system pages are one mapping to the kernel, which advice, seals and
/// `userfaultfd` divide.
///
/// Asks for one page more, without a move. The kernel refuses several mappings first (`EFAULT`),
/// and then the growth, because other memory follows (`ENOMEM`).
///
/// # Safety
/// The library must have mapped `[start, start + bytes)`, and the caller must own it.
unsafe fn is_one_mapping(start: *mut u8, bytes: usize) -> bool {
    let page = page_bytes();
    // SAFETY: the caller's promise; the contents stay.
    if unsafe { calls::mremap(start.cast(), bytes, bytes + page, 0, ptr::null_mut()) } == libc::MAP_FAILED {
        return super::errno::get() == libc::ENOMEM;
    }
    // SAFETY: nothing was mapped there before, and no other code knows that it is now.
    unsafe { unmap(start.add(bytes), page) };
    true
}

/// Maps zeroed memory, as [`map_at`] does, in place of what is mapped there. False, with the
/// contents unchanged, if the system refuses.
///
/// # Safety
/// The range must be whole system pages that the library mapped; nothing may use its contents.
unsafe fn map_over(start: *mut u8, bytes: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller's promise; as for the advice, see `map_at`.
    unsafe {
        let is_mapped = calls::mmap(start.cast(), bytes, access, flags, -1, 0) != libc::MAP_FAILED;
        if is_mapped {
            calls::madvise(start.cast(), bytes, libc::MADV_NOHUGEPAGE);
        }
        is_mapped
    }
}

/// Whether every mapped page counts against a limit, with memory behind it or not: overcommit
/// mode 2, as the first [`learn_commit_mode`] found it.
static COMMITS_STRICTLY: Answer = Answer::unknown();

/// Reads the kernel's overcommit mode, once. Called when the heap grows beyond its first chunks, so
/// small programs never pay for it. Must not be called on the background thread: the program could
/// take the descriptor for its own.
pub fn learn_commit_mode() {
    COMMITS_STRICTLY.learn(|| {
        let mut mode = [0u8; 1];
        let is_read = Reader::open(c"/proc/sys/vm/overcommit_memory")
            .is_some_and(|mut file| file.read(&mut mode) == mode.len());
        is_read && mode == *b"2"
    });
}

/// Whether a limit counts mapped pages even without memory behind them: overcommit mode 2,
/// `RLIMIT_AS` or `RLIMIT_DATA`. Then unmapping free pages helps the process.
pub fn is_mapping_limited() -> bool {
    let is_limited = |resource| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let ok = calls::getrlimit(resource, &mut limit) == 0;
        ok && limit.rlim_cur != libc::RLIM_INFINITY
    };
    COMMITS_STRICTLY.is_yes()
        || is_limited(libc::RLIMIT_AS as c_int)
        || is_limited(libc::RLIMIT_DATA as c_int)
}
