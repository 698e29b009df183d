//! Taking capacity: which caches of a ring give some, and which thread takes it.
//!
//! ```text
//!   growing cache, bound used up ── background thread? ── yes ─▶ ask, wake it, go on without
//!                                                 └ no ─▶ search
//!   search    one turn of the ring ─▶ capacities of idle caches halved ─▶ one barrier for all
//! ```
//!
//! A cache without a miss since the last search asked it counts as idle. A search asks each cache
//! once: asked twice in a row, busy caches would seem idle, too. The search ends when the wanted
//! bytes are free, or when the drain has no place for the sheaves of one more cache.

use super::{KINDS, Kind, Level, RINGS, Ring, take_misses};
use crate::os;
use crate::os::invariant::invariant;
use crate::percpu::{CpuCache, Drain, Keep};
use crate::slab::Delayed;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Upper bound on the caches that one search asks.
const MAX_ASKED: usize = 256;
/// Upper bound on the slots that a search drains under the lock: 32 barriers, and what the last
/// cache adds.
const MAX_SLOTS: usize = 1024;
/// Least time between two searches for growing caches. Taking capacity costs all threads a barrier.
const REST_MS: u64 = 20;

static NEXT_MS: AtomicU64 = AtomicU64::new(0);
/// Bytes that growing caches of each kind wait for: the largest wish.
static WANTED: [AtomicUsize; KINDS] = [const { AtomicUsize::new(0) }; KINDS];

/// Claims the next search, which the caller then has to run, or to [`ask`] for. False before it is
/// time for one.
pub(super) fn claim_turn() -> bool {
    let now_ms = os::clock::coarse_ms();
    let next_ms = NEXT_MS.load(Relaxed);
    now_ms >= next_ms && NEXT_MS.compare_exchange(next_ms, now_ms + REST_MS, Relaxed, Relaxed).is_ok()
}

/// Asks the background thread to take capacity of so many bytes from idle caches.
pub(super) fn ask(kind: Kind, bytes: usize) {
    WANTED[kind as usize].fetch_max(bytes, Relaxed);
    os::sleep::wake();
}

/// Takes the capacity that growing caches wait for, if any do. The background thread calls this at
/// each tick.
pub fn search() {
    for kind in Kind::ALL {
        let wanted = &WANTED[kind as usize];
        if wanted.load(Relaxed) > 0 {
            let goal = kind.bound_bytes().saturating_sub(wanted.swap(0, Relaxed));
            Delayed::within(RINGS.lock())[kind as usize].take_from_idle(goal, core::ptr::null());
        }
    }
}

impl Ring {
    /// Takes capacity from idle caches but `asker`, until at most `goal` bytes are charged. Issues
    /// one barrier; more only for a cache with more sheaves than a drain has places.
    pub(super) fn take_from_idle(&mut self, goal: usize, asker: *const CpuCache) {
        let mut drain = Drain::of_idle(Keep::Target);
        let mut first = core::ptr::null();
        for _ in 0..MAX_ASKED {
            let Some(cache) = self.next_beyond(goal) else { return };
            if core::ptr::eq(cache, first) {
                return;
            }
            if !cache.adapt().fixed && !core::ptr::eq(cache, asker) && !take_misses(cache) {
                if !drain.has_places_for(cache) {
                    return;
                }
                self.take_from(cache, &mut drain);
            }
            if first.is_null() && cache.adapt().charged() > 0 {
                first = cache;
            }
        }
    }

    /// Takes capacity from all caches in turn, until at most `goal` bytes are charged, or it has
    /// asked [`MAX_ASKED`] caches or drained [`MAX_SLOTS`] slots.
    pub(super) fn take_from_all(&mut self, goal: usize) {
        let mut drain = Drain::of_idle(Keep::Target);
        let mut slots = 0;
        for _ in 0..MAX_ASKED {
            if slots >= MAX_SLOTS {
                return;
            }
            let Some(cache) = self.next_beyond(goal) else { return };
            if !cache.adapt().fixed {
                slots += cache.count_used_slots();
                self.take_from(cache, &mut drain);
            }
        }
    }

    /// The next cache to ask, while more than `goal` bytes are charged.
    fn next_beyond<'a>(&mut self, goal: usize) -> Option<&'a CpuCache> {
        if self.kind.used().load(Relaxed) <= goal {
            return None;
        }
        // SAFETY: caches in the list are valid: each leaves the list before it goes away, under the
        // lock that the caller holds until its drain has finished.
        unsafe { self.caches.turn().as_ref() }
    }

    /// Halves the capacity of a cache, and moves its sheaves to `drain`.
    fn take_from<'a>(&mut self, cache: &'a CpuCache, drain: &mut Drain<'a>) {
        let level = cache.adapt().level();
        invariant!(level > Level::NONE, "a cache that is charged can shrink its sheaves");
        self.set_level(cache, level.below());
        cache.drain_slots(drain);
    }
}

/// Takes capacity from the idle caches of objects, for a test.
#[cfg(test)]
pub(in crate::percpu) fn take_from_idle(goal: usize) {
    RINGS.lock()[Kind::Objects as usize].take_from_idle(goal, core::ptr::null());
}
