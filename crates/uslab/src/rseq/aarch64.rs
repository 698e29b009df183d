//! The sequences for 64-bit Arm. The pseudo-code is in the module above; a C-like line stands over
//! each instruction.
//!
//! There are two differences from x86-64. The thread control block has no scratch words, so a
//! process without registration uses areas of this module ([`SCRATCH`]).
//! And the exchange commits with a store-exclusive: where that fails nothing has changed, and the
//! sequence restarts.

#[path = "area.rs"]
mod area;
use area::CPU_WORD;
pub(super) use area::{own_offset, registered_bytes, registered_offset};

use super::detect::{area_offset, locked_offset};
use super::layout::START_TEST;
use super::{Exchanged, GATE, MOVED, Pushed, Sheaf, Slot, Which};
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicUsize};

/// The signature before each abort handler, with which threads are registered.
pub(super) const SIGNATURE: u32 = 0xd428_bc00;

/// Whether sequences exist for this architecture.
pub(super) const SUPPORTED: bool = true;
/// The offset that stands for "no registration".
pub(super) const SCRATCH_OFFSET: usize = 0;
/// The same: only this copy of the library uses its scratch areas.
pub(super) const LOCKED_OFFSET: usize = SCRATCH_OFFSET;

/// cpu_id_start and cpu_id, rseq_cs; on a cache line of its own.
#[repr(align(64))]
struct Area([AtomicUsize; 4]);

/// The scratch areas of processes without registration. Each sequence stores the address of its
/// descriptor in one, and no code reads it. Threads may share an area, and then have one hint; that
/// costs only speed.
static SCRATCH: [Area; SCRATCH_AREAS] = [const { Area([const { AtomicUsize::new(0) }; 4]) }; SCRATCH_AREAS];
const SCRATCH_AREAS: usize = 256;

/// Two words of the thread's area in locked mode: the number that sequences read, and the hint plus
/// 1 (`super::hint`).
#[inline]
pub(super) fn hint_words() -> [&'static AtomicU32; 2] {
    let offset = locked_offset();
    let own = || thread_pointer().wrapping_add(offset);
    let words = if offset == LOCKED_OFFSET { scratch() } else { own() } as *const AtomicU32;
    // SAFETY: the first two words of an area that stays mapped as long as the thread lives. Atomics
    // and the sequences' loads alone access them, and no thread is registered with it.
    unsafe { [&*words.add(CPU_WORD), &*words.add(1 - CPU_WORD)] }
}

/// This thread's area.
#[inline(always)]
fn area() -> usize {
    let offset = area_offset();
    if offset == SCRATCH_OFFSET { scratch() } else { thread_pointer().wrapping_add(offset) }
}

/// Selects an area by a hash of the thread pointer. Control blocks lie at the tops of stacks, often
/// a power of two of pages apart, so the hash uses the product's upper bits. Not inlined, so that
/// the sequences of registered threads pay for a branch only.
#[cold]
#[inline(never)]
fn scratch() -> usize {
    let page = thread_pointer() >> 12;
    let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - SCRATCH_AREAS.ilog2());
    SCRATCH[hash].0.as_ptr() as usize
}

/// Descriptor, abort handler, and the store that arms the sequence. Ends at label 3, the first
/// instruction of the sequence.
macro_rules! begin {
    () => {
        concat!(
            ".pushsection __rseq_cs, \"aw\", @progbits\n",
            ".balign 32\n",
            // struct rseq_cs { u32 version, flags; u64 start, post_commit_offset, abort; }
            "77: .long 0, 0\n",
            ".quad 3f, 4f - 3f, 5f\n",
            ".popsection\n",
            // The handler stands inline and is jumped over, because `b` reaches 128 MiB only.
            "b 2f\n",
            ".inst 0xd428bc00\n",
            "5: b 2f\n",
            // restart:
            "2:\n",
            // t = &descriptor;
            "adrp {t}, 77b\n",
            "add {t}, {t}, :lo12:77b\n",
            // area->rseq_cs = t;
            "str {t}, [{area}, #8]\n",
            "3:\n",
        )
    };
}

/// `t = slots + cpu`. Only the form below uses the scratch registers.
#[cfg(not(any(feature = "register-threads", all(target_env = "musl", target_feature = "crt-static"))))]
macro_rules! slot {
    ($scratch:literal, $other:literal) => {
        concat!(
            // t = area->cpu_id_start;
            "ldr {t:w}, [{area}]\n",
            // t = slots + t * sizeof(Slot);
            "add {t}, {slots}, {t}, lsl #6\n",
        )
    };
}

/// The same, where the library registers threads: see the x86-64 form.
#[cfg(any(feature = "register-threads", all(target_env = "musl", target_feature = "crt-static")))]
macro_rules! slot {
    ($scratch:literal, $other:literal) => {
        concat!(
            // t = area->cpu_id;
            "ldrsw {t}, [{area}, #4]\n",
            // if (area->rseq_cs != &descriptor) goto restart;
            concat!("adrp {", $scratch, "}, 77b\n"),
            concat!("add {", $scratch, "}, {", $scratch, "}, :lo12:77b\n"),
            concat!("ldr {", $other, "}, [{area}, #8]\n"),
            concat!("cmp {", $other, "}, {", $scratch, "}\n"),
            "b.ne 2b\n",
            // t = slots + t * sizeof(Slot);
            "add {t}, {slots}, {t}, lsl #6\n",
        )
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
    // caller's promise; the kernel restarts it if the thread leaves that CPU.
    unsafe {
        asm!(
            begin!(),
            slot!("s", "n"),
            // s = t->main;
            "ldr {s}, [{t}, #{main}]",
            // n = s->count;
            "ldr {n:w}, [{s}]",
            // object = s->objects[n];   (NULL where n == 0)
            "add {t}, {s}, {n}, lsl #3",
            "ldr {object}, [{t}, #8]",
            // n = n == 0 ? 0 : n - 1;
            "cmp {n:w}, #1",
            "cinc {n:w}, {n:w}, lo",
            "sub {n:w}, {n:w}, #1",
            // s->count = n;   commit
            "str {n:w}, [{s}]",
            "4:",
            t = out(reg) _,
            s = out(reg) _,
            n = out(reg) _,
            object = out(reg) object,
            slots = in(reg) slots,
            main = const Which::Main as usize,
            area = in(reg) area(),
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
        asm!(
            begin!(),
            slot!("s", "n"),
            // s = t->main;
            "ldr {s}, [{t}, #{main}]",
            // n = s->count, c = s->capacity;
            "ldp {n:w}, {c:w}, [{s}]",
            // if (n >= c) goto full;
            "cmp {n:w}, {c:w}",
            "b.hs {full}",
            // s->objects[n + 1] = object;   (above the top: invisible)
            "add {t}, {s}, {n}, lsl #3",
            "str {object}, [{t}, #16]",
            // n = n + 1;
            "add {n:w}, {n:w}, #1",
            // s->count = n;   commit
            "str {n:w}, [{s}]",
            "4:",
            t = out(reg) _,
            s = out(reg) _,
            n = out(reg) _,
            c = out(reg) _,
            object = in(reg) object,
            slots = in(reg) slots,
            main = const Which::Main as usize,
            area = in(reg) area(),
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
        asm!(
            begin!(),
            slot!("s", "n"),
            // s = (object & t->mask) * t->reciprocal;
            "ldp {s:w}, {c:w}, [{t}, #{test}]",
            "and {s:w}, {s:w}, {object:w}",
            "mul {s:w}, {s:w}, {c:w}",
            // if (s > t->last) goto slow;
            "ldr {c:w}, [{t}, #{test} + 8]",
            "cmp {s:w}, {c:w}",
            "b.hi {slow}",
            // s = t->main;
            "ldr {s}, [{t}, #{main}]",
            // n = s->count, c = s->capacity;
            "ldp {n:w}, {c:w}, [{s}]",
            // top = s->objects[n];   (NULL where n == 0)
            "add {t}, {s}, {n}, lsl #3",
            "ldr {top}, [{t}, #8]",
            // if (top == object) goto twice;
            "cmp {top}, {object}",
            "b.eq {twice}",
            // if (n >= c) goto slow;
            "cmp {n:w}, {c:w}",
            "b.hs {slow}",
            // s->objects[n + 1] = object;   (above the top: invisible)
            "str {object}, [{t}, #16]",
            // n = n + 1;
            "add {n:w}, {n:w}, #1",
            // s->count = n;   commit
            "str {n:w}, [{s}]",
            "4:",
            t = out(reg) _,
            s = out(reg) _,
            n = out(reg) _,
            c = out(reg) _,
            top = out(reg) _,
            object = in(reg) object,
            slots = in(reg) slots,
            main = const Which::Main as usize,
            test = const START_TEST,
            area = in(reg) area(),
            slow = label { return Pushed::Slow; },
            twice = label { return Pushed::Twice; },
            options(nostack)
        );
    }
    Pushed::Done
}

/// Copies `{k}` pointers from `{from}` to `{to}`; changes `{i}` and `{t}`.
macro_rules! copy {
    ($from:literal, $to:literal) => {
        concat!(
            // for (i = 0; i < k; i++) to[i] = from[i];
            "mov {i}, #0\n",
            "6: cmp {i}, {k}\n",
            "b.hs 7f\n",
            concat!("ldr {t}, [", $from, ", {i}, lsl #3]\n"),
            concat!("str {t}, [", $to, ", {i}, lsl #3]\n"),
            "add {i}, {i}, #1\n",
            "b 6b\n",
            "7:\n",
        )
    };
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
        asm!(
            begin!(),
            slot!("s", "n"),
            // s = t->main;
            "ldr {s}, [{t}, #{main}]",
            // n = s->count;
            "ldr {n:w}, [{s}]",
            // k = min(wanted, n);
            "cmp {wanted}, {n}",
            "csel {k}, {wanted}, {n}, lo",
            // n = n - k;
            "sub {n}, {n}, {k}",
            // from = &s->objects[n + 1];
            "add {from}, {s}, {n}, lsl #3",
            "add {from}, {from}, #16",
            copy!("{from}", "{out}"),
            // s->count = n;   commit
            "str {n:w}, [{s}]",
            "4:",
            t = out(reg) _,
            s = out(reg) _,
            n = out(reg) _,
            i = out(reg) _,
            from = out(reg) _,
            k = out(reg) taken,
            wanted = in(reg) wanted,
            out = in(reg) out,
            slots = in(reg) slots,
            main = const Which::Main as usize,
            area = in(reg) area(),
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
        asm!(
            begin!(),
            slot!("s", "n"),
            // s = t->main;
            "ldr {s}, [{t}, #{main}]",
            // n = s->count, k = s->capacity;
            "ldp {n:w}, {k:w}, [{s}]",
            // k = min(given, k - n);
            "sub {k:w}, {k:w}, {n:w}",
            "cmp {given}, {k}",
            "csel {k}, {given}, {k}, lo",
            // to = &s->objects[n + 1];
            "add {to}, {s}, {n}, lsl #3",
            "add {to}, {to}, #16",
            copy!("{objects}", "{to}"),
            // n = n + k;
            "add {n}, {n}, {k}",
            // s->count = n;   commit
            "str {n:w}, [{s}]",
            "4:",
            t = out(reg) _,
            s = out(reg) _,
            n = out(reg) _,
            i = out(reg) _,
            to = out(reg) _,
            k = out(reg) put,
            given = in(reg) given,
            objects = in(reg) objects,
            slots = in(reg) slots,
            main = const Which::Main as usize,
            area = in(reg) area(),
            options(nostack)
        );
    }
    put
}

/// Exchanges one of this CPU's two sheaves for `new`.
///
/// # Safety
/// As [`pop`]; `new` must be the dummy or a valid sheaf that the caller owns and that holds free
/// objects of this cache.
#[inline]
pub unsafe fn exchange(slots: *const Slot, which: Which, new: *mut Sheaf, cpu: usize) -> Exchanged {
    let old: *mut Sheaf;
    // SAFETY: as in `pop`. The commit is a store-exclusive with acquire and release, because a
    // drainer may change the slot at the same instant; each sheaf comes out of a slot once.
    unsafe {
        let slots = slots.cast::<u8>().add(which as usize);
        asm!(
            begin!(),
            slot!("old", "n"),
            // old = MOVED;
            "mov {old}, #{moved}",
            // if (t != own) goto end;
            "cmp {t}, {own}",
            "b.ne 6f",
            // old = NULL;
            "mov {old}, #0",
            // if (GATE != 0) goto end;
            "ldr {n:w}, [{gate}]",
            "cbnz {n:w}, 6f",
            // old = load_exclusive(t);
            "ldaxr {old}, [{t}]",
            // if (!store_exclusive(t, new)) goto restart;   commit, where it succeeds
            "stlxr {n:w}, {new}, [{t}]",
            "4: cbnz {n:w}, 2b",
            "6:",
            t = out(reg) _,
            n = out(reg) _,
            old = out(reg) old,
            new = in(reg) new,
            slots = in(reg) slots,
            own = in(reg) slots.wrapping_add(cpu * size_of::<Slot>()),
            moved = const MOVED,
            gate = in(reg) GATE.as_ptr(),
            area = in(reg) area(),
            options(nostack)
        );
    }
    Exchanged::of(old)
}

/// The number that sequences read in this thread's area.
#[inline]
pub(super) fn area_cpu() -> i32 {
    // SAFETY: reads one of the first two words of the thread's own area, or of the shared one.
    // Volatile: the kernel writes it.
    unsafe { (area() as *const i32).add(CPU_WORD).read_volatile() }
}

/// The thread pointer.
#[inline(always)]
pub(super) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {p}, tpidr_el0", p = out(reg) pointer, options(nostack, nomem, preserves_flags)) };
    pointer
}

/// Does nothing: this architecture has no variants.
pub(super) fn init() {}
