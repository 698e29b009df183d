//! `dlopen` that removes `RTLD_DEEPBIND` from the flags.
//!
//! The loader resolves the symbols of an object opened with that flag among the object's own
//! dependencies first. Its `malloc` and `free` are then the C library's, while the rest of the
//! program uses this library's. PHP opens its modules so, and they free memory that the program
//! allocated. `USLAB_DEEPBIND=1` keeps the flag, for programs whose modules bring other versions of
//! the program's symbols.
//!
//! The wrapper ends in a jump, not a call. The loader finds the calling object by the return
//! address, and uses that object's search path and namespace.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering::Relaxed};

/// Mask of the flags that the loader gets.
static PASSED: AtomicI32 = AtomicI32::new(!libc::RTLD_DEEPBIND);

/// The loader's `dlopen`; null before the first call.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Reads `USLAB_DEEPBIND`, which a process with gained privileges does not heed.
pub fn at_load() {
    unsafe extern "C" {
        fn secure_getenv(name: *const c_char) -> *const c_char;
    }
    // SAFETY: the name is NUL-terminated; the value is read before another thread exists.
    let value = unsafe { secure_getenv(c"USLAB_DEEPBIND".as_ptr()) };
    // SAFETY: the C library's strings are NUL-terminated.
    if !value.is_null() && unsafe { core::ffi::CStr::from_ptr(value) } == c"1" {
        PASSED.store(-1, Relaxed);
    }
}

/// Finds the loader's function at the first call, since most programs never call it. The lookup
/// takes the loader's lock, which the caller is about to take anyway.
///
/// Before glibc 2.34 `dlopen` is in libdl. Where the program was started without that library, and
/// a plug-in brings it, neither `dlsym` nor `dlopen` is found.
extern "C" fn find_next() {
    // SAFETY: the name is NUL-terminated; this object is one that the loader loaded.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
    let found = if next.is_null() { (by_libc as *const ()).cast_mut().cast() } else { next };
    NEXT.store(found, Relaxed);
}

/// `dlopen` by the function of glibc before 2.34 that opens the C library's own plug-ins. It leaves
/// no text for `dlerror`, and takes no null name.
#[unsafe(naked)]
extern "C" fn by_libc(file: *const c_char, flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        ".weak __libc_dlopen_mode",
        // if (__libc_dlopen_mode == NULL) return NULL;
        "mov rax, qword ptr [rip + __libc_dlopen_mode@GOTPCREL]",
        "test rax, rax",
        "jz 2f",
        // if (file == NULL) file = "";
        "lea rdx, [rip + {empty}]",
        "test rdi, rdi",
        "cmovz rdi, rdx",
        // flags |= __RTLD_DLOPEN; goto *__libc_dlopen_mode;
        "or esi, 0x80000000",
        "jmp rax",
        "2: ret",
        empty = sym EMPTY,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        ".weak __libc_dlopen_mode",
        // if (__libc_dlopen_mode == NULL) return NULL;
        "adrp x16, :got:__libc_dlopen_mode",
        "ldr x16, [x16, :got_lo12:__libc_dlopen_mode]",
        "cbz x16, 2f",
        // if (file == NULL) file = "";
        "adrp x17, {empty}",
        "add x17, x17, :lo12:{empty}",
        "cmp x0, #0",
        "csel x0, x17, x0, eq",
        // flags |= __RTLD_DLOPEN; goto *__libc_dlopen_mode;
        "orr w1, w1, #0x80000000",
        "br x16",
        "2: mov x0, #0",
        "ret",
        empty = sym EMPTY,
    );
}

/// The name of the program itself.
static EMPTY: c_char = 0;

/// `dlopen(3)`, with the flags masked by [`PASSED`].
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
