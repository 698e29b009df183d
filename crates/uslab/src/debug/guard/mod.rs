//! Guard pages around a few allocations, in production: the scheme of GWP-ASan and of the kernel's
//! KFENCE.
//!
//! ```text
//!   malloc, slow path ── interval over? ──▶ slot:  │ closed │      object│ closed │
//!   overflow, use after free ──▶ page fault ──▶ report ──▶ the program's handler, or the default
//!   free ──▶ canaries beside the object whole? ──▶ slot closed, last in the queue
//! ```
//!
//! About one allocation in an interval goes to a slot of the [`pool`]: pages of its own between
//! pages without access. The object touches the start or the end of the slot, at random. A freed
//! slot loses its access as well, and is the last to be used again. So an access before or behind
//! the object, or after its free, faults; the handler reports it with the stacks of the access, the
//! allocation and the free. Then the program's own action for SIGSEGV follows, or, with
//! `USLAB_ON_MISUSE=report`, the access is let through.
//!
//! A process is unlikely to sample the one faulty allocation. A thousand processes are not.
//!
//! Samples are taken where an allocation finds its sheaf empty, so the fast path is the same. A
//! program of which every allocation finds a free object in the sheaf gives no samples.

mod pool;
mod reports;
mod trace;

use crate::cache::debugged::Family;
use crate::cache::start;
use crate::malloc::sampled::{self, Sampler};
use crate::os;
use crate::os::config::{self, GUARD_INTERVAL_MS};
use crate::os::fault;
use crate::os::unwind::MAX_FRAMES;
use crate::report;
use crate::report::depot::{self, StackId};
use crate::report::leak::Allocation;
use core::ops::Range;
use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use reports::Verdict;

pub use crate::os::config::Side;

/// Slots of each kind, unless the program or user chooses; with every allocation sampled, as many
/// as tests need.
const SLOTS: usize = 64;
const SLOTS_FOR_ALL: usize = 1024;
/// Upper bound on the slots of each kind: 8 GiB of addresses.
const MAX_SLOTS: usize = 1 << 16;

/// The choice of allocations that [`start`] guards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Milliseconds from one sample to the next, on average. 0 samples every allocation that takes
    /// the slow path; with `USLAB_GUARD=all` these are all.
    pub interval_ms: u64,
    /// Slots of each of two kinds: for objects of up to 1 KiB, and for larger ones. 0 is the
    /// default: 64, and 1024 where every allocation is sampled. A number above 65 536 counts as
    /// 65 536. The first start fixes the number.
    pub slots: usize,
    /// The side of its slot that an object touches.
    pub side: Side,
}

impl Default for Options {
    fn default() -> Options {
        Options { interval_ms: GUARD_INTERVAL_MS, slots: 0, side: Side::Random }
    }
}

/// The figures of [`stats`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Slots, of both kinds together; 0 before the first start.
    pub slots: usize,
    /// Slots with an object in use.
    pub used_slots: usize,
    /// Objects that were guarded so far.
    pub sampled: u64,
    /// Faults that were reported so far.
    pub reported: u64,
}

/// No sample is taken while the interval has this value.
const OFF: u64 = u64::MAX;
static INTERVAL_MS: AtomicU64 = AtomicU64::new(OFF);
/// The time from which on the next sample is taken.
static NEXT_MS: AtomicU64 = AtomicU64::new(0);
static SIDE: AtomicU8 = AtomicU8::new(Side::Random as u8);
/// A thread is in [`get_ready`].
static MAKING: AtomicBool = AtomicBool::new(false);
/// The pool, the handler and the sampler are there.
static IS_READY: AtomicBool = AtomicBool::new(false);
static SAMPLED: AtomicU64 = AtomicU64::new(0);
static REPORTED: AtomicU64 = AtomicU64::new(0);
static RANDOM: AtomicU64 = AtomicU64::new(0);

static SAMPLER: Sampler = Sampler {
    alloc,
    free,
    usable_bytes: |pointer| pool::bytes_at(pointer as usize),
    before_fork: pool::lock_for_fork,
    after_fork: pool::unlock_after_fork,
};

/// Makes the pool, and installs handler and sampler. The caller has set [`MAKING`]. A later call
/// goes on where one failed.
fn get_ready(options: &Options) -> bool {
    let default = if options.interval_ms == 0 { SLOTS_FOR_ALL } else { SLOTS };
    let slots = if options.slots == 0 { default } else { options.slots.min(MAX_SLOTS) };
    let is_made = pool::blocks() > 0 || pool::make(slots, |below| random() as usize % below);
    let is_ready = is_made && fault::install(on_fault);
    if is_ready {
        sampled::install(&SAMPLER);
    }
    is_ready
}

/// Guards allocations of the malloc family from now on. False if there is no memory for the slots,
/// or if the kernel refuses the handler of SIGSEGV. A later call changes interval and side.
///
/// The handler runs before the one that the program has at the time of the call. A handler that the
/// program installs later replaces it, except under `libuslab_malloc.so`, which takes both.
///
/// Objects up to 1 KiB are guarded only if the program starts before its first allocation of such a
/// size, or if `USLAB_GUARD` is set. Rust's global allocator frees these by their size alone, so
/// from it only larger objects are guarded.
///
/// Memory: an open slot takes its object's pages, and 400 bytes otherwise. So 64 slots take at most
/// 7.5 MiB, where all hold objects of 116 KiB, the largest that are guarded.
///
/// The call takes locks and makes system calls. Forked children go on sampling.
pub fn start(options: Options) -> bool {
    let _errno = os::errno::Preserved::new();
    if !start::ensure() {
        return false;
    }
    if !IS_READY.load(Acquire) && !MAKING.swap(true, Acquire) {
        if !IS_READY.load(Acquire) && get_ready(&options) {
            IS_READY.store(true, Release);
        }
        MAKING.store(false, Release);
    }
    if !IS_READY.load(Acquire) {
        return false;
    }
    SIDE.store(options.side as u8, Relaxed);
    INTERVAL_MS.store(options.interval_ms.min(OFF - 1), Relaxed);
    true
}

/// Takes no more samples. Objects in slots stay guarded.
pub fn stop() {
    INTERVAL_MS.store(OFF, Relaxed);
}

/// Starts as `USLAB_GUARD` tells, if it does. The shared libraries call it when they are loaded.
pub fn start_from_environment() {
    if !start::guard_is_named() {
        return;
    }
    os::env::with_settings(|settings| {
        let Some(config::Guard { interval_ms, slots, side }) = settings.config().guard else { return };
        if !start(Options { interval_ms, slots, side }) {
            os::report::print(format_args!("no guard pages: no memory for them, or no handler of faults"));
        }
    });
}

/// The present figures. Takes a lock for some nanoseconds.
pub fn stats() -> Stats {
    let slots = pool::slots();
    Stats {
        slots,
        used_slots: slots.saturating_sub(pool::free_slots()),
        sampled: SAMPLED.load(Relaxed),
        reported: REPORTED.load(Relaxed),
    }
}

/// Calls `visit` with the bytes of each guarded object in use.
pub(super) fn for_each_live(visit: &mut dyn FnMut(Range<usize>)) {
    pool::for_each_live(&mut |slot| visit(slot.object()));
}

/// The bytes of the guarded object in use whose slot contains `address`.
pub(super) fn live_around(address: usize) -> Option<Range<usize>> {
    pool::live_around(address).map(|slot| slot.object())
}

/// Whether the stack of a guarded object is put into the depot, which may take locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stack {
    None,
    Saved,
}

/// The allocation of the guarded object in use at `pointer`.
pub(super) fn allocation_of(pointer: usize, stack: Stack) -> Option<Allocation> {
    let slot = pool::live_around(pointer).filter(|slot| slot.object().start == pointer)?;
    let mut frames = [0; MAX_FRAMES];
    let event = slot.allocated.event(&mut frames)?;
    Some(Allocation {
        pointer,
        bytes: slot.object().len(),
        cache: reports::NAME,
        family: slot.family().name(),
        stack: if stack == Stack::Saved { depot::save(event.stack) } else { StackId::NONE },
        thread: event.thread,
        cpu: event.cpu,
        time_ms: event.time_ms,
    })
}

/// The next random number.
fn random() -> u64 {
    os::random::at(RANDOM.fetch_add(1, Relaxed))
}

/// Whether this allocation is the next sample. Of several threads one gets it.
fn is_sample() -> bool {
    let interval_ms = INTERVAL_MS.load(Relaxed);
    if interval_ms == 0 || interval_ms == OFF {
        return interval_ms == 0;
    }
    let (now, next) = (os::clock::coarse_ms(), NEXT_MS.load(Relaxed));
    // From half an interval to one and a half, so that no rhythm of the program escapes.
    now >= next && {
        let then = now.saturating_add(interval_ms / 2).saturating_add(random() % interval_ms);
        NEXT_MS.compare_exchange(next, then, Relaxed, Relaxed).is_ok()
    }
}

fn alloc(bytes: usize, align: usize, family: Family) -> *mut u8 {
    if !is_sample() {
        return core::ptr::null_mut();
    }
    let _errno = os::errno::Preserved::new();
    let is_left = match SIDE.load(Relaxed) {
        side if side == Side::Left as u8 => true,
        side if side == Side::Right as u8 => false,
        _ => random().is_multiple_of(2),
    };
    let side = if is_left { Side::Left } else { Side::Right };
    let object = pool::alloc(bytes, align, side, family);
    if !object.is_null() {
        SAMPLED.fetch_add(1, Relaxed);
    }
    object
}

fn free(pointer: *mut u8) {
    let _errno = os::errno::Preserved::new();
    match pool::begin_free(pointer as usize) {
        Ok(place) => {
            if let Some((address, readable)) = pool::overwritten(place) {
                REPORTED.fetch_add(1, Relaxed);
                reports::report_overwritten(place, address, readable);
            }
            pool::end_free(place);
        }
        Err((place, fault)) => {
            REPORTED.fetch_add(1, Relaxed);
            reports::report_free(pointer as usize, place, fault);
        }
    }
}

/// The reaction to a fault: a report, if the address lies in the pool.
fn on_fault(fault: &fault::Fault) -> bool {
    if !pool::contains(fault.address) {
        return false;
    }
    match reports::judge_access(fault) {
        Verdict::Foreign => false,
        Verdict::Repeatable => true,
        Verdict::Misuse => {
            REPORTED.fetch_add(1, Relaxed);
            !report::aborts() && pool::open(fault.address)
        }
    }
}
