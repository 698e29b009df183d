//! Stacks: the return addresses of the calling thread, without an allocation and without a lock.
//!
//! The idea is the kernel's ORC: a return address determines where the caller's frame begins, by
//! one addition to a register. The compilers write these rules as programs (`.eh_frame`), which are
//! slow to run. So each program runs once, and its result is kept in a table.
//!
//! ```text
//!   pc ──▶ table of rules ──▶ { CFA = sp or fp + n, where fp and the return address were saved }
//!             │ miss
//!             ▼
//!          object (loader) ──▶ .eh_frame_hdr ──▶ FDE, CIE ──▶ program of call frame information
//! ```
//!
//! A stack that the thread had before costs no walk: [`again`].
//!
//! Frame pointers alone would not do: this library, and those of most distributions, are built
//! without them. The walk ends at code without a rule, and at rules that need more than two
//! registers.

mod again;
mod cfi;
mod loader;
mod object;
mod rule;
mod table;

use again::Trail;
pub use loader::{begin_fork, end_fork, end_fork_in_child};
pub use object::{Object, defines_elsewhere, find, function_at, function_of_image, generation};
use rule::Rule;

/// Upper bound on the frames of a stack.
pub const MAX_FRAMES: usize = 16;

/// Upper bound on the frames that a walk visits, those of this library included.
const MAX_VISITED: usize = 48;
/// Largest distance between two frames. Beyond it the walk assumes that a rule was wrong.
const MAX_FRAME_BYTES: usize = 8 << 20;

/// The registers that a walk starts from.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// The address of the next instruction.
    pub pc: usize,
    /// The stack pointer.
    pub sp: usize,
    /// The frame pointer, or the register that code without frames uses freely.
    pub fp: usize,
    /// The link register; 0 on machines without one.
    pub link: usize,
}

impl Registers {
    /// The registers of this function's caller, whose frame must last while they are used.
    #[inline(always)]
    fn current() -> Registers {
        let (pc, sp, fp): (usize, usize, usize);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instructions copy registers, and touch no memory.
        unsafe {
            core::arch::asm!(
                "lea {pc}, [rip]", // pc = this instruction
                "mov {sp}, rsp",
                "mov {fp}, rbp",
                pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
                options(nomem, nostack, preserves_flags),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            core::arch::asm!(
                "adr {pc}, .", // pc = this instruction
                "mov {sp}, sp",
                "mov {fp}, x29",
                pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
                options(nomem, nostack, preserves_flags),
            );
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            (pc, sp, fp) = (0, 0, 0);
        }
        Registers { pc, sp, fp, link: 0 }
    }
}

/// The number of [`preserved`] registers.
pub const PRESERVED: usize = if cfg!(target_arch = "x86_64") { 6 } else { 11 };

/// The registers that functions preserve for their callers: some hold values of the program until a
/// function that needs the register saves it.
#[inline(always)]
pub fn preserved() -> [usize; PRESERVED] {
    let mut registers = [0; PRESERVED];
    let place = registers.as_mut_ptr();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instructions store six words to the array.
    unsafe {
        core::arch::asm!(
            "mov [{place}], rbx",
            "mov [{place} + 8], rbp",
            "mov [{place} + 16], r12",
            "mov [{place} + 24], r13",
            "mov [{place} + 32], r14",
            "mov [{place} + 40], r15",
            place = in(reg) place,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instructions store eleven words to the array.
    unsafe {
        core::arch::asm!(
            "stp x19, x20, [{place}]",
            "stp x21, x22, [{place}, #16]",
            "stp x23, x24, [{place}, #32]",
            "stp x25, x26, [{place}, #48]",
            "stp x27, x28, [{place}, #64]",
            "str x29, [{place}, #80]",
            place = in(reg) place,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = place;
    registers
}

/// Writes the return addresses of the calling thread to `frames`, the innermost first; returns how
/// many. Frames of this library are left out where it is a shared object of its own. Allocates
/// nothing, and takes no lock but the loader's, for an instant ([`loader`]).
#[inline(never)]
pub fn capture(frames: &mut [usize]) -> usize {
    table::renew();
    walk(Registers::current(), object::own(), frames, false, None)
}

/// As [`capture`], for a thread that may hold locks of this library. The thread that has the
/// loader's lock may wait for these: it allocates while it visits the loader's list. So this
/// function does not take that lock, as far as the C library finds objects without it (glibc 2.35).
#[inline(never)]
pub fn capture_under_locks(frames: &mut [usize]) -> usize {
    walk(Registers::current(), object::own(), frames, false, None)
}

/// The number of the calling thread's stack. `number` gives it one from the frames that [`capture`]
/// would return, or 0. It is not asked where a table still has the number of that stack.
#[inline(never)]
pub fn numbered(number: fn(&[usize]) -> u32) -> u32 {
    let start = Registers::current();
    // SAFETY: the registers are those of this function, which lasts until the walk has ended.
    unsafe {
        again::number(start, |trail| {
            table::renew();
            let mut frames = [0; MAX_FRAMES];
            let n = walk(start, object::own(), &mut frames, false, trail);
            number(&frames[..n])
        })
    }
}

/// As [`capture_under_locks`], from the registers of a signal's context, whose `pc` becomes the
/// first frame.
#[allow(dead_code, reason = "handlers of faults call it")]
pub fn capture_from(registers: Registers, frames: &mut [usize]) -> usize {
    walk(registers, 0..0, frames, true, None)
}

fn walk(
    mut at: Registers,
    hidden: core::ops::Range<usize>,
    frames: &mut [usize],
    mut is_exact: bool,
    mut trail: Option<&mut Trail>,
) -> usize {
    let mut n = 0;
    for visited in 0..MAX_VISITED {
        if n == frames.len() || at.pc == 0 {
            break;
        }
        if !(hidden.contains(&at.pc) || visited == 0 && !is_exact) {
            frames[n] = at.pc;
            n += 1;
        }
        // A return address may lie behind the last instruction of its function.
        let Some(rule) = table::of(if is_exact { at.pc } else { at.pc - 1 }) else { break };
        // SAFETY: the rule is that of the code at `pc`, whose frame `sp` and `fp` belong to.
        match unsafe { step(at, rule, trail.as_deref_mut()) } {
            Some(caller) => at = caller,
            None => break,
        }
        is_exact = false;
    }
    n
}

/// The caller's registers. Records in `trail` what they depend on.
///
/// # Safety
/// `rule` must be the rule of the code at `at.pc`, and the other registers those at that place.
#[inline]
unsafe fn step(at: Registers, rule: Rule, mut trail: Option<&mut Trail>) -> Option<Registers> {
    if rule.is_from_fp()
        && let Some(trail) = &mut trail
    {
        trail.use_fp();
    }
    let cfa = if rule.is_from_fp() { at.fp } else { at.sp }.wrapping_add_signed(rule.cfa_offset());
    let is_plausible = cfa >= at.sp && cfa - at.sp < MAX_FRAME_BYTES && cfa.is_multiple_of(8);
    if !is_plausible {
        return None;
    }
    let read = |offset: isize| {
        let place = cfa.wrapping_add_signed(offset);
        // SAFETY: the words lie in the frame between `sp` and the CFA, or just below `sp`, which
        // the stack of a live thread has.
        (place, unsafe { (place as *const usize).read() })
    };
    let mut pc = at.link;
    if let Some((place, word)) = rule.return_offset().map(read) {
        pc = word;
        if let Some(trail) = &mut trail {
            trail.read(place, word);
        }
    }
    let mut fp = at.fp;
    if let Some((place, word)) = rule.fp_offset().map(read) {
        fp = word;
        if let Some(trail) = &mut trail {
            trail.read_fp(place, word);
        }
    }
    // 64-bit Arm may sign return addresses in bits that addresses do not use.
    let pc = pc & (usize::MAX >> 16);
    (pc > 4096 && (cfa > at.sp || at.link != 0)).then_some(Registers { pc, sp: cfa, fp, link: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn outer(frames: &mut [usize]) -> usize {
        core::hint::black_box(middle(frames))
    }

    #[inline(never)]
    fn middle(frames: &mut [usize]) -> usize {
        core::hint::black_box(capture(frames))
    }

    #[test]
    fn a_stack_names_its_functions_from_the_inside() {
        for _ in 0..2 {
            let mut frames = [0; MAX_FRAMES];
            let n = outer(&mut frames);
            assert!(n >= 4, "{n} frames");
            let is_in = |pc, function: *const ()| (function as usize..function as usize + 80).contains(&pc);
            assert!(is_in(frames[0], middle as *const ()), "{frames:#x?}");
            assert!(is_in(frames[1], outer as *const ()), "{frames:#x?}");
        }
    }

    /// Threads whose stacks come again, at eight depths and from two places, find the numbers of
    /// these stacks, and no others.
    #[test]
    fn a_stack_that_comes_again_has_its_number() {
        fn number_of(frames: &[usize]) -> u32 {
            frames.iter().fold(1u32, |hash, &pc| (hash ^ pc as u32).wrapping_mul(0x0100_0193)) | 1
        }
        /// The number of the stack, and that of its frames without the innermost.
        #[inline(never)]
        fn numbers() -> (u32, u32) {
            let number = core::hint::black_box(numbered(number_of));
            let mut frames = [0; MAX_FRAMES];
            let n = core::hint::black_box(capture(&mut frames));
            (number, number_of(&frames[1..n]))
        }
        #[inline(never)]
        fn at_depth(depth: usize) -> (u32, u32) {
            core::hint::black_box(if depth == 0 { numbers() } else { at_depth(depth - 1) })
        }
        let round = || {
            let mut seen = std::collections::HashMap::new();
            for depth in (0..8).cycle().take(400) {
                for (number, frames) in [at_depth(depth), core::hint::black_box(at_depth(depth))] {
                    assert_eq!(*seen.entry(frames).or_insert(number), number, "depth {depth}");
                }
            }
            let numbers: std::collections::HashSet<_> = seen.values().collect();
            assert_eq!((seen.len(), numbers.len()), (16, 16));
        };
        for _ in 0..20 {
            std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(round))));
        }
    }

    #[test]
    fn an_address_leads_to_its_object() {
        let here = an_address_leads_to_its_object as *const () as usize;
        let object = find(here).expect("the test program");
        assert!(object.start <= here && here < object.end);
        assert!(find(16).is_none());
    }

    #[test]
    fn a_deep_stack_is_cut() {
        fn deep(n: usize, frames: &mut [usize]) -> usize {
            if n == 0 { capture(frames) } else { core::hint::black_box(deep(n - 1, frames)) }
        }
        let mut frames = [0; MAX_FRAMES];
        assert_eq!(deep(40, &mut frames), MAX_FRAMES);
    }
}
