//! Where threads have their areas: the C library's, which its symbols tell, and the library's own.
//!
//! The own area takes 32 bytes of each thread's static block, where the loader may have no room for
//! what `dlopen` loads. So it is part of objects that are there from the start alone: static
//! programs of musl, and what is built with the feature `register-threads`.

use crate::rseq::LEAD;
use core::arch::global_asm;

/// The index of the number that sequences read: that of `cpu_id_start`, which is never negative, or
/// of `cpu_id`, which tells whether the thread is registered.
pub const CPU_WORD: usize = LEAD;

#[cfg(any(feature = "register-threads", all(target_env = "musl", target_feature = "crt-static")))]
global_asm!(
    // cpu_id_start = 0, cpu_id = -1, the rest 0
    ".pushsection .tdata.uslab_rseq_area, \"awT\", @progbits",
    ".balign 32",
    ".hidden uslab_rseq_area",
    ".globl uslab_rseq_area",
    ".type uslab_rseq_area, @tls_object",
    ".size uslab_rseq_area, 32",
    "uslab_rseq_area:",
    ".long 0, -1",
    ".zero 24",
    ".popsection",
);

/// Distance in bytes from the thread pointer to the library's own area, the same for all threads.
#[cfg(any(feature = "register-threads", all(target_env = "musl", target_feature = "crt-static")))]
#[inline(always)]
pub fn own_offset() -> Option<usize> {
    let offset: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a constant that the loader or the linker has filled in.
    unsafe {
        core::arch::asm!("mov {offset}, qword ptr [rip + uslab_rseq_area@gottpoff]", offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("adrp {offset}, :gottprel:uslab_rseq_area",
            "ldr {offset}, [{offset}, :gottprel_lo12:uslab_rseq_area]", offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags));
    }
    Some(offset)
}

/// None: this object has no area.
#[cfg(not(any(feature = "register-threads", all(target_env = "musl", target_feature = "crt-static"))))]
pub fn own_offset() -> Option<usize> {
    None
}

/// Code that loads the result of a function: the address of a symbol, or NULL if there is none.
#[cfg(target_arch = "x86_64")]
macro_rules! load_address {
    ($symbol:literal) => {
        concat!("mov rax, qword ptr [rip + ", $symbol, "@GOTPCREL]")
    };
}

/// As above.
#[cfg(target_arch = "aarch64")]
macro_rules! load_address {
    ($symbol:literal) => {
        concat!("adrp x0, :got:", $symbol, "\nldr x0, [x0, :got_lo12:", $symbol, "]")
    };
}

global_asm!(
    // Weak, so that the library loads with a C library without these symbols.
    ".weak __rseq_offset",
    ".weak __rseq_size",
    ".pushsection .text.uslab_rseq_symbols, \"ax\", @progbits",
    // const ptrdiff_t *uslab_rseq_offset(void) { return &__rseq_offset; }, or NULL
    ".hidden uslab_rseq_offset",
    ".globl uslab_rseq_offset",
    "uslab_rseq_offset:",
    load_address!("__rseq_offset"),
    "ret",
    // const unsigned *uslab_rseq_size(void) { return &__rseq_size; }, or NULL
    ".hidden uslab_rseq_size",
    ".globl uslab_rseq_size",
    "uslab_rseq_size:",
    load_address!("__rseq_size"),
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn uslab_rseq_offset() -> *const usize;
    fn uslab_rseq_size() -> *const u32;
}

/// Distance in bytes from the thread pointer to the C library's area; `None` if it has none.
pub fn registered_offset() -> Option<usize> {
    // SAFETY: the function returns the address of a constant of the C library, or null.
    unsafe { uslab_rseq_offset().as_ref().copied() }
}

/// The registered length of that area in bytes; 0 if registration failed or was switched off.
pub fn registered_bytes() -> u32 {
    // SAFETY: as above.
    unsafe { uslab_rseq_size().as_ref().copied().unwrap_or(0) }
}
