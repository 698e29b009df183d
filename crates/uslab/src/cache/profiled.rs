//! Followed caches: those of the program and of private heaps while the heap profile counts their
//! allocations, or has samples of their objects in use.
//!
//! ```text
//!   start ─▶ sheaves hidden ─▶ alloc: slow path ─▶ sheaf ─▶ Counter::allocated ─▶ maybe a sample
//!                              free:  slow path ─▶ Counter::freed ─▶ sheaf
//!   stop  ─▶ still followed while a sample is in use ─▶ its free ─▶ sheaves on the fast path again
//! ```
//!
//! A handle names the slots of its cache, and the profile cannot reach handles. So a followed cache
//! hides its sheaves ([`crate::percpu`], `hidden_row`), and its slow path calls the profile, which
//! lies above this layer, through one table of functions. While nothing is followed, a slow path
//! reads one word to know this ([`super::followed`]), and the fast path reads nothing.

use super::body::{Core, Memory};
use super::{registry, state};
use crate::os;
use crate::percpu::{Drain, Keep};
use crate::rseq::{Mode, mode};
use core::sync::atomic::{
    AtomicBool, AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};

/// The functions of the heap profile for followed caches.
pub(crate) struct Counter {
    /// Counts objects that the cache served, before the program gets them. May take a lock.
    pub allocated: fn(&Core, &[*mut u8]),
    /// Notes that the program frees the object, before the cache serves it again. May take a lock.
    pub freed: fn(&Core, *mut u8),
    /// Notes that the cache ends while it has samples. Either its heap ends as a whole, or a thread
    /// freed the sampled objects into a sheaf of its own, unseen, that it had before the profile.
    pub ended: fn(&Core),
}

static COUNTER: AtomicPtr<Counter> = AtomicPtr::new(core::ptr::null_mut());
/// Whether new caches of these kinds are counted. Guarded by the registry's lock.
static IS_COUNTING: AtomicBool = AtomicBool::new(false);

fn counter() -> Option<&'static Counter> {
    // SAFETY: null, or a table that lives for ever.
    unsafe { COUNTER.load(Acquire).as_ref() }
}

/// Counts the allocations of all caches of the program and of heaps from now on, those that are
/// created later too. Where the kernel refuses barriers, only those of caches that serve each call
/// on the slow path. Takes the registry's lock; visits each cache twice. Does nothing unless
/// `is_on`: another thread may have stopped the profile again.
pub(crate) fn begin_counting(table: &'static Counter, is_on: impl Fn() -> bool) {
    COUNTER.store(core::ptr::from_ref(table).cast_mut(), Release);
    let _registry = registry::lock();
    if !is_on() {
        return;
    }
    IS_COUNTING.store(true, Relaxed);
    let each = |visit: &mut dyn FnMut(&'static Core)| {
        registry::for_each(|core| {
            if core.is_followable && !core.followed.is_counting() {
                visit(core);
            }
        });
    };
    each(&mut |core| core.cpu.begin_hiding());
    fence(SeqCst);
    let is_hidden = mode() == Mode::Locked || hide_all();
    let mut drain = Drain::of_idle(Keep::Target);
    each(&mut |core| {
        if is_hidden || core.is_debugged() {
            core.followed.begin_counting();
        } else if !core.followed.is_on() {
            core.cpu.end_hiding(&mut drain);
        }
    });
}

/// Takes the sheaves of caches that hide them out of slots; returns whether the kernel allowed it.
fn hide_all() -> bool {
    let mut drain = Drain::of_all();
    let is_allowed = os::membarrier::restart_all();
    if is_allowed {
        registry::for_each(|core| {
            if core.is_followable && core.cpu.is_hiding() {
                core.cpu.drain_slots(&mut drain);
            }
        });
        drain.finish();
    }
    is_allowed && !drain.leaves_mains()
}

/// Counts no allocations any more. Caches of which no sample is in use serve from the fast path
/// again. Takes the registry's lock; visits each cache once. Does nothing unless `is_off`: another
/// thread may have started the profile again.
pub(crate) fn end_counting(is_off: impl Fn() -> bool) {
    let _registry = registry::lock();
    if !is_off() {
        return;
    }
    IS_COUNTING.store(false, Relaxed);
    // The caches share barriers, one for each 64 sheaves.
    let mut drain = Drain::of_idle(Keep::Target);
    registry::for_each(|core| {
        if core.followed.end_counting() {
            core.cpu.end_hiding(&mut drain);
        }
    });
}

impl Core {
    /// Whether this is the cache of a size class of a private heap.
    pub(crate) fn is_of_heap(&self) -> bool {
        self.is_followable && !self.programs_own
    }

    /// Counts the allocations of a new cache, which no thread uses yet, if a profile runs and
    /// follows such caches. The caller holds the registry's lock.
    pub(super) fn begin_followed(&self) {
        if self.is_followable && IS_COUNTING.load(Relaxed) {
            self.cpu.begin_hiding();
            self.followed.begin_counting();
        }
    }

    /// Notes that the cache ends. The caller holds the registry's lock.
    pub(super) fn end_followed(&self) {
        if self.followed.has_samples()
            && let Some(counter) = counter()
        {
            (counter.ended)(self);
        }
    }

    /// Whether slow paths are to call the profile.
    #[inline]
    pub(super) fn is_followed(&self) -> bool {
        self.followed.is_on()
    }

    /// Serves an object of a followed cache from its hidden sheaves; null if these have none, or if
    /// debugging is to see the call.
    pub(super) fn pop_followed(&self) -> *mut u8 {
        if self.is_debugged() || self.late.is_on() {
            return core::ptr::null_mut();
        }
        self.cpu.pop_of_hidden_row()
    }

    #[cold]
    fn make_hidden_row(&self) {
        let _registry = registry::lock();
        // SAFETY: the registry's lock guards the field. The memory of a row stays with that of the
        // cache, which the next cache has alone.
        unsafe {
            let memory: &mut Memory = &mut (*self.spare.get()).memory;
            memory.hidden_row = self.cpu.make_hidden_row(memory.hidden_row, state::nodes());
        }
    }

    /// Lets the profile count objects that the program is about to get.
    #[inline]
    pub(super) fn count_allocated(&self, objects: &[*mut u8]) {
        if self.cpu.lacks_hidden_row() {
            self.make_hidden_row();
        }
        if let Some(counter) = counter() {
            (counter.allocated)(self, objects);
        }
    }

    /// Lets the profile know of an object that the program frees.
    #[inline]
    pub(super) fn count_freed(&self, object: *mut u8) {
        if self.followed.has_samples()
            && let Some(counter) = counter()
        {
            (counter.freed)(self, object);
        }
    }

    /// Whether a sample of the cache's objects is in use.
    pub(crate) fn has_samples(&self) -> bool {
        self.followed.has_samples()
    }

    /// Notes a sample in use; false if allocations are not counted any more.
    pub(crate) fn add_sample(&self) -> bool {
        self.followed.add_sample()
    }

    /// Notes that a sample is not in use any more. After the last one the fast path serves the
    /// cache again, if no profile runs: that takes the registry's lock. The caller holds no lock.
    pub(crate) fn remove_sample(&self) {
        if self.followed.remove_sample() {
            let _errno = os::errno::Preserved::new();
            let _registry = registry::lock();
            if !self.followed.is_on_now() {
                self.cpu.end_hiding(&mut Drain::of_idle(Keep::Target));
            }
        }
    }

    /// The profile's word for the cache; 0 at first.
    pub(crate) fn label(&self) -> u32 {
        self.followed.label()
    }

    /// Sets the profile's word for the cache.
    pub(crate) fn set_label(&self, label: u32) {
        self.followed.set_label(label);
    }
}
