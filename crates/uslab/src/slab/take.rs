//! Takes: how free objects leave their slabs. A take holds the lists' lock for the bitmap of its
//! first slab, and visits those of further slabs without the lock.
//!
//! ```text
//!   lock    the first slab: bits, count, place        the others ─▶ taking list
//!   no lock                                           the others: bits, count, charge
//!   lock                                              the others: place by their counts
//! ```
//!
//! Most takes find all that they need in one slab, and hold the lock once. A take from fragmented
//! slabs visits up to [`VISITS`]; each visit may wait for memory several times.
//!
//! A slab in the taking list belongs to the take that moved it there. No other thread takes from
//! it, purges it or releases it. Other threads free its objects as usual; one that relists it
//! leaves it in its list, because the take reads the count again when it places the slab.
//!
//! Until then other takes cannot find the objects that will be left in the slab. So a take that
//! finds no memory first lets such takes finish.

use super::group::Guarded;
use super::lists::{End, List, Lists, SERVING, list_for};
use super::one::{NONE, Slab};
use super::pool::Slabs;
use super::words;
use crate::os::corruption::verify;
use crate::os::{self, invariant::invariant, probe};
use crate::pages::{self, PageIndex};
use crate::sync::atomic::Ordering::{Acquire, Relaxed};

/// Upper bound on the slabs that a call visits to move more objects than its caller needs now. Each
/// visit may cost one or two cache misses while the caller waits.
pub const VISITS: usize = 32;

/// How often a take without memory lets other threads run that have slabs in the taking list.
const MAX_WAITS: usize = 64;

/// A place for a slab.
const NO_SLAB: Slab = Slab(PageIndex(NONE));

/// The progress of a take.
struct Taken {
    objects: usize,
    visits: usize,
    /// A limit forbids more pages.
    is_refused: bool,
}

impl Taken {
    fn is_enough(&self, out: &[*mut u8], least: usize) -> bool {
        self.objects == out.len() || self.is_refused || (self.objects >= least && self.visits >= VISITS)
    }
}

/// The slabs that a take has moved to the taking list, and the lists that they stood in.
struct Held {
    slabs: [(Slab, List); VISITS],
    len: usize,
}

impl Held {
    fn all(&self) -> &[(Slab, List)] {
        &self.slabs[..self.len]
    }
}

impl Slabs {
    /// Takes free objects into the start of `out`; returns how many. It returns fewer than `least`
    /// only if memory is used up, or at the hard limit.
    ///
    /// It takes from the lists of the node's group: from partial slabs, then from the one that the
    /// cache grows into, then from sparse ones, then from empty ones. Once it has `least` objects
    /// it stops after `VISITS` slabs of a group. As long as it has fewer, it takes from a group of
    /// the node with a surplus, in a small process from every other group, and then makes new
    /// slabs. A caller that hands out the last object of `out` first hands them out in ascending
    /// order within a slab, and slab by slab.
    ///
    /// May make system calls and run the constructor. It holds no lock meanwhile, but the lists'
    /// lock where it wakes the background thread.
    pub fn take(&self, node: usize, out: &mut [*mut u8], least: usize) -> usize {
        self.take_for(self.group_for(node), out, least)
    }

    /// [`Slabs::take`] for the CPUs of `group`.
    pub(super) fn take_for(&self, group: usize, out: &mut [*mut u8], least: usize) -> usize {
        if !verify(self.geometry.is_plausible(), "cache", self, "its geometry is one of slabs") {
            return 0;
        }
        invariant!(least <= out.len(), "a take has room for all that the caller needs", least);
        let mut got = self.take_listed(group, out, least);
        if got < least
            && let Some(neighbour) = self.rich_neighbour(group)
        {
            let end = out.len() - got;
            got += self.take_listed(neighbour, &mut out[..end], least - got);
        }
        if got < least && pages::is_small() {
            let end = out.len() - got;
            got += self.take_of_neighbours(group, &mut out[..end], least - got);
        }
        let (mut listed, mut waits) = (got, 0);
        while got < least {
            let end = out.len() - got;
            let mut taken = self.grow(group, &mut out[..end]);
            if taken == 0 {
                probe::order_fallback(|| (self.name, [end, least - got]));
                // A limit may leave room for the objects that the caller needs now.
                taken = self.grow(group, &mut out[end - (least - got)..end]);
            }
            if taken == 0 {
                // Before the search: it finds the slabs of a take that ends in between.
                let has_takes = self.has_takes(group);
                taken = self.take_listed(group, &mut out[..end], least - got);
                if taken == 0 {
                    taken = self.take_of_neighbours(group, &mut out[..end], least - got);
                }
                if taken == 0 {
                    taken = self.take_charged_of_all(group, &mut out[..end], least - got);
                }
                listed += taken;
                if taken == 0 && has_takes && waits < MAX_WAITS {
                    waits += 1;
                    os::thread::give_way();
                    continue;
                }
            }
            if taken == 0 {
                self.record().failures.fetch_add(1, Relaxed);
                break;
            }
            got += taken;
        }
        invariant!(got <= out.len(), "no more objects are taken than were asked for", got);
        let end = out.len();
        if got < end {
            out.copy_within(end - got.., 0);
        }
        if !self.is_shared && listed > 0 {
            self.count_taken(listed as i64);
        }
        got
    }

    /// Takes objects into the end of `out`, from slabs in the lists of the node's other groups;
    /// returns how many.
    #[cold]
    fn take_of_neighbours(&self, group: usize, out: &mut [*mut u8], least: usize) -> usize {
        self.neighbours(group).fold(0, |got, neighbour| {
            let end = out.len() - got;
            if got < least { got + self.take_listed(neighbour, &mut out[..end], least - got) } else { got }
        })
    }

    /// Takes objects into the end of `out`, from slabs in the lists of `group`; returns how many.
    fn take_listed(&self, group: usize, out: &mut [*mut u8], least: usize) -> usize {
        let Some(used) = self.used_group(group) else { return 0 };
        let mut lists = used.lock();
        let mut taken = Taken { objects: 0, visits: 0, is_refused: false };
        while !taken.is_enough(out, least)
            && let Some(slab) = lists.serving()
            && self.is_sound(slab)
        {
            // Caches that share a lock have few objects, and a forked child does not mend their
            // lists.
            let visits = taken.visits;
            if visits > 0 && !self.is_shared {
                lists = self.take_unlocked(lists, group, out, least, &mut taken);
                // A corrupted slab is left alone.
                if taken.visits > visits { continue } else { break }
            }
            if !self.is_counted(&mut lists, slab) {
                continue;
            }
            self.visit(slab, out, least, &mut taken);
            let list = list_for(slab.count().load(Acquire), self.geometry.objects);
            let list = lists.place(slab, list, End::First);
            self.assert_placed(slab, group, list);
        }
        if taken.is_refused && taken.objects < least {
            let end = out.len() - taken.objects;
            let wanted = (least - taken.objects).min(end);
            taken.objects += self.take_charged(&mut lists, &mut out[end - wanted..end]);
        }
        if self.is_shared {
            // What is published below counts these.
            self.count_taken(taken.objects as i64);
        }
        self.publish(&mut lists, group);
        taken.objects
    }

    /// Takes objects of the next slabs without the lock of `lists`, which it takes again at the
    /// end. The first of them is sound.
    fn take_unlocked<'a>(
        &'a self,
        mut lists: Guarded<'a>,
        group: usize,
        out: &mut [*mut u8],
        least: usize,
        taken: &mut Taken,
    ) -> Guarded<'a> {
        let mut held = Held { slabs: [(NO_SLAB, List::None); VISITS], len: 0 };
        let mut expected = taken.objects;
        for from in SERVING {
            lists.begin_taking(from, |slab| {
                let is_needed = expected < out.len()
                    && held.len < VISITS
                    && (taken.visits + held.len < VISITS || expected < least);
                let accepts = is_needed && self.is_own(slab);
                if accepts {
                    held.slabs[held.len] = (slab, from);
                    held.len += 1;
                    // The visit finds so many bits, or more.
                    expected += slab.count().load(Relaxed).max(1) as usize;
                }
                accepts
            });
        }
        let (Some(&(first, _)), Some(&(last, _))) = (held.all().first(), held.all().last()) else {
            return lists;
        };
        drop(lists);
        // A bit for each slab that is put aside.
        let mut aside = 0u32;
        for (at, &(slab, _)) in held.all().iter().enumerate() {
            if taken.is_enough(out, least) || !self.is_servable(slab) {
                break;
            }
            if self.has_its_count(slab) {
                self.visit(slab, out, least, taken);
            } else {
                aside |= 1 << at;
                taken.visits += 1;
            }
        }
        let mut lists = self.groups()[group].lock();
        lists.end_taking(first, last, held.len);
        // The first one comes first again.
        for (at, &(slab, from)) in held.all().iter().enumerate().rev() {
            // The free that was between its steps may have ended, and have found the slab here.
            if aside >> at & 1 != 0 && !self.agrees(slab) {
                lists.place_taken(slab, from, List::Full);
                self.serve_if_counted(&mut lists, slab);
                continue;
            }
            let list = list_for(slab.count().load(Acquire), self.geometry.objects);
            let list = lists.place_taken(slab, from, list);
            self.assert_placed(slab, group, list);
        }
        lists
    }

    /// Takes objects of one slab into the end of `out`, before those that it has already.
    fn visit(&self, slab: Slab, out: &mut [*mut u8], least: usize, taken: &mut Taken) {
        let end = out.len() - taken.objects;
        let wanted = least.saturating_sub(taken.objects);
        match self.take_and_charge(slab, &mut out[..end], wanted) {
            Some(objects) => taken.objects += objects,
            None => taken.is_refused = true,
        }
        taken.visits += 1;
    }

    /// Whether a thread has moved slabs of the node of `group` to a taking list.
    #[cold]
    fn has_takes(&self, group: usize) -> bool {
        let mut groups = self.groups_beside(group).filter_map(|group| self.used_group(group));
        groups.any(|group| group.lock().slabs_in(List::Taking) > 0)
    }

    /// Places the slabs that threads of the parent were taking from when it forked. These threads
    /// do not exist in the child. The objects that they had taken and charged are lost there; those
    /// not charged yet are free again.
    pub(super) fn end_lost_takes(&self, lists: &mut Lists, group: usize) {
        if lists.slabs_in(List::Taking) == 0 {
            return;
        }
        while let Some(slab) = lists.first(List::Taking) {
            if !self.is_own(slab) {
                return;
            }
            let words = slab.words(&self.geometry);
            slab.for_each_taken_uncharged(&self.geometry, |index| {
                words::free(&words[index / 64], 1 << (index % 64));
            });
            // No thread is between the two steps of a free or of a take any more.
            let free: u32 = words.iter().map(|word| word.load(Relaxed).count_ones()).sum();
            slab.count().store(free as i32, Relaxed);
            lists.end_taking(slab, slab, 1);
            lists.place_taken(slab, List::Partial, list_for(free as i32, self.geometry.objects));
        }
        // Some may be empty now, and empty slabs are counted.
        self.publish(lists, group);
    }
}
