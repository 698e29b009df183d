//! The slow path: serves calls that find this CPU's main sheaf empty or full.
//!
//! A call first tries this CPU's main sheaf again. Then it serves the caller, from or into a sheaf
//! that the thread owns, and installs that sheaf last. So progress never depends on other threads
//! of the CPU. A step waits for another thread only at the short locks of barns, slabs and pages,
//! and while a fork copies the memory. If memory is used up, a call also waits for refills and
//! shrinkers that other threads are in.

use super::access::{Access, Home, Locked, Sequences, exchange, home_of};
use super::adapt::{self, Adapt, Miss, Streak};
use super::barn::Barn;
use super::drain::Keep;
use super::ownership;
use super::rows::{Rows, row_distance, write_lead};
use super::sheaf::{self, Owned};
use super::used::Used;
use crate::counters::{self, SlowCall};
use crate::os::facts::{Fact, facts};
use crate::os::invariant::invariant;
use crate::os::surplus::Surplus;
use crate::os::{self, probe, sharing};
use crate::rseq::{Exchanged, LEAD, Mode, Owner, Sheaf, Slot, Which, dummy, dummy_of, is_dummy, mode};
use crate::slab::{Misuse, Slabs, report_misuse};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

/// Upper bound on the objects that one call takes from the slabs into a sheaf, or flushes of a full
/// one, unless it was asked for more. Filling or emptying a large sheaf at once gains nothing, and
/// would add some tens of microseconds to the latency of that call. Any other sheaf for which the
/// barn has no room is flushed whole.
pub(super) const PIECE: usize = 128;

/// The CPU caches of one cache, in front of its slabs.
pub struct CpuCache {
    slabs: Slabs,
    /// The slots with sheaves: see [`super::rows`].
    pub(super) slots: *const Slot,
    /// How many there are: a row for each node, and the slots between rows.
    pub(super) slot_count: usize,
    /// Slots from one row to the next: see [`super::rows::row_distance`].
    pub(super) row_distance: usize,
    pub(super) cpus: usize,
    barns: *const Barn,
    groups: usize,
    pub(super) nodes: usize,
    /// The slots that allocations pop from.
    pub(super) fast: *mut Slot,
    /// The slots that bulk frees push to.
    pub(super) fast_bulk: *mut Slot,
    adapt: Adapt,
    pub(super) caching: bool,
    /// Whether the fast path finds dummies alone; see [`super::hidden`].
    pub(super) hides: bool,
    /// Whether every call goes to the slabs for now; see [`super::bypass`].
    pub(super) bypass: AtomicBool,
    /// The first slot of the counted row; null until it is made. See [`super::counted`].
    pub(super) counted: AtomicPtr<Slot>,
    /// Whether a profile counts what that row serves.
    pub(super) is_counted: AtomicBool,
    /// The CPUs and groups that threads have used it on.
    pub(super) used: Used,
    /// Whether every call takes the slow path for now; see [`super::hidden_row`].
    pub(super) is_hiding: AtomicBool,
    /// The first slot of the hidden row; null until it is made.
    pub(super) hidden_row: AtomicPtr<Slot>,
}

/// The CPU caches of a cache, for a debugger.
pub(super) const FACTS: &[Fact] =
    facts!(CpuCache { slabs, slots, slot_count, row_distance, counted, hidden_row, cpus, barns, groups });

// SAFETY: slots and barns live for ever and are shared by design: atomics, sequences and locks.
unsafe impl Sync for CpuCache {}
// SAFETY: as above.
unsafe impl Send for CpuCache {}

/// The arguments of [`CpuCache::new`] besides the slabs.
pub struct Parts {
    /// The memory of [`CpuCache::owner`].
    pub slots: *mut u8,
    /// Memory for [`CpuCache::barn_bytes`], aligned to 64.
    pub barns: *mut u8,
    /// Possible CPUs.
    pub cpus: usize,
    /// Groups of CPUs, at least one for each node: see [`crate::os::sharing`].
    pub groups: usize,
    /// Rows of slots: one for each node, or one where objects have no home of their own.
    pub nodes: usize,
    /// Objects that a sheaf holds; 0 for an adaptive capacity.
    pub sheaf_capacity: usize,
    /// Whether the cache uses sheaves. If not, every call goes to the slabs.
    pub caching: bool,
    /// Whether the sheaves are hidden from the fast path. Only where [`super::may_hide`].
    pub hides: bool,
}

impl CpuCache {
    /// Returns the owner that the page map is to have for the pages of the cache `id` with these
    /// slots.
    ///
    /// In rseq mode the owner is the slots themselves. Where sheaves are hidden
    /// ([`super::hidden`]), the owner is a row of dummies before the slots. On a machine of several
    /// nodes this returns the first node's owner: see [`super::rows`]. In locked mode the owner is
    /// `locked_owner`, which comes from [`super::owners::take`].
    ///
    /// # Safety
    /// `slots` must point to [`CpuCache::slot_bytes`] bytes, aligned to 64, that live for ever and
    /// that no other thread uses. In locked mode no other cache may have `locked_owner`.
    pub unsafe fn owner(slots: *mut u8, locked_owner: *mut Slot, id: u16) -> Owner {
        // SAFETY: the caller's promise. `locked_owner` has been written, and pushes to its
        // neighbours read it.
        unsafe {
            let first = match mode() {
                Mode::Rseq => {
                    let first = write_lead(slots.cast());
                    first.write(Slot::holding(dummy()));
                    first
                }
                Mode::Locked => locked_owner,
            };
            (*first).id.store(u32::from(id), Relaxed);
            Owner::of_slots(first)
        }
    }

    /// Bytes of barns for `groups` groups of CPUs on `nodes` nodes.
    pub const fn barn_bytes(groups: usize, nodes: usize) -> usize {
        groups * size_of::<Barn>() + Surplus::bytes(groups, nodes)
    }

    /// Makes CPU caches that hold no object yet.
    ///
    /// # Safety
    /// `parts.barns` must point to [`CpuCache::barn_bytes`] bytes that belong to the cache for
    /// ever. The slabs' owner must come from [`CpuCache::owner`], for `parts.slots`.
    pub unsafe fn new(slabs: Slabs, parts: Parts) -> CpuCache {
        invariant!(!parts.hides || super::may_hide(), "a cache that hides its sheaves has a row for that");
        // SAFETY: the caller's promise for the owner and the memory that it came from.
        let rows = unsafe { Rows::write(&slabs, &parts) };
        let barns = parts.barns.cast::<Barn>();
        let full_bytes = Barn::full_bytes_for(sharing::most_cpus());
        for group in 0..parts.groups {
            // SAFETY: as above.
            unsafe { barns.add(group).write(Barn::new(full_bytes)) };
        }
        // SAFETY: as above.
        unsafe { Surplus::init(barns.add(parts.groups).cast(), parts.groups, parts.nodes) };
        let adapt = Adapt::new(slabs.geometry(), parts.sheaf_capacity);
        let cache = CpuCache {
            slabs,
            slots: rows.slots,
            slot_count: row_distance(parts.cpus) * parts.nodes - LEAD,
            row_distance: row_distance(parts.cpus),
            cpus: parts.cpus,
            barns,
            groups: parts.groups,
            nodes: parts.nodes,
            fast: rows.fast,
            fast_bulk: rows.fast_bulk,
            adapt,
            caching: parts.caching,
            hides: parts.hides,
            bypass: AtomicBool::new(false),
            counted: AtomicPtr::new(rows.lending),
            is_counted: AtomicBool::new(false),
            used: Used::none(parts.cpus, parts.groups),
            is_hiding: AtomicBool::new(false),
            hidden_row: AtomicPtr::new(core::ptr::null_mut()),
        };
        cache.publish_capacity();
        cache
    }

    /// Lets the cache take part in the balance of capacities.
    ///
    /// # Safety
    /// The cache must stay at this address until [`CpuCache::retire`].
    pub unsafe fn enter(&self) {
        // SAFETY: the caller's promise.
        unsafe { adapt::enter(self) };
    }

    /// Undoes [`CpuCache::enter`].
    pub fn retire(&self) {
        adapt::leave(self);
    }

    /// The slots that the fast path allocates from, and frees to where it does not ask the page
    /// map. They hold dummies if only the slow path may serve the cache.
    pub fn fast_slots(&self) -> *mut Slot {
        self.fast
    }

    /// The slots that the fast path frees many objects to without asking the page map.
    pub fn fast_bulk_slots(&self) -> *mut Slot {
        self.fast_bulk
    }

    /// The slabs behind the sheaves.
    pub fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    pub(super) fn adapt(&self) -> &Adapt {
        &self.adapt
    }

    pub(super) fn slots(&self) -> &[Slot] {
        // SAFETY: `new` wrote as many slots, which live for ever.
        unsafe { core::slice::from_raw_parts(self.slots, self.slot_count) }
    }

    /// See [`super::surplus`]. None where each node has one barn.
    pub(super) fn surplus(&self) -> &[Surplus] {
        let count = if self.groups > self.nodes { self.nodes } else { 0 };
        // SAFETY: `new` wrote as many behind the barns; they live for ever.
        unsafe { core::slice::from_raw_parts(self.barns.add(self.groups).cast(), count) }
    }

    pub(super) fn barns(&self) -> &[Barn] {
        // SAFETY: `new` wrote `groups` barns that live for ever.
        unsafe { core::slice::from_raw_parts(self.barns, self.groups) }
    }

    /// The present capacity: objects that a new sheaf of this cache holds.
    pub fn capacity(&self) -> usize {
        self.adapt.capacity()
    }

    /// Whether the slow path may use the main sheaf in place of the fast path: where that finds
    /// dummies alone.
    pub(super) fn has_hidden(&self) -> bool {
        self.caching && (self.hides || mode() == Mode::Locked)
    }

    /// Whether calls use sheaves at present.
    pub(super) fn has_sheaves(&self) -> bool {
        self.caching && !self.is_bypassed()
    }

    pub(super) fn publish_capacity(&self) {
        let capacity = if self.has_sheaves() { self.capacity() } else { 0 };
        counters::record(self.slabs.id()).sheaf_capacity.store(capacity as u32, Relaxed);
    }

    /// Fills all of `out`. Returns false, with nothing taken, if memory is used up. The caller has
    /// tried the fast path for one object.
    ///
    /// May make system calls, run the constructor, and sleep on the locks of barn, slabs and pages.
    #[cold]
    #[inline(never)]
    pub fn alloc_slow(&self, out: &mut [*mut u8]) -> bool {
        if let [place] = out
            && self.may_lend()
        {
            *place = self.take_and_lend();
            return !place.is_null();
        }
        self.alloc_from_rows(out)
    }

    /// [`CpuCache::alloc_slow`], out of the slots of the CPU's node.
    pub(super) fn alloc_from_rows(&self, out: &mut [*mut u8]) -> bool {
        let _errno = os::errno::Preserved::new();
        let (mut got, mut cpu) = (0, None);
        while got < out.len() {
            let rest = &mut out[got..];
            let node = self.this_node();
            let n = match self.served_by(node) {
                Server::Slabs => self.slabs.take(node, rest, rest.len()),
                Server::Sequences(access) => {
                    cpu = Some(access.cpu());
                    self.refill(&access, rest)
                }
                Server::Lock(access) => {
                    cpu = Some(access.cpu());
                    self.refill(&access, rest)
                }
            };
            invariant!(n <= rest.len(), "no more objects are served than were asked for", n);
            if n == 0 {
                // SAFETY: these were just taken from this cache.
                unsafe { self.free_slow(&out[..got]) };
                out[..got].fill(core::ptr::null_mut());
                self.count(cpu, SlowCall::Alloc);
                return false;
            }
            got += n;
        }
        self.count(cpu, SlowCall::Alloc);
        true
    }

    /// Frees all of `objects`. The caller has tried the fast path. Never fails. May make system
    /// calls and sleep, as [`CpuCache::alloc_slow`] may.
    ///
    /// # Safety
    /// `objects` must be objects of this cache that are not used any more.
    #[cold]
    #[inline(never)]
    pub unsafe fn free_slow(&self, objects: &[*mut u8]) {
        let _errno = os::errno::Preserved::new();
        let (mut rest, mut cpu) = (objects, None);
        while !rest.is_empty() {
            let (node, most) = self.slabs.home_of_first(rest);
            let part = &rest[..most];
            // SAFETY: the caller's promise, for each part.
            let n = unsafe {
                match self.served_by(node) {
                    // Keeps the slabs that become empty: their bitmaps still show a second free.
                    Server::Slabs if self.is_bypassed() => {
                        self.slabs.free_and_keep(part);
                        most
                    }
                    Server::Slabs => {
                        self.slabs.free(part);
                        most
                    }
                    Server::Sequences(access) => {
                        cpu = Some(access.cpu());
                        self.free_some(&access, part)
                    }
                    Server::Lock(access) => {
                        cpu = Some(access.cpu());
                        self.free_some(&access, part)
                    }
                }
            };
            invariant!(n > 0, "each step takes an object back");
            invariant!(n <= most, "no step takes back more than it was given", n);
            rest = &rest[n..];
        }
        self.count(cpu, SlowCall::Free);
    }

    /// What serves a call for objects of `node`.
    pub(super) fn served_by(&self, node: usize) -> Server<'_> {
        if !self.has_sheaves() {
            return Server::Slabs;
        }
        let row = self.row(node);
        // One row has all objects, wherever their memory is: each CPU uses the barn of its group.
        let node = if self.nodes > 1 { Some(node) } else { None };
        let server = match mode() {
            // SAFETY: the row is this cache's, for every possible CPU, and the mode is rseq.
            Mode::Rseq => unsafe { Sequences::new(row, node) }.map_or(Server::Slabs, Server::Sequences),
            Mode::Locked => Locked::new(row, node).map_or(Server::Slabs, Server::Lock),
        };
        match &server {
            Server::Slabs => {}
            Server::Sequences(access) => self.used.add_cpu(access.cpu()),
            Server::Lock(access) => self.used.add_cpu(access.cpu()),
        }
        server
    }

    /// Takes a sheaf out of the slot and leaves the dummy there. Returns the dummy if the slot's
    /// lock stays taken, or if the thread has left the slot's CPU. Waits for the end of a fork in
    /// progress.
    pub(super) fn take_out(&self, access: &impl Access, which: Which) -> *mut Sheaf {
        loop {
            // SAFETY: the dummy may go into any slot.
            match unsafe { exchange(access, which, dummy_of(access.cpu().number())) } {
                // A corrupted sheaf is lost, with its objects.
                Exchanged::Old(old) if is_dummy(old) || sheaf::is_sheaf(old) => return old,
                Exchanged::Old(_) => return dummy(),
                Exchanged::GateClosed => super::fork::wait_for_fork(),
                Exchanged::Taken => return dummy(),
            }
        }
    }

    /// Makes `sheaf` this CPU's main sheaf. The old main sheaf becomes the spare, and the old spare
    /// goes to the barn.
    pub(super) fn install(&self, access: &impl Access, sheaf: *mut Sheaf, home: Home) {
        let mut in_flight = sheaf;
        for which in [Which::Main, Which::Spare] {
            // SAFETY: the thread owns the sheaf, which is of this cache.
            match unsafe { exchange(access, which, in_flight) } {
                Exchanged::Old(old) if is_dummy(old) => return self.settle(access),
                Exchanged::Old(old) => in_flight = old,
                Exchanged::GateClosed | Exchanged::Taken => break,
            }
        }
        self.put_in_barn(in_flight, home);
        self.settle(access);
    }

    /// Moves objects of the main sheaf to `sheaf`, which the thread owns and will install, until
    /// both hold equally many or `sheaf` has room for just one more. `sheaf` must have room. The
    /// main sheaf becomes the spare.
    fn level(&self, access: &impl Access, sheaf: &mut Owned, home: Home) {
        let main = self.take_out(access, Which::Main);
        if is_dummy(main) {
            return;
        }
        let mut main = Owned(main);
        // Leave room for the object that the caller frees.
        let (count, room) = (sheaf.count(), sheaf.capacity() - sheaf.count() - 1);
        let moved = (main.count().saturating_sub(count) / 2).min(room);
        let moved = main.pop_into(&mut sheaf.places()[count..count + moved]);
        sheaf.set_count(count + moved);
        // SAFETY: the thread owns the sheaf, of this cache.
        match unsafe { exchange(access, Which::Spare, main.0) } {
            Exchanged::Old(old) if is_dummy(old) => {}
            Exchanged::Old(old) => self.put_in_barn(old, home),
            Exchanged::GateClosed | Exchanged::Taken => self.put_in_barn(main.0, home),
        }
    }

    /// Puts a sheaf that the thread owns into the barn. If the barn has no room, or the sheaf is
    /// not of the present size, or may hold objects of several nodes, or calls bypass sheaves,
    /// flushes and frees it.
    pub(super) fn put_in_barn(&self, sheaf: *mut Sheaf, home: Home) {
        let mut owned = Owned(sheaf);
        let right_size = owned.capacity() == self.capacity() && !self.is_bypassed();
        let is_in_barn = if owned.count() == 0 {
            right_size && self.barn(home.group).put_empty(sheaf)
        } else {
            let n = owned.count();
            let left = right_size && self.may_share(home) && self.put_full(sheaf, home);
            if left {
                self.count_barn_objects(home, n);
                self.count_home(home, n, 1);
            }
            left
        };
        if !is_in_barn {
            self.count_home(home, owned.count(), 0);
            self.flush_and_free(&mut owned, Keep::Target);
        }
    }

    /// Flushes a sheaf's objects to the slabs and frees the sheaf.
    pub(super) fn flush_and_free(&self, sheaf: &mut Owned, keep: Keep) {
        if sheaf.count() > 0 {
            probe::flush(|| (self.slabs.name(), [sheaf.count()]));
            // SAFETY: objects in a sheaf of this cache are free objects of it.
            unsafe {
                match keep {
                    Keep::Target => self.slabs.free(sheaf.objects()),
                    Keep::Pages => self.slabs.free_and_keep(sheaf.objects()),
                }
            }
            sheaf.set_count(0);
            self.tally().flushes.fetch_add(1, Relaxed);
        }
        invariant!(sheaf.count() == 0, "a sheaf is freed empty", sheaf.0);
        // SAFETY: empty, owned, and not the dummy, which no thread ever owns.
        unsafe { sheaf::free(sheaf.0) };
    }

    /// Bytes of objects that a sheaf of the present size holds.
    pub(super) fn sheaf_bytes(&self) -> usize {
        self.capacity() * self.slabs.geometry().object_bytes
    }

    /// Returns a sheaf of the present size: `have` (null for none) if it has that size, otherwise a
    /// new, empty one. Returns null if there is no memory, or if the cache should have no sheaf.
    pub(super) fn fitting(&self, have: *mut Sheaf, node: usize) -> *mut Sheaf {
        if !have.is_null() {
            let mut owned = Owned(have);
            if owned.capacity() == self.capacity() {
                return have;
            }
            self.flush_and_free(&mut owned, Keep::Target);
        }
        let fresh = self.adapt.size().map_or(core::ptr::null_mut(), |size| sheaf::alloc(size, node));
        ownership::claim(fresh);
        fresh
    }

    /// Returns `sheaf` or, if the present size is larger, a new sheaf of that size with its
    /// objects. If there is no memory for a new one, returns `sheaf`.
    pub(super) fn resized(&self, mut sheaf: Owned, node: usize) -> Owned {
        let Some(size) = self.adapt.size().filter(|size| size.capacity() > sheaf.capacity()) else {
            return sheaf;
        };
        let larger = sheaf::alloc(size, node);
        if larger.is_null() {
            return sheaf;
        }
        ownership::claim(larger);
        let mut larger = Owned(larger);
        larger.push_from(sheaf.objects());
        // SAFETY: owned, and the new sheaf has its objects now.
        unsafe { sheaf::free(sheaf.0) };
        larger
    }

    /// Returns a sheaf with room in place of `spare`, which is full or the dummy: an empty sheaf of
    /// the barn, or `spare` itself after it flushed objects to make `wanted` room, or some of it.
    /// Returns null if the barn has no empty sheaf.
    fn with_room(&self, access: &impl Access, spare: *mut Sheaf, wanted: usize, home: Home) -> *mut Sheaf {
        if is_dummy(spare) {
            self.note_miss(access, Miss::Overflow, false);
            return self.barn(home.group).take_empty();
        }
        let mut full = Owned(spare);
        let n = full.count();
        invariant!(n > 0, "a spare without room has objects", spare);
        let exchanged = match self.may_share(home) {
            true => self.exchange_full(spare, home),
            false => None,
        };
        self.note_miss(access, Miss::Overflow, exchanged.is_some());
        if let Some(empty) = exchanged {
            self.count_barn_objects(home, n);
            self.count_home(home, n, 1);
            return empty;
        }
        self.flush_newest(&mut full, PIECE.max(wanted));
        self.count_home(home, n - full.count(), 0);
        spare
    }

    /// Flushes up to `most` objects of a sheaf, those that were put last.
    pub(super) fn flush_newest(&self, sheaf: &mut Owned, most: usize) {
        let rest = sheaf.count().saturating_sub(most);
        // SAFETY: objects in a sheaf of this cache are free objects of it. The new count leaves out
        // exactly those that were flushed.
        let left = unsafe { self.slabs.free_last(&sheaf.objects()[rest..]) };
        probe::flush(|| (self.slabs.name(), [sheaf.count() - rest - left]));
        sheaf.set_count(rest + left);
        self.tally().flushes.fetch_add(1, Relaxed);
    }

    /// Frees at least one of `objects`; returns how many. Leaves this CPU with a main sheaf that
    /// has room, where it can.
    ///
    /// # Safety
    /// As [`CpuCache::free_slow`].
    pub(super) unsafe fn free_some(&self, access: &impl Access, objects: &[*mut u8]) -> usize {
        // SAFETY: the caller's promise.
        let (put, twice) = unsafe { access.push_bulk(objects) };
        if twice {
            report_misuse(Misuse::DoubleFree, objects[put], self.slabs.name());
            return put + 1;
        }
        if put > 0 {
            return put;
        }
        if self.slabs.geometry().is_run() {
            // SAFETY: the caller's promise.
            return unsafe { self.put_runs(access, objects) };
        }
        let home = home_of(access);
        if self.is_saturated(access, home)
            && let Some(put) = self.flush_main(access, objects, home)
        {
            return put;
        }
        let spare = self.take_out(access, Which::Spare);
        let has_room = !is_dummy(spare) && Owned(spare).count() < Owned(spare).capacity();
        let mut target = if has_room {
            // A call that frees many objects fills the sheaf anyway.
            let is_uneven =
                adapt::note_spare_room(self, self.slabs.tally_of(access.cpu())) && objects.len() == 1;
            let mut spare = self.resized(Owned(spare), home.node);
            if is_uneven {
                self.level(access, &mut spare, home);
            }
            spare
        } else {
            let roomy = self.with_room(access, spare, objects.len(), home);
            let sheaf = self.fitting(roomy, home.node);
            if sheaf.is_null() {
                // SAFETY: the caller's promise.
                unsafe { self.slabs.free(objects) };
                return objects.len();
            }
            Owned(sheaf)
        };
        invariant!(target.count() < target.capacity(), "a flush fills a sheaf with room", target.0);
        if !self.slabs.may_have(target.objects()) {
            self.flush_and_free(&mut target, Keep::Target);
            // SAFETY: the caller's promise.
            unsafe { self.slabs.free(objects) };
            return objects.len();
        }
        let put = target.push_from(objects);
        self.install(access, target.0, home);
        put
    }

    pub(super) fn note_miss(&self, access: &impl Access, miss: Miss, barn: bool) {
        let last_miss = &access.slot().last_miss;
        let streak = Streak(last_miss.load(Relaxed));
        last_miss.store(streak.with(miss).0, Relaxed);
        adapt::note_miss(self, self.slabs.tally_of(access.cpu()), streak, miss, barn);
    }
}

/// The structure that serves a slow call.
pub(super) enum Server<'a> {
    Slabs,
    Sequences(Sequences<'a>),
    Lock(Locked<'a>),
}
