//! The lists of one node of a cache: every slab of it stands in exactly one.
//!
//! So a cache is destroyed, and its live objects are found, by walking what it owns. The full slabs
//! are there for that alone.
//!
//! Partial slabs stand in four bins by how full they are. A bin is exact when its slab crosses a
//! quarter and lazy in between, which is all that "fullest first" needs: emptier slabs are left
//! alone so that they can become empty.

pub(super) use super::one::List;
use super::one::{NONE, Slab, slab_at};
use crate::os;
use crate::os::invariant::{assert_valid, invariant};
use crate::pages::PageIndex;

/// Bins of partial slabs.
pub(super) const BINS: usize = 4;

const LISTS: usize = BINS + 2;
impl List {
    /// All that a slab can stand in.
    pub(super) const ALL: [List; LISTS] =
        [List::Bin0, List::Bin1, List::Bin2, List::Bin3, List::Empty, List::Full];
}

/// The lists that objects are taken from, in this order.
const SERVING: [List; BINS + 1] = [List::Bin0, List::Bin1, List::Bin2, List::Bin3, List::Empty];

/// The list for a slab of `objects` objects with `free` of them free.
pub(super) fn list_for(free: i32, objects: usize) -> List {
    match usize::try_from(free) {
        Err(_) | Ok(0) => List::Full,
        Ok(free) if free >= objects => List::Empty,
        Ok(free) => SERVING[(free * BINS / objects).min(BINS - 1)],
    }
}

/// Figures that a cache sums over its nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Figures {
    pub partial: u32,
    pub empty: u32,
    pub target: u32,
}

impl Figures {
    /// Empty slabs beyond the last.
    pub fn spare(self) -> usize {
        self.empty.saturating_sub(1) as usize
    }
}

/// What the lock of a node's slabs guards.
pub(super) struct Lists {
    heads: [u32; LISTS],
    counts: [u32; LISTS],
    /// Empty slabs that are kept.
    pub target: u32,
    /// Empty slabs that were released and have not been made again: each one that is raises the
    /// target.
    regret: u32,
    /// `target` is never below.
    min_target: u32,
    /// What these lists have added to the figures of their cache.
    pub counted: Figures,
    /// Slabs, and free objects, that these lists have added to a record that others add to as well.
    pub published: (u32, i64),
    last_ms: u64,
}

impl Lists {
    /// Lists without slabs, which keep at least `min_target` empty ones from then on.
    pub const fn new(min_target: u32) -> Lists {
        Lists {
            heads: [NONE; LISTS],
            counts: [0; LISTS],
            target: min_target,
            regret: 0,
            min_target,
            counted: Figures { partial: 0, empty: 0, target: 0 },
            published: (0, 0),
            last_ms: 0,
        }
    }

    /// Takes everything out, and leaves lists like those that [`Lists::new`] made.
    pub fn take(&mut self) -> Lists {
        core::mem::replace(self, Lists::new(self.min_target))
    }

    /// The fullest partial slab, else an empty one.
    pub fn fullest(&self) -> Option<Slab> {
        SERVING.iter().find_map(|&list| self.first(list))
    }

    /// Some empty slab.
    pub fn any_empty(&self) -> Option<Slab> {
        self.first(List::Empty)
    }

    pub(super) fn first(&self, list: List) -> Option<Slab> {
        slab_at(self.heads[list as usize - 1])
    }

    /// Every slab. The link of a slab is read before the slab is handed out, which may then go.
    pub fn all(&self) -> impl Iterator<Item = Slab> {
        self.heads.iter().flat_map(|&head| {
            let mut next = head;
            core::iter::from_fn(move || {
                let slab = slab_at(next)?;
                // SAFETY: the caller holds the lists, which own the links of their slabs.
                next = unsafe { (*slab.head()).next };
                Some(slab)
            })
        })
    }

    /// Slabs in all lists.
    pub fn slabs(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// Slabs in one list.
    pub(super) fn slabs_in(&self, list: List) -> u32 {
        self.counts[list as usize - 1]
    }

    /// The counts, for a test that breaks them.
    #[cfg(test)]
    pub(super) fn counts_mut(&mut self) -> &mut [u32; LISTS] {
        &mut self.counts
    }

    /// The floor of the target.
    pub(super) fn min_target(&self) -> u32 {
        self.min_target
    }

    pub fn partial(&self) -> u32 {
        self.counts[..BINS].iter().sum()
    }

    pub fn empty(&self) -> u32 {
        self.counts[List::Empty as usize - 1]
    }

    pub fn figures(&self) -> Figures {
        Figures { partial: self.partial(), empty: self.empty(), target: self.target }
    }

    /// Puts `slab` into `list`, out of whichever it is in.
    pub fn place(&mut self, slab: Slab, list: List) {
        // SAFETY: `&mut self` is the lists' lock, which owns these fields of all slabs of the node;
        // links are page numbers of slabs of the same lists.
        unsafe {
            let head = slab.head();
            if (*head).list == list as u8 {
                return;
            }
            if (*head).list != List::None as u8 {
                let old = (*head).list as usize - 1;
                invariant!(old < LISTS, "a slab's list is one of those there are", old);
                invariant!(self.counts[old] > 0, "a list that has a slab counts it");
                assert_valid(|| self.check_links(slab, List::ALL[old]));
                let (next, prev) = ((*head).next, (*head).prev);
                match prev {
                    NONE => self.heads[old] = next,
                    prev => (*Slab(PageIndex(prev)).head()).next = next,
                }
                if next != NONE {
                    (*Slab(PageIndex(next)).head()).prev = prev;
                }
                self.counts[old] -= 1;
            }
            (*head).list = list as u8;
            if list != List::None {
                let new = list as usize - 1;
                (*head).next = self.heads[new];
                (*head).prev = NONE;
                if self.heads[new] != NONE {
                    (*Slab(PageIndex(self.heads[new])).head()).prev = slab.0.0;
                }
                self.heads[new] = slab.0.0;
                self.counts[new] += 1;
                assert_valid(|| self.check_links(slab, list));
            }
        }
    }

    /// A slab was made: if one was released lately that was too early, keep one more from now on,
    /// up to `most`.
    pub fn note_grow(&mut self, most: u32) {
        invariant!(self.target >= self.min_target, "the target of empty slabs has its floor", self.target);
        if self.regret > 0 {
            self.regret -= 1;
            self.target = (self.target + 1).min(most.max(self.min_target));
        }
    }

    /// A slab was released.
    pub fn note_shrink(&mut self) {
        self.regret += 1;
    }

    /// Lets what was learnt fade by half each second; called where a slab became empty.
    pub fn decay(&mut self) {
        let now_ms = os::clock::coarse_ms();
        let seconds = (now_ms.saturating_sub(self.last_ms) / 1000).min(31) as u32;
        if seconds > 0 {
            self.target = (self.target >> seconds).max(self.min_target);
            self.regret >>= seconds;
            invariant!(self.target >= self.min_target, "what fades keeps the floor", self.target);
            self.last_ms = now_ms;
        }
    }
}
