//! The slab lists of one group of a cache: every slab stands in exactly one of them.
//!
//! A walk of the lists reaches all that the cache owns: it destroys the cache, or finds its live
//! objects. Full slabs are listed only for such walks.
//!
//! Slabs with some objects in use and some free stand in three lists, or in a fourth while a thread
//! takes objects from them. Slabs of which less than three quarters are free serve first, in the
//! order in which they became partial. So a program that frees neighbours in order gets neighbours
//! in order. The slab that the cache grows into serves next: a refill fills holes before it touches
//! fresh memory. Sparser slabs serve last, so that they can become empty. Only empty slabs come
//! after them.

pub(super) use super::one::List;
use super::one::{NONE, Slab, slab_at};
use crate::os;
use crate::os::corruption::verify;
use crate::os::facts::{Fact, facts};
use crate::os::invariant::{assert_valid, invariant};
use crate::pages::{self, PageIndex};

/// The lists of one of several groups publish each of their first 64 changes of partial slabs, and
/// then every 64th.
const FEW_CHANGES: u32 = 64;

const LISTS: usize = 6;
impl List {
    /// All lists that a slab can stand in.
    pub(super) const ALL: [List; LISTS] =
        [List::Partial, List::Filling, List::Sparse, List::Empty, List::Full, List::Taking];
}

/// The lists that a take serves from, in this order.
pub(super) const SERVING: [List; 4] = [List::Partial, List::Filling, List::Sparse, List::Empty];

/// The list for a slab of `objects` objects with `free` of them free.
pub(super) fn list_for(free: i32, objects: usize) -> List {
    match usize::try_from(free) {
        Err(_) | Ok(0) => List::Full,
        Ok(free) if free >= objects => List::Empty,
        Ok(free) if free < objects - objects / 4 => List::Partial,
        Ok(_) => List::Sparse,
    }
}

/// The list for a slab that stood in the list of number `before`, and whose count calls for `list`.
fn list_after(before: u8, list: List) -> List {
    const BEFORE_FILLING: [u8; 3] = [List::None as u8, List::Empty as u8, List::Filling as u8];
    match list {
        List::Partial | List::Sparse if BEFORE_FILLING.contains(&before) => List::Filling,
        list => list,
    }
}

/// Which end of a list a slab goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It serves next.
    First,
    /// It serves after the others.
    Last,
}

/// Figures that a cache sums over its groups.
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

/// The lists of a group and the target of empty slabs: all that the lists' lock guards.
pub(super) struct Lists {
    heads: [u32; LISTS],
    tails: [u32; LISTS],
    counts: [u32; LISTS],
    /// Empty slabs that the group keeps.
    pub target: u32,
    /// Empty slabs that frees released and that no new slab has replaced yet. A new slab replaces
    /// one of them and raises `target` by one.
    released: u32,
    /// Lower bound of `target`.
    min_target: u32,
    /// What these lists have added to the figures of their cache.
    pub counted: Figures,
    /// Slabs and free objects that these lists have added to a shared record.
    pub published: (u32, i64),
    /// Changes of the number of partial slabs alone.
    changes: u32,
    /// Their group serves others: see `surplus`.
    pub is_rich: bool,
    last_ms: u64,
    /// The first slab whose addresses the cache keeps; see `kept`.
    pub kept: u32,
    /// The slab that served last, whose bitmap was counted; see `checks`.
    pub served: u32,
}

/// Lists, for a debugger.
pub(super) const FACTS: &[Fact] = facts!(Lists { heads, counts });

impl Lists {
    /// Lists without slabs; their target of empty slabs never falls below `min_target`.
    pub const fn new(min_target: u32) -> Lists {
        Lists {
            heads: [NONE; LISTS],
            tails: [NONE; LISTS],
            counts: [0; LISTS],
            target: min_target,
            released: 0,
            min_target,
            counted: Figures { partial: 0, empty: 0, target: 0 },
            published: (0, 0),
            changes: 0,
            is_rich: false,
            last_ms: 0,
            kept: NONE,
            served: NONE,
        }
    }

    /// Returns these lists and leaves new ones, without slabs, in their place.
    pub fn take(&mut self) -> Lists {
        core::mem::replace(self, Lists::new(self.min_target))
    }

    /// The slab that serves next, from the first of the serving lists that has one.
    pub fn serving(&self) -> Option<Slab> {
        SERVING.iter().find_map(|&list| self.first(list))
    }

    /// The slab that has been empty for the longest time.
    pub fn oldest_empty(&self) -> Option<Slab> {
        self.last(List::Empty)
    }

    pub(super) fn last(&self, list: List) -> Option<Slab> {
        slab_at(self.tails[list as usize - 1])
    }

    pub(super) fn first(&self, list: List) -> Option<Slab> {
        slab_at(self.heads[list as usize - 1])
    }

    /// Iterates over all slabs. It reads a slab's link before it yields the slab, so the caller may
    /// release that slab.
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

    /// Lower bound of the target.
    pub(super) fn min_target(&self) -> u32 {
        self.min_target
    }

    /// Slabs with objects in use and free ones. Those that refills take from are among them.
    pub fn partial(&self) -> u32 {
        const PARTIAL: [List; 4] = [List::Partial, List::Filling, List::Sparse, List::Taking];
        PARTIAL.iter().map(|&list| self.slabs_in(list)).sum()
    }

    /// Slabs with free objects.
    pub fn with_free_objects(&self) -> u32 {
        self.partial() + self.empty()
    }

    pub fn empty(&self) -> u32 {
        self.counts[List::Empty as usize - 1]
    }

    pub fn figures(&self) -> Figures {
        Figures { partial: self.partial(), empty: self.empty(), target: self.target }
    }

    /// Moves `slab` from the list that it stands in, if any, to `list`, which its count calls for;
    /// returns its new list. A partial slab that was not full since it was made, or since it was
    /// empty, goes to the filling list instead. A slab that stands in the right list already keeps
    /// its place. A slab in the taking list stays there: its take places it.
    pub fn place(&mut self, slab: Slab, list: List, end: End) -> List {
        let now = slab.list();
        if now == List::Taking as u8 {
            return List::Taking;
        }
        let list = list_after(now, list);
        if now != list as u8 && self.remove(slab) {
            self.insert(slab, list, end);
        }
        list
    }

    /// Moves slabs from the start of `list` to the taking list, up to the first that `accepts`
    /// refuses. The caller may take objects from them without the lock until [`Lists::end_taking`].
    pub fn begin_taking(&mut self, list: List, mut accepts: impl FnMut(Slab) -> bool) {
        let (from, taking) = (list as usize - 1, List::Taking as usize - 1);
        let Some(first) = self.first(list) else { return };
        let (mut last, mut count) = (None, 0);
        let mut next = Some(first);
        while let Some(slab) = next
            && count < self.counts[from]
            && accepts(slab)
        {
            slab.set_list(List::Taking);
            (last, count, next) = (Some(slab), count + 1, slab.next());
        }
        let Some(last) = last else { return };
        self.counts[from] -= count;
        self.counts[taking] += count;
        self.heads[from] = next.map_or(NONE, |slab| slab.0.0);
        let before = core::mem::replace(&mut self.tails[taking], last.0.0);
        // SAFETY: as above; links are page numbers of slabs of these lists.
        unsafe {
            match next.filter(|slab| pages::contains(slab.0)) {
                Some(next) => (*next.head()).prev = NONE,
                None => self.tails[from] = NONE,
            }
            (*last.head()).next = NONE;
            (*first.head()).prev = before;
            match slab_at(before) {
                Some(before) => (*before.head()).next = first.0.0,
                None => self.heads[taking] = first.0.0,
            }
        }
        assert_valid(|| self.check_links(first, List::Taking));
        assert_valid(|| self.check_links(last, List::Taking));
    }

    /// Takes the `count` slabs from `first` to `last` out of the taking list. Calls of
    /// [`Lists::begin_taking`] under one hold of the lock must have moved them there. They stand in
    /// no list then.
    pub fn end_taking(&mut self, first: Slab, last: Slab, count: usize) {
        let taking = List::Taking as usize - 1;
        assert_valid(|| self.check_links(first, List::Taking));
        assert_valid(|| self.check_links(last, List::Taking));
        match first.prev() {
            // SAFETY: `&mut self` is the lists' lock; links are page numbers of slabs of these
            // lists.
            Some(before) => unsafe { (*before.head()).next = last.next().map_or(NONE, |slab| slab.0.0) },
            None => self.heads[taking] = last.next().map_or(NONE, |slab| slab.0.0),
        }
        match last.next() {
            // SAFETY: as above.
            Some(behind) => unsafe { (*behind.head()).prev = first.prev().map_or(NONE, |slab| slab.0.0) },
            None => self.tails[taking] = first.prev().map_or(NONE, |slab| slab.0.0),
        }
        self.counts[taking] -= count as u32;
    }

    /// Puts `slab`, which [`Lists::end_taking`] left in no list, first into `list`, which its count
    /// calls for. `from` is the list that it stood in before. Returns its new list.
    pub fn place_taken(&mut self, slab: Slab, from: List, list: List) -> List {
        let list = list_after(from as u8, list);
        self.insert(slab, list, End::First);
        list
    }

    /// Moves `slab` to the end of its list.
    pub fn move_to_end(&mut self, slab: Slab, list: List) {
        if self.remove(slab) {
            self.insert(slab, list, End::Last);
        }
    }

    /// Takes `slab` out of its list, if it stands in one. False, with nothing changed, if its
    /// descriptor is corrupted.
    fn remove(&mut self, slab: Slab) -> bool {
        // SAFETY: `&mut self` is the lists' lock, which guards these fields of all slabs of the
        // group; links are page numbers of slabs of the same lists.
        unsafe {
            let head = slab.head();
            if slab.list() == List::None as u8 {
                return true;
            }
            let old = slab.list() as usize - 1;
            let is_listed = old < LISTS && self.counts[old] > 0;
            assert_valid(|| if is_listed { self.check_links(slab, List::ALL[old]) } else { Ok(()) });
            let is_linked = || self.check_links(slab, List::ALL[old]).is_ok();
            if !verify(is_listed && is_linked(), "slab", slab.address(), "its neighbours link to it") {
                return false;
            }
            let (next, prev) = ((*head).next, (*head).prev);
            match prev {
                NONE => self.heads[old] = next,
                prev => (*Slab(PageIndex(prev)).head()).next = next,
            }
            match next {
                NONE => self.tails[old] = prev,
                next => (*Slab(PageIndex(next)).head()).prev = prev,
            }
            self.counts[old] -= 1;
            slab.set_list(List::None);
        }
        true
    }

    /// Puts `slab`, which stands in no list, into `list`.
    fn insert(&mut self, slab: Slab, list: List, end: End) {
        if list == List::None {
            return;
        }
        let new = list as usize - 1;
        let link = slab.0.0;
        // SAFETY: as in `remove`.
        unsafe {
            let head = slab.head();
            slab.set_list(list);
            let (next, prev) = match end {
                End::First => (self.heads[new], NONE),
                End::Last => (NONE, self.tails[new]),
            };
            let is_end = |link: u32, of: fn(Slab) -> Option<Slab>| {
                slab_at(link).is_none_or(|slab| pages::contains(slab.0) && of(slab).is_none())
            };
            if !verify(
                is_end(next, Slab::prev) && is_end(prev, Slab::next),
                "slab lists",
                self,
                "the ends of a list have no neighbour beyond",
            ) {
                slab.set_list(List::None);
                return;
            }
            ((*head).next, (*head).prev) = (next, prev);
            match prev {
                NONE => self.heads[new] = link,
                prev => (*Slab(PageIndex(prev)).head()).next = link,
            }
            match next {
                NONE => self.tails[new] = link,
                next => (*Slab(PageIndex(next)).head()).prev = link,
            }
        }
        self.counts[new] += 1;
        assert_valid(|| self.check_links(slab, list));
    }

    /// Whether to publish the figures `now`. Each change of the empty slabs is published; of those
    /// of the partial slabs, some are ([`FEW_CHANGES`]).
    pub fn should_publish(&mut self, now: Figures) -> bool {
        if (now.empty, now.target) != (self.counted.empty, self.counted.target) {
            return true;
        }
        self.changes = self.changes.wrapping_add(u32::from(now != self.counted));
        self.changes < FEW_CHANGES || self.changes.is_multiple_of(FEW_CHANGES)
    }

    /// Notes that a slab was made. If a free released an empty slab lately, that was too early: the
    /// target rises by one, up to `most`.
    pub fn note_grow(&mut self, most: u32) {
        invariant!(self.target >= self.min_target, "the target of empty slabs has its floor", self.target);
        if self.released > 0 {
            self.released -= 1;
            self.target = (self.target + 1).min(most.max(self.min_target));
        }
    }

    /// Notes that a free released an empty slab.
    pub fn note_shrink(&mut self) {
        self.released += 1;
    }

    /// Halves the target, down to its lower bound, and the count of released slabs, once for each
    /// second that passed.
    pub fn halve_target(&mut self) {
        let now_ms = os::clock::coarse_ms();
        let seconds = (now_ms.saturating_sub(self.last_ms) / 1000).min(31) as u32;
        if seconds > 0 {
            self.target = (self.target >> seconds).max(self.min_target);
            self.released >>= seconds;
            invariant!(
                self.target >= self.min_target,
                "the target of empty slabs has its floor",
                self.target
            );
            self.last_ms = now_ms;
        }
    }
}
