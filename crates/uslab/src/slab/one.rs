//! One slab: its descriptor, how pages become a slab, and how a refill takes objects from it.

use super::geometry::{Geometry, HEAD_BYTES};
use super::words;
use crate::os::facts::{Fact, facts};
use crate::os::invariant::invariant;
use crate::pages::{self, PageIndex};
use crate::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicI32, AtomicU64};
use core::sync::atomic::AtomicU8;

/// The list that a slab stands in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum List {
    /// In no list: being made or being released.
    None = 0,
    /// Less than three quarters free.
    Partial,
    /// Taken from since it was made or empty, and never full: the slab that a cache grows into.
    Filling,
    /// At least three quarters free.
    Sparse,
    /// All objects free.
    Empty,
    /// No object free.
    Full,
    /// A refill takes objects from it without the lists' lock; see `take`.
    Taking,
}

/// "No slab" in links.
pub(super) const NONE: u32 = u32::MAX;

/// In [`Head::seen`]: objects were taken from the slab since the last walk. Above any free count.
pub(super) const TAKEN_FROM: u16 = u16::MAX;

/// The start of a slab's descriptor. The lists' lock guards `list`, `seen`, `next` and
/// `prev`; a refill writes `seen` of slabs that it has moved to [`List::Taking`].
#[repr(C)]
pub(super) struct Head {
    /// Free objects; see `words` for why it is signed.
    pub free: AtomicI32,
    /// The list that the slab stands in ([`List`] as `u8`). Frees read it without the lock; see
    /// [`Slab::is_listed_as_full`].
    pub list: AtomicU8,
    /// The group whose lists the slab belongs to. Threads read it without the lock, to find the
    /// lock.
    pub group: AtomicU8,
    /// The free count at the last walk for pages that rest, or [`TAKEN_FROM`]; see `resident`.
    pub seen: u16,
    /// The next slab of the list.
    pub next: u32,
    /// The slab before this one.
    pub prev: u32,
}

/// A slab's descriptor, behind which the bitmap begins, for a debugger.
pub(super) const FACTS: &[Fact] = facts!(Head { free, next });

/// A slab, named by its first page. Holding the name does not keep the slab alive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Slab(pub PageIndex);

/// The slab that a link leads to, if any.
pub(super) fn slab_at(link: u32) -> Option<Slab> {
    (link != NONE).then_some(Slab(PageIndex(link)))
}

impl Slab {
    pub fn head(self) -> *mut Head {
        invariant!(pages::contains(self.0), "a slab lies within the arena", self.0.0);
        pages::descriptor(self.0).cast()
    }

    /// The group whose lists the slab belongs to.
    pub fn group(&self) -> usize {
        // SAFETY: descriptors of committed pages are mapped for ever, and all threads access the
        // byte as an atomic.
        unsafe { (*self.head()).group.load(Relaxed) as usize }
    }

    /// The list that the slab stands in, as a number. The caller holds the lists' lock.
    pub fn list(self) -> u8 {
        // SAFETY: descriptors of committed pages are mapped for ever, and all threads access the
        // byte as an atomic.
        unsafe { (*self.head()).list.load(Relaxed) }
    }

    /// Notes the list that the slab stands in. The caller holds the lists' lock, or made the slab.
    pub fn set_list(self, list: List) {
        // SAFETY: as in `list`.
        unsafe { (*self.head()).list.store(list as u8, Relaxed) };
    }

    /// Whether the slab stands among the full ones, at some time after the caller counted a free in
    /// the slab. Then the caller must list the slab by its count. Takes no lock.
    ///
    /// A take puts a slab aside among the full ones if its bitmap has more bits than it counts, and
    /// compares once more. So it sees the count, or the freeing thread sees the list; both sides
    /// are sequentially consistent.
    pub fn is_listed_as_full(&self) -> bool {
        // SAFETY: as in `list`.
        unsafe { (*self.head()).list.load(SeqCst) == List::Full as u8 }
    }

    /// The free count.
    pub fn count(&self) -> &AtomicI32 {
        // SAFETY: descriptors of committed pages are mapped for ever, and all threads access the
        // word as an atomic.
        unsafe { &(*self.head()).free }
    }

    /// The bitmap.
    pub fn words(&self, geometry: &Geometry) -> &[AtomicU64] {
        // SAFETY: as in `count`; `Geometry` allows only as many bits as the slab's descriptors have
        // behind the head.
        unsafe {
            let first = pages::descriptor(self.0).add(HEAD_BYTES).cast::<AtomicU64>();
            core::slice::from_raw_parts(first, geometry.words())
        }
    }

    /// The slab behind this one in its list. The caller holds the lists' lock.
    pub fn next(self) -> Option<Slab> {
        // SAFETY: descriptors of committed pages are mapped for ever; the caller holds the lock
        // that owns the links.
        slab_at(unsafe { (*self.head()).next })
    }

    /// The slab before this one in its list. The caller holds the lists' lock.
    pub fn prev(self) -> Option<Slab> {
        // SAFETY: as in `next`.
        slab_at(unsafe { (*self.head()).prev })
    }

    /// Notes that objects are taken. The caller holds the lists' lock, or has moved the slab to
    /// [`List::Taking`].
    pub fn note_taken_from(self) {
        // SAFETY: descriptors of committed pages are mapped for ever; the caller has the field.
        unsafe { (*self.head()).seen = TAKEN_FROM };
    }

    pub fn address(self) -> *mut u8 {
        pages::address_of(self.0)
    }

    /// Initializes fresh pages as a slab whose first `taken` objects are in use, and whose pages in
    /// the mask `resident` have memory. It stands in no list yet.
    pub fn init(self, geometry: &Geometry, group: usize, taken: usize, resident: u64) {
        invariant!(taken <= geometry.objects, "a new slab hands out no more objects than it has");
        invariant!(group <= usize::from(u8::MAX), "a group's number fits a slab's descriptor", group);
        // SAFETY: the pages were just allocated, so no other slab uses their descriptors. A thread
        // that relists a slab late may read the atomics; it checks the page map before it uses
        // them.
        unsafe {
            let head = self.head();
            self.set_list(List::None);
            (*head).group.store(group as u8, Relaxed);
            (*head).seen = TAKEN_FROM;
            (*head).next = NONE;
            (*head).prev = NONE;
        }
        let ones = |count: usize| if count == 0 { 0 } else { u64::MAX >> (64 - count) };
        let (used, words) = (taken / 64, self.words(geometry));
        words[..used].iter().for_each(|word| word.store(0, Relaxed));
        words[used..].iter().for_each(|word| word.store(u64::MAX, Relaxed));
        if let Some(last) = words[used..].last() {
            last.store(ones(geometry.objects - (words.len() - 1) * 64), Relaxed);
            words[used].store(words[used].load(Relaxed) & !ones(taken % 64), Relaxed);
        }
        if let Some(word) = self.resident(geometry) {
            word.store(resident, Relaxed);
        }
        self.count().store((geometry.objects - taken) as i32, Release);
    }

    /// Takes up to `out.len()` objects into the end of `out`, lowest address last. Returns how many
    /// it took, and the new free count. The caller holds the lists' lock, or has moved the slab to
    /// [`List::Taking`].
    ///
    /// Marks the slab as taken from, while a free leaves another count. So the next walk for pages
    /// that rest sees a use of either kind.
    pub fn take(self, geometry: &Geometry, out: &mut [*mut u8]) -> (usize, i32) {
        let mut at = out.len();
        let start = self.address() as usize;
        self.note_taken_from();
        for (i, word) in self.words(geometry).iter().enumerate() {
            if at == 0 {
                break;
            }
            let mut mask = words::take(word, at);
            if mask == 0 {
                continue;
            }
            let low = mask & mask.wrapping_neg();
            if mask & mask.wrapping_add(low) == 0 {
                // One run of neighbours, as in a fresh or freed slab: no search for each bit.
                let count = mask.count_ones() as usize;
                let first = i * 64 + mask.trailing_zeros() as usize;
                let mut object = start + (first + count) * geometry.object_bytes;
                for place in &mut out[at - count..at] {
                    object -= geometry.object_bytes;
                    *place = object as *mut u8;
                }
                at -= count;
                continue;
            }
            while mask != 0 {
                let index = i * 64 + mask.trailing_zeros() as usize;
                mask &= mask - 1;
                at -= 1;
                out[at] = (start + index * geometry.object_bytes) as *mut u8;
            }
        }
        let taken = out.len() - at;
        let left = words::subtract(self.count(), taken);
        invariant!(taken <= geometry.objects, "no more objects come out of a slab than it has", taken);
        invariant!(
            left >= -(geometry.objects as i32) && left + taken as i32 <= geometry.objects as i32,
            "a slab's count stays within its objects",
            left
        );
        (taken, left)
    }
}

const _: () = assert!(size_of::<Head>() == HEAD_BYTES);
