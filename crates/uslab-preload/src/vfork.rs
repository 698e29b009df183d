//! A `vfork` whose child may allocate.
//!
//! A child of `vfork` runs in its parent's memory, on its stack. The parent's thread is suspended;
//! all other threads run on. POSIX forbids the child to allocate, and programs do it. So the child
//! takes over the parent's registration for restartable sequences, and acts as one more thread; see
//! `uslab::internal::lend`.
//!
//! ```text
//!   vfork: lent = before()? ─ system call ─┬─ parent: in_parent(result, lent) ─ return
//!                  │ no                    └─ child:  in_child(lent) ─ jump to the return address
//!                  └──▶ fork
//! ```
//!
//! Parent and child return from one frame, and the child's calls overwrite the stack. So the parent
//! keeps its state, the return address included, in registers across the system call. It restores
//! the return address to the stack afterwards.
//!
//! A child that is killed inside this library leaves its locks taken for ever, and loses a few
//! objects. Other allocators do the same.

use core::arch::naked_asm;
use core::ffi::{c_int, c_long};
use core::mem::MaybeUninit;
use uslab::internal::entry as malloc;
use uslab::internal::lend::{self, Lent};

/// `vfork(2)`; `fork` if the kernel, or a filter of system calls, refuses to register threads,
/// since the child's sequences could then not be protected.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn vfork() -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        // struct Lent { signals, area, bytes } lent;
        "sub rsp, 24",
        // if (!before(&lent)) goto 3;
        "mov rdi, rsp",
        "call {before}",
        "test al, al",
        "jz 3f",
        // signals, area, bytes = lent; back = return address;
        "pop rsi",
        "pop rdx",
        "pop r8",
        "pop rdi",
        // result = vfork();   clobbers rax, rcx and r11 only
        "mov eax, 58",
        "syscall",
        // restore the return address on the stack, which the child may have overwritten
        "push rdi",
        "test rax, rax",
        "jz 2f",
        // parent: return in_parent(result, signals, area, bytes);
        "mov rdi, rax",
        "mov rcx, r8",
        "jmp {in_parent}",
        // child: in_child(signals, area, bytes);
        "2:",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, r8",
        "sub rsp, 8",
        "call {in_child}",
        "add rsp, 8",
        // return 0;   by a jump: the shadow stack is shared, and keeps this return for the parent
        "pop rdx",
        "xor eax, eax",
        "jmp rdx",
        // return fork();
        "3:",
        "add rsp, 24",
        "jmp {by_fork}",
        before = sym before,
        in_parent = sym in_parent,
        in_child = sym in_child,
        by_fork = sym by_fork,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        // struct Lent { signals, area, bytes } lent;
        "stp x29, x30, [sp, #-48]!",
        "mov x29, sp",
        // if (!before(&lent)) goto 3;
        "add x0, sp, #16",
        "bl {before}",
        // signals, area, bytes = lent; the return address stays in x30
        "ldp x9, x10, [sp, #16]",
        "ldr x11, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "tbz w0, #0, 3f",
        // result = clone(CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);   clobbers x0 only
        "mov x0, #0x4111",
        "mov x1, #0",
        "mov x2, #0",
        "mov x3, #0",
        "mov x4, #0",
        "mov x8, #220",
        "svc #0",
        "cbz x0, 2f",
        // parent: return in_parent(result, signals, area, bytes);
        "mov x1, x9",
        "mov x2, x10",
        "mov x3, x11",
        "b {in_parent}",
        // child: in_child(signals, area, bytes);
        "2:",
        "stp x29, x30, [sp, #-16]!",
        "mov x0, x9",
        "mov x1, x10",
        "mov x2, x11",
        "bl {in_child}",
        "ldp x29, x30, [sp], #16",
        // return 0;
        "mov x0, #0",
        "ret",
        // return fork();
        "3:",
        "b {by_fork}",
        before = sym before,
        in_parent = sym in_parent,
        in_child = sym in_child,
        by_fork = sym by_fork,
    );
}

/// glibc's second name of [`vfork`].
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn __vfork() -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("jmp {vfork}", vfork = sym vfork);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("b {vfork}", vfork = sym vfork);
}

extern "C" fn before(lent: &mut MaybeUninit<Lent>) -> bool {
    // A constructor that runs before this library's may call `vfork`; the mode must be known.
    malloc::choose_mode();
    lend::begin().map(|taken| lent.write(taken)).is_some()
}

extern "C" fn in_child(signals: u64, area: usize, bytes: usize) {
    lend::in_child(&Lent { signals, area, bytes });
}

extern "C" fn in_parent(result: c_long, signals: u64, area: usize, bytes: usize) -> c_int {
    let was_protected = lend::in_parent(&Lent { signals, area, bytes });
    if result < 0 {
        // SAFETY: the calling thread's own cell.
        unsafe { *libc::__errno_location() = -result as c_int };
        return -1;
    }
    let child = result as libc::pid_t;
    if !was_protected {
        // The child has ended.
        uslab::internal::calls::wait_for(child, &mut 0, libc::__WALL);
        return by_fork();
    }
    child
}

extern "C" fn by_fork() -> c_int {
    // SAFETY: no preconditions.
    unsafe { libc::fork() }
}
