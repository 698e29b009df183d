//! The slabs of one cache: taking objects, giving them back, growing and shrinking.

use super::geometry::Geometry;
use super::lists::{List, Lists, list_for};
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
    AtomicI64, AtomicUsize,
    Ordering::{Acquire, Relaxed},
    fence,
};

/// Run once for each object when its slab is made. Must not unwind, and must not use the cache it
/// constructs for.
#[derive(Clone, Copy)]
pub struct Constructor {
    /// Called with the object and `data`.
    pub call: unsafe fn(object: *mut u8, data: usize),
    /// Whatever `call` wants; mostly a function of the user.
    pub data: usize,
}

/// Most bytes of empty slabs that [`Lists::note_grow`] raises a node's target to.
/// [`Slabs::free_and_keep`] may raise the target further.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// The same for slabs that are runs.
const MAX_KEPT_RUN_BYTES: usize = 8 << 20;

/// Slabs that one call visits for objects that need not be moved now: each may cost a miss or two,
/// and a caller waits for the one object that must.
pub const VISITS: usize = 32;

/// A cache that shares its record writes its count of free objects there when it changed by more
/// than a quarter of a slab.
const SHARED_DRIFT_PART: usize = 4;

/// How many objects ahead the slab is asked for.
const AHEAD: usize = 8;

/// The slabs of one cache.
pub struct Slabs {
    geometry: Geometry,
    id: u16,
    owner: Owner,
    temperature: Temperature,
    constructor: Option<Constructor>,
    nodes: *const Node,
    node_count: usize,
    /// Many others have the same lock and the same record: see [`NodeMemory::shared`].
    is_shared: bool,
    name: &'static str,
    /// Empty slabs beyond the last of each node. A look at it takes no line away from those
    /// who use the cache: it changes seldom.
    pub(super) spare: AtomicUsize,
    /// Objects that are neither free in a slab nor never made: in use, or in a sheaf.
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

    /// Slabs of the cache that the page map knows by `owner`, none yet.
    ///
    /// # Safety
    /// The memory must be as large as it says, belong to these slabs alone and live as long as they
    /// are used, as must `name`; the owner's id must name a record of theirs, or one that they
    /// share.
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
            // A cache whose last object comes and goes must not thrash: it keeps an empty slab.
            // For runs the sheaves are that reserve.
            let lists = Lists::new(if shared.is_some() || geometry.is_run() { 0 } else { 1 });
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
            taken: CachePadded(AtomicI64::new(0)),
        }
    }

    /// How the objects lie.
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

    /// How the page map names these slabs' pages.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Objects in use or in sheaves: exact while no thread takes or gives.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed).max(0) as usize
    }

    /// Says how many objects are taken, for a test that breaks the count.
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

    /// Takes free objects into `out`. Once it has `least` of them it visits no more than `VISITS`
    /// slabs in all. While it has fewer than `least` it makes new slabs. Returns how many; fewer
    /// than `least` only if memory is used up. They fill the start of `out`; of one slab's
    /// objects, later ones have lower addresses.
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
                let Some(slab) = lists.fullest() else { break };
                let (taken, left) = slab.take(&self.geometry, &mut out[got..]);
                // `Slab::take` fills from the end; close the gap that a smaller catch leaves.
                let end = out.len();
                out.copy_within(end - taken.., got);
                invariant!(taken > 0, "a slab that serves has a free object", slab.address());
                got += taken;
                let list = list_for(left, self.geometry.objects);
                lists.place(slab, list);
                self.assert_placed(slab, node, list);
            }
            self.taken.fetch_add(got as i64, Relaxed);
            self.publish(&mut lists, node);
        }
        while got < least {
            let taken = self.grow(node, &mut out[got..]);
            if taken == 0 {
                self.record().failures.fetch_add(1, Relaxed);
                break;
            }
            got += taken;
        }
        invariant!(got <= out.len(), "no more objects are taken than were asked for", got);
        self.count_free(-(got as i64));
        got
    }

    /// Makes a slab and takes its first objects into `out`.
    fn grow(&self, node: usize, out: &mut [*mut u8]) -> usize {
        let Geometry { object_bytes, objects, order, .. } = self.geometry;
        let Some(run) = pages::alloc(self.geometry.pages(), order, self.temperature) else { return 0 };
        invariant!(run.pages == self.geometry.pages(), "a slab has its pages", run.pages);
        invariant!(run.first.0 % (1 << order) == 0, "a slab lies on a multiple of its size", run.first.0);
        let start = pages::address_of(run.first);
        if let Some(construct) = self.constructor {
            for index in 0..objects {
                // SAFETY: the object lies in the slab's fresh pages, which no other code knows; the
                // constructor is the user's promise to accept such memory.
                unsafe { (construct.call)(start.add(index * object_bytes), construct.data) };
            }
        }
        let taken = objects.min(out.len());
        for (i, place) in out[..taken].iter_mut().enumerate() {
            *place = start.wrapping_add((taken - 1 - i) * object_bytes);
        }
        let slab = Slab(run.first);
        slab.init(&self.geometry, node, taken);
        pages::set_owner(run.first, self.geometry.named_pages(), self.owner);

        self.taken.fetch_add(taken as i64, Relaxed);
        self.count_slab(1);
        counters::peak::note_system();
        let mut lists = self.nodes()[node].lock();
        let most_bytes = if self.geometry.is_run() { MAX_KEPT_RUN_BYTES } else { MAX_KEPT_BYTES };
        let most = if self.is_shared { 0 } else { most_bytes / self.slab_bytes() };
        lists.note_grow(most as u32);
        // An object may have come back already, through another thread: look at the count as it is.
        let list = list_for(slab.count().load(Acquire), objects);
        lists.place(slab, list);
        self.assert_placed(slab, node, list);
        self.publish(&mut lists, node);
        taken
    }

    /// Gives objects back. Those that are none of this cache's are reported and left alone.
    ///
    /// Takes the lists' lock only where a slab changes lists, and may give pages back to the
    /// system. Never fails.
    ///
    /// # Safety
    /// Each object must have been taken from these slabs and not be used any more; what can be
    /// recognised otherwise is.
    pub unsafe fn free(&self, objects: &[*mut u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.flush_to_slabs(objects, usize::MAX, Self::relist) };
    }

    /// The same from the end of `objects` on, until `VISITS` slabs have been visited; says how many
    /// objects are left, at the start.
    ///
    /// # Safety
    /// As [`Slabs::free`], for those that are not left.
    pub unsafe fn free_last(&self, objects: &[*mut u8]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.flush_to_slabs(objects, VISITS, Self::relist) }
    }

    /// As [`Slabs::free`], but slabs that become empty stay: the target rises to their number. It
    /// halves each second, and [`Slabs::shrink_to_target`] releases what is beyond it.
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
            // The bits of one word are set together as long as neighbours follow each other.
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

    /// Asks for the cache lines that giving `object` back will need: its slab's descriptor.
    #[inline]
    fn prefetch_slab_of(&self, object: *const u8) {
        if let Some(page) = pages::page_of(object) {
            let first = PageIndex(page.0 & !((1 << self.geometry.order) - 1));
            prefetch_for_write(pages::descriptor(first));
        }
    }

    /// Sets the bits of one word; says how many objects became free.
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

    /// What is wrong with giving `object` back to these slabs; `None` where it is an object of
    /// theirs that is in use, or in a sheaf.
    pub fn misuse_of(&self, object: *const u8) -> Option<Misuse> {
        let Some(slab) = self.slab_of(object) else { return Some(classify(object, self.owner)) };
        let start = slab.address() as usize;
        let offset = object as usize - start;
        let Some(index) = self.geometry.index_of(offset) else { return Some(self.misuse_at(start, offset)) };
        // No other thread can set the bit of an object that the caller owns.
        let word = slab.words(&self.geometry)[index / 64].load(Relaxed);
        (word >> (index % 64) & 1 != 0).then_some(Misuse::DoubleFree)
    }

    /// What the byte at `offset` of the slab at `start` is, where no object starts.
    #[cold]
    fn misuse_at(&self, start: usize, offset: usize) -> Misuse {
        self.geometry
            .index_around(offset)
            .map_or(Misuse::NotAnObject, |index| Misuse::Inside(start + index * self.geometry.object_bytes))
    }

    /// The slab that `object` lies in, if it is one of these.
    #[inline]
    pub(super) fn slab_of(&self, object: *const u8) -> Option<Slab> {
        let page = pages::page_of(object)?;
        let first = PageIndex(page.0 & !((1 << self.geometry.order) - 1));
        (pages::owner(page) == self.owner).then_some(Slab(first))
    }

    /// Puts a slab into the list where its count belongs; releases empty slabs beyond the target.
    #[cold]
    fn relist(&self, slab: Slab) {
        let released = {
            let Some((node, mut lists)) = self.place(slab) else { return };
            // Two at a time: so a target that fell is caught up with.
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

    /// The same, but no slab is released: the target follows.
    #[cold]
    fn relist_and_keep(&self, slab: Slab) {
        if let Some((node, mut lists)) = self.place(slab) {
            lists.target = lists.target.max(lists.empty());
            self.publish(&mut lists, node);
        }
    }

    /// Puts a slab into the list where its count belongs; its node and the lists, unless it has
    /// been released meanwhile.
    fn place(&self, slab: Slab) -> Option<(usize, Guarded<'_>)> {
        // The node is fixed while the slab lives; a stale one of a slab that is gone is caught
        // below.
        let node = slab.node();
        if node >= self.node_count {
            return None;
        }
        let mut lists = self.nodes()[node].lock();
        // The slab may have been released, and its pages be another cache's, since the caller's
        // last step on it. Under the lock it cannot leave, so this decides.
        if pages::owner(slab.0) != self.owner {
            return None;
        }
        // Pairs with the release of `set_owner`: what `Slab::init` wrote is seen, the node first of
        // all. A slab that was released and made again on another node must not be placed by what
        // its node was before.
        fence(Acquire);
        if slab.node() != node {
            return None;
        }
        let list = list_for(slab.count().load(Acquire), self.geometry.objects);
        lists.place(slab, list);
        self.assert_placed(slab, node, list);
        if list == List::Empty {
            lists.decay();
        }
        Some((node, lists))
    }

    /// Takes an empty slab out of the lists and the page map.
    pub(super) fn take_empty_slab(&self, lists: &mut Lists) -> Option<Slab> {
        let slab = lists.any_empty()?;
        lists.place(slab, List::None);
        pages::set_owner(slab.0, self.geometry.named_pages(), Owner::NONE);
        self.assert_released(slab);
        Some(slab)
    }

    pub(super) fn free_slab(&self, slab: Slab, temperature: Temperature) {
        self.count_slab(-1);
        pages::free(slab.0, self.geometry.pages(), temperature);
    }

    /// Bytes of a slab.
    pub(super) fn slab_bytes(&self) -> usize {
        self.geometry.pages() * pages::PAGE_BYTES
    }

    /// Calls `visit` for each object that is not free in its slab, until it says false. Exact only
    /// while no other thread uses the cache. `visit` runs under the lists' lock: it must neither
    /// allocate from this library nor free to it.
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

    /// Gives every slab to the page layer, whatever lives in it. The cost grows with the number of
    /// slabs.
    ///
    /// # Safety
    /// No other thread may use the cache, and no thread its objects any more.
    pub unsafe fn free_all(&self) {
        for node in self.nodes() {
            let lists = node.lock().take();
            for slab in lists.all() {
                pages::set_owner(slab.0, self.geometry.named_pages(), Owner::NONE);
                self.free_slab(slab, self.temperature);
            }
            if self.is_shared {
                self.publish_share((0, 0), lists.published);
            }
        }
        self.taken.store(0, Relaxed);
        self.spare.store(0, Relaxed);
        if !self.is_shared {
            let record = self.record();
            record.slab_free.store(0, Relaxed);
            record.partial_slabs.store(0, Relaxed);
            record.empty_slabs.store(0, Relaxed);
        }
    }

    /// A slab was made (1) or released (-1).
    fn count_slab(&self, change: i64) {
        if !self.is_shared {
            let record = self.record();
            record.slabs.fetch_add(change, Relaxed);
            record.slab_free.fetch_add(change * self.geometry.objects as i64, Relaxed);
            if change > 0 { &record.grows } else { &record.shrinks }.fetch_add(1, Relaxed);
        }
    }

    /// A slab of one object left with the object in use.
    pub(super) fn count_disowned(&self) {
        self.taken.fetch_sub(1, Relaxed);
        self.count_slab(-1);
        self.count_free(1);
    }

    /// Objects became free in slabs, or stopped to be.
    fn count_free(&self, change: i64) {
        if !self.is_shared {
            self.record().slab_free.fetch_add(change, Relaxed);
        }
    }

    /// Writes what the lock guards to the cache's record. Partial slabs, empty slabs and the target
    /// are those of node 0 alone. Slabs and free objects are sums over all nodes.
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

    /// Adds what changed to a record that others add to: so many slabs and free objects now, so
    /// many when last published.
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
