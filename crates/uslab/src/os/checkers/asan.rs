//! AddressSanitizer: functions of its run-time library, which only programs built with
//! `-fsanitize=address` have. Elsewhere the weak names are null, and nothing happens.

use core::ffi::c_void;

type OfRange = Option<unsafe extern "C" fn(*const c_void, usize)>;

/// The functions, in the order of the assembly below.
#[repr(C)]
struct Functions {
    poison: OfRange,
    unpoison: OfRange,
    register_root_region: OfRange,
}

// Rust cannot declare a name that may be missing; see `weak`.
core::arch::global_asm!(
    ".weak __asan_poison_memory_region",
    ".weak __asan_unpoison_memory_region",
    ".weak __lsan_register_root_region",
    ".pushsection .data.rel.ro.uslab_asan, \"aw\", @progbits",
    ".hidden uslab_asan_functions",
    ".globl uslab_asan_functions",
    ".balign 8",
    "uslab_asan_functions:",
    ".quad __asan_poison_memory_region, __asan_unpoison_memory_region, __lsan_register_root_region",
    ".popsection",
);

unsafe extern "C" {
    static uslab_asan_functions: Functions;
}

fn call(choose: impl Fn(&Functions) -> OfRange, start: usize, bytes: usize) {
    // SAFETY: the table above has as many words as fields, and is never written after it was bound.
    let function = choose(unsafe { &uslab_asan_functions });
    if let Some(function) = function.filter(|_| bytes > 0) {
        // SAFETY: the functions change the sanitizer's shadow of the range, or remember the range.
        unsafe { function(start as *const c_void, bytes) };
    }
}

pub fn hide(start: usize, bytes: usize) {
    call(|functions| functions.poison, start, bytes);
}

pub fn show(start: usize, bytes: usize) {
    call(|functions| functions.unpoison, start, bytes);
}

pub fn add_roots(start: usize, bytes: usize) {
    call(|functions| functions.register_root_region, start, bytes);
}
