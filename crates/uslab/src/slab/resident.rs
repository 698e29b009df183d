//! Resident pages: a slab holds the pages that its objects need, and gives the others back.
//!
//! A slab of 2 to 64 pages has a word with a bit for each page that has memory:
//!
//! ```text
//!   pages      │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ …        objects in use: ▓
//!   objects    │▓▓▓│▓ ▓│   │   │▓  │   │
//!   resident   │ 1 │ 1 │ 1 │ 0 │ 1 │ 0 │          page 2 rests, and goes
//! ```
//!
//! * A **take** charges pages that had no memory before it hands out their objects, so that limits
//!   count what the program can touch. A refill takes the lowest addresses, so a slab fills page by
//!   page. (A slab of fewer than 16 pages is charged as a whole when it is made.)
//! * [`Slabs::purge_rested_part`], [`Slabs::purge_part`] and [`Slabs::purge_inside`] give back
//!   pages of which every object is free. They take these objects as a refill would, purge the
//!   pages without the lists' lock, and put the objects back. The pages read as zero afterwards.
//!
//! Slabs of a cache with a constructor are resident as a whole, for ever: a purge would undo what
//! the constructor did.

use super::claimed::{bits_in, for_each_object_word, runs};
use super::geometry::Geometry;
use super::group::Group;
use super::lists::{End, List, Lists, SERVING, list_for};
use super::one::Slab;
use super::pool::Slabs;
use super::words;
use crate::counters;
use crate::os;
use crate::os::invariant::invariant;
use crate::os::numa::NumaPolicy;
use crate::pages::{self, Fill, Locked, PAGE_BYTES, PAGE_SHIFT, PageIndex, Temperature};
use crate::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use crate::sync::in_flight::InFlight;
use core::ops::Range;

/// Slabs of one list that a walk of [`Slabs::purge_rested_part`] looks at: 256 MiB of slabs of
/// 128 KiB.
const MAX_VISITS: u32 = 2048;
/// Slabs that a part of a walk looks at in each list, in all groups together. The caller lets go of
/// its locks between parts.
const VISITS_OF_PART: u32 = 64;
/// Slabs of one list that [`Slabs::purge_inside`] and [`Slabs::take_charged`] look at, which a
/// waiting thread calls.
const VISITS_OF_PASS: u32 = 256;
/// The lists of slabs with free objects, sparse slabs first.
const LISTS_WITH_FREE: [List; 4] = [List::Sparse, List::Filling, List::Partial, List::Empty];
/// [`Slabs::purge_inside`] searches only where at least so much could be found.
const MIN_FREE_BYTES: usize = 64 << 10;

impl Geometry {
    /// The mask of all pages of a slab with a resident word.
    pub(super) fn all_pages(&self) -> u64 {
        u64::MAX >> (64 - self.pages())
    }

    /// The mask of the pages that the bytes of a slab in `range` lie in.
    pub(super) fn pages_of(&self, range: Range<usize>) -> u64 {
        let (first, last) = (range.start >> PAGE_SHIFT, (range.end - 1) >> PAGE_SHIFT);
        invariant!(last < self.pages(), "an object lies within its slab", last);
        (u64::MAX >> (63 - (last - first))) << first
    }

    /// The objects that lie in the bytes of a slab in `range`, at least in part.
    pub(super) fn objects_of(&self, range: Range<usize>) -> Range<usize> {
        range.start / self.object_bytes..range.end.div_ceil(self.object_bytes).min(self.objects)
    }
}

impl Slab {
    /// The mask of pages with memory; `None` if the geometry has no such word. The lists' lock
    /// guards it, or the refill that has moved the slab to [`List::Taking`].
    pub(super) fn resident(&self, geometry: &Geometry) -> Option<&AtomicU64> {
        geometry.has_resident_word().then(|| {
            // SAFETY: descriptors of committed pages are mapped for ever. `Geometry` leaves room
            // for this word behind the bitmap.
            unsafe { &*self.words(geometry).as_ptr().add(geometry.words()) }
        })
    }

    /// Undoes a take of `objects` before the slab is placed.
    fn put_back(self, geometry: &Geometry, objects: &[*mut u8]) {
        for &object in objects {
            let index = (object as usize - self.address() as usize) / geometry.object_bytes;
            words::free(&self.words(geometry)[index / 64], 1 << (index % 64));
        }
        words::add(self.count(), objects.len());
    }

    /// Calls `visit` with the index of each object that is not free and lies on a page without
    /// charge, at least in part: a take in progress has it.
    pub(super) fn for_each_taken_uncharged(self, geometry: &Geometry, mut visit: impl FnMut(usize)) {
        let Some(resident) = self.resident(geometry) else { return };
        let (resident, words) = (resident.load(Relaxed), self.words(geometry));
        for index in (0..geometry.objects).filter(|i| words[i / 64].load(Relaxed) >> (i % 64) & 1 == 0) {
            let start = index * geometry.object_bytes;
            if geometry.pages_of(start..start + geometry.object_bytes) & !resident != 0 {
                visit(index);
            }
        }
    }

    /// The resident pages of which every object is free, in whole system pages, of which the slab
    /// has at least one. The pages behind the last object are among them only if another page is:
    /// their purge alone would claim no object, and nothing would keep the slab from being released
    /// meanwhile. The caller holds the lists' lock.
    fn purgeable_pages(self, geometry: &Geometry) -> u64 {
        let Some(resident) = self.resident(geometry) else { return 0 };
        let block = (os::memory::page_bytes() / PAGE_BYTES).max(1);
        let words = self.words(geometry);
        let (mut free, mut tail) = (0, 0);
        for first in (0..geometry.pages()).step_by(block) {
            let mask = (u64::MAX >> (64 - block)) << first;
            if resident.load(Relaxed) & mask != 0 {
                let range = geometry.objects_of(first * PAGE_BYTES..(first + block) * PAGE_BYTES);
                let is_free = |word: usize| {
                    let bits = bits_in(word, &range);
                    words[word].load(Acquire) & bits == bits
                };
                if range.is_empty() {
                    tail |= mask;
                } else if (range.start / 64..=(range.end - 1) / 64).all(is_free) {
                    free |= mask;
                }
            }
        }
        if free == 0 { 0 } else { free | tail }
    }

    /// Takes every object of the pages in the mask `pages`, all of which are free. The caller holds
    /// the lists' lock.
    fn claim(self, geometry: &Geometry, pages: u64) {
        for_each_object_word(geometry, pages, |i, bits| {
            let had = self.words(geometry)[i].fetch_and(!bits, Acquire);
            invariant!(had & bits == bits, "objects of a free page are free", i);
            words::subtract(self.count(), bits.count_ones() as usize);
        });
    }

    /// Undoes [`Slab::claim`].
    fn unclaim(self, geometry: &Geometry, pages: u64) {
        for_each_object_word(geometry, pages, |i, bits| {
            words::free(&self.words(geometry)[i], bits);
            words::add(self.count(), bits.count_ones() as usize);
        });
    }
}

/// A walk of all slabs, in parts: see [`Slabs::purge_part`].
pub struct Walk {
    /// Slabs of each list that were visited.
    visited: u32,
    purged_bytes: usize,
    /// Frees before the walk.
    frees: u32,
    /// Takes at the hard limit before the walk.
    turns: u32,
}

/// The state of a walk of slabs at one of them.
struct Visit {
    /// Refills took from this slab when the walk began.
    is_serving: bool,
    /// Bytes that the walk has purged so far.
    purged_bytes: usize,
}

/// What a walk of slabs does with one of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Purges its free pages.
    Purge,
    /// Goes on to the next slab.
    Skip,
    /// Ends.
    Stop,
}

impl Slabs {
    /// Pages for a slab, of which the first `taken` objects are about to be used. Returns the
    /// first page and the mask of resident ones.
    pub(super) fn alloc_pages(&self, taken: usize) -> Option<(PageIndex, u64)> {
        let Geometry { object_bytes, order, .. } = self.geometry;
        let fill = if object_bytes <= PAGE_BYTES { Fill::Dense } else { Fill::Sparse };
        let needed = match self.constructor {
            _ if !self.geometry.has_resident_word() => 0,
            None if self.geometry.grows_by_pages() => self.geometry.pages_of(0..taken * object_bytes),
            _ => self.geometry.all_pages(),
        };
        if self.keeps_addresses
            && let Some((first, charged)) = self.take_kept(needed)
        {
            if self.geometry.has_resident_word() {
                self.charged.fetch_add(charged.count_ones() as usize, Relaxed);
            }
            return Some((first, charged));
        }
        if !self.geometry.grows_by_pages() {
            let pages = self.geometry.pages();
            let run = match self.policy {
                NumaPolicy::Local => pages::alloc(pages, order, self.temperature, fill),
                policy => pages::alloc_by(policy, pages, order, fill),
            }?;
            if !self.geometry.has_resident_word() {
                return Some((run.first, 0));
            }
            self.charged.fetch_add(self.geometry.pages(), Relaxed);
            return Some((run.first, self.geometry.all_pages()));
        }
        let (first, charged) = pages::alloc_sparse(self.policy, order, needed, fill)?;
        self.charged.fetch_add(charged.count_ones() as usize, Relaxed);
        if charged != needed {
            // Pages that had memory already are free pages inside the slab.
            self.note_free();
        }
        Some((first, charged))
    }

    /// Brings memory behind a fresh slab whose every page the constructor is about to write, if
    /// these are so many that one system call is cheaper than the faults.
    pub(super) fn populate(&self, start: *mut u8) {
        const MIN_PAGES: usize = 4;
        let page = os::memory::page_bytes();
        let bytes = self.slab_bytes();
        if self.geometry.object_bytes <= page && bytes >= MIN_PAGES * page && bytes.is_multiple_of(page) {
            // SAFETY: the slab's pages, which no other code knows yet.
            unsafe { os::memory::populate(start, bytes) };
        }
    }

    /// Frees the pages of a slab that has left the lists. Returns how many of them had memory.
    pub(super) fn free_pages(&self, slab: Slab, temperature: Temperature) -> usize {
        match slab.resident(&self.geometry) {
            Some(resident) => {
                let charged = resident.load(Relaxed);
                let pages = charged.count_ones() as usize;
                self.charged.fetch_sub(pages, Relaxed);
                if self.keeps_addresses {
                    self.keep(slab, charged);
                } else if self.geometry.grows_by_pages() || charged != self.geometry.all_pages() {
                    pages::free_sparse(slab.0, self.geometry.order, charged);
                } else {
                    pages::free(slab.0, self.geometry.pages(), temperature);
                }
                return pages;
            }
            None if self.keeps_addresses => self.keep(slab, 1),
            None => pages::free(slab.0, self.geometry.pages(), temperature),
        }
        self.geometry.pages()
    }

    /// Takes objects of `slab` into the end of `out` and charges their pages: as many as fit, or as
    /// many as are `wanted` now if a limit forbids more. Returns how many; `None` if a limit
    /// forbids these too. The caller holds the lists' lock, or has moved the slab to
    /// [`List::Taking`].
    pub(super) fn take_and_charge(&self, slab: Slab, out: &mut [*mut u8], wanted: usize) -> Option<usize> {
        [out.len(), wanted.min(out.len())].into_iter().filter(|&most| most > 0).find_map(|most| {
            let first = out.len() - most;
            let part = &mut out[first..];
            let (taken, _) = slab.take(&self.geometry, part);
            invariant!(taken > 0, "a slab that serves has a free object", slab.address());
            let objects = &mut part[most - taken..];
            let is_charged = self.charge_pages_of(slab, objects);
            if !is_charged {
                slab.put_back(&self.geometry, objects);
                // They are free again: a caller must not find them.
                objects.fill(core::ptr::null_mut());
            }
            is_charged.then_some(taken)
        })
    }

    /// Takes objects that lie on charged pages into the end of `out`, until it is full; returns how
    /// many. A take calls this at a limit. It looks at [`VISITS_OF_PASS`] slabs of each list, and
    /// moves those that have too few such objects to the end: the next call goes on behind them.
    #[cold]
    pub(super) fn take_charged(&self, lists: &mut Lists, out: &mut [*mut u8]) -> usize {
        self.turns.fetch_add(1, Relaxed);
        let mut got = 0;
        let geometry = &self.geometry;
        for list in SERVING {
            for _ in 0..lists.slabs_in(list).min(VISITS_OF_PASS) {
                let Some(slab) = lists.first(list).filter(|_| got < out.len()) else { break };
                let Some(resident) = slab.resident(geometry) else { return 0 };
                let resident = resident.load(Relaxed);
                let words = slab.words(geometry);
                for page in runs(resident).flatten() {
                    for index in geometry.objects_of(page * PAGE_BYTES..(page + 1) * PAGE_BYTES) {
                        let (start, bit) = (index * geometry.object_bytes, 1 << (index % 64));
                        let is_free = words[index / 64].load(Relaxed) & bit != 0;
                        let pages = geometry.pages_of(start..start + geometry.object_bytes);
                        if got < out.len() && is_free && pages & !resident == 0 {
                            words[index / 64].fetch_and(!bit, Acquire);
                            words::subtract(slab.count(), 1);
                            slab.note_taken_from();
                            got += 1;
                            let place = out.len() - got;
                            out[place] = slab.address().wrapping_add(start);
                        }
                    }
                }
                let count = slab.count().load(Acquire);
                let placed = lists.place(slab, list_for(count, geometry.objects), End::Last);
                if placed == list && got < out.len() {
                    lists.move_to_end(slab, list);
                }
            }
        }
        got
    }

    /// Takes at least `least` such objects into the end of `out`, if all slabs of `group` together
    /// have so many; returns how many it took. It lets go of the lock now and then.
    #[cold]
    pub(super) fn take_charged_of_all(&self, group: usize, out: &mut [*mut u8], least: usize) -> usize {
        let Some(used) = self.used_group(group).filter(|_| self.geometry.has_resident_word()) else {
            return 0;
        };
        let longest = |lists: &Lists| SERVING.into_iter().map(|list| lists.slabs_in(list)).max();
        let mut left = longest(&used.lock()).unwrap_or(0);
        let mut got = 0;
        while got < least && left > 0 {
            left = left.saturating_sub(VISITS_OF_PASS);
            let mut lists = used.lock();
            let end = out.len() - got;
            let taken = self.take_charged(&mut lists, &mut out[end - (least - got)..end]);
            if self.is_shared {
                self.count_taken(taken as i64);
            }
            self.publish(&mut lists, group);
            got += taken;
        }
        got
    }

    /// Charges the pages of `objects`, which were just taken from `slab`. False, with nothing
    /// charged, if a limit forbids it.
    ///
    /// A purge in flight may clear bits of the word meanwhile, of other pages: those of the objects
    /// that it has claimed.
    fn charge_pages_of(&self, slab: Slab, objects: &[*mut u8]) -> bool {
        let Some(word) = slab.resident(&self.geometry) else { return true };
        let resident = word.load(Relaxed);
        if resident == self.geometry.all_pages() {
            return true;
        }
        let fresh = self.pages_of_taken(slab, objects) & !resident;
        if fresh != 0 {
            if !pages::charge(slab.0, fresh.count_ones() as usize) {
                return false;
            }
            self.charged.fetch_add(fresh.count_ones() as usize, Relaxed);
            counters::peak::note_system();
            word.fetch_or(fresh, Relaxed);
        }
        true
    }

    /// The mask of the pages of `objects`, which a take has just put in falling order.
    fn pages_of_taken(&self, slab: Slab, objects: &[*mut u8]) -> u64 {
        let bytes = self.geometry.object_bytes;
        let range_of = |object: *mut u8| {
            let offset = object.addr() - slab.address().addr();
            offset..offset + bytes
        };
        let (Some(&highest), Some(&lowest)) = (objects.first(), objects.last()) else { return 0 };
        let span = range_of(lowest).start..range_of(highest).end;
        if span.len() == objects.len() * bytes {
            // Neighbours, as in a fresh slab.
            return self.geometry.pages_of(span);
        }
        objects.iter().fold(0, |pages, &object| pages | self.geometry.pages_of(range_of(object)))
    }

    /// An upper bound of what a [`Walk`] would purge. Takes no lock.
    pub fn free_bytes_inside(&self) -> usize {
        if !self.is_purgeable() || self.frees() == self.barren.load(Relaxed) {
            return 0;
        }
        let charged_bytes = self.charged.load(Relaxed) * PAGE_BYTES;
        charged_bytes.saturating_sub(self.taken() * self.geometry.object_bytes)
    }

    /// Starts a walk of all slabs with free objects.
    pub fn walk(&self) -> Walk {
        Walk { visited: 0, purged_bytes: 0, frees: self.frees(), turns: self.turns.load(Relaxed) }
    }

    /// Purges every free page of the next [`VISITS_OF_PART`] slabs of each list. Returns false once
    /// all slabs were visited.
    pub fn purge_part(&self, walk: &mut Walk) -> bool {
        if !self.is_purgeable() {
            return false;
        }
        if walk.visited >= self.longest_list() {
            // A take at the hard limit may have moved slabs out of this walk's way.
            if walk.purged_bytes == 0 && walk.turns == self.turns.load(Relaxed) {
                self.barren.store(walk.frees, Relaxed);
            }
            return false;
        }
        let visits = self.share_of_group(VISITS_OF_PART);
        walk.visited += visits;
        walk.purged_bytes += self.visit_slabs(0..visits, Locked::Go, |_, _| Verdict::Purge);
        true
    }

    /// Looks at the next [`VISITS_OF_PART`] slabs, and purges the free pages of those that rested:
    /// no object was taken or freed since the last such walk. With a decay of 0 none needs rest.
    /// Returns false once all slabs were visited, or as many as one walk may visit.
    pub fn purge_rested_part(&self, walk: &mut Walk) -> bool {
        if !self.is_purgeable() || !pages::may_purge_rested() {
            return false;
        }
        if self.steady_frees.swap(walk.frees, Relaxed) != walk.frees {
            self.steady_visits.store(0, Relaxed);
        }
        if walk.visited >= self.longest_list().min(MAX_VISITS) {
            return false;
        }
        let part = walk.visited..walk.visited + self.share_of_group(VISITS_OF_PART);
        walk.visited = part.end;
        let needs_rest = !pages::decay::is_at_once();
        let (mut visits, mut changed) = (0, false);
        let purged_bytes = self.visit_slabs(part, Locked::Stay, |slab, _| {
            // SAFETY: the caller of this closure holds the lists' lock, which guards the field.
            let seen = unsafe { &mut (*slab.head()).seen };
            let count = slab.count().load(Relaxed) as u16;
            let rests = core::mem::replace(seen, count) == count || !needs_rest;
            visits += 1;
            changed |= !rests;
            if rests { Verdict::Purge } else { Verdict::Skip }
        });
        let steady = if changed || purged_bytes > 0 { 0 } else { self.steady_visits.load(Relaxed) + visits };
        self.steady_visits.store(steady.min(self.listed()), Relaxed);
        true
    }

    /// Whether the walks of [`Slabs::purge_rested_part`] have nothing more to do: all slabs were
    /// visited and had rested, nothing was purged, and no object was freed since.
    pub fn is_steady(&self) -> bool {
        let is_settled = || {
            self.steady_visits.load(Relaxed) >= self.listed()
                && self.steady_frees.load(Relaxed) == self.frees()
        };
        !self.is_purgeable() || !pages::may_purge_rested() || is_settled()
    }

    /// Whether free pages of slabs in use may go. The system gives back whole pages of its own, in
    /// which other slabs lie if these are smaller.
    fn is_purgeable(&self) -> bool {
        self.geometry.has_resident_word()
            && self.constructor.is_none()
            && os::memory::page_bytes() <= self.slab_bytes()
    }

    /// Slabs with free objects.
    fn listed(&self) -> u32 {
        self.used_groups().map(|(_, group)| group.lock().with_free_objects()).sum()
    }

    /// The share of each group in `visits` at slabs of all groups.
    fn share_of_group(&self, visits: u32) -> u32 {
        (visits / self.used_group_count() as u32).max(1)
    }

    /// Slabs of the longest list of slabs with free objects.
    fn longest_list(&self) -> u32 {
        let longest = |(_, group): (usize, &Group)| {
            let lists = group.lock();
            LISTS_WITH_FREE.into_iter().map(|list| lists.slabs_in(list)).max()
        };
        self.used_groups().filter_map(longest).max().unwrap_or(0)
    }

    /// Purges free pages of slabs, but of the one that serves next, until about `bytes` went;
    /// returns how many did.
    pub fn purge_inside(&self, bytes: usize) -> usize {
        if self.free_bytes_inside() < MIN_FREE_BYTES {
            return 0;
        }
        self.visit_slabs(0..self.share_of_group(VISITS_OF_PASS), Locked::Go, |_, visit| match visit {
            Visit { purged_bytes, .. } if purged_bytes >= bytes => Verdict::Stop,
            Visit { is_serving: true, .. } => Verdict::Skip,
            _ => Verdict::Purge,
        })
    }

    /// Purges every free page of every slab; returns the bytes.
    #[cfg(test)]
    pub fn purge_all_inside(&self) -> usize {
        let mut walk = self.walk();
        while self.purge_part(&mut walk) {}
        walk.purged_bytes
    }

    /// A whole walk of [`Slabs::purge_rested_part`]; returns [`Slabs::is_steady`].
    #[cfg(test)]
    pub fn purge_rested(&self) -> bool {
        let mut walk = self.walk();
        while self.purge_rested_part(&mut walk) {}
        self.is_steady()
    }

    /// Looks at slabs with free objects of each list and group, and purges free pages as `judge`
    /// decides; returns the bytes. `judge` runs under the lists' lock.
    ///
    /// Each visit moves the slab to the end of its list. Of each list, `part.start` slabs have been
    /// visited and are not visited again; at most the other slabs of `part` are.
    fn visit_slabs(
        &self,
        part: Range<u32>,
        locked: Locked,
        mut judge: impl FnMut(Slab, Visit) -> Verdict,
    ) -> usize {
        if !self.is_purgeable() {
            return 0;
        }
        let mut purged_bytes = 0;
        for (_, group) in self.used_groups() {
            let serving = group.lock().serving();
            for list in LISTS_WITH_FREE {
                let slabs = group.lock().slabs_in(list);
                for _ in part.start.min(slabs)..part.end.min(slabs) {
                    let mut lists = group.lock();
                    let Some(slab) = lists.first(list) else { break };
                    let verdict = judge(slab, Visit { is_serving: serving == Some(slab), purged_bytes });
                    if verdict == Verdict::Stop {
                        return purged_bytes;
                    }
                    lists.move_to_end(slab, list);
                    let free =
                        if verdict == Verdict::Purge { slab.purgeable_pages(&self.geometry) } else { 0 };
                    let stays = |free: u64| {
                        locked == Locked::Stay
                            && !pages::should_purge_rested(slab.0, free.count_ones() as usize)
                    };
                    if free != 0 && !stays(free) {
                        let _in_flight = InFlight::begin();
                        self.claimed.begin(slab, free);
                        slab.claim(&self.geometry, free);
                        let left = slab.count().load(Relaxed);
                        lists.place(slab, list_for(left, self.geometry.objects), End::Last);
                        drop(lists);
                        purged_bytes += self.purge_claimed(slab, free, locked);
                    }
                }
            }
        }
        purged_bytes
    }

    /// Purges the pages of the mask `free`, whose objects the caller has claimed, and puts these
    /// objects back. Returns the bytes that went.
    fn purge_claimed(&self, slab: Slab, free: u64, locked: Locked) -> usize {
        let gone = runs(free).fold(0, |gone, run| {
            // SAFETY: every object of these pages was free and is claimed, so no code uses them.
            let is_purged = unsafe { pages::purge_used(slab.0.plus(run.start), run.len(), locked) };
            let pages = self.geometry.pages_of(run.start * PAGE_BYTES..run.end * PAGE_BYTES);
            if is_purged { gone | pages } else { gone }
        });
        // The claimed objects keep the slab from being released: it still belongs to these lists.
        let index = slab.group();
        let mut lists = self.groups()[index].lock();
        let mut uncharged = 0;
        if let Some(resident) = slab.resident(&self.geometry) {
            // Of a large system page only some of the pages may be charged.
            uncharged = resident.load(Relaxed) & gone;
            // A refill may take from other pages of the slab, without the lock.
            resident.fetch_and(!gone, Relaxed);
        }
        slab.unclaim(&self.geometry, free);
        self.claimed.end();
        let count = slab.count().load(Acquire);
        if lists.place(slab, list_for(count, self.geometry.objects), End::Last) != List::Taking {
            // SAFETY: the lock that guards the field is held, and no refill takes from the slab.
            unsafe { (*slab.head()).seen = count as u16 };
        }
        self.publish(&mut lists, index);
        drop(lists);
        self.charged.fetch_sub(uncharged.count_ones() as usize, Relaxed);
        pages::uncharge(slab.0, uncharged.count_ones() as usize);
        uncharged.count_ones() as usize * PAGE_BYTES
    }
}
