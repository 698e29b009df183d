//! Static probes (USDT) of the provider `uslab`: events of slow paths that bpftrace, perf,
//! SystemTap and gdb attach to, while the program runs.
//!
//! ```text
//!   slow path ── semaphore is 0 ──────────────▶ goes on       one load, one branch that is not taken
//!              └ a tool has raised it ─▶ values ─▶ nop, ret    the tool has a breakpoint on the nop
//! ```
//!
//! Each probe is a function of two instructions, `nop` and `ret`, a semaphore of 16 bits, and a
//! note in `.note.stapsdt`, which names the three and the registers of the arguments. The functions
//! are written in assembly: so a probe has one place and one semaphore, wherever the compiler
//! inlines its callers, and its arguments lie in the registers of the C calling convention. Tools
//! know one semaphore a probe.
//!
//! The format of the notes is described in SystemTap's wiki ("UserSpaceProbeImplementation").
//!
//! Probes stand on slow paths only. A probe runs no code of the program, allocates nothing, and may
//! fire while the thread holds a lock of the library: a debugger that stops there stops the other
//! threads at that lock. `docs/guide/tracing.md` has the table of probes for users.

use core::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Upper bound on the arguments of a probe: the registers of a call.
const MAX_ARGUMENTS: usize = 6;

type Place = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize);

/// The places of a call's first arguments, as the notes write them. All are unsigned words.
#[cfg(target_arch = "x86_64")]
macro_rules! registers {
    (2) => {
        "8@%rdi 8@%rsi"
    };
    (3) => {
        "8@%rdi 8@%rsi 8@%rdx"
    };
    (4) => {
        "8@%rdi 8@%rsi 8@%rdx 8@%rcx"
    };
    (5) => {
        "8@%rdi 8@%rsi 8@%rdx 8@%rcx 8@%r8"
    };
}

/// As above.
#[cfg(target_arch = "aarch64")]
macro_rules! registers {
    (2) => {
        "8@x0 8@x1"
    };
    (3) => {
        "8@x0 8@x1 8@x2"
    };
    (4) => {
        "8@x0 8@x1 8@x2 8@x3"
    };
    (5) => {
        "8@x0 8@x1 8@x2 8@x3 8@x4"
    };
}

/// Defines the probes: name, number of arguments.
macro_rules! probes {
    ($($(#[$doc:meta])* $name:ident($count:tt);)*) => {$(
        $(#[$doc])*
        ///
        /// Calls `values` only while a tool is attached.
        #[inline(always)]
        pub fn $name<V: Values>(values: impl FnOnce() -> V) {
            const { assert!(V::COUNT == $count, "the note names as many registers as there are values") };
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            {
                unsafe extern "C" {
                    #[link_name = concat!("uslab_", stringify!($name), "_semaphore")]
                    static SEMAPHORE: AtomicU16;
                    #[link_name = concat!("uslab_", stringify!($name), "_probe")]
                    fn place(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize);
                }
                // SAFETY: a word of `.probes` below, which lives for ever.
                let is_attached = unsafe { SEMAPHORE.load(Relaxed) } != 0;
                if is_attached {
                    fire(place, values);
                }
            }
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            let _ = values;
        }

        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        core::arch::global_asm!(
            // The linker keeps all of them, so that no note names a place that is not there.
            ".pushsection .text.uslab_probes, \"axR\", @progbits",
            ".balign 4",
            concat!(".globl uslab_", stringify!($name), "_probe"),
            concat!(".hidden uslab_", stringify!($name), "_probe"),
            concat!(".type uslab_", stringify!($name), "_probe, @function"),
            concat!("uslab_", stringify!($name), "_probe:"),
            ".cfi_startproc",
            "990: nop",
            "ret",
            ".cfi_endproc",
            concat!(".size uslab_", stringify!($name), "_probe, . - uslab_", stringify!($name), "_probe"),
            ".popsection",
            // Writable and in the file: the kernel raises the word through the file's mapping.
            ".pushsection .probes, \"awR\", @progbits",
            ".balign 2",
            concat!(".globl uslab_", stringify!($name), "_semaphore"),
            concat!(".hidden uslab_", stringify!($name), "_semaphore"),
            concat!(".type uslab_", stringify!($name), "_semaphore, @object"),
            concat!(".size uslab_", stringify!($name), "_semaphore, 2"),
            concat!("uslab_", stringify!($name), "_semaphore: .2byte 0"),
            ".popsection",
            // The note: lengths of name and content, type 3; place, base, semaphore; three strings.
            ".pushsection .note.stapsdt, \"\", @note",
            ".balign 4",
            ".4byte 992f - 991f, 994f - 993f, 3",
            "991: .asciz \"stapsdt\"",
            "992: .balign 4",
            concat!("993: .8byte 990b, _.stapsdt.base, uslab_", stringify!($name), "_semaphore"),
            concat!(".asciz \"uslab\"; .asciz \"", stringify!($name), "\""),
            concat!(".asciz \"", registers!($count), "\""),
            "994: .balign 4",
            ".popsection",
        );
    )*};
}

// Tools subtract this section's address from a note's base: the difference is how far a program
// that rewrote the file has moved its code. All objects of a program have one.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
core::arch::global_asm!(
    ".pushsection .stapsdt.base, \"aGR\", @progbits, .stapsdt.base, comdat",
    ".weak _.stapsdt.base",
    ".hidden _.stapsdt.base",
    "_.stapsdt.base: .space 1",
    ".size _.stapsdt.base, 1",
    ".popsection",
);

probes! {
    /// A sheaf was filled from slabs: the cache's name, the objects.
    refill(3);
    /// Objects of a sheaf went to their slabs: the cache's name, the objects.
    flush(3);
    /// A slab was made: the cache's name, its address, its bytes.
    slab_new(4);
    /// A slab goes back to the page layer: the cache's name, its address, its bytes.
    slab_free(4);
    /// A sheaf was taken out of a slot to be flushed: the cache's name, the objects.
    drain(3);
    /// Memory behind free pages went to the system: the bytes, the bytes of free pages that still
    /// have memory.
    purge(2);
    /// A pass begins: the bytes that it is for, whether it runs in the background.
    pass_begin(2);
    /// A pass is done: the bytes that went to the system, the entries, the rounds, whether it ran
    /// in the background.
    pass_done(4);
    /// A shrinker was asked for entries: its name, the entries asked for, the entries freed, the
    /// priority.
    shrinker_call(5);
    /// An allocation of pages was refused by the hard limit: the bytes, the bytes held.
    limit_hit(2);
    /// No slab with memory for all objects of a refill could be made, so the cache asks for those
    /// that its caller needs now: the cache's name, the objects wanted, the objects needed.
    order_fallback(4);
}

/// The values of a probe's arguments.
pub trait Values {
    /// The number of arguments; a text has two, its address and its length.
    const COUNT: usize;

    /// The arguments, then zeroes.
    fn words(self) -> [usize; MAX_ARGUMENTS];
}

impl<const N: usize> Values for [usize; N] {
    const COUNT: usize = N;

    fn words(self) -> [usize; MAX_ARGUMENTS] {
        let mut words = [0; MAX_ARGUMENTS];
        words[..N].copy_from_slice(&self);
        words
    }
}

impl<const N: usize> Values for (&str, [usize; N]) {
    const COUNT: usize = N + 2;

    fn words(self) -> [usize; MAX_ARGUMENTS] {
        let mut words = [0; MAX_ARGUMENTS];
        (words[0], words[1]) = (self.0.as_ptr() as usize, self.0.len());
        words[2..N + 2].copy_from_slice(&self.1);
        words
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cold]
#[inline(never)]
fn fire<V: Values>(place: Place, values: impl FnOnce() -> V) {
    let [a, b, c, d, e, f] = values().words();
    // SAFETY: the function is `nop` and `ret`, whatever the arguments are.
    unsafe { place(a, b, c, d, e, f) };
}

#[cfg(test)]
mod tests {
    use super::Values;

    #[test]
    fn a_text_is_two_arguments() {
        let name = "session";
        let words = (name, [3, 4]).words();
        assert_eq!(words, [name.as_ptr() as usize, 7, 3, 4, 0, 0]);
        assert_eq!(<(&str, [usize; 2])>::COUNT, 4);
        assert_eq!([5, 6].words(), [5, 6, 0, 0, 0, 0]);
    }

    #[test]
    fn values_are_not_made_while_no_tool_is_attached() {
        super::purge(|| -> [usize; 2] { unreachable!("no tool is attached") });
    }
}
