//! The slabs of one cache: how it takes objects, frees them, and makes and releases slabs.

use super::geometry::Geometry;
use super::lists::{End, List, Lists, list_for};
use super::misuse::{Misuse, classify, report_misuse};
use super::node::{Guarded, Node, NodeMemory};
use super::one::Slab;
use super::words;
use crate::counters::{self, layout::Record};
use crate::os::invariant::invariant;
use crate::pages::{self, PageIndex, Temperature};
use crate::rseq::Owner;
use crate::sync::{CachePadded, prefetch_for_write};
use core::sync::atomic::{
    AtomicI64, AtomicU32, AtomicUsize,
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
}

/// Bytes of empty slabs beyond which [`Lists::note_grow`] does not raise a node's target.
/// [`Slabs::free_and_keep`] may raise the target further.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// Upper bound on the slabs that a call visits to move more objects than its caller needs now. Each
/// visit may cost one or two cache misses while the caller waits.
pub const VISITS: usize = 32;

/// A cache with a shared record publishes its count of free objects when the count has changed by
/// more than this part of a slab's objects: a quarter.
const SHARED_DRIFT_PART: usize = 4;

/// Distance, in objects, at which a free of many objects prefetches the slab of a later one.
const AHEAD: usize = 8;

/// The slabs of one cache.
pub struct Slabs {
    pub(super) geometry: Geometry,
    id: u16,
    owner: Owner,
    pub(super) temperature: Temperature,
    pub(super) constructor: Option<Constructor>,
    nodes: *const Node,
    node_count: usize,
    /// Several caches have the same lock and the same record: see [`NodeMemory::shared`].
    is_shared: bool,
    name: &'static str,
    /// Empty slabs, not counting the last of each node. It changes seldom, so a reader seldom takes
    /// its cache line away from the threads that use the cache.
    pub(super) spare: AtomicUsize,
    /// Charged pages of slabs with a resident word; see `resident`.
    pub(super) charged: AtomicUsize,
    /// Slabs that [`Slabs::purge_rested`] found unchanged in a row.
    pub(super) steady_looks: AtomicU32,
    /// Objects outside the slabs: in use, or in a sheaf.
    taken: CachePadded<AtomicI64>,
}

// SAFETY: the nodes live as long as the slabs and are locks. `spare` and `taken` are atomics. The
// rest never changes.
unsafe impl Sync for Slabs {}
// SAFETY: as above.
unsafe impl Send for Slabs {}

impl Slabs {
    /// Bytes that [`NodeMemory::start`] must point to, for a machine of `count` nodes. That memory
    /// must be aligned to 64.
    pub const fn node_bytes(count: usize) -> usize {
        count * size_of::<Node>()
    }

    /// The slabs of a cache, none yet. `owner` names the cache in the page map.
    ///
    /// # Safety
    /// `memory.start` must point to [`Slabs::node_bytes`] bytes that belong to these slabs alone.
    /// That memory and `name` must live as long as the slabs are used. The owner's id must name the
    /// cache's own record of counters, or the record that it shares.
    pub unsafe fn new(
        owner: Owner,
        name: &'static str,
        geometry: Geometry,
        temperature: Temperature,
        constructor: Option<Constructor>,
        memory: NodeMemory,
    ) -> Slabs {
        let NodeMemory { start, nodes: node_count, shared } = memory;
        let nodes = start.cast::<Node>();
        for i in 0..node_count {
            // One empty slab stays: a single object that comes and goes makes no slab each time.
            let lists = Lists::new(if shared.is_some() { 0 } else { 1 });
            // SAFETY: the caller's memory has room for `node_count` nodes.
            unsafe { nodes.add(i).write(Node::new(lists, shared)) };
        }
        Slabs {
            geometry,
            id: owner.id(),
            owner,
            temperature,
            constructor,
            nodes,
            node_count,
            is_shared: shared.is_some(),
            name,
            spare: AtomicUsize::new(0),
            charged: AtomicUsize::new(0),
            steady_looks: AtomicU32::new(0),
            taken: CachePadded(AtomicI64::new(0)),
        }
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

    /// The owner that the page map has for the pages of these slabs.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Objects in use or in sheaves: exact while no thread takes or gives.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed).max(0) as usize
    }

    /// Sets the count of taken objects, for a test that breaks it.
    #[cfg(test)]
    pub(super) fn set_taken(&self, taken: i64) {
        self.taken.store(taken, Relaxed);
    }

    fn record(&self) -> &'static Record {
        counters::record(self.id)
    }

    pub(super) fn nodes(&self) -> &[Node] {
        // SAFETY: `new` wrote `node_count` nodes that live as long as the slabs.
        unsafe { core::slice::from_raw_parts(self.nodes, self.node_count) }
    }

    /// Takes free objects into the start of `out`; returns how many. It returns fewer than `least`
    /// only if memory is used up.
    ///
    /// It takes from partial slabs, then from sparse ones, then from empty ones. Once it has `least`
    /// objects it stops after `VISITS` slabs in all. As long as it has fewer, it makes new slabs.
    /// A caller that hands out the last object of `out` first hands them out in ascending order
    /// within a slab, and slab by slab.
    ///
    /// May make system calls and run the constructor; holds no lock meanwhile.
    pub fn take(&self, node: usize, out: &mut [*mut u8], least: usize) -> usize {
        let node = if node < self.node_count { node } else { 0 };
        let mut got = 0;
        {
            let mut lists = self.nodes()[node].lock();
            for visits in 0.. {
                if got == out.len() || (got >= least && visits >= VISITS) {
                    break;
                }
                let Some(slab) = lists.serving() else { break };
                let end = out.len() - got;
                let (taken, left) = slab.take(&self.geometry, &mut out[..end]);
                invariant!(taken > 0, "a slab that serves has a free object", slab.address());
                if !self.bring_in(slab, &out[end - taken..end]) {
                    slab.put_back(&self.geometry, &out[end - taken..end]);
                    break;
                }
                got += taken;
                let list = list_for(left, self.geometry.objects);
                lists.place(slab, list, End::First);
                self.assert_placed(slab, node, list);
            }
            self.taken.fetch_add(got as i64, Relaxed);
            self.publish(&mut lists, node);
        }
        while got < least {
            let end = out.len() - got;
            let taken = self.grow(node, &mut out[..end]);
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
        self.count_free(-(got as i64));
        got
    }

    /// Makes a slab and takes its first objects into the end of `out`.
    fn grow(&self, node: usize, out: &mut [*mut u8]) -> usize {
        let Geometry { object_bytes, objects, order, .. } = self.geometry;
        let taken = objects.min(out.len());
        let Some((first, resident)) = self.alloc_pages(taken) else { return 0 };
        invariant!(first.0 % (1 << order) == 0, "a slab lies on a multiple of its size", first.0);
        let start = pages::address_of(first);
        if let Some(construct) = self.constructor {
            for index in 0..objects {
                // SAFETY: the object lies in the slab's fresh pages, which no other code knows. The
                // user promised that the constructor accepts such memory.
                unsafe { (construct.call)(start.add(index * object_bytes), construct.data) };
            }
        }
        let end = out.len();
        for (i, place) in out[end - taken..].iter_mut().enumerate() {
            *place = start.wrapping_add((taken - 1 - i) * object_bytes);
        }
        let slab = Slab(first);
        slab.init(&self.geometry, node, taken, resident);
        pages::set_owner(first, 1 << order, self.owner);

        self.taken.fetch_add(taken as i64, Relaxed);
        self.count_slab(1);
        counters::peak::note_system();
        let mut lists = self.nodes()[node].lock();
        let most = if self.is_shared { 0 } else { MAX_KEPT_BYTES / self.slab_bytes() };
        lists.note_grow(most as u32);
        // Another thread may have freed an object of this slab already: read the count again.
        let list = list_for(slab.count().load(Acquire), objects);
        lists.place(slab, list, End::First);
        self.assert_placed(slab, node, list);
        self.publish(&mut lists, node);
        taken
    }

    /// Frees objects into their slabs. It reports each pointer that is no object of this cache, and
    /// leaves it alone.
    ///
    /// Takes the lists' lock only if a slab changes lists. May release pages to the system. Never
    /// fails.
    ///
    /// # Safety
    /// Each object must have been taken from these slabs, and must not be used any more. The free
    /// reports violations that the page map or the bitmap shows.
    pub unsafe fn free(&self, objects: &[*mut u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.flush_to_slabs(objects, usize::MAX, Self::relist) };
    }

    /// As [`Slabs::free`], but starts at the end of `objects` and stops after `VISITS` slabs.
    /// Returns how many objects are left at the start of `objects`.
    ///
    /// # Safety
    /// As [`Slabs::free`], for the objects that it frees.
    pub unsafe fn free_last(&self, objects: &[*mut u8]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.flush_to_slabs(objects, VISITS, Self::relist) }
    }

    /// As [`Slabs::free`], but keeps slabs that become empty: the target rises to their number. The
    /// target halves each second, and [`Slabs::shrink_to_target`] releases slabs beyond it.
    ///
    /// # Safety
    /// As [`Slabs::free`].
    pub unsafe fn free_and_keep(&self, objects: &[*mut u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.flush_to_slabs(objects, usize::MAX, Self::relist_and_keep) };
    }

    /// # Safety
    /// As [`Slabs::free`].
    #[inline]
    unsafe fn flush_to_slabs(
        &self,
        objects: &[*mut u8],
        most_slabs: usize,
        relist: impl Fn(&Self, Slab),
    ) -> usize {
        let bytes = self.slab_bytes();
        let (mut given, mut visits) = (0, 0);
        let mut rest = objects;
        while let Some(&first) = rest.last()
            && visits < most_slabs
        {
            visits += 1;
            if let Some(later) = rest.len().checked_sub(AHEAD) {
                self.prefetch_slab_of(rest[later]);
            }
            let Some(slab) = self.slab_of(first) else {
                report_misuse(classify(first, self.owner), first, self.name);
                rest = &rest[..rest.len() - 1];
                continue;
            };
            let start = slab.address() as usize;
            let words = slab.words(&self.geometry);
            let mut run = 0;
            // Adjacent entries of `objects` whose bits share a word are set in one step.
            let (mut word, mut mask) = (usize::MAX, 0u64);
            while let Some((&object, others)) = rest.split_last() {
                let offset = (object as usize).wrapping_sub(start);
                if offset >= bytes {
                    break;
                }
                rest = others;
                let Some(index) = self.geometry.index_of(offset) else {
                    report_misuse(self.misuse_at(start, offset), object, self.name);
                    continue;
                };
                if index / 64 != word {
                    run += self.free_word(words, word, mask, start);
                    (word, mask) = (index / 64, 0);
                }
                let bit = 1u64 << (index % 64);
                if mask & bit != 0 {
                    report_misuse(Misuse::DoubleFree, object, self.name);
                    continue;
                }
                mask |= bit;
            }
            run += self.free_word(words, word, mask, start);
            if run > 0 {
                let before = words::add(slab.count(), run);
                let objects = self.geometry.objects;
                invariant!(
                    before + run as i32 <= objects as i32,
                    "a slab counts no more free objects than it has",
                    slab.address()
                );
                if list_for(before, objects) != list_for(before + run as i32, objects) {
                    relist(self, slab);
                }
            }
            given += run;
        }
        let taken = self.taken.fetch_sub(given as i64, Relaxed);
        invariant!(taken >= given as i64, "no more objects come back than were taken", taken);
        self.count_free(given as i64);
        rest.len()
    }

    /// Prefetches the cache line that a free of `object` will write: its slab's descriptor.
    #[inline]
    fn prefetch_slab_of(&self, object: *const u8) {
        if let Some(page) = pages::page_of(object) {
            let first = PageIndex(page.0 & !((1 << self.geometry.order) - 1));
            prefetch_for_write(pages::descriptor(first));
        }
    }

    /// Sets the bits of one word, and reports a bit that was set already as a double free. Returns
    /// how many objects became free.
    fn free_word(
        &self,
        words: &[crate::sync::atomic::AtomicU64],
        word: usize,
        mask: u64,
        start: usize,
    ) -> usize {
        if mask == 0 {
            return 0;
        }
        let twice = words::free(&words[word], mask);
        if twice != 0 {
            let index = word * 64 + twice.trailing_zeros() as usize;
            report_misuse(
                Misuse::DoubleFree,
                (start + index * self.geometry.object_bytes) as *const u8,
                self.name,
            );
        }
        (mask & !twice).count_ones() as usize
    }

    /// Returns what is wrong with a free of `object` into these slabs; `None` if it is an object of
    /// theirs that is in use or in a sheaf.
    pub fn misuse_of(&self, object: *const u8) -> Option<Misuse> {
        let Some(slab) = self.slab_of(object) else { return Some(classify(object, self.owner)) };
        let start = slab.address() as usize;
        let offset = object as usize - start;
        let Some(index) = self.geometry.index_of(offset) else { return Some(self.misuse_at(start, offset)) };
        // No other thread can set the bit of an object that the caller owns.
        let word = slab.words(&self.geometry)[index / 64].load(Relaxed);
        (word >> (index % 64) & 1 != 0).then_some(Misuse::DoubleFree)
    }

    /// Classifies a pointer to the byte at `offset` of the slab at `start`, where no object starts.
    #[cold]
    fn misuse_at(&self, start: usize, offset: usize) -> Misuse {
        self.geometry
            .index_around(offset)
            .map_or(Misuse::NotAnObject, |index| Misuse::Inside(start + index * self.geometry.object_bytes))
    }

    /// The slab that `object` lies in, if it is one of these slabs.
    #[inline]
    fn slab_of(&self, object: *const u8) -> Option<Slab> {
        let page = pages::page_of(object)?;
        let first = PageIndex(page.0 & !((1 << self.geometry.order) - 1));
        (pages::owner(page) == self.owner).then_some(Slab(first))
    }

    /// Moves a slab to the list that its count calls for; releases empty slabs beyond the target.
    #[cold]
    fn relist(&self, slab: Slab) {
        let released = {
            let Some((node, mut lists)) = self.place(slab) else { return };
            // Up to two: a single one would never catch up with a target that fell.
            let released = [(); 2].map(|()| {
                if lists.empty() <= lists.target {
                    return None;
                }
                lists.note_shrink();
                self.take_empty_slab(&mut lists)
            });
            self.publish(&mut lists, node);
            released
        };
        for slab in released.into_iter().flatten() {
            self.free_slab(slab, self.temperature);
        }
    }

    /// As [`Slabs::relist`], but raises the target instead of releasing a slab.
    #[cold]
    fn relist_and_keep(&self, slab: Slab) {
        if let Some((node, mut lists)) = self.place(slab) {
            lists.target = lists.target.max(lists.empty());
            self.publish(&mut lists, node);
        }
    }

    /// Moves a slab to the list that its count calls for. Returns its node and the locked lists;
    /// `None` if the slab was released meanwhile.
    fn place(&self, slab: Slab) -> Option<(usize, Guarded<'_>)> {
        // The node is fixed while the slab lives; the checks below recognise a released slab.
        let node = slab.node();
        if node >= self.node_count {
            return None;
        }
        let mut lists = self.nodes()[node].lock();
        // Since the caller's last step on the slab, another thread may have released it, and its
        // pages may belong to another cache now. No thread releases it while this one holds the
        // lock, so this check is final.
        if pages::owner(slab.0) != self.owner {
            return None;
        }
        // Pairs with the release in `set_owner`: this thread sees what `Slab::init` wrote, the node
        // above all. The slab may have been released and made again on another node. Then the lists
        // locked here are not its own.
        fence(Acquire);
        if slab.node() != node {
            return None;
        }
        let list = list_for(slab.count().load(Acquire), self.geometry.objects);
        // An empty slab is warm: it serves before those that have been empty for longer.
        lists.place(slab, list, if list == List::Empty { End::First } else { End::Last });
        self.assert_placed(slab, node, list);
        if list == List::Empty {
            lists.decay();
        }
        Some((node, lists))
    }

    /// Takes an empty slab out of the lists and the page map.
    pub(super) fn take_empty_slab(&self, lists: &mut Lists) -> Option<Slab> {
        let slab = lists.oldest_empty()?;
        lists.place(slab, List::None, End::First);
        pages::set_owner(slab.0, self.geometry.pages(), Owner::NONE);
        self.assert_released(slab);
        Some(slab)
    }

    pub(super) fn free_slab(&self, slab: Slab, temperature: Temperature) {
        self.count_slab(-1);
        self.free_pages(slab, temperature);
    }

    /// Bytes of a slab.
    pub(super) fn slab_bytes(&self) -> usize {
        self.geometry.pages() * pages::PAGE_BYTES
    }

    /// Calls `visit` for each object that is not free in its slab, until `visit` returns false.
    /// Exact only while no other thread uses the cache. `visit` runs under the lists' lock: it must
    /// neither allocate from this library nor free to it.
    pub fn for_each_taken(&self, mut visit: impl FnMut(*mut u8) -> bool) {
        let objects = 0..self.geometry.objects;
        for node in self.nodes() {
            let lists = node.lock();
            for slab in lists.all() {
                let words = slab.words(&self.geometry);
                for index in objects.clone().filter(|i| words[i / 64].load(Acquire) >> (i % 64) & 1 == 0) {
                    let object = slab.address().wrapping_add(index * self.geometry.object_bytes);
                    if !visit(object) {
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
        for node in self.nodes() {
            let lists = node.lock().take();
            for slab in lists.all() {
                pages::set_owner(slab.0, self.geometry.pages(), Owner::NONE);
                self.free_slab(slab, self.temperature);
            }
            if self.is_shared {
                self.publish_share((0, 0), lists.published);
            }
        }
        self.taken.store(0, Relaxed);
        self.spare.store(0, Relaxed);
        self.charged.store(0, Relaxed);
        if !self.is_shared {
            let record = self.record();
            record.slab_free.store(0, Relaxed);
            record.partial_slabs.store(0, Relaxed);
            record.empty_slabs.store(0, Relaxed);
        }
    }

    /// Counts a slab that was made (`change` is 1) or released (-1).
    fn count_slab(&self, change: i64) {
        if !self.is_shared {
            let record = self.record();
            record.slabs.fetch_add(change, Relaxed);
            record.slab_free.fetch_add(change * self.geometry.objects as i64, Relaxed);
            if change > 0 { &record.grows } else { &record.shrinks }.fetch_add(1, Relaxed);
        }
    }

    /// Counts objects that became free in slabs (positive) or were taken from them (negative).
    fn count_free(&self, change: i64) {
        if !self.is_shared {
            self.record().slab_free.fetch_add(change, Relaxed);
        }
    }

    /// Publishes the lists' figures in the cache's record. Partial slabs, empty slabs and the
    /// target are those of node 0 alone. Slabs and free objects are sums over all nodes.
    pub(super) fn publish(&self, lists: &mut Lists, node: usize) {
        let spare = lists.empty().saturating_sub(1) as usize;
        if spare != lists.spare {
            self.spare.fetch_add(spare.wrapping_sub(lists.spare), Relaxed);
            lists.spare = spare;
        }
        self.assert_lists(lists, node);
        if self.is_shared {
            let slabs = lists.slabs();
            let all = (slabs as usize * self.geometry.objects) as i64;
            let now = (slabs, (all - self.taken.load(Relaxed)).max(0));
            let drift = now.1.abs_diff(lists.published.1) as usize;
            if slabs != lists.published.0 || drift > self.geometry.objects / SHARED_DRIFT_PART {
                self.publish_share(now, lists.published);
                lists.published = now;
            }
        } else if node == 0 || self.node_count == 1 {
            let record = self.record();
            record.partial_slabs.store(i64::from(lists.partial()), Relaxed);
            record.empty_slabs.store(i64::from(lists.empty()), Relaxed);
            record.empty_target.store(lists.target, Relaxed);
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

    /// Takes the locks of all nodes, for a fork.
    pub fn lock_for_fork(&self) {
        self.nodes().iter().for_each(Node::lock_for_fork);
    }

    /// Undoes [`Slabs::lock_for_fork`].
    pub fn unlock_after_fork(&self, child: bool) {
        self.nodes().iter().for_each(|node| node.unlock_after_fork(child));
    }
}
