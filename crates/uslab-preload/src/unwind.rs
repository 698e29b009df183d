//! Hidden stubs of `libgcc_s`, so that the preload library does not load it into each program.
//!
//! Rust's standard library refers to the unwinder's functions, for panics. No function here panics,
//! and a panic from a bug must not cross this library's C functions. The stubs report the end of
//! the stack, so such a panic prints its message and aborts. Loading `libgcc_s` would take longer
//! than loading this library.

#[cfg(target_arch = "x86_64")]
macro_rules! body {
    () => {
        // return _URC_END_OF_STACK;
        "mov eax, 5\nret"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! body {
    () => {
        // return _URC_END_OF_STACK;
        "mov w0, #5\nret"
    };
}
#[cfg(target_arch = "x86_64")]
macro_rules! trap {
    () => {
        "ud2"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! trap {
    () => {
        "brk #1"
    };
}

/// Defines hidden functions of these names with one body.
macro_rules! hidden {
    ([$($name:literal),+ $(,)?] => $body:expr) => {
        core::arch::global_asm!(
            ".pushsection .text.uslab_unwind, \"ax\", @progbits",
            $(concat!(".globl ", $name), concat!(".hidden ", $name), concat!($name, ":"),)+
            $body,
            ".popsection",
        );
    };
}

hidden!([
    "_Unwind_RaiseException", "_Unwind_ForcedUnwind", "_Unwind_Backtrace", "_Unwind_DeleteException",
    "_Unwind_FindEnclosingFunction", "_Unwind_GetCFA", "_Unwind_GetDataRelBase", "_Unwind_GetGR",
    "_Unwind_GetIP", "_Unwind_GetIPInfo", "_Unwind_GetLanguageSpecificData", "_Unwind_GetRegionStart",
    "_Unwind_GetTextRelBase", "_Unwind_SetGR", "_Unwind_SetIP",
] => body!());

// Never called: the stubs raise nothing that could be resumed.
hidden!(["_Unwind_Resume", "_Unwind_Resume_or_Rethrow"] => trap!());
