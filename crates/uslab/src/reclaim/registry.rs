//! The registered shrinkers: a list of entries that only grows, walked without a lock.
//!
//! ```text
//!   FREE ──▶ CLAIMED ──▶ LIVE ──panic──▶ RETIRED       `runner`: id of the one thread inside
//!    ▲                     └─────┬───────────┘
//!    ├── RETIRING ◀──unregister──┤                     the owner's thread ends it
//!    └── LEAVING ◀──unregister, from its own callback  the thread inside ends it, as it leaves
//!            ◀── RETIRING, if the wait would close a circle
//! ```
//!
//! * A walker enters an entry by writing its thread id into `runner`. A walker that finds another
//!   id there goes on to the next entry, so that a callback that blocks delays no other thread.
//! * Unregistering writes RETIRING first, so that no walker starts, then enters like a walker,
//!   waiting if it must: when it is inside, no callback runs. From within the entry's own callback
//!   that would wait for itself: there it takes effect when the callback returns.
//! * Two callbacks may unregister each other's entries, or any number in a circle. A thread that
//!   waits writes its id into the entry's `waiter`; one that would close a circle of waiters and
//!   runners does not wait, but leaves the end to the thread inside.
//! * `inside` is written while the entry is CLAIMED, or by the thread inside. The owner writes
//!   `weight` and `refaults` at any time. Memory of entries is never given back.

use super::balance::{Owed, Weight};
use super::callbacks::Callbacks;
use crate::os::{self, Futex};
use crate::pages::boot;
use crate::sync::Park;
use core::cell::UnsafeCell;
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

/// In `runner`: a thread sleeps until it is 0. Thread ids are below.
const WAITED_FOR: u32 = 1 << 31;

/// Bytes of a name that are kept.
pub const NAME_BYTES: usize = 47;

/// What belongs to the thread inside.
pub struct Inside {
    pub callbacks: Option<Callbacks>,
    pub batch: usize,
    pub owed: Owed,
    /// Cached objects that the shrinker freed lately.
    pub evicted: u64,
    /// Those of them that the program made again.
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

/// One place for a shrinker.
pub struct Entry {
    state: AtomicU32,
    runner: AtomicU32,
    /// The thread that waits to unregister it, which only its owner can be; 0 without.
    waiter: AtomicU32,
    weight: AtomicU64,
    /// Refaults that the owner told of and no pass has seen.
    refaults: AtomicU64,
    next: AtomicPtr<Entry>,
    inside: UnsafeCell<Inside>,
}

// SAFETY: `inside` is touched by one thread at a time: the one that claimed the entry, then the one
// in `runner`.
unsafe impl Sync for Entry {}

static FIRST: AtomicPtr<Entry> = AtomicPtr::new(core::ptr::null_mut());
static LIVE_ENTRIES: AtomicUsize = AtomicUsize::new(0);

/// Shrinkers there are.
pub fn live() -> usize {
    LIVE_ENTRIES.load(Relaxed)
}

/// All entries, newest first; most are or were live.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: entries live for ever and are linked before they can be reached.
    let first = unsafe { FIRST.load(Acquire).as_ref() };
    core::iter::successors(first, |entry| {
        // SAFETY: as above.
        unsafe { entry.next.load(Acquire).as_ref() }
    })
}

/// Whether the calling thread is inside an entry: in a callback, or ending it.
pub fn is_inside() -> bool {
    let me = os::thread::id();
    entries().any(|entry| entry.runner.load(Relaxed) & !WAITED_FOR == me)
}

/// A place for a new shrinker; `None` without memory.
pub fn claim() -> Option<Claimed> {
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
    // SAFETY: fresh memory of an entry's size and alignment, kept for ever, that no other thread
    // knows.
    let entry = unsafe {
        place.write(Entry {
            state: AtomicU32::new(CLAIMED),
            runner: AtomicU32::new(0),
            waiter: AtomicU32::new(0),
            weight: AtomicU64::new(0),
            refaults: AtomicU64::new(0),
            next: AtomicPtr::new(core::ptr::null_mut()),
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

/// An entry that is the caller's alone.
pub struct Claimed(&'static Entry);

impl Claimed {
    /// Fills it and shows it to walkers.
    pub fn publish(self, name: &str, weight: Weight, batch: usize, callbacks: Callbacks) -> &'static Entry {
        let entry = self.0;
        let mut bytes = name.len().min(NAME_BYTES);
        while !name.is_char_boundary(bytes) {
            bytes -= 1;
        }
        // SAFETY: CLAIMED keeps walkers out: they may hold `runner` for a moment, but see the state
        // and leave.
        let inside = unsafe { &mut *entry.inside.get() };
        inside.name[..bytes].copy_from_slice(&name.as_bytes()[..bytes]);
        inside.name_bytes = bytes as u8;
        (inside.batch, inside.owed) = (batch, Owed(0));
        (inside.evicted, inside.refaulted) = (0, 0);
        entry.refaults.store(0, Relaxed);
        entry.set_weight(weight);
        inside.callbacks = Some(callbacks);
        LIVE_ENTRIES.fetch_add(1, Relaxed);
        entry.state.store(LIVE, Release);
        core::mem::forget(self);
        entry
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.0.state.store(FREE, Release);
    }
}

/// The right to be inside an entry; dropping it leaves.
pub struct Visit(&'static Entry);

impl Visit {
    /// Weight of one cached object in a pass, where `freeable` of them could go. It halves old
    /// evictions and refaults, so that about the last two cachefuls count.
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

    /// Whether it may be called again: not once it was retired or unregistered, which its own
    /// callback may have done too.
    pub fn goes_on(&self) -> bool {
        self.0.state.load(Acquire) == LIVE
    }

    /// It is not called any more; its owner has still to unregister it.
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
            // An owner may have left the end to this thread meanwhile: either sees the other, here
            // and in `leave_to_runner`.
            fence(SeqCst);
            if self.0.state.load(Acquire) != LEAVING || !self.0.enter(os::thread::id()) {
                break;
            }
        }
    }
}

/// Leaves an entry when it goes, whatever a context's destructor did before.
struct Leaves(&'static Entry);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Says that an entry is free when it goes.
struct Frees(&'static Entry);

impl Drop for Frees {
    fn drop(&mut self) {
        self.0.state.store(FREE, Release);
    }
}

impl Leaves {
    /// Ends an entry in state RETIRING or LEAVING. If the context's destructor panics, this reports
    /// the shrinker's name and stops the panic. Without the standard library the panic goes on to
    /// the caller.
    fn dispose(&self) {
        let _frees = Frees(self.0);
        // SAFETY: the holder of this value is inside.
        let inside = unsafe { &mut *self.0.inside.get() };
        let Some(callbacks) = inside.callbacks.take() else { return };
        LIVE_ENTRIES.fetch_sub(1, Relaxed);
        // SAFETY: the context was registered with this function; it is taken out, so this happens
        // once.
        if !caught(|| unsafe { (callbacks.dispose)(callbacks.context) }) {
            os::report::print(format_args!("shrinker {} panicked when it was dropped", inside.name()));
        }
    }
}

/// Runs what a program wrote; false if it panicked.
#[cfg(feature = "std")]
fn caught(dispose: impl FnOnce()) -> bool {
    // What was being dropped is gone, so no code sees what the panic left half done.
    // What it panicked with may panic when it is dropped.
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

    /// Only the entry's owner may call it.
    pub fn set_weight(&self, weight: Weight) {
        self.weight.store(weight.bits(), Relaxed);
    }

    /// Only the entry's owner may call it.
    pub fn note_refaults(&self, entries: u64) {
        self.refaults.fetch_add(entries, Relaxed);
    }

    /// Whether it would be called if no thread were inside.
    pub fn is_live(&self) -> bool {
        self.state.load(Relaxed) == LIVE
    }

    /// Enters if the entry is live and no other thread is inside.
    pub fn visit(&'static self) -> Option<Visit> {
        if self.state.load(Relaxed) != LIVE || !self.enter(os::thread::id()) {
            return None;
        }
        if self.state.load(Acquire) == LIVE {
            return Some(Visit(self));
        }
        self.leave();
        None
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

    /// Ends the entry's life: afterwards no callback of it runs and its context is gone. False if
    /// that becomes true only when a running callback returns: it was called from within that
    /// callback, or that callback waits, by way of others perhaps, for the one that it was called
    /// from.
    ///
    /// Only the entry's owner may call it, once.
    pub fn unregister(&'static self) -> bool {
        if self.runs_here() {
            // LIVE may become RETIRED only from inside, and that is us.
            self.change(&[LIVE, RETIRED], LEAVING);
            return false;
        }
        // The walker inside may turn LIVE to RETIRED between two tries.
        while !self.change(&[LIVE, RETIRED], RETIRING) {}
        let me = os::thread::id();
        self.waiter.store(me, SeqCst);
        // Of the waiters of a circle the last one to say so sees all others.
        fence(SeqCst);
        let is_inside = self.wait_to_enter(me);
        self.waiter.store(0, Release);
        if is_inside {
            Leaves(self).dispose();
        }
        is_inside || self.leave_to_runner(me)
    }

    /// Waits until no other thread is inside, and enters; false if the thread inside waits for this
    /// one.
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

    /// Has the thread inside end the entry on its way out; true if the entry has ended already,
    /// because that thread left before it could see this.
    fn leave_to_runner(&'static self, me: u32) -> bool {
        self.change(&[RETIRING], LEAVING);
        fence(SeqCst);
        let has_left = self.runner.load(Relaxed) == 0 && self.enter(me);
        if has_left {
            // Ends it on its own way out, unless that was done.
            drop(Visit(self));
        }
        has_left
    }
}

/// Whether `thread` is `other`, or waits for it, directly or through other waiters. A thread waits
/// for the one inside the entry that it wants to unregister.
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
    // A circle without `other` is for its members to see.
    last == other
}

/// Thread id, in the parent, of the thread that forks.
static FORKER: AtomicU32 = AtomicU32::new(0);

/// Before a fork: the child's only thread has another id than it had.
pub fn note_forker() {
    FORKER.store(os::thread::id(), Relaxed);
}

/// In a fork child: no other thread is inside an entry any more. Entries that another thread was
/// registering or unregistering become FREE. Their contexts leak: that thread may have been in the
/// middle of using them.
pub fn reset_in_child() {
    let forker_in_parent = FORKER.load(Relaxed);
    let mut live = 0;
    for entry in entries() {
        let ours = entry.runner.load(Relaxed) & !WAITED_FOR == forker_in_parent;
        entry.runner.store(if ours { os::thread::id() } else { 0 }, Relaxed);
        entry.waiter.store(0, Relaxed);
        match entry.state.load(Relaxed) {
            LIVE | RETIRED => live += 1,
            // This thread ends it, on its way out, also for one that waited for that; or is about
            // to have ended it.
            LEAVING | RETIRING if ours => {
                // SAFETY: the child has one thread; what it holds of this entry further up, it does
                // not use before this function returned.
                live += usize::from(unsafe { (*entry.inside.get()).callbacks.is_some() });
                entry.state.store(LEAVING, Relaxed);
            }
            _ => {
                // SAFETY: the child has one thread, and it is not inside this entry.
                unsafe { (*entry.inside.get()).callbacks = None };
                entry.state.store(FREE, Relaxed);
            }
        }
    }
    LIVE_ENTRIES.store(live, Relaxed);
}
