//! Where threads have their areas: the C library's, which its symbols tell, and the library's own.

core::arch::global_asm!(
    // The library's own area, one for each thread: cpu_id_start = 0, cpu_id = -1, the rest 0.
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
    // Weak, so that the library loads with a C library without these symbols.
    ".weak __rseq_offset",
    ".weak __rseq_size",
    ".pushsection .text.uslab_rseq_symbols, \"ax\", @progbits",
    // const ptrdiff_t *uslab_rseq_offset(void) { return &__rseq_offset; }, or NULL
    ".hidden uslab_rseq_offset",
    ".globl uslab_rseq_offset",
    "uslab_rseq_offset:",
    #[cfg(target_arch = "x86_64")]
    "mov rax, qword ptr [rip + __rseq_offset@GOTPCREL]",
    #[cfg(target_arch = "aarch64")]
    "adrp x0, :got:__rseq_offset",
    #[cfg(target_arch = "aarch64")]
    "ldr x0, [x0, :got_lo12:__rseq_offset]",
    "ret",
    // const unsigned *uslab_rseq_size(void) { return &__rseq_size; }, or NULL
    ".hidden uslab_rseq_size",
    ".globl uslab_rseq_size",
    "uslab_rseq_size:",
    #[cfg(target_arch = "x86_64")]
    "mov rax, qword ptr [rip + __rseq_size@GOTPCREL]",
    #[cfg(target_arch = "aarch64")]
    "adrp x0, :got:__rseq_size",
    #[cfg(target_arch = "aarch64")]
    "ldr x0, [x0, :got_lo12:__rseq_size]",
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

/// Distance in bytes from the thread pointer to the library's own area: the same for all threads.
#[inline(always)]
pub fn own_offset() -> usize {
    let offset: usize;
    // SAFETY: reads a constant that the loader or the linker has filled in.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {offset}, qword ptr [rip + uslab_rseq_area@gottpoff]", offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("adrp {offset}, :gottprel:uslab_rseq_area",
            "ldr {offset}, [{offset}, :gottprel_lo12:uslab_rseq_area]", offset = out(reg) offset,
            options(nostack, pure, readonly, preserves_flags));
    }
    offset
}
