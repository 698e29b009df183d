//! Profiled objects: which allocations are samples of the heap profile, and what becomes of them.
//!
//! ```text
//!   malloc ── counted sheaf (percpu::counted) ── empty ──▶ take ── distance left ──▶ refill
//!                                                            └── sample ──▶ large run, with a record
//!   free ── page map: a large run ──▶ slow path ──▶ the record ends
//! ```
//!
//! A sampled object of `malloc` is a page run of its own, a large object, whatever its size. So the
//! page map sends its free to the slow path, and other frees need no test. Its descriptor has the
//! number of the sample ([`table`]) and the bytes of the class that it stands for.
//!
//! A sized free of up to 1 KiB looks nothing up, and pushes. While a class counts, its table names
//! the counted row, which is full for every push. After [`stop`] the row stays in the table as long
//! as the class has sampled objects in use.
//!
//! Large objects, and all objects in locked mode, take the slow path in any case. There a countdown
//! of bytes for each CPU tells the samples. So it does in caches of the program, whose sheaves are
//! hidden from the fast path meanwhile ([`caches`]), and in private heaps ([`heaps`]).

mod caches;
mod draw;
pub(super) mod heaps;
pub(crate) mod state;
pub(crate) mod table;
mod text;

use super::classes::{CLASSES, Class, MAX_DIRECT_BYTES};
use super::large::{self, Reclaim};
use super::medium::{self, Medium};
use super::small;
use crate::cache::debugged::{Family, Request};
use crate::cache::{Core, Profiler, drain_counted, install_profiler, start};
use crate::os;
use crate::os::config::PROFILE_PERIOD_BYTES;
use crate::os::unwind;
use crate::rseq::{self, Cpu};
use crate::sync::CachePadded;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use table::{End, MAX_FRAMES, Object};

/// The index of large objects behind the classes.
const LARGE: usize = state::CLASSES;
const _: () = assert!(LARGE < table::FIRST_LABEL as usize);

/// The purpose of an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any object will do.
    Plain,
    /// The caller clears it. A medium object that is not cached comes cleared from elsewhere.
    Zeroed,
    /// It grew beyond its place, and may grow again: it is to be a large run above 32 KiB.
    Grown,
    /// Any object will do, but no memory is reclaimed for it.
    NoReclaim,
}

impl Kind {
    /// The purpose, as far as it matters where a small class serves.
    fn of_small(self) -> Kind {
        if self == Kind::NoReclaim { self } else { Kind::Plain }
    }
}

/// Bytes until the next sample, by CPU; 0 where none was drawn.
static COUNTDOWNS: [CachePadded<AtomicU64>; 64] = [const { CachePadded(AtomicU64::new(0)) }; 64];

/// Whether `USLAB_PROFILE` asks for a profile.
pub(crate) fn is_named() -> bool {
    start::profile_is_named()
}

/// Starts sampling, about one allocation in `period_bytes` bytes, or changes the period; 0 is the
/// default. False without memory. The caller holds no lock.
pub(crate) fn start(period_bytes: usize) -> bool {
    let _errno = os::errno::Preserved::new();
    let period_bytes = if period_bytes == 0 { PROFILE_PERIOD_BYTES } else { period_bytes as u64 };
    if !start::ensure() {
        return false;
    }
    // A fork takes the table's lock by these.
    super::install_hooks();
    if !table::make() {
        return false;
    }
    state::begin();
    state::set_period_bytes(period_bytes);
    COUNTDOWNS.iter().for_each(|countdown| countdown.store(0, Relaxed));
    settle();
    caches::begin_counting();
    install_profiler(&PROFILER);
    true
}

/// Takes no more samples. Those in use stay, and are followed until they are freed.
pub(crate) fn stop() {
    let _errno = os::errno::Preserved::new();
    if state::has_begun() {
        state::set_period_bytes(0);
        settle();
        drain_counted();
        caches::end_counting();
    }
}

/// Makes the tables of sizes agree with the state.
fn settle() {
    (0..).map_while(Class::at).for_each(small::settle);
    (0..).map_while(Medium::at).for_each(medium::settle);
}

/// The name of the cache of a site, and the bytes of its objects; 0 for large objects.
fn cache_of(index: u16) -> (&'static str, usize) {
    if let Some(name_and_bytes) = table::label_at(index) {
        return name_and_bytes;
    }
    let index = usize::from(index);
    if let (Some(class), Some(&name)) = (Class::at(index), small::NAMES.get(index)) {
        return (name, class.bytes());
    }
    Medium::at(index.wrapping_sub(CLASSES)).map_or((large::NAME, 0), |class| (class.name(), class.bytes()))
}

/// Writes the profile, piece by piece; false if none was ever started.
pub(crate) fn write(out: &mut dyn FnMut(&[u8])) -> bool {
    let has_begun = state::has_begun();
    if has_begun {
        let _errno = os::errno::Preserved::new();
        text::write(out, cache_of);
    }
    has_begun
}

/// [`write`] to a descriptor; `None` if no profile was ever started. The error is `errno`.
pub(crate) fn write_to(fd: i32) -> Option<Result<(), i32>> {
    let mut result = Ok(());
    let has_begun = write(&mut |piece| {
        if result.is_ok() {
            result = os::file::write_all(fd, piece);
        }
    });
    has_begun.then_some(result)
}

/// The profile, for requests of other processes.
static PROFILER: Profiler = Profiler {
    start: |period_bytes| {
        if start(period_bytes) { Ok("the profile runs") } else { Err("there is no memory for samples") }
    },
    stop: || {
        stop();
        Ok("the profile is stopped")
    },
    write: |fd| write_to(fd).unwrap_or(Err(-1)),
};

/// Serves an allocation that found no object, if it counts: as a sample, or from the counted row.
/// `None`: the caller goes on as without a profile.
#[inline]
pub(super) fn take(size: usize, align: usize, family: Family, kind: Kind) -> Option<NonNull<u8>> {
    match state::phase() {
        state::READY => None,
        state::NEW => make_ready(),
        _ => take_counted(size, align, family, kind),
    }
}

#[cold]
fn make_ready() -> Option<NonNull<u8>> {
    install_profiler(&PROFILER);
    state::set_ready();
    None
}

/// As [`take`], for an allocation of `malloc`'s that must not reclaim.
pub(super) fn take_noreclaim(size: usize, align: usize) -> Option<NonNull<u8>> {
    take(size, align, Family::Malloc, Kind::NoReclaim)
}

#[cold]
#[inline(never)]
fn take_counted(size: usize, align: usize, family: Family, kind: Kind) -> Option<NonNull<u8>> {
    if let Some(class) = Class::of_aligned(size, align)
        && let Some(core) = state::class(class.index()).counting()
    {
        let wanted = Wanted { size, align, family };
        return take_from(core, class.index(), class.bytes(), wanted, kind.of_small());
    }
    take_otherwise(Wanted { size, align, family }, kind)
}

/// The object that a caller wants.
#[derive(Clone, Copy)]
struct Wanted {
    size: usize,
    align: usize,
    family: Family,
}

/// [`take_counted`], unless a small class's row is counted.
#[cold]
#[inline(never)]
fn take_otherwise(wanted: Wanted, kind: Kind) -> Option<NonNull<u8>> {
    let Wanted { size, align, .. } = wanted;
    let small = Class::of_aligned(size, align);
    let medium = if kind == Kind::Grown { None } else { Medium::of_aligned(size, align) };
    let (index, bytes) = match (small, medium) {
        (Some(class), _) => (class.index(), class.bytes()),
        (None, Some(class)) => (CLASSES + class.index(), class.bytes()),
        (None, None) => (LARGE, size.checked_next_multiple_of(crate::pages::PAGE_BYTES)?),
    };
    if let Some(core) = (index != LARGE).then(|| state::class(index).counting()).flatten() {
        return take_from(core, index, bytes, wanted, if medium.is_some() { kind } else { kind.of_small() });
    }
    let period = state::period_bytes();
    // While a profile starts, the tables do not name the class's counted row yet.
    let may_sample = index >= CLASSES || bytes > MAX_DIRECT_BYTES || small::may_sample(index);
    let is_sample = period != 0 && may_sample && count_down(bytes, period);
    if is_sample { sample(index, bytes, size, align, period) } else { None }
}

/// Takes an object of a class of `bytes` bytes from its counted row, or a sample.
#[inline(always)]
fn take_from(core: &Core, index: usize, bytes: usize, wanted: Wanted, kind: Kind) -> Option<NonNull<u8>> {
    // Callers that align come here first.
    // SAFETY: the row is the cache's.
    if let Some(object) = NonNull::new(unsafe { rseq::pop(core.counted_slots()) }) {
        return Some(object);
    }
    let period = state::period_bytes();
    let n = core.charge(|| if period == 0 { u32::MAX } else { draw::distance_in_objects(period, bytes) });
    if n == 0
        && period != 0
        && let Some(object) = sample(index, bytes, wanted.size, wanted.align, period)
    {
        return Some(object);
    }
    if kind == Kind::Zeroed {
        // SAFETY: the slots are the cache's.
        return NonNull::new(unsafe { rseq::pop(core.slots()) });
    }
    let serve = if kind == Kind::NoReclaim { Core::alloc_noreclaim_for } else { Core::alloc_slow_for };
    NonNull::new(core.take_counted(n.max(1), Request { bytes: wanted.size, family: wanted.family }, serve))
}

/// Charges `bytes` to this CPU's countdown; returns whether it ended.
fn count_down(bytes: usize, period: u64) -> bool {
    let Some(countdown) = Cpu::current().shared(&COUNTDOWNS) else { return false };
    loop {
        let seen = countdown.load(Relaxed);
        let left = if seen == 0 { draw::distance_in_bytes(period) } else { seen };
        let rest = left.saturating_sub(bytes as u64);
        // The next distance begins with the next allocation: it has no memory of this one.
        if countdown.compare_exchange(seen, rest, Relaxed, Relaxed).is_ok() {
            return rest == 0;
        }
    }
}

/// Allocates a sampled object of `size` bytes, which stands for one of `bytes`. `None` without
/// memory, or if there is no place for the sample.
#[inline(never)]
fn sample(index: usize, bytes: usize, size: usize, align: usize, period: u64) -> Option<NonNull<u8>> {
    let _errno = os::errno::Preserved::new();
    let number = record(index, bytes, size, period)?;
    let class_bytes = if index == LARGE { 0 } else { bytes };
    let is_held = class_bytes != 0 && class_bytes <= MAX_DIRECT_BYTES;
    if is_held {
        state::class(index).add_sample();
    }
    let object = if is_held && (state::period_bytes() == 0 || !small::may_sample(index)) {
        None
    } else {
        large::alloc_plain(bytes.max(size), align, Reclaim::No)
    };
    let Some((object, _)) = object else {
        if is_held {
            small::forget_sample(index);
        }
        table::end(number, End::Undone);
        return None;
    };
    large::set_sample(object, number, class_bytes);
    NonNull::new(object)
}

/// Notes a sample with the calling thread's stack; returns its number.
fn record(index: usize, bytes: usize, size: usize, period: u64) -> Option<u32> {
    note(index as u16, bytes, size, period, Object::NONE)
}

/// [`record`], for a sample that frees find by its object.
fn note(index: u16, bytes: usize, size: usize, period: u64, object: Object) -> Option<u32> {
    let mut frames = [0; MAX_FRAMES];
    let n = unwind::capture(&mut frames);
    table::begin(index, size, draw::weight(period, bytes), state::now(), &frames[..n], object)
}

/// Whether a sampled object of `old` usable bytes stands for one of a medium class, which serves
/// `size` too: then it stays as it is.
pub(super) fn stays(pointer: *mut u8, size: usize, old: usize) -> bool {
    state::has_begun()
        && Medium::of(size).is_some_and(|class| class.bytes() == old)
        && large::is_of_class_at(pointer)
}

/// Takes the sample's number off an object that is about to be resized; 0 if it has none.
pub(super) fn detach(pointer: *mut u8) -> u32 {
    if state::has_begun() { large::swap_sample(pointer, 0) } else { 0 }
}

/// Undoes [`detach`].
pub(super) fn reattach(pointer: *mut u8, number: u32) {
    if number != 0 {
        large::swap_sample(pointer, number);
    }
}

/// Notes that an object of `old` usable bytes was resized without a copy and is at `pointer` now.
/// If its pages changed, that counts as a free and an allocation. `number` is [`detach`]'s.
pub(super) fn note_resized(pointer: *mut u8, size: usize, old: usize, number: u32) {
    if !state::has_begun() {
        return;
    }
    let Some(bytes) = large::usable_at(pointer) else { return };
    if bytes == old {
        return reattach(pointer, number);
    }
    if number != 0 {
        table::end(number, End::Freed);
    }
    let _errno = os::errno::Preserved::new();
    let period = state::period_bytes();
    if period != 0
        && count_down(bytes, period)
        && let Some(number) = record(LARGE, bytes, size, period)
    {
        large::swap_sample(pointer, number);
    }
}
