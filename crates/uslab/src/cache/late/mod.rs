//! Late debugging: debugging of a cache that begins while the program runs.
//!
//! ```text
//!   USLAB_DEBUG, flags   layout with record and zones, from the first object on     F Z P U T
//!   switch               layout as it was; calls bypass sheaves, and go to slabs    F   U T
//! ```
//!
//! Its objects have no room for a record, and those from before the switch never had one. So a free
//! is checked against the page map and the slab's bitmap alone: pointer, cache, double free. Calls
//! bypass sheaves ([`crate::percpu::CpuCache::begin_bypass`]), so a set bit means free, and a
//! double free is found at once. Letter U records users in a table beside the objects ([`users`]).

mod users;

use super::debugged::{Release, User};
use crate::os::debugging::{CHECKS, TRACE, USERS};
use crate::os::unwind::MAX_FRAMES;
use crate::report::{self, Bytes, Fault, Object, Report};
use crate::slab::{Headline, Misuse, Slabs};
use core::fmt;
use core::sync::atomic::{
    AtomicU8, AtomicU32,
    Ordering::{Acquire, Relaxed, Release as ReleaseOrder},
};

pub(super) use users::ensure as ensure_users;

/// The letters that a running cache can get.
pub(super) const POSSIBLE: u8 = CHECKS | USERS | TRACE;

/// The late debugging of one cache.
pub struct Late {
    letters: AtomicU8,
    /// Records of users of other periods are not shown: while the cache was not debugged, its
    /// objects had users that were not recorded.
    period: AtomicU32,
}

/// The number of periods of all caches.
static PERIODS: AtomicU32 = AtomicU32::new(0);

impl Late {
    /// No debugging.
    pub const fn off() -> Late {
        Late { letters: AtomicU8::new(0), period: AtomicU32::new(0) }
    }

    /// Whether the cache is debugged.
    pub fn is_on(&self) -> bool {
        self.letters.load(Acquire) != 0
    }

    /// Sets the letters; 0 switches off.
    pub fn set(&self, letters: u8) {
        if !self.is_on() {
            self.period.store(PERIODS.fetch_add(1, Relaxed) + 1, Relaxed);
        }
        self.letters.store(letters, ReleaseOrder);
    }

    fn has(&self, letter: u8) -> bool {
        self.letters.load(Relaxed) & letter != 0
    }

    /// Notes objects that the caller allocated, asking for `bytes` each.
    pub fn note_allocated(&self, name: &str, objects: &[*mut u8], bytes: usize) {
        objects.iter().for_each(|&object| self.note(name, object, bytes, User::Allocated));
    }

    fn note(&self, name: &str, object: *mut u8, bytes: usize, user: User) {
        if self.has(USERS) {
            users::note(object as usize, self.period.load(Relaxed), user);
        }
        if self.has(TRACE) {
            let what = if user == User::Allocated { "allocated" } else { "freed" };
            report::trace(what, name, object as usize, bytes, "");
        }
    }

    /// Checks and notes a free of `object` into `slabs`. Returns false where the free was reported
    /// and must do nothing.
    pub fn may_free(&self, slabs: &Slabs, object: *mut u8, release: Release) -> bool {
        let (bytes, name) = (slabs.geometry().object_bytes, slabs.name());
        if let Some(misuse) = slabs.misuse_of(object) {
            self.report(slabs, misuse, object);
            return false;
        }
        if let Some(named) = release.bytes.filter(|&named| named > bytes) {
            let headline = WrongSize { object, named, bytes, name };
            self.tell(slabs, Fault::WrongSize, object, object as usize, &headline);
        }
        self.note(name, object, release.bytes.unwrap_or(bytes), User::Freed);
        true
    }

    /// Reports a misuse of `pointer`, with the history of the object that it leads to.
    pub fn report(&self, slabs: &Slabs, misuse: Misuse, pointer: *const u8) {
        let object = match misuse {
            Misuse::Inside(start) => start,
            Misuse::DoubleFree => pointer as usize,
            _ => 0,
        };
        let headline = Headline { misuse, pointer, cache: slabs.name() };
        self.tell(slabs, misuse.fault(), pointer, object, &headline);
    }

    /// Reports a fault of a call with `pointer`; `object` is the start of the object, or 0.
    fn tell(
        &self,
        slabs: &Slabs,
        fault: Fault,
        pointer: *const u8,
        object: usize,
        headline: &dyn fmt::Display,
    ) {
        let (mut allocated, mut freed) = ([0; MAX_FRAMES], [0; MAX_FRAMES]);
        let period = self.period.load(Relaxed);
        let [allocated, freed] = users::events(object, period, &mut allocated, &mut freed);
        let is_free = slabs.object_around(object as *const u8).is_some_and(|(_, is_free)| is_free);
        let object = (object != 0).then(|| Object {
            start: object,
            bytes: slabs.geometry().object_bytes,
            state: if is_free { "free" } else { "allocated" },
            family: "",
        });
        let report = Report::new(fault, pointer as usize, slabs.name(), headline);
        report::publish(&Report { object, allocated, freed, ..report });
    }
}

/// The sentence about a free that names more bytes than the object has.
struct WrongSize<'a> {
    object: *const u8,
    named: usize,
    bytes: usize,
    name: &'a str,
}

impl fmt::Display for WrongSize<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongSize { object, named, bytes, name } = *self;
        write!(f, "wrong size in free of {object:p}: {}, and an object of {name} has {bytes}", Bytes(named))
    }
}
