//! The sequences for x86-64. The pseudo-code is in the module above; a C-like line stands over each
//! instruction.
//!
//! Each inlined copy of a sequence has its own descriptor (section `__rseq_cs`) and abort handler
//! (section `__rseq_failure`). The signature that the kernel checks precedes the handler. An abort
//! restarts the sequence from the beginning, because no input register changes before the commit.
//!
//! `fs:[area]` is the thread's rseq area: `cpu_id_start` at 0, `cpu_id` at 4 and `rseq_cs` at 8.
//! Inside a sequence of a registered thread both numbers are the CPU that the thread runs on.
//! The one that the sequences read is always a valid index, registered or not: `cpu_id_start` where
//! the C library registers threads, `cpu_id` where this library does (see [`super::LEAD`]).

#[path = "area.rs"]
mod area;
use area::CPU_WORD;
pub(super) use area::{own_offset, registered_bytes, registered_offset};

use super::detect::{area_offset, locked_offset};
use super::layout::START_TEST;
use super::{Exchanged, GATE, MOVED, Pushed, Sheaf, Slot, Which};
use core::arch::asm;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// Code of the abort handler before it restarts: none in an ordinary build.
#[cfg(not(uslab_inject))]
macro_rules! count_abort {
    () => {
        ""
    };
}

/// In the injecting build the handler counts aborts. No register is free, and none is needed; the
/// restart sets the flags again.
#[cfg(uslab_inject)]
macro_rules! count_abort {
    () => {
        // ABORTS++;
        "lock inc qword ptr [rip + {aborts}]\n"
    };
}

/// Descriptor, abort handler, and the store that arms the sequence. Ends at label 3, the first
/// instruction of the sequence.
///
/// The signature is encoded as an instruction, so that disassemblers stay in step:
/// `ud1 <signature>(%rip), %edi`, never executed.
macro_rules! begin {
    () => {
        concat!(
            ".pushsection __rseq_cs, \"aw\", @progbits\n",
            ".balign 32\n",
            // struct rseq_cs { u32 version, flags; u64 start, post_commit_offset, abort; }
            "77: .long 0, 0\n",
            ".quad 3f, 4f - 3f, 5f\n",
            ".popsection\n",
            ".pushsection __rseq_failure, \"ax\", @progbits\n",
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "5:\n",
            count_abort!(),
            "jmp 2f\n",
            ".popsection\n",
            // restart:
            "2:\n",
            // t = &descriptor;
            "lea {t}, [rip + 77b]\n",
            // area->rseq_cs = t;
            "mov qword ptr fs:[{area} + 8], {t}\n",
            "3:\n",
        )
    };
}

/// `t = slot of this CPU`, as an offset into the slots. Only the form below uses the scratch
/// register.
#[cfg(not(any(feature = "register-threads", all(target_env = "musl", target_feature = "crt-static"))))]
macro_rules! slot {
    ($scratch:literal) => {
        concat!(
            // t = area->cpu_id_start;
            "mov {t:e}, dword ptr fs:[{area}]\n",
            // t *= sizeof(Slot);
            "shl {t}, 6\n",
        )
    };
}

/// The same, where the library registers threads. `t` is -1 in a thread that is not registered. A
/// signal handler may register the thread after this sequence was armed. The kernel did not abort
/// the sequence then, and nothing would protect it: so it restarts. The handler's calls, or the
/// registration, have changed `rseq_cs`.
#[cfg(any(feature = "register-threads", all(target_env = "musl", target_feature = "crt-static")))]
macro_rules! slot {
    ($scratch:literal) => {
        concat!(
            // t = area->cpu_id;
            "movsxd {t}, dword ptr fs:[{area} + 4]\n",
            // if (area->rseq_cs != &descriptor) goto restart;
            concat!("lea {", $scratch, "}, [rip + 77b]\n"),
            concat!("cmp qword ptr fs:[{area} + 8], {", $scratch, "}\n"),
            "jne 2b\n",
            // t *= sizeof(Slot);
            "shl {t}, 6\n",
        )
    };
}

/// The injection point: it stretches every sequence, so that preemption and signals hit inside it.
#[cfg(uslab_inject)]
macro_rules! inject {
    () => {
        concat!(
            // for (x = INJECT_TURNS; x != 0; x--) ;
            "mov {x:e}, dword ptr [rip + {turns}]\n",
            "8: test {x:e}, {x:e}\n",
            "jz 9f\n",
            "sub {x:e}, 1\n",
            "jmp 8b\n",
            "9:\n",
        )
    };
}

/// Iterations of an empty loop that each sequence runs before it commits; set by tests.
#[cfg(uslab_inject)]
pub static INJECT_TURNS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Number of times that the kernel restarted a sequence of this process.
#[cfg(uslab_inject)]
pub static ABORTS: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// `asm!` with the injection point's operands, in the build that has one.
macro_rules! sequence {
    ([$($before:expr),* $(,)?], [$($commit:expr),* $(,)?], $($operands:tt)*) => {
        #[cfg(not(uslab_inject))]
        asm!($($before,)* $($commit,)* "4:", $($operands)*);
        #[cfg(uslab_inject)]
        asm!($($before,)* inject!(), $($commit,)* "4:", x = out(reg) _, turns = sym INJECT_TURNS,
            aborts = sym ABORTS, $($operands)*);
    };
}

/// Takes the top object of this CPU's main sheaf; null if there is none.
///
/// # Safety
/// `slots` must point to slots for every possible CPU, with [`LEAD`](super::LEAD) slots before them,
/// each with valid sheaves, kept mapped for ever.
#[inline(always)]
pub unsafe fn pop(slots: *const Slot) -> *mut u8 {
    let object: *mut u8;
    // SAFETY: the sequence accesses only the slot and sheaf of the CPU it runs on, valid by the
    // caller's promise; the kernel restarts it if the thread leaves that CPU. `rseq_cs` is the one
    // field of the area that user space may write.
    unsafe {
        sequence!(
            [
                begin!(),
                slot!("s"),
                // s = slots[cpu].main;
                "mov {s}, qword ptr [{slots} + {t} + {main}]",
                // t = s->count;
                "mov {t:e}, dword ptr [{s}]",
                // object = s->objects[t];   (NULL where t == 0)
                "mov {object}, qword ptr [{s} + {t}*8 + 8]",
                // t = t == 0 ? 0 : t - 1;
                "sub {t:e}, 1",
                "adc {t:e}, 0",
            ],
            [
                // s->count = t;   commit
                "mov dword ptr [{s}], {t:e}",
            ],
            t = out(reg) _,
            s = out(reg) _,
            object = out(reg) object,
            slots = in(reg) slots,
            main = const Which::Main as usize,
            area = in(reg) area_offset(),
            options(nostack)
        );
    }
    object
}

/// Puts `object` on top of this CPU's main sheaf; false if that is full.
///
/// # Safety
/// As [`pop`], and `object` must be a free object of the slots' cache that the caller owns.
#[inline(always)]
pub unsafe fn push(slots: *const Slot, object: *mut u8) -> bool {
    // SAFETY: as in `pop`. The store of the object lies above the count, where no thread looks
    // until the commit.
    unsafe {
        sequence!(
            [
                begin!(),
                slot!("s"),
                // s = slots[cpu].main;
                "mov {s}, qword ptr [{slots} + {t} + {main}]",
                // t = s->count;
                "mov {t:e}, dword ptr [{s}]",
                // if (t >= s->capacity) goto full;
                "cmp {t:e}, dword ptr [{s} + 4]",
                "jae {full}",
                // s->objects[t + 1] = object;   (above the top: invisible)
                "mov qword ptr [{s} + {t}*8 + 16], {object}",
                // t = t + 1;
                "add {t:e}, 1",
            ],
            [
                // s->count = t;   commit
                "mov dword ptr [{s}], {t:e}",
            ],
            t = out(reg) _,
            s = out(reg) _,
            object = in(reg) object,
            slots = in(reg) slots,
            main = const Which::Main as usize,
            area = in(reg) area_offset(),
            full = label { return false; },
            options(nostack)
        );
    }
    true
}

/// [`push`] for any pointer. Refuses the object that is on top already, and an address where no
/// object of the slots' cache starts.
///
/// # Safety
/// As [`pop`]. If `object` is a free object of the slots' cache, the caller must own it, unless it
/// is on top of this sheaf.
#[inline(always)]
pub unsafe fn push_tested(slots: *const Slot, object: *mut u8) -> Pushed {
    // SAFETY: as in `push`. The slot's test words are valid like the rest of the slot.
    unsafe {
        sequence!(
            [
                begin!(),
                slot!("s"),
                // s = (object & slots[cpu].mask) * slots[cpu].reciprocal;
                "mov {s:e}, {object:e}",
                "and {s:e}, dword ptr [{slots} + {t} + {test}]",
                "imul {s:e}, dword ptr [{slots} + {t} + {test} + 4]",
                // if (s > slots[cpu].last) goto slow;
                "cmp {s:e}, dword ptr [{slots} + {t} + {test} + 8]",
                "ja {slow}",
                // s = slots[cpu].main;
                "mov {s}, qword ptr [{slots} + {t} + {main}]",
                // t = s->count;
                "mov {t:e}, dword ptr [{s}]",
                // if (s->objects[t] == object) goto twice;   (NULL where t == 0)
                "cmp qword ptr [{s} + {t}*8 + 8], {object}",
                "je {twice}",
                // if (t >= s->capacity) goto slow;
                "cmp {t:e}, dword ptr [{s} + 4]",
                "jae {slow}",
                // s->objects[t + 1] = object;   (above the top: invisible)
                "mov qword ptr [{s} + {t}*8 + 16], {object}",
                // t = t + 1;
                "add {t:e}, 1",
            ],
            [
                // s->count = t;   commit
                "mov dword ptr [{s}], {t:e}",
            ],
            t = out(reg) _,
            s = out(reg) _,
            object = in(reg) object,
            slots = in(reg) slots,
            main = const Which::Main as usize,
            test = const START_TEST,
            area = in(reg) area_offset(),
            slow = label { return Pushed::Slow; },
            twice = label { return Pushed::Twice; },
            options(nostack)
        );
    }
    Pushed::Done
}

/// Not 0 if copies may use 32-byte registers; 0 until [`init`].
static WIDE: AtomicU8 = AtomicU8::new(0);

/// Sets `WIDE`, by the C library's answer or the processor's. Called once, before the first cache
/// exists.
pub(super) fn init() {
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    /// In XCR0: the system saves the lower and upper halves of the registers.
    const HALVES: u32 = 0b110;
    if let Some(usable) = crate::os::weak::usable_features() {
        WIDE.store(u8::from(usable & AVX != 0), Relaxed);
        return;
    }
    let features = core::arch::x86_64::__cpuid(1).ecx;
    if features & OSXSAVE != 0 && features & AVX != 0 {
        let saved: u32;
        // SAFETY: the instruction exists where OSXSAVE is set; it reads a register.
        unsafe { asm!("xgetbv", in("ecx") 0, out("eax") saved, out("edx") _, options(nomem, nostack)) };
        WIDE.store(u8::from(saved & HALVES == HALVES), Relaxed);
    }
}

/// Copies `{k}` pointers from `{from}` to `{to}`: eight at a time if there are at least 24 and wide
/// registers, then four, then one. Changes `{i}`, `{t}` and two vector registers.
///
/// Small copies use 16-byte registers, because a wide load waits for narrower stores to the same
/// bytes (16 objects: 1.2 instead of 0.4 ns each). The macro zeroes the upper halves of all sixteen
/// registers, so none may be live.
macro_rules! copy {
    ($from:literal, $to:literal) => {
        concat!(
            // i = 0;
            "xor {i:e}, {i:e}\n",
            // if (k < 24 || !WIDE) goto narrow;
            "cmp {k}, 24\n",
            "jb 6f\n",
            "cmp byte ptr [rip + {wide}], 0\n",
            "je 6f\n",
            // t = k & ~7;
            "mov {t}, {k}\n",
            "and {t}, -8\n",
            // do { copy 64 bytes; i += 8; } while (i < t);
            "9:\n",
            concat!("vmovups ymm0, ymmword ptr [", $from, " + {i}*8]\n"),
            concat!("vmovups ymm1, ymmword ptr [", $from, " + {i}*8 + 32]\n"),
            concat!("vmovups ymmword ptr [", $to, " + {i}*8], ymm0\n"),
            concat!("vmovups ymmword ptr [", $to, " + {i}*8 + 32], ymm1\n"),
            "add {i}, 8\n",
            "cmp {i}, {t}\n",
            "jb 9b\n",
            // upper halves = 0;
            "vzeroupper\n",
            // while (k - i >= 4) { copy 32 bytes; i += 4; }
            "6:\n",
            "lea {t}, [{i} + 4]\n",
            "cmp {t}, {k}\n",
            "ja 7f\n",
            concat!("movups xmm0, xmmword ptr [", $from, " + {i}*8]\n"),
            concat!("movups xmm1, xmmword ptr [", $from, " + {i}*8 + 16]\n"),
            concat!("movups xmmword ptr [", $to, " + {i}*8], xmm0\n"),
            concat!("movups xmmword ptr [", $to, " + {i}*8 + 16], xmm1\n"),
            // i = t;
            "mov {i}, {t}\n",
            "jmp 6b\n",
            // while (i < k) { to[i] = from[i]; i++; }
            "7:\n",
            "cmp {i}, {k}\n",
            "jae 8f\n",
            concat!("mov {t}, qword ptr [", $from, " + {i}*8]\n"),
            concat!("mov qword ptr [", $to, " + {i}*8], {t}\n"),
            "add {i}, 1\n",
            "jmp 7b\n",
            "8:\n",
        )
    };
}

/// Copies `k` pointers, as bulk operations do.
///
/// # Safety
/// As [`core::ptr::copy_nonoverlapping`].
#[inline(always)]
pub(super) unsafe fn copy(from: *const *mut u8, to: *mut *mut u8, k: usize) {
    // SAFETY: the caller's promise. Beside its operands the code changes vector registers alone.
    unsafe {
        asm!(
            copy!("{from}", "{to}"),
            t = out(reg) _,
            i = out(reg) _,
            k = in(reg) k,
            from = in(reg) from,
            to = in(reg) to,
            wide = sym WIDE,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack)
        );
    }
}

/// Takes up to `wanted` objects from this CPU's main sheaf into `out`. Returns their number.
///
/// # Safety
/// As [`pop`], and `out` must have room for `wanted` pointers that no other thread accesses.
#[inline(always)]
pub unsafe fn pop_bulk(slots: *const Slot, wanted: usize, out: *mut *mut u8) -> usize {
    let taken: usize;
    // SAFETY: as in `pop`; the copies go to memory that only the caller accesses, and may be
    // repeated.
    unsafe {
        sequence!(
            [
                begin!(),
                slot!("s"),
                // s = slots[cpu].main;
                "mov {s}, qword ptr [{slots} + {t} + {main}]",
                // n = s->count;
                "mov {n:e}, dword ptr [{s}]",
                // k = min(wanted, n);
                "mov {k}, {wanted}",
                "cmp {k}, {n}",
                "cmova {k}, {n}",
                // n = n - k;
                "sub {n}, {k}",
                // from = &s->objects[n + 1];
                "lea {from}, [{s} + {n}*8 + 16]",
                copy!("{from}", "{out}"),
            ],
            [
                // s->count = n;   commit
                "mov dword ptr [{s}], {n:e}",
            ],
            t = out(reg) _,
            s = out(reg) _,
            n = out(reg) _,
            i = out(reg) _,
            from = out(reg) _,
            k = out(reg) taken,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            wide = sym WIDE,
            wanted = in(reg) wanted,
            out = in(reg) out,
            slots = in(reg) slots,
            main = const Which::Main as usize,
            area = in(reg) area_offset(),
            options(nostack)
        );
    }
    taken
}

/// Puts up to `given` objects onto this CPU's main sheaf. Returns the number that found room.
///
/// # Safety
/// As [`push`], for each of the `given` objects at `objects`.
#[inline(always)]
pub unsafe fn push_bulk(slots: *const Slot, given: usize, objects: *const *mut u8) -> usize {
    let put: usize;
    // SAFETY: as in `push`; the copies lie above the count.
    unsafe {
        sequence!(
            [
                begin!(),
                slot!("s"),
                // s = slots[cpu].main;
                "mov {s}, qword ptr [{slots} + {t} + {main}]",
                // n = s->count;
                "mov {n:e}, dword ptr [{s}]",
                // k = min(given, s->capacity - n);
                "mov {t:e}, dword ptr [{s} + 4]",
                "sub {t:e}, {n:e}",
                "mov {k}, {given}",
                "cmp {k}, {t}",
                "cmova {k}, {t}",
                // to = &s->objects[n + 1];
                "lea {to}, [{s} + {n}*8 + 16]",
                copy!("{objects}", "{to}"),
                // n = n + k;
                "add {n}, {k}",
            ],
            [
                // s->count = n;   commit
                "mov dword ptr [{s}], {n:e}",
            ],
            t = out(reg) _,
            s = out(reg) _,
            n = out(reg) _,
            i = out(reg) _,
            to = out(reg) _,
            k = out(reg) put,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            wide = sym WIDE,
            given = in(reg) given,
            objects = in(reg) objects,
            slots = in(reg) slots,
            main = const Which::Main as usize,
            area = in(reg) area_offset(),
            options(nostack)
        );
    }
    put
}

/// Exchanges one of the two sheaves of `cpu` for `new`, if the thread runs on that CPU.
///
/// # Safety
/// As [`pop`]; `new` must be the dummy or a valid sheaf that the caller owns and that holds free
/// objects of this cache.
#[inline]
pub unsafe fn exchange(slots: *const Slot, which: Which, new: *mut Sheaf, cpu: usize) -> Exchanged {
    let old: *mut Sheaf;
    // SAFETY: as in `pop`. The commit is a locked exchange, because a drainer may change the slot
    // at the same instant; each sheaf comes out of a slot once.
    unsafe {
        let place = slots.cast::<u8>().add(which as usize);
        sequence!(
            [
                begin!(),
                slot!("old"),
                // old = MOVED;
                "mov {old:e}, {moved}",
                // if (t != cpu * sizeof(Slot)) goto end;
                "cmp {t}, {own}",
                "jne 4f",
                // old = NULL;
                "xor {old:e}, {old:e}",
                // if (GATE != 0) goto end;
                "cmp dword ptr [{gate}], 0",
                "jne 4f",
                // old = new;
                "mov {old}, {new}",
            ],
            [
                // old = atomic_exchange(&slots[cpu].which, old);   commit
                "xchg qword ptr [{place} + {t}], {old}",
            ],
            t = out(reg) _,
            old = out(reg) old,
            new = in(reg) new,
            place = in(reg) place,
            own = in(reg) cpu * size_of::<Slot>(),
            moved = const MOVED,
            gate = in(reg) GATE.as_ptr(),
            area = in(reg) area_offset(),
            options(nostack)
        );
    }
    Exchanged::of(old)
}

/// The signature before each abort handler, with which threads are registered.
pub(super) const SIGNATURE: u32 = 0x5305_3053;

/// Whether sequences exist for this architecture.
pub(super) const SUPPORTED: bool = true;

/// Offset of the scratch area, which sequences use until the mode is chosen: 16 bytes of glibc's
/// x86-64 thread control block that glibc does not use.
///
/// glibc's `tcbhead_t` ends with `void *__padding[8]` at 0x280, unused since 2.3 for ABI reasons.
/// Every thread's TCB contains it, zeroed. There the numbers read as 0, and the store to `rseq_cs`
/// is harmless. musl's control block has no such bytes; there the own area serves
/// ([`area_offset`]).
pub(super) const SCRATCH_OFFSET: usize = 0x280;

/// Offset of the area of locked mode, the next 16 bytes: its number is the thread's hint modulo
/// `DUMMIES`. All copies of the library in the process share it. A copy that has not chosen its
/// mode has one dummy slot alone, so it must not read the hints of another. A build that registers
/// threads uses its own area, because its sequences read another word of it.
pub(super) const LOCKED_OFFSET: usize = SCRATCH_OFFSET + 16;

/// Two words of the thread's area in locked mode: the number that sequences read, and the hint plus
/// 1 (`super::hint`).
#[inline]
pub(super) fn hint_words() -> [&'static AtomicU32; 2] {
    let words = thread_pointer().wrapping_add(locked_offset()) as *const AtomicU32;
    // SAFETY: words of the thread's control block that glibc does not use, or of the own area. The
    // references do not leave the thread.
    unsafe { [&*words.add(CPU_WORD), &*words.add(1 - CPU_WORD)] }
}

/// The number that sequences read in this thread's area.
#[inline]
pub(super) fn area_cpu() -> i32 {
    let cpu: i32;
    // SAFETY: reads four bytes of the thread's own area.
    unsafe {
        asm!("mov {cpu:e}, dword ptr fs:[{area} + 4*{word}]", cpu = out(reg) cpu, word = const CPU_WORD,
            area = in(reg) area_offset(), options(nostack, readonly, preserves_flags));
    }
    cpu
}

/// The thread pointer.
pub(super) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the first word of the x86-64 TCB is its own address.
    unsafe {
        asm!("mov {p}, qword ptr fs:[0]", p = out(reg) pointer, options(nostack, readonly, preserves_flags))
    };
    pointer
}
