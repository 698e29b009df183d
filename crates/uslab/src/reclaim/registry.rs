//! The registered shrinkers: a list of entries that only grows. Threads walk it without a lock.
//!
//! ```text
//!   FREE ──▶ CLAIMED ──▶ LIVE ──panic──▶ RETIRED       `runner`: id of the one thread inside
//!    ▲                     └─────┬───────────┘
//!    ├── RETIRING ◀──unregister──┤                     the owner's thread disposes of it
//!    └── LEAVING ◀──unregister, from its own callback  the thread inside does, as it leaves
//!            ◀── RETIRING, if the wait would close a cycle
//! ```
//!
//! * A walker enters an entry by writing its thread id into `runner`. If it finds another id there,
//!   it goes on to the next entry. So a callback that blocks delays no other thread.
//! * A thread that unregisters first writes RETIRING, so that no walker enters. Then it enters like
//!   a walker, and waits if it must: when it is inside, no callback runs. Within the entry's own
//!   callback it would wait for itself, so there the unregistration takes effect when the callback
//!   returns.
//! * Callbacks may unregister each other's entries, two of them or any number in a cycle. A waiting
//!   thread writes its id into the entry's `waiter`. A thread that would close a cycle of waiters
//!   and runners does not wait: it leaves the disposal to the thread inside.
//! * Only the thread that claimed the entry, or the thread inside, accesses `inside`. The owner
//!   writes `weight` and `refaults` at any time. The memory of entries is never freed.

use super::balance::{Owed, Weight};
use super::callbacks::Callbacks;
use crate::counters::{self, layout};
use crate::os::{self, Futex};
use crate::pages::boot;
use crate::sync::Park;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, Ordering::SeqCst, fence,
};

#[cfg(test)]
mod tests;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const LIVE: u32 = 2;
const RETIRED: u32 = 3;
const RETIRING: u32 = 4;
const LEAVING: u32 = 5;

/// A bit of `runner`: a thread sleeps until `runner` is 0. Thread ids are smaller.
const WAITED_FOR: u32 = 1 << 31;

/// Upper bound on the bytes of a name.
pub const NAME_BYTES: usize = 47;

/// The part of an entry that only the thread inside accesses.
pub struct Inside {
    pub callbacks: Option<Callbacks>,
    pub batch: usize,
    pub owed: Owed,
    /// Cached objects that the shrinker freed recently.
    pub evicted: u64,
    /// The number of them that the program made again.
    pub refaulted: u64,
    name: [u8; NAME_BYTES],
    name_bytes: u8,
}

impl Inside {
    pub fn name(&self) -> &str {
        // SAFETY: `publish` cut the name at a character's end.
        unsafe { core::str::from_utf8_unchecked(&self.name[..usize::from(self.name_bytes)]) }
    }
}

/// An entry of the registry, for one shrinker at a time.
pub struct Entry {
    state: AtomicU32,
    /// The id of the thread inside, with [`WAITED_FOR`]; 0 for none.
    runner: AtomicU32,
    /// The id of the owner's thread while it waits to unregister the entry; 0 otherwise.
    waiter: AtomicU32,
    weight: AtomicU64,
    /// Refaults that the owner reported and no pass has seen yet.
    refaults: AtomicU64,
    next: AtomicPtr<Entry>,
    /// The place of its figures in the snapshot.
    index: usize,
    inside: UnsafeCell<Inside>,
}

// SAFETY: one thread at a time accesses `inside`: the one that claimed the entry, then the one in
// `runner`.
unsafe impl Sync for Entry {}

static FIRST: AtomicPtr<Entry> = AtomicPtr::new(core::ptr::null_mut());
static LIVE_ENTRIES: AtomicUsize = AtomicUsize::new(0);

/// The number of registered shrinkers.
pub fn live() -> usize {
    LIVE_ENTRIES.load(Relaxed)
}

/// All entries, the newest first, live or not.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: entries live for ever, and `fresh` initializes an entry before it links it.
    let first = unsafe { FIRST.load(Acquire).as_ref() };
    core::iter::successors(first, |entry| {
        // SAFETY: as above.
        unsafe { entry.next.load(Acquire).as_ref() }
    })
}

/// Calls `visit` with the memory of each entry that holds callbacks and their context.
pub fn for_each_registration(visit: &mut dyn FnMut(Range<usize>)) {
    for entry in entries().filter(|entry| !matches!(entry.state.load(Acquire), FREE | CLAIMED)) {
        let start = (&raw const *entry) as usize;
        visit(start..start + size_of::<Entry>());
    }
}

/// Whether the calling thread is inside an entry: in its callback, or disposing of it.
pub fn is_inside() -> bool {
    let me = os::thread::id();
    entries().any(|entry| entry.runner.load(Relaxed) & !WAITED_FOR == me)
}

/// Claims an entry for a new shrinker; `None` if memory is used up.
pub fn claim() -> Option<Claimed> {
    counters::provide_shrinkers();
    let reused = entries().find(|entry| entry.state.compare_exchange(FREE, CLAIMED, AcqRel, Relaxed).is_ok());
    let entry = match reused {
        Some(entry) => entry,
        None => fresh()?,
    };
    Some(Claimed(entry))
}

fn fresh() -> Option<&'static Entry> {
    let place = boot::alloc(size_of::<Entry>(), align_of::<Entry>()).cast::<Entry>();
    if place.is_null() {
        return None;
    }
    let inside = Inside {
        callbacks: None,
        batch: 0,
        owed: Owed(0),
        evicted: 0,
        refaulted: 0,
        name: [0; NAME_BYTES],
        name_bytes: 0,
    };
    // SAFETY: fresh memory of an entry's size and alignment, which lives for ever and which no
    // other thread knows.
    let entry = unsafe {
        place.write(Entry {
            state: AtomicU32::new(CLAIMED),
            runner: AtomicU32::new(0),
            waiter: AtomicU32::new(0),
            weight: AtomicU64::new(0),
            refaults: AtomicU64::new(0),
            next: AtomicPtr::new(core::ptr::null_mut()),
            index: counters::header().shrinkers_used.fetch_add(1, Relaxed) as usize,
            inside: UnsafeCell::new(inside),
        });
        &*place
    };
    let mut first = FIRST.load(Relaxed);
    loop {
        entry.next.store(first, Relaxed);
        match FIRST.compare_exchange_weak(first, place, Release, Relaxed) {
            Ok(_) => return Some(entry),
            Err(now) => first = now,
        }
    }
}

/// An entry that belongs to the caller alone. Dropping it frees the entry.
pub struct Claimed(&'static Entry);

impl Claimed {
    /// Fills the entry and makes it live: walkers may enter.
    pub fn publish(self, name: &str, weight: Weight, batch: usize, callbacks: Callbacks) -> &'static Entry {
        let entry = self.0;
        let mut bytes = name.len().min(NAME_BYTES);
        while !name.is_char_boundary(bytes) {
            bytes -= 1;
        }
        // SAFETY: CLAIMED keeps walkers out. A walker may hold `runner` for a moment, but it then
        // reads the state and leaves.
        let inside = unsafe { &mut *entry.inside.get() };
        inside.name[..bytes].copy_from_slice(&name.as_bytes()[..bytes]);
        inside.name_bytes = bytes as u8;
        (inside.batch, inside.owed) = (batch, Owed(0));
        (inside.evicted, inside.refaulted) = (0, 0);
        entry.refaults.store(0, Relaxed);
        entry.set_weight(weight);
        inside.callbacks = Some(callbacks);
        LIVE_ENTRIES.fetch_add(1, Relaxed);
        if let Some(figures) = entry.figures() {
            begin_figures(figures, inside);
        }
        entry.state.store(LIVE, Release);
        core::mem::forget(self);
        entry
    }
}

/// Writes the facts of a shrinker that is registered, and resets its figures.
fn begin_figures(figures: &layout::Shrinker, inside: &Inside) {
    figures.state.store(layout::STATE_UNUSED, Relaxed);
    counters::note_name(&figures.name, inside.name());
    figures.batch.store(u32::try_from(inside.batch).unwrap_or(u32::MAX), Relaxed);
    for counter in [
        &figures.freeable,
        &figures.deferred,
        &figures.asked,
        &figures.freed,
        &figures.scans,
        &figures.last_ns,
    ] {
        counter.store(0, Relaxed);
    }
    figures.stop.store(layout::STOP_NONE, Relaxed);
    figures.priority.store(0, Relaxed);
    figures.state.store(layout::STATE_LIVE, Release);
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.0.state.store(FREE, Release);
    }
}

/// The calling thread is inside the entry. Dropping this leaves the entry.
pub struct Visit(&'static Entry);

impl Visit {
    /// The weight of one cached object in a pass, if `freeable` of them could go. Halves old counts
    /// of evictions and refaults, so that about the last two cachefuls count.
    pub fn weight(&mut self, freeable: usize) -> Weight {
        let refaults = self.0.refaults.swap(0, Relaxed);
        let weight = self.0.weight();
        let inside = self.inside();
        inside.refaulted = inside.refaulted.saturating_add(refaults);
        if inside.evicted / 2 > freeable as u64 {
            inside.evicted /= 2;
            inside.refaulted /= 2;
        }
        weight.with_refaults(inside.refaulted, inside.evicted)
    }

    pub fn inside(&mut self) -> &mut Inside {
        // SAFETY: `runner` is this thread, and `&mut self` excludes a second reference through this
        // visit.
        unsafe { &mut *self.0.inside.get() }
    }

    /// Its figures in the snapshot; `None` if it has no place there.
    pub fn figures(&self) -> Option<&'static layout::Shrinker> {
        self.0.figures()
    }

    /// Whether the pass may call the shrinker again. It may not once the shrinker was retired, or
    /// unregistered, perhaps by its own callback.
    pub fn goes_on(&self) -> bool {
        self.0.state.load(Acquire) == LIVE
    }

    /// Retires the shrinker: no pass calls it any more. Its owner must still unregister it.
    pub fn retire(&mut self) {
        self.0.change(&[LIVE], RETIRED);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        loop {
            let leaves = Leaves(self.0);
            if self.0.state.load(Acquire) == LEAVING {
                leaves.dispose();
            }
            drop(leaves);
            // The owner may leave the disposal to this thread meanwhile. With the fences here and
            // in `leave_to_runner`, at least one of the two threads sees the other's write.
            fence(SeqCst);
            if self.0.state.load(Acquire) != LEAVING || !self.0.enter(os::thread::id()) {
                break;
            }
        }
    }
}

/// Leaves an entry on drop, even if a context's destructor panicked.
struct Leaves(&'static Entry);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Marks an entry FREE on drop.
struct Frees(&'static Entry);

impl Drop for Frees {
    fn drop(&mut self) {
        self.0.state.store(FREE, Release);
    }
}

impl Leaves {
    /// Disposes of an entry in state RETIRING or LEAVING: drops its context and frees it. If the
    /// context's destructor panics, this reports the shrinker's name and stops the panic. Without
    /// the standard library the panic goes on to the caller.
    fn dispose(&self) {
        let _frees = Frees(self.0);
        // SAFETY: the thread that holds this value is inside the entry.
        let inside = unsafe { &mut *self.0.inside.get() };
        let Some(callbacks) = inside.callbacks.take() else { return };
        LIVE_ENTRIES.fetch_sub(1, Relaxed);
        if let Some(figures) = self.0.figures() {
            figures.state.store(layout::STATE_DESTROYED, Release);
        }
        // SAFETY: the context was registered with this function. `take` removed both, so this
        // happens once.
        if !caught(|| unsafe { (callbacks.dispose)(callbacks.context) }) {
            os::report::print(format_args!("shrinker {} panicked when it was dropped", inside.name()));
        }
    }
}

/// Runs a destructor of the program; returns false if it panicked.
#[cfg(feature = "std")]
fn caught(dispose: impl FnOnce()) -> bool {
    // The dropped value is gone, so no code sees its unfinished changes. Dropping the panic's
    // payload may panic, so forget it.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(dispose)).map_err(core::mem::forget).is_ok()
}

#[cfg(not(feature = "std"))]
fn caught(dispose: impl FnOnce()) -> bool {
    dispose();
    true
}

impl Entry {
    pub fn weight(&self) -> Weight {
        Weight::of_bits(self.weight.load(Relaxed))
    }

    /// Sets the weight. Only the entry's owner may call it.
    pub fn set_weight(&self, weight: Weight) {
        self.weight.store(weight.bits(), Relaxed);
        if let Some(figures) = self.figures() {
            figures.worth.store(weight.bits(), Relaxed);
        }
    }

    /// Its figures in the snapshot; `None` if it has no place there.
    pub fn figures(&self) -> Option<&'static layout::Shrinker> {
        counters::shrinker(self.index)
    }

    /// Reports refaults. Only the entry's owner may call it.
    pub fn note_refaults(&self, entries: u64) {
        self.refaults.fetch_add(entries, Relaxed);
    }

    /// Whether the entry is live: a pass calls it unless another thread is inside.
    pub fn is_live(&self) -> bool {
        self.state.load(Relaxed) == LIVE
    }

    /// Enters if the entry is live and no other thread is inside.
    pub fn visit(&'static self) -> Option<Visit> {
        let is_inside = self.is_live() && self.enter(os::thread::id());
        // An owner that unregisters the entry meanwhile may leave the disposal to this thread.
        // Dropping the visit does it.
        is_inside.then(|| Visit(self)).filter(Visit::goes_on)
    }

    fn enter(&self, me: u32) -> bool {
        self.runner.compare_exchange(0, me, Acquire, Relaxed).is_ok()
    }

    fn leave(&self) {
        if self.runner.swap(0, Release) & WAITED_FOR != 0 {
            Futex::wake_all(&self.runner);
        }
    }

    fn change(&self, from: &[u32], to: u32) -> bool {
        from.iter().any(|&from| self.state.compare_exchange(from, to, AcqRel, Relaxed).is_ok())
    }

    /// Whether the calling thread is inside this entry's callback.
    pub fn runs_here(&self) -> bool {
        self.runner.load(Relaxed) & !WAITED_FOR == os::thread::id()
    }

    /// Unregisters the shrinker: afterwards none of its callbacks runs, and its context is dropped.
    ///
    /// Returns false if that happens only when a running callback returns. That is so if this is
    /// called within that callback, or within one that the running callback waits for, directly or
    /// through other callbacks.
    ///
    /// Only the entry's owner may call it, once.
    pub fn unregister(&'static self) -> bool {
        if self.runs_here() {
            // Only the thread inside, this one, changes LIVE to RETIRED.
            self.change(&[LIVE, RETIRED], LEAVING);
            return false;
        }
        // The walker inside may change LIVE to RETIRED between two attempts.
        while !self.change(&[LIVE, RETIRED], RETIRING) {}
        let me = os::thread::id();
        self.waiter.store(me, SeqCst);
        // In a cycle, the thread that writes its id last sees the ids of all other waiters.
        fence(SeqCst);
        let is_inside = self.wait_to_enter(me);
        self.waiter.store(0, Release);
        if is_inside {
            Leaves(self).dispose();
        }
        is_inside || self.leave_to_runner(me)
    }

    /// Waits until no other thread is inside, and enters. Returns false if the thread inside waits
    /// for this thread.
    fn wait_to_enter(&self, me: u32) -> bool {
        loop {
            let runner = self.runner.load(Relaxed);
            if runner == 0 {
                if self.enter(me) {
                    return true;
                }
            } else if waits_for(runner & !WAITED_FOR, me) {
                return false;
            } else if runner & WAITED_FOR != 0
                || self.runner.compare_exchange(runner, runner | WAITED_FOR, Relaxed, Relaxed).is_ok()
            {
                Futex::wait(&self.runner, runner | WAITED_FOR);
            }
        }
    }

    /// Leaves the disposal to the thread inside. Returns true if the entry is disposed of already,
    /// because that thread left before it could see the request.
    fn leave_to_runner(&'static self, me: u32) -> bool {
        self.change(&[RETIRING], LEAVING);
        fence(SeqCst);
        let has_left = self.runner.load(Relaxed) == 0 && self.enter(me);
        if has_left {
            // Dropping a visit disposes of the entry, unless that was done.
            drop(Visit(self));
        }
        has_left
    }
}

/// Whether `thread` is `other`, or waits for it, directly or through other waiters. A waiting
/// thread waits for the thread inside the entry that it unregisters.
fn waits_for(thread: u32, other: u32) -> bool {
    let (mut last, mut steps) = (thread, entries().count());
    while last != other && steps > 0 {
        if last == 0 {
            return false;
        }
        let Some(awaited) = entries().find(|entry| entry.waiter.load(Acquire) == last) else { return false };
        last = awaited.runner.load(Acquire) & !WAITED_FOR;
        steps -= 1;
    }
    // If a cycle does not contain `other`, its own threads break it.
    last == other
}

/// The forking thread's id in the parent.
static FORKER: AtomicU32 = AtomicU32::new(0);

/// Notes the forking thread's id before a fork: in the child that thread has another id.
pub fn note_forker() {
    FORKER.store(os::thread::id(), Relaxed);
}

/// Resets the registry in a fork child, in which no other thread is inside an entry. An entry that
/// another thread was registering or unregistering becomes FREE. Its context leaks, because that
/// thread may have been using it.
pub fn reset_in_child() {
    let forker_in_parent = FORKER.load(Relaxed);
    let mut live = 0;
    for entry in entries() {
        let ours = entry.runner.load(Relaxed) & !WAITED_FOR == forker_in_parent;
        entry.runner.store(if ours { os::thread::id() } else { 0 }, Relaxed);
        entry.waiter.store(0, Relaxed);
        match entry.state.load(Relaxed) {
            LIVE | RETIRED => live += 1,
            // This thread is inside. It disposes of the entry as it leaves, in place of a thread
            // that waited for that, or it is doing so now.
            LEAVING | RETIRING if ours => {
                // SAFETY: the child has one thread. Its callers may hold references to `inside`,
                // but do not use them before this function returns.
                live += usize::from(unsafe { (*entry.inside.get()).callbacks.is_some() });
                entry.state.store(LEAVING, Relaxed);
            }
            _ => {
                // SAFETY: the child has one thread, and it is not inside this entry.
                unsafe { (*entry.inside.get()).callbacks = None };
                entry.state.store(FREE, Relaxed);
                if let Some(figures) = entry.figures() {
                    figures.state.store(layout::STATE_DESTROYED, Relaxed);
                }
            }
        }
    }
    LIVE_ENTRIES.store(live, Relaxed);
}

/// In a fork child whose parent had no other thread at work: the entries that the forking thread is
/// inside get its new id, and all else stays.
pub fn keep_in_child() {
    for entry in entries() {
        let runner = entry.runner.load(Relaxed);
        if runner & !WAITED_FOR == FORKER.load(Relaxed) {
            entry.runner.store(os::thread::id() | runner & WAITED_FOR, Relaxed);
        }
    }
}
