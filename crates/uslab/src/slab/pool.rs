//! The slabs of one cache: how it makes, lists and releases them, and what it counts.

use super::claimed::Claimed;
use super::geometry::Geometry;
use super::group::{Group, GroupMemory};
use super::lists::{End, List, Lists, list_for};
use super::one::{NONE, Slab};
use crate::counters::{self, Tally, layout::Record};
use crate::os::corruption::verify;
use crate::os::facts::{Fact, facts};
use crate::os::{invariant::invariant, numa::NumaPolicy, probe, sharing, surplus::Surplus};
use crate::pages::{self, Temperature};
use crate::rseq::{Cpu, Owner};
use crate::sync::{Marks, prefetch_for_write};
use core::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed},
    fence,
};

/// A constructor, which runs once for each object when its slab is made. It must not unwind, and
/// must not use the cache that it constructs for.
#[derive(Clone, Copy)]
pub struct Constructor {
    /// Called with the object and `data`.
    pub call: unsafe fn(object: *mut u8, data: usize),
    /// Passed to `call` unchanged; usually the address of the user's function.
    pub data: usize,
    /// Called with each object, all of them free, `data` and the cache's name, when the slab goes
    /// back to the page layer.
    pub release: Option<unsafe fn(object: *mut u8, data: usize, name: &str)>,
}

/// A cache with a shared record publishes its count of free objects when the count has changed by
/// more than this part of a slab's objects: a quarter.
const SHARED_DRIFT_PART: usize = 4;

/// Distance at which the release of a slab prefetches its objects, which have rested for long.
const AHEAD_BYTES: usize = 512;

/// The slabs of one cache.
pub struct Slabs {
    pub(super) geometry: Geometry,
    id: u16,
    pub(super) owner: Owner,
    /// Bytes from the owner of one node's slabs to that of the next node's; 0 if all nodes have the
    /// same owner. See `homes`.
    pub(super) owner_distance: usize,
    pub(super) temperature: Temperature,
    pub(super) constructor: Option<Constructor>,
    /// Where the pages come from. A policy other than local needs a machine of several nodes, and
    /// one group.
    pub(super) policy: NumaPolicy,
    groups: *const Group,
    group_count: usize,
    /// Homes of the objects, each with a row of slots of its own.
    pub(super) node_count: usize,
    /// Several caches have the same lock and the same record: see [`GroupMemory::shared`].
    pub(super) is_shared: bool,
    /// See `used`.
    pub(super) used_groups: Marks,
    /// See `kept`.
    pub(super) keeps_addresses: bool,
    pub(super) name: &'static str,
    /// Empty slabs, not counting the last of each group. It changes seldom, so a reader seldom
    /// takes its cache line away from the threads that use the cache.
    pub(super) spare: AtomicUsize,
    /// Charged pages of slabs with a resident word; see `resident`.
    pub(super) charged: AtomicUsize,
    /// Slabs that [`Slabs::purge_rested_part`] found unchanged in a row.
    pub(super) steady_visits: AtomicU32,
    /// The value of `frees` before the walks that found them so.
    pub(super) steady_frees: AtomicU32,
    /// The value of `frees` before the last walk that found no free page inside a slab.
    pub(super) barren: AtomicU32,
    /// Calls of [`Slabs::take_charged`], which move slabs within their lists.
    pub(super) turns: AtomicU32,
    /// The free objects that a purge has taken out of a slab in use.
    pub(super) claimed: Claimed,
    /// A line of counts for each CPU; none where [`Slabs::own`] counts.
    tallies: *const Tally,
    tally_count: usize,
    /// The lines that threads have used; all others are zero.
    used_tallies: Marks,
    /// The counts of a cache without lines of CPUs.
    own: Tally,
}

/// The slabs of a cache, for a debugger.
pub(super) const FACTS: &[Fact] = facts!(Slabs { geometry, groups, group_count, tallies, tally_count, own });

// SAFETY: the groups live as long as the slabs and are locks. `spare` and the other counts are
// atomics. The rest never changes.
unsafe impl Sync for Slabs {}
// SAFETY: as above.
unsafe impl Send for Slabs {}

impl Slabs {
    /// Bytes that [`GroupMemory::start`] must point to, for so many groups and nodes. That memory
    /// must be aligned to 64.
    pub const fn group_bytes(groups: usize, nodes: usize) -> usize {
        groups * size_of::<Group>() + Surplus::bytes(groups, nodes)
    }

    /// The slabs of a cache, none yet. `owner` names the cache in the page map.
    ///
    /// # Safety
    /// `memory.start` must point to [`Slabs::group_bytes`] bytes that belong to these slabs alone.
    /// That memory and `name` must live as long as the slabs are used. The owner's id must name the
    /// cache's own record of counters, or the record that it shares.
    pub unsafe fn new(
        owner: Owner,
        name: &'static str,
        geometry: Geometry,
        temperature: Temperature,
        constructor: Option<Constructor>,
        memory: GroupMemory,
    ) -> Slabs {
        let GroupMemory { start, groups: group_count, nodes: node_count, shared, tallies } = memory;
        let groups = start.cast::<Group>();
        for i in 0..group_count {
            // One empty slab stays: a single object that comes and goes makes no slab each time.
            // For runs the sheaves are that reserve.
            let lists = Lists::new(if shared.is_some() || geometry.is_run() { 0 } else { 1 });
            // SAFETY: the caller's memory has room for `group_count` groups.
            unsafe { groups.add(i).write(Group::new(lists, shared)) };
        }
        // SAFETY: the words' room lies behind the groups.
        unsafe { Surplus::init(groups.add(group_count).cast(), group_count, node_count) };
        Slabs {
            geometry,
            id: owner.id(),
            owner,
            owner_distance: 0,
            temperature,
            constructor,
            policy: NumaPolicy::Local,
            groups,
            group_count,
            node_count,
            is_shared: shared.is_some(),
            used_groups: if group_count == 1 { Marks::of_one() } else { Marks::none(group_count) },
            keeps_addresses: false,
            name,
            spare: AtomicUsize::new(0),
            charged: AtomicUsize::new(0),
            steady_visits: AtomicU32::new(0),
            steady_frees: AtomicU32::new(0),
            barren: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            claimed: Claimed::none(),
            tallies: tallies.as_ptr(),
            tally_count: tallies.len(),
            used_tallies: Marks::none(tallies.len()),
            own: Tally::new(geometry.object_bytes),
        }
    }

    /// These slabs, with pages of `policy`. One that is not local needs [`pages::make_policies`],
    /// and slabs of one group's lists. There must be no slab yet.
    pub fn with_policy(mut self, policy: NumaPolicy) -> Slabs {
        invariant!(policy == NumaPolicy::Local || self.group_count == 1, "a policy's slabs have one home");
        self.policy = policy;
        self
    }

    /// The layout of each slab.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The cache's name, for reports.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The owner's id, which also names the record of counters.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Objects in use or in sheaves: exact while no thread takes or gives.
    pub fn taken(&self) -> usize {
        self.tallies().map(|tally| tally.taken.load(Relaxed)).sum::<i64>().max(0) as usize
    }

    /// All lines of counts that are not zero, but for those that threads first use meanwhile.
    pub fn tallies(&self) -> impl Iterator<Item = &Tally> {
        self.used_tallies.of(self.cpu_tallies()).chain([&self.own])
    }

    /// CPUs on which threads have counted objects of these slabs.
    pub(super) fn used_cpu_count(&self) -> usize {
        self.used_tallies.of(self.cpu_tallies()).count()
    }

    fn cpu_tallies(&self) -> &[Tally] {
        // SAFETY: `new` got these lines, which live as long as the slabs.
        unsafe { core::slice::from_raw_parts(self.tallies, self.tally_count) }
    }

    /// The line of counts of `cpu`.
    #[inline]
    pub fn tally_of(&self, cpu: Cpu) -> &Tally {
        self.used_tallies.note(cpu.number());
        cpu.shared(self.cpu_tallies()).unwrap_or(&self.own)
    }

    /// The line of counts of the CPU that the thread runs on.
    fn tally(&self) -> &Tally {
        if self.tally_count == 0 { &self.own } else { self.tally_of(Cpu::current()) }
    }

    /// Counts objects that were taken (positive) or came back (negative).
    pub(super) fn count_taken(&self, change: i64) {
        let tally = self.tally();
        let before = tally.taken.fetch_add(change, Relaxed);
        let is_whole = self.tally_count == 0;
        invariant!(!is_whole || before + change >= 0, "no more objects come back than were taken", before);
        if self.is_shared {
            return;
        }
        if is_whole {
            tally.fold_taken(self.record());
        } else if tally.is_far_behind() {
            // The call may end on another CPU's line.
            tally.fold(self.record());
        }
    }

    /// Counts an event after which a slab may have free pages: a free, or a new slab with more
    /// memory than was asked for.
    pub(super) fn note_free(&self) {
        self.tally().frees.fetch_add(1, Relaxed);
    }

    /// The number of these events.
    pub(super) fn frees(&self) -> u32 {
        self.tallies().fold(0, |sum, tally| sum.wrapping_add(tally.frees.load(Relaxed)))
    }

    /// Brings the record up to date with all lines.
    pub fn fold(&self) {
        if !self.is_shared {
            self.tallies().for_each(|tally| tally.fold(self.record()));
        }
        for (index, group) in self.used_groups().filter(|(_, group)| group.is_behind()) {
            let mut lists = group.lock();
            group.set_behind(false);
            self.publish_all(&mut lists, index);
        }
    }

    /// Free objects in sheaves, when they were last counted. Takes no lock.
    pub fn sheaf_free(&self) -> i64 {
        let unfolded: i64 = self.tallies().map(|tally| tally.sheaf_free.load(Relaxed)).sum();
        self.record().sheaf_free.load(Relaxed) + unfolded
    }

    /// Sets the count of taken objects, for a test that breaks it.
    #[cfg(test)]
    pub(super) fn set_taken(&self, taken: i64) {
        self.tallies().for_each(|tally| tally.taken.store(0, Relaxed));
        self.own.taken.store(taken, Relaxed);
    }

    pub(super) fn record(&self) -> &'static Record {
        counters::record(self.id)
    }

    /// What lies behind the groups; see [`Slabs::group_bytes`].
    pub(super) fn behind_groups<T>(&self) -> *const T {
        self.groups.wrapping_add(self.group_count).cast()
    }

    pub(super) fn groups(&self) -> &[Group] {
        // SAFETY: `new` wrote `group_count` groups that live as long as the slabs.
        unsafe { core::slice::from_raw_parts(self.groups, self.group_count) }
    }

    /// Makes a slab and takes its first objects into the end of `out`.
    pub(super) fn grow(&self, group: usize, out: &mut [*mut u8]) -> usize {
        let Geometry { object_bytes, objects, order, .. } = self.geometry;
        let taken = objects.min(out.len());
        let Some((first, resident)) = self.alloc_pages(taken) else { return 0 };
        invariant!(first.0 % (1 << order) == 0, "a slab lies on a multiple of its size", first.0);
        let start = pages::address_of(first);
        if let Some(construct) = self.constructor {
            self.populate(start);
            for index in 0..objects {
                // SAFETY: the object lies in the slab's fresh pages, which no other code knows. The
                // user promised that the constructor accepts such memory.
                unsafe { (construct.call)(start.add(index * object_bytes), construct.data) };
            }
        }
        let end = out.len();
        let mut object = start as usize + taken * object_bytes;
        for place in &mut out[end - taken..] {
            object -= object_bytes;
            *place = object as *mut u8;
        }
        let slab = Slab(first);
        slab.init(&self.geometry, group, taken, resident);
        probe::slab_new(|| (self.name, [start as usize, self.slab_bytes()]));
        self.count_taken(taken as i64);
        self.count_slab(slab, 1);
        counters::peak::note_system();
        let most_empty = self.most_empty_slabs();
        let mut lists = self.use_group(group).lock();
        // Under the lock, which a fork takes: so in the child the slab has an owner only if a list
        // has it, and the end of a cache leaves no page with its owner.
        pages::set_owner(first, self.geometry.named_pages(), self.owner_on(self.node_of(group)));
        lists.note_grow(most_empty);
        // Another thread may have freed an object of this slab already: read the count again.
        let list = list_for(slab.count().load(Acquire), objects);
        let list = lists.place(slab, list, End::First);
        self.assert_placed(slab, group, list);
        self.publish(&mut lists, group);
        taken
    }

    /// Moves each of `slabs` to the list that its count calls for, unless it was released
    /// meanwhile. Calls `settle` once for each row of slabs of one group, with the locked lists and
    /// the number of slabs that were moved there.
    pub(super) fn place_all(&self, slabs: &[Slab], mut settle: impl FnMut(&mut Lists, usize)) {
        let mut rest = slabs;
        while let Some(first) = rest.first() {
            // The group is fixed while the slab lives. Another thread may have released this one
            // and made it again in another group, so the number is read once. `place` recognises
            // such a slab, and must find the others of the row in these lists.
            let group = first.group();
            let others = rest[1..].iter().take_while(|slab| slab.group() == group).count();
            let row;
            (row, rest) = rest.split_at(1 + others);
            let Some(used) = self.used_group(group) else { continue };
            let mut lists = used.lock();
            let (mut placed, mut has_empty) = (0, false);
            for list in row.iter().filter_map(|&slab| self.place(&mut lists, group, slab)) {
                placed += 1;
                has_empty |= list == List::Empty;
            }
            if has_empty {
                lists.halve_target();
            }
            settle(&mut lists, placed);
            self.publish(&mut lists, group);
        }
    }

    /// Moves a slab to the list that its count calls for; returns that list. `None` if the slab was
    /// released meanwhile. The caller holds the lock of `lists`, those of `group`.
    fn place(&self, lists: &mut Lists, group: usize, slab: Slab) -> Option<List> {
        // Since the caller's last step on the slab, another thread may have released it, and its
        // pages may belong to another cache now. No thread releases it while this one holds the
        // lock, so this check is final.
        if !self.owns(slab.0) {
            return None;
        }
        // Pairs with the release in `set_owner`: this thread sees what `Slab::init` wrote, the
        // group above all. The slab may have been released and made again in another group. Then
        // the lists locked here are not its own.
        fence(Acquire);
        if slab.group() != group {
            return None;
        }
        let list = list_for(slab.count().load(Acquire), self.geometry.objects);
        // An empty slab is warm: it serves before those that have been empty for longer.
        let list = lists.place(slab, list, if list == List::Empty { End::First } else { End::Last });
        self.assert_placed(slab, group, list);
        Some(list)
    }

    /// Takes an empty slab out of the lists and the page map.
    pub(super) fn take_empty_slab(&self, lists: &mut Lists) -> Option<Slab> {
        let slab = lists.oldest_empty()?;
        let is_own = self.is_sound(slab) && self.is_all_free(slab);
        if !verify(is_own, "slab", slab.address(), "all objects of a slab that is released are free") {
            return None;
        }
        if lists.place(slab, List::None, End::First) != List::None || slab.list() != List::None as u8 {
            return None;
        }
        if lists.served == slab.0.0 {
            // A new slab in its place is counted before it serves.
            lists.served = NONE;
        }
        pages::set_owner(slab.0, self.geometry.named_pages(), Owner::NONE);
        self.assert_released(slab);
        Some(slab)
    }

    /// Releases a slab that has left the lists. Returns how many of its pages had memory.
    pub(super) fn free_slab(&self, slab: Slab, temperature: Temperature) -> usize {
        probe::slab_free(|| (self.name, [slab.address() as usize, self.slab_bytes()]));
        if let Some(Constructor { data, release: Some(release), .. }) = self.constructor {
            for index in 0..self.geometry.objects {
                let object = slab.address().wrapping_add(index * self.geometry.object_bytes);
                prefetch_for_write(object.wrapping_add(AHEAD_BYTES));
                // SAFETY: the slab has left the lists and the page map, and all its objects are
                // free.
                unsafe { release(object, data, self.name) };
            }
        }
        self.count_slab(slab, -1);
        self.free_pages(slab, temperature)
    }

    /// Bytes of a slab.
    pub(super) fn slab_bytes(&self) -> usize {
        self.geometry.pages() * pages::PAGE_BYTES
    }

    /// Calls `visit` for each object that is not free in its slab, until `visit` returns false.
    /// Exact only while no other thread uses the cache. `visit` runs under the lists' lock: it must
    /// neither allocate from this library nor free to it.
    pub fn for_each_taken(&self, mut visit: impl FnMut(*mut u8) -> bool) {
        self.for_each_object(|object, is_free| is_free || visit(object));
    }

    /// Bytes of all slabs.
    pub fn all_bytes(&self) -> usize {
        self.used_groups().map(|(_, group)| group.lock().slabs() as usize).sum::<usize>() * self.slab_bytes()
    }

    /// Calls `visit` for each object, with whether it is free in its slab, until `visit` returns
    /// false. As [`Slabs::for_each_taken`].
    pub fn for_each_object(&self, mut visit: impl FnMut(*mut u8, bool) -> bool) {
        for (_, group) in self.used_groups() {
            let lists = group.lock();
            for slab in lists.all() {
                let words = slab.words(&self.geometry);
                let mut free = 0;
                for index in 0..self.geometry.objects {
                    if index % 64 == 0 {
                        let word = index / 64;
                        free = words[word].load(Acquire) | self.claimed.in_word(&self.geometry, slab, word);
                    }
                    let object = slab.address().wrapping_add(index * self.geometry.object_bytes);
                    if !visit(object, free >> (index % 64) & 1 != 0) {
                        return;
                    }
                }
            }
        }
    }

    /// Releases every slab to the page layer, with its objects in use too. The cost grows with the
    /// number of slabs.
    ///
    /// # Safety
    /// No other thread may use the cache, and no thread its objects any more.
    pub unsafe fn free_all(&self) {
        for (_, group) in self.used_groups() {
            let lists = group.lock().take();
            for slab in lists.all() {
                pages::set_owner(slab.0, self.geometry.named_pages(), Owner::NONE);
                self.free_slab(slab, self.temperature);
            }
            if self.is_shared {
                self.publish_share((0, 0), lists.published);
            }
        }
        self.tallies().for_each(Tally::reset_taken);
        self.spare.store(0, Relaxed);
        self.charged.store(0, Relaxed);
        if !self.is_shared {
            let record = self.record();
            record.slab_free.store(0, Relaxed);
            record.partial_slabs.store(0, Relaxed);
            record.empty_slabs.store(0, Relaxed);
            record.empty_target.store(0, Relaxed);
        }
    }

    /// Counts a slab that was made (`change` is 1) or released (-1).
    fn count_slab(&self, slab: Slab, change: i64) {
        self.count_on_node(slab, change as i32);
        if !self.is_shared {
            let record = self.record();
            record.slabs.fetch_add(change, Relaxed);
            record.slab_free.fetch_add(change * self.geometry.objects as i64, Relaxed);
            if change > 0 { &record.grows } else { &record.shrinks }.fetch_add(1, Relaxed);
        }
    }

    /// Counts a slab of one object that left with its object in use.
    pub(super) fn count_disowned(&self, slab: Slab) {
        self.count_taken(-1);
        self.count_slab(slab, -1);
    }

    /// Adds what changed under the lock to the figures of the cache, which are sums over its
    /// groups. Where there are several, most changes of the partial slabs wait for
    /// [`Slabs::fold`], because otherwise the CPUs of all groups would meet at the record.
    pub(super) fn publish(&self, lists: &mut Lists, group: usize) {
        self.note_surplus(lists, group);
        let (now, before) = (lists.figures(), lists.counted);
        if self.group_count > 1 && !lists.should_publish(now) {
            self.groups()[group].set_behind(now != before);
            return;
        }
        self.publish_all(lists, group);
    }

    /// [`Slabs::publish`], however little has changed.
    fn publish_all(&self, lists: &mut Lists, group: usize) {
        let (now, before) = (lists.figures(), lists.counted);
        if now.spare() != before.spare() {
            self.spare.fetch_add(now.spare().wrapping_sub(before.spare()), Relaxed);
        }
        lists.counted = now;
        self.assert_lists(lists, group);
        if self.is_shared {
            let slabs = lists.slabs();
            let all = (slabs as usize * self.geometry.objects) as i64;
            let now = (slabs, (all - self.own.taken.load(Relaxed)).max(0));
            let drift = now.1.abs_diff(lists.published.1) as usize;
            if slabs != lists.published.0 || drift > self.geometry.objects / SHARED_DRIFT_PART {
                self.publish_share(now, lists.published);
                lists.published = now;
            }
        } else if now != before {
            let record = self.record();
            if self.group_count == 1 && sharing::count() == 1 && counters::has_record(self.id) {
                // This thread holds the one lock under which these change: it may store.
                record.partial_slabs.store(i64::from(now.partial), Relaxed);
                record.empty_slabs.store(i64::from(now.empty), Relaxed);
                if now.target != before.target {
                    record.empty_target.store(now.target, Relaxed);
                }
                return;
            }
            record.partial_slabs.fetch_add(i64::from(now.partial) - i64::from(before.partial), Relaxed);
            record.empty_slabs.fetch_add(i64::from(now.empty) - i64::from(before.empty), Relaxed);
            record.empty_target.fetch_add(now.target.wrapping_sub(before.target), Relaxed);
        }
    }

    /// Adds the change since the last publication to a shared record. `now` and `before` are pairs
    /// of slabs and free objects.
    fn publish_share(&self, now: (u32, i64), before: (u32, i64)) {
        let record = self.record();
        let slabs = i64::from(now.0) - i64::from(before.0);
        record.slab_free.fetch_add(now.1 - before.1, Relaxed);
        record.slabs.fetch_add(slabs, Relaxed);
        if slabs != 0 {
            if slabs > 0 { &record.grows } else { &record.shrinks }.fetch_add(slabs.unsigned_abs(), Relaxed);
        }
    }

    /// Takes the locks of all groups that are used, for a fork, which has the lock of their marks.
    pub fn lock_for_fork(&self) {
        self.used_groups().for_each(|(_, group)| group.lock_for_fork());
    }

    /// Undoes [`Slabs::lock_for_fork`].
    pub fn unlock_after_fork(&self, child: bool) {
        for (index, group) in self.used_groups() {
            group.unlock_after_fork(child, |lists| self.end_lost_takes(lists, index));
        }
    }
}
