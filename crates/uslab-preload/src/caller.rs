//! Tells calls of `malloc`, `calloc` and `realloc` by the program from calls by the C library or
//! the loader.
//!
//! The slow path may start the background thread, which takes locks of the C library. The C library
//! itself calls `malloc` under some of these locks: while it loads a library, or frees a thread's
//! storage. So only a call from elsewhere may start the thread.
//!
//! The functions and their slow paths end in jumps, so that the return address on the stack is
//! still the caller's:
//!
//! ```text
//!   program ──call──▶ malloc ──jump──▶ malloc_slow ──jump──▶ Unknown::serve
//!                                                            caller = [stack]; jump serve_from
//! ```
//!
//! `calloc` and `realloc` do the same by `serve_zeroed` and `serve_resized`. If the compiler
//! emitted a call for a jump, the caller would be this library, and the thread would not start.
//!
//! Must never guess that a caller is the program.

use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};
use uslab::internal::entry::{self as malloc, Caller, Freed};

/// The caller of a C function, known by its return address alone.
pub struct Unknown;

impl Caller for Unknown {
    const FREED: Freed = Freed::Tested;

    #[unsafe(naked)]
    extern "C" fn serve(size: usize) -> *mut u8 {
        // serve_from(size, return address)
        #[cfg(target_arch = "x86_64")]
        naked_asm!(
            "mov rsi, [rsp]", // caller = *stack
            "jmp {serve_from}",
            serve_from = sym serve_from,
        );
        #[cfg(target_arch = "aarch64")]
        naked_asm!(
            "mov x1, x30", // caller = link register
            "b {serve_from}",
            serve_from = sym serve_from,
        );
    }

    #[unsafe(naked)]
    extern "C" fn serve_zeroed(size: usize) -> *mut u8 {
        // serve_zeroed_from(size, return address)
        #[cfg(target_arch = "x86_64")]
        naked_asm!(
            "mov rsi, [rsp]", // caller = *stack
            "jmp {serve_zeroed_from}",
            serve_zeroed_from = sym serve_zeroed_from,
        );
        #[cfg(target_arch = "aarch64")]
        naked_asm!(
            "mov x1, x30", // caller = link register
            "b {serve_zeroed_from}",
            serve_zeroed_from = sym serve_zeroed_from,
        );
    }

    #[unsafe(naked)]
    unsafe extern "C" fn serve_resized(pointer: *mut u8, size: usize, old: usize) -> *mut u8 {
        // serve_resized_from(pointer, size, old, return address)
        #[cfg(target_arch = "x86_64")]
        naked_asm!(
            "mov rcx, [rsp]", // caller = *stack
            "jmp {serve_resized_from}",
            serve_resized_from = sym serve_resized_from,
        );
        #[cfg(target_arch = "aarch64")]
        naked_asm!(
            "mov x3, x30", // caller = link register
            "b {serve_resized_from}",
            serve_resized_from = sym serve_resized_from,
        );
    }
}

extern "C" fn serve_from(size: usize, caller: usize) -> *mut u8 {
    let begins = malloc::is_caller_asked() && is_program(caller);
    if begins { malloc::serve_program(size) } else { malloc::serve(size) }
}

extern "C" fn serve_zeroed_from(size: usize, caller: usize) -> *mut u8 {
    malloc::serve_zeroed(size, Freed::Tested, || is_program(caller))
}

/// # Safety
/// As `malloc::serve_resized`.
unsafe extern "C" fn serve_resized_from(pointer: *mut u8, size: usize, old: usize, caller: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { malloc::serve_resized(pointer, size, old, Freed::Tested, || is_program(caller)) }
}

/// Start and end of the C library, the loader and this library.
static NOT_PROGRAM: [[AtomicUsize; 2]; 8] = [const { [const { AtomicUsize::new(0) }; 2] }; 8];
/// Whether [`NOT_PROGRAM`] is complete.
static IS_COMPLETE: AtomicBool = AtomicBool::new(false);

fn is_program(caller: usize) -> bool {
    let within = |[start, end]: &[AtomicUsize; 2]| (start.load(Relaxed)..end.load(Relaxed)).contains(&caller);
    IS_COMPLETE.load(Acquire) && !NOT_PROGRAM.iter().any(within)
}

/// Start and end of this library; 0 until [`find_ranges`] has found them.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether an address lies in this library. May be called before the library was initialised, by
/// the initialisers of others.
///
/// Unlike `dladdr` it never takes the lock that the loader holds while it runs initialisers: one of
/// those may wait for this thread. And before glibc 2.34 few programs have `dladdr`.
pub fn is_own(address: usize) -> bool {
    if OWN[1].load(Acquire) == 0 {
        find_ranges();
    }
    (OWN[0].load(Relaxed)..OWN[1].load(Acquire)).contains(&address)
}

/// Finds the address ranges of [`NOT_PROGRAM`], when this library is loaded. The C library and the
/// loader are in place then.
pub fn find_ranges() {
    let mut found = 0_usize;
    // SAFETY: the loader calls `note` with its own description and `found`, and only before this
    // returns.
    let all = unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut found).cast()) } == 0;
    IS_COMPLETE.store(all, Release);
}

/// Keeps the range of one object if it belongs into [`NOT_PROGRAM`]. Returns 1 if there is no room.
///
/// # Safety
/// As `dl_iterate_phdr` calls it, with a `usize` as `data`.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader's description of one object, with its program headers; the count is that
    // of `find_ranges`.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<usize>()) };
    // SAFETY: as above.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let range = range_of(info.dlpi_addr as usize, headers);
    // SAFETY: the loader's names are NUL-terminated, or null.
    let name = unsafe { info.dlpi_name.as_ref().map(|name| CStr::from_ptr(name)) };
    let is_own = range.contains(&(note as *const () as usize));
    if is_own {
        OWN[0].store(range.start, Relaxed);
        OWN[1].store(range.end, Release);
    }
    if is_own || range.contains(&loader()) || name.is_some_and(is_c_library) {
        let Some([first, last]) = NOT_PROGRAM.get(*found) else { return 1 };
        first.store(range.start, Relaxed);
        last.store(range.end, Relaxed);
        *found += 1;
    }
    0
}

/// The addresses of an object that was loaded at `base`, from its first segment to its last.
fn range_of(base: usize, headers: &[libc::Elf64_Phdr]) -> Range<usize> {
    let segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let none = Range { start: usize::MAX, end: 0 };
    segments.fold(none, |range, header| {
        let at = base + header.p_vaddr as usize;
        range.start.min(at)..range.end.max(at + header.p_memsz as usize)
    })
}

/// Address of the dynamic loader; 0 in a program that was loaded without one.
fn loader() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::getauxval(libc::AT_BASE) as usize }
}

/// Whether an object is part of the C library, by the file names of glibc and musl. Before glibc
/// 2.34, threads and `dlopen` were libraries of their own. The address of a function would not do:
/// a program linked at fixed addresses may have a procedure linkage entry of its own for it.
fn is_c_library(path: &CStr) -> bool {
    const NAMES: [&[u8]; 6] = [b"libc.", b"libc-", b"libpthread", b"libdl.", b"libdl-", b"ld-"];
    let path = path.to_bytes();
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    NAMES.iter().any(|known| name.starts_with(known))
}
