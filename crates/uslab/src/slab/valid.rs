//! Invariants of slabs and their lists, and the functions that check them under the lists' lock.
//!
//! Freeing threads work without that lock. So while a check holds it, counts can only rise, and
//! each bit is set before it is counted. (A slab of the taking list, where a take clears bits and
//! lowers the count without the lock, is checked for its links and the range of its count alone.)
//!
//! ```text
//!   count ≤ bits set ≤ objects          a free sets, then counts; a take clears, then counts
//!   the list's rank ≤ the count's       a free raises the count first and relists later
//!   in the empty list: count = objects  so no free is between its steps, and the slab may go
//! ```

use super::geometry::Geometry;
use super::lists::{List, Lists, list_for};
use super::one::Slab;
use super::pool::Slabs;
use crate::os::invariant::{Checked, Subject, assert_valid, is_sampled};
use crate::os::numa::NumaPolicy;
use crate::pages::{self, PAGE_BYTES, PageIndex};
use crate::rseq::Owner;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};
use crate::sync::in_flight;

/// Upper bound on the slabs of one list that a sampled walk visits.
const MAX_WALKED: u32 = 64;

/// The totals of a walk of slabs.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Slabs in lists.
    pub slabs: usize,
    /// Free objects of these slabs.
    pub free_objects: usize,
}

/// The properties that the slabs of one cache on one group share.
#[derive(Clone, Copy)]
pub(super) struct Kind<'a> {
    pub geometry: &'a Geometry,
    pub owner: Owner,
    pub group: usize,
    pub policy: NumaPolicy,
}

/// The rank of a list: the higher, the more free objects its slabs have.
fn fullness(list: List) -> u8 {
    match list {
        List::None | List::Full | List::Taking => 0,
        List::Partial | List::Filling => 1,
        List::Sparse => 2,
        List::Empty => 3,
    }
}

impl Slab {
    fn subject(self) -> Subject {
        Subject::new("slab", self.address())
    }

    /// Checks a slab that stands in `list`. The caller holds the lists' lock.
    pub(super) fn check(self, kind: Kind<'_>, list: List) -> Checked {
        let Kind { geometry, owner, group, policy } = kind;
        let subject = self.subject();
        subject.equal(self.0.0 % (1 << geometry.order), 0, "a slab starts on a multiple of its pages")?;
        subject.equal(self.list(), list as u8, "a slab knows the list that it stands in")?;
        subject.equal(self.group(), group, "a slab stands in the lists of its group")?;
        let has_policy = pages::home_of(self.0).policy() == policy;
        subject.holds(has_policy, "the memory of a slab has the policy of its cache")?;
        for page in 0..geometry.named_pages() {
            let found = pages::owner(self.0.plus(page)).slots();
            subject.equal(found, owner.slots(), "the page map names the cache for each page of a slab")?;
        }
        // Read the count first: a free sets bits before it counts them, and only a holder of the
        // lock clears bits of a slab that no take has.
        let count = self.count().load(Acquire);
        let free = self.check_bits(geometry)?;
        if list != List::Taking {
            subject.at_most(i64::from(count), free as i64, "a bit is set before it is counted")?;
        }
        let objects = geometry.objects as i64;
        subject.at_least(i64::from(count), -objects, "a count lacks no more objects than a slab has")?;
        let least = fullness(list);
        let now = fullness(list_for(count, geometry.objects));
        subject.at_least(now, least, "a slab has as many free objects as its list says, or more")
    }

    /// Checks the bitmap; returns how many objects are free.
    fn check_bits(self, geometry: &Geometry) -> Checked<usize> {
        let mut free = 0;
        for (i, word) in self.words(geometry).iter().enumerate() {
            let objects = (geometry.objects - i * 64).min(64);
            let word = word.load(Relaxed);
            let beyond = if objects == 64 { 0 } else { word >> objects };
            self.subject().equal(beyond, 0, "no bit is set beyond the last object")?;
            free += word.count_ones() as usize;
        }
        Ok(free)
    }
}

impl Slab {
    /// Checks that objects in use lie on charged pages. The caller holds the lists' lock.
    ///
    /// A purge in flight has claimed free objects, which are not told from those in use, and a part
    /// of which may lie on pages that went before. So nothing is checked meanwhile.
    fn check_resident(self, geometry: &Geometry) -> Checked {
        let Some(resident) = self.resident(geometry) else { return Ok(()) };
        let resident = resident.load(Relaxed);
        let subject = self.subject();
        subject.equal(resident & !geometry.all_pages(), 0, "only pages of the slab are charged")?;
        if in_flight::is_any() {
            return Ok(());
        }
        let words = self.words(geometry);
        for index in (0..geometry.objects).filter(|i| words[i / 64].load(Relaxed) >> (i % 64) & 1 == 0) {
            let start = index * geometry.object_bytes;
            let pages = geometry.pages_of(start..start + geometry.object_bytes);
            subject.equal(pages & !resident, 0, "an object in use lies on charged pages")?;
        }
        Ok(())
    }
}

impl Lists {
    fn subject(&self) -> Subject {
        Subject::new("slab lists", self)
    }

    /// Checks what needs no walk: the heads, the counts and the target.
    pub(super) fn check_heads(&self) -> Checked {
        let subject = self.subject();
        for list in List::ALL {
            let (first, slabs) = (self.first(list), self.slabs_in(list));
            subject.equal(first.is_none(), slabs == 0, "a list has a head while it has slabs")?;
            if let Some(first) = first {
                subject.holds(pages::contains(first.0), "the head of a list is a page of the arena")?;
                subject.holds(first.prev().is_none(), "the head of a list has none before it")?;
            }
            let last = self.last(list);
            subject.equal(last.is_none(), slabs == 0, "a list has a tail while it has slabs")?;
            if let Some(last) = last {
                subject.holds(pages::contains(last.0), "the tail of a list is a page of the arena")?;
                subject.holds(last.next().is_none(), "the tail of a list has none behind it")?;
            }
        }
        subject.at_least(self.target, self.min_target(), "the target of empty slabs has its floor")
    }

    /// Checks the neighbours of `slab`, which stands in `list`.
    pub(super) fn check_links(&self, slab: Slab, list: List) -> Checked {
        let subject = slab.subject();
        let neighbours = [slab.next(), slab.prev()];
        let are_pages = neighbours.iter().flatten().all(|slab| pages::contains(slab.0));
        subject.holds(are_pages, "a link leads to a page of the arena")?;
        match slab.next() {
            Some(next) => {
                subject.equal(next.prev().map(|s| s.0.0), Some(slab.0.0), "the next slab links back")?
            }
            None => {
                subject.equal(self.last(list).map(|s| s.0.0), Some(slab.0.0), "a last slab is the tail")?
            }
        }
        match slab.prev() {
            Some(prev) => {
                subject.equal(prev.next().map(|s| s.0.0), Some(slab.0.0), "the slab before links here")
            }
            None => {
                subject.equal(self.first(list).map(|s| s.0.0), Some(slab.0.0), "a first slab is the head")
            }
        }
    }

    /// Checks up to `most` slabs of each list. The caller holds the lock.
    pub(super) fn check(&self, kind: Kind<'_>, most: u32) -> Checked<Walked> {
        self.check_heads()?;
        let mut walked = Walked::default();
        for list in List::ALL {
            let (mut at, mut seen) = (self.first(list), 0);
            while let Some(slab) = at.filter(|_| seen < most) {
                let subject = slab.subject();
                slab.check(kind, list)?;
                if list != List::Taking {
                    slab.check_resident(kind.geometry)?;
                }
                self.check_links(slab, list)?;
                seen += 1;
                subject.at_most(seen, self.slabs_in(list), "a list has no more slabs than are counted")?;
                walked.free_objects += slab.count().load(Relaxed).max(0) as usize;
                at = slab.next();
            }
            if at.is_none() {
                self.subject().equal(seen, self.slabs_in(list), "a list has as many slabs as are counted")?;
            }
            walked.slabs += seen as usize;
        }
        Ok(walked)
    }
}

impl Slabs {
    fn kind(&self, group: usize) -> Kind<'_> {
        Kind {
            geometry: self.geometry(),
            owner: self.owner_on(self.node_of(group)),
            group,
            policy: self.policy,
        }
    }

    /// Asserts, in debug builds, what holds after a change of the lists: checks their heads and
    /// counts, and one time in 64 a bounded number of slabs.
    #[inline(always)]
    pub(super) fn assert_lists(&self, lists: &Lists, group: usize) {
        assert_valid(|| lists.check_heads());
        if is_sampled() {
            assert_valid(|| lists.check(self.kind(group), MAX_WALKED).map(drop));
        }
    }

    /// Asserts, in debug builds, what holds of a slab that was just put into its list.
    #[inline(always)]
    pub(super) fn assert_placed(&self, slab: Slab, group: usize, list: List) {
        assert_valid(|| slab.check(self.kind(group), list));
    }

    /// Asserts, in debug builds, what must hold of a slab that is about to be released: it is in no
    /// list, the page map does not name it, and all of its objects are free.
    #[inline(always)]
    pub(super) fn assert_released(&self, slab: Slab) {
        assert_valid(|| self.check_released(slab));
    }

    pub(super) fn check_released(&self, slab: Slab) -> Checked {
        let subject = slab.subject();
        let objects = self.geometry().objects;
        subject.equal(slab.list(), List::None as u8, "a released slab stands in no list")?;
        subject.equal(slab.count().load(Acquire), objects as i32, "a released slab's count is complete")?;
        subject.equal(slab.check_bits(self.geometry())?, objects, "a released slab's bits are all set")?;
        for page in 0..self.geometry().named_pages() {
            let found = pages::owner(slab.0.plus(page)).slots();
            subject.equal(found, Owner::NONE.slots(), "the page map names no cache for a released slab")?;
        }
        Ok(())
    }

    /// Checks the heads and counts of all lists, under each group's lock in turn.
    pub fn check_heads(&self) -> Checked {
        self.used_groups().try_for_each(|(_, group)| group.lock().check_heads())
    }

    /// Checks all slabs, under each group's lock in turn; returns the totals. The cost grows with
    /// the number of slabs, so this runs only on request.
    pub fn check(&self) -> Checked<Walked> {
        let subject = Subject::new("slabs", self);
        let geometry = self.geometry();
        subject.at_most(geometry.objects * geometry.object_bytes, self.slab_bytes(), "objects fit a slab")?;
        let least = PAGE_BYTES << geometry.order;
        subject.holds(
            self.slab_bytes() == least || (geometry.objects == 1 && self.slab_bytes() > least),
            "a slab has 2^order pages, or those of its one object",
        )?;
        let mut all = Walked::default();
        for (index, group) in self.used_groups() {
            let lists = group.lock();
            let walked = lists.check(self.kind(index), u32::MAX)?;
            // A shrink takes empty slabs out before it publishes their number.
            subject.at_least(lists.counted.empty, lists.empty(), "empty slabs are counted")?;
            all.slabs += walked.slabs;
            all.free_objects += walked.free_objects;
        }
        Ok(all)
    }

    /// Checks that `object` starts in one of these slabs and is not free there. The caller owns the
    /// object.
    pub fn check_taken(&self, object: *mut u8) -> Checked {
        let subject = Subject::new("object", object);
        let offset = object as usize % (PAGE_BYTES << self.geometry().order);
        let page = pages::page_of(object);
        let first = page.map(|page| PageIndex(page.0 & !((1 << self.geometry().order) - 1)));
        let is_own = page.is_some_and(|page| self.owns(page));
        subject.holds(is_own, "an object lies in a slab of its cache")?;
        let index = self.geometry().index_of(offset);
        subject.holds(index.is_some(), "an object starts where the geometry says")?;
        if let (Some(first), Some(index)) = (first, index) {
            let word = Slab(first).words(self.geometry())[index / 64].load(Relaxed);
            subject.equal(word >> (index % 64) & 1, 0, "an object in a sheaf counts as taken")?;
        }
        Ok(())
    }
}
