//! `dlopen` without `RTLD_DEEPBIND`.
//!
//! An object that is opened with that flag looks its symbols up among its own dependencies first:
//! its `malloc` and `free` are the C library's, and those of the rest of the program are ours.
//! PHP opens its modules so, and they free what the program allocated. So the flag is taken off.
//! `USLAB_DEEPBIND=1` leaves it, for programs whose modules bring other versions of the program's
//! symbols.
//!
//! The wrapper leaves by a jump: the loader tells by the return address which object calls, whose
//! search path and namespace count.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering::Relaxed};

/// Bits of the flags that are passed on.
static PASSED: AtomicI32 = AtomicI32::new(!libc::RTLD_DEEPBIND);

/// The loader's `dlopen`; null until it has been looked for.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Reads the environment.
pub fn at_load() {
    // SAFETY: the name is NUL-terminated; the value is read before another thread exists.
    let value = unsafe { libc::getenv(c"USLAB_DEEPBIND".as_ptr()) };
    // SAFETY: the C library's strings are NUL-terminated.
    if !value.is_null() && unsafe { core::ffi::CStr::from_ptr(value) } == c"1" {
        PASSED.store(-1, Relaxed);
    }
}

/// Finds the loader's function, when it is first called: most programs never do. The lookup takes
/// the loader's lock, as the caller is about to.
extern "C" fn find_next() {
    // SAFETY: the name is NUL-terminated; this object is one that the loader loaded.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
    let found = if next.is_null() { (none as *const ()).cast_mut().cast() } else { next };
    NEXT.store(found, Relaxed);
}

/// In a program without another `dlopen`, in which nothing can call it by that name.
extern "C" fn none(_: *const c_char, _: c_int) -> *mut c_void {
    ptr::null_mut()
}

/// `dlopen(3)`, with the flags of [`PASSED`].
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        // if (NEXT == NULL) goto 3;
        "cmp qword ptr [rip + {next}], 0",
        "je 3f",
        // flags &= PASSED; goto *NEXT;
        "2: and esi, dword ptr [rip + {passed}]",
        "jmp qword ptr [rip + {next}]",
        // find_next();
        "3: push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find_next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp 2b",
        next = sym NEXT,
        passed = sym PASSED,
        find_next = sym find_next,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        // if (NEXT == NULL) goto 3;
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "cbz x16, 3f",
        // flags &= PASSED; goto *NEXT;
        "2: adrp x17, {passed}",
        "ldr w17, [x17, :lo12:{passed}]",
        "and w1, w1, w17",
        "br x16",
        // find_next();
        "3: stp x29, x30, [sp, #-32]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "bl {find_next}",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "b 2b",
        next = sym NEXT,
        passed = sym PASSED,
        find_next = sym find_next,
    );
}
