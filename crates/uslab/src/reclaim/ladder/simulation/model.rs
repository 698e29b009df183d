//! The model of a process: counters of free pages by the place where they lie, and caches whose
//! entries hold pages. It acts for a pass, and records the first violation.

use super::super::round::BUDGET_NS;
use super::super::{Basis, Visit, World};
use super::cache::{Cache, Manner};
use super::schedule::Act;
use crate::pages::{PAGE_BYTES, Scattered};
use crate::reclaim::balance::{Owed, Weight};
use std::cell::{RefCell, RefMut};
use std::string::String;
use std::vec::Vec;

/// The place where free memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Groups of free pages.
    Together,
    /// Single free pages.
    Scattered,
    /// Empty slabs.
    Empty,
    /// Sheaves that no thread needs soon.
    Resting,
    /// Sheaves that running threads use; each cache's last slab.
    Busy,
    /// In flight with another thread, which lands it when a pass waits for it.
    InFlight,
}

impl Place {
    pub const ALL: [Place; 6] =
        [Place::Together, Place::Scattered, Place::Empty, Place::Resting, Place::Busy, Place::InFlight];
    const GENTLE: [Place; 4] = [Place::Together, Place::Scattered, Place::Empty, Place::Resting];
}

/// Scattered pages that a pass leaves while shrinkers have entries.
const KEPT_PAGES: usize = 3;

/// Upper bound on the world calls of one pass: 250 waits and 250 repetitions of the last round, in
/// each of which a shrinker of 60 entries is asked for them one by one, twice.
const MAX_CALLS: usize = 50_000;

/// The goal of a pass, as far as checks depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// This many bytes.
    Bytes(usize),
    /// An allocation of this many pages.
    Allocation(usize),
    /// So many bytes beyond the soft limit, until no more than the floor is held.
    Held { bytes: usize, floor_bytes: usize },
}

pub struct State {
    pub caches: Vec<Cache>,
    /// Free pages with memory, by [`Place`].
    free: [usize; 6],
    /// Pages that the program holds beside its caches.
    pub held: usize,
    /// Upper bound on the pages with memory; 0 for none.
    pub hard: usize,
    pub soft: usize,
    pub now_ns: u64,
    pub purged_bytes: u64,
    /// The goal of the pass in progress.
    pub goal: For,
    pub calls: usize,
    pub pauses: usize,
    purged_before: u64,
    /// The least priority at which entries were asked for.
    priority: u32,
    pub is_disturbed: bool,
    /// Bytes held when the pass last looked whether it has done enough.
    looked_bytes: usize,
    /// Purged by another thread, and not counted yet.
    uncounted_bytes: u64,
    /// The cache that the pass is inside.
    inside: Option<usize>,
    pub meanwhile: Vec<(usize, Act)>,
    /// The first thing that went wrong.
    pub violation: Option<String>,
}

impl State {
    pub fn fail(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    /// Pages with memory behind them.
    pub fn all_pages(&self) -> usize {
        self.used_pages() + self.free.iter().sum::<usize>()
    }

    pub fn all_bytes(&self) -> usize {
        self.all_pages() * PAGE_BYTES
    }

    fn used_pages(&self) -> usize {
        self.held + self.caches.iter().map(Cache::pages).sum::<usize>()
    }

    fn place(&mut self, place: Place) -> &mut usize {
        &mut self.free[place as usize]
    }

    fn clean_pages(&self) -> usize {
        if self.hard == 0 { 1 << 20 } else { self.hard.saturating_sub(self.all_pages()) }
    }

    /// Takes pages in one run, if they are free.
    pub fn take(&mut self, pages: usize) -> bool {
        if pages == 1 && *self.place(Place::Scattered) > 0 {
            *self.place(Place::Scattered) -= 1;
            return true;
        }
        let clean = self.clean_pages();
        let together = self.place(Place::Together);
        let is_there = pages <= clean + *together;
        if is_there {
            *together -= pages.min(*together);
        }
        is_there
    }

    pub fn allocate(&mut self, pages: usize) -> bool {
        let is_there = self.take(pages);
        self.held += if is_there { pages } else { 0 };
        is_there
    }

    pub fn free(&mut self, pages: usize, lands: Place) {
        let pages = pages.min(self.held);
        self.held -= pages;
        *self.place(lands) += pages;
    }

    fn purge(&mut self, pages: usize, from: Place, kept: usize) -> usize {
        let place = self.place(from);
        let purged = pages.min(place.saturating_sub(kept));
        *place -= purged;
        self.purged_bytes += (purged * PAGE_BYTES) as u64;
        purged
    }

    fn purge_some(&mut self, bytes: usize, scattered: Scattered) -> usize {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let kept = if scattered == Scattered::Stay { KEPT_PAGES } else { 0 };
        let together = self.purge(pages, Place::Together, 0);
        (together + self.purge(pages - together, Place::Scattered, kept)) * PAGE_BYTES
    }

    /// Adds an entry to the cache, on its last page or, if `has_page`, on one that the program
    /// holds; false if that has no room.
    pub fn insert(&mut self, cache: usize, has_page: bool) -> bool {
        let of = &mut self.caches[cache];
        let per_page = of.per_page;
        if has_page {
            self.held -= 1;
            of.live.push(0);
        } else if !of.live.last().is_some_and(|&live| (1..per_page).contains(&live)) {
            return false;
        }
        let at = of.live.len() - 1;
        of.live[at] += 1;
        of.entries.push(at);
        true
    }

    pub fn unregister(&mut self, cache: usize) {
        let Some(cache) = self.caches.get_mut(cache).filter(|cache| cache.is_registered) else { return };
        cache.is_registered = false;
        let pages = cache.pages();
        cache.entries.clear();
        cache.live.clear();
        *self.place(Place::Together) += pages;
    }

    pub fn behave(&mut self, cache: usize, manner: Manner) {
        let now_ns = self.now_ns;
        let Some(cache) = self.caches.get_mut(cache) else { return };
        cache.manner = manner;
        cache.until_ns = match manner {
            Manner::Busy { ms } | Manner::Stops { ms } => now_ns.saturating_add(ms * 1_000_000),
            _ => 0,
        };
    }

    /// Starts a pass.
    pub fn begin(&mut self, goal: For) {
        (self.goal, self.calls, self.pauses) = (goal, 0, 0);
        (self.priority, self.is_disturbed) = (u32::MAX, false);
        self.purged_bytes += std::mem::take(&mut self.uncounted_bytes);
        self.purged_before = self.purged_bytes;
        self.looked_bytes = self.all_bytes();
        self.caches.iter_mut().for_each(|cache| (cache.has_stopped, cache.late) = (false, 0));
    }

    /// Whether an allocation of `pages` would succeed if all free memory were purged, and all
    /// entries with it or not.
    fn could_be_had(&self, pages: usize, with_entries: bool) -> bool {
        let willing = |cache: &&Cache| with_entries && cache.is_willing(self.now_ns);
        let entries = self.caches.iter().filter(willing).map(Cache::pages).sum::<usize>();
        pages <= self.clean_pages() + self.free.iter().sum::<usize>() + entries
    }

    /// Checks a pass that found no room for `pages`.
    pub fn check_failed(&mut self, pages: usize) {
        if self.could_be_had(pages, false) {
            if !self.is_disturbed {
                self.fail("an allocation failed beside free memory");
            }
        } else if self.could_be_had(pages, true) {
            self.fail("an allocation failed while an entry could go");
        }
    }

    /// Checks a pass for the soft limit that ended unmet.
    pub fn check_unmet(&mut self) {
        let free_pages = self.free.iter().sum::<usize>() - self.free[Place::InFlight as usize];
        // A slow cache gives one lot in a round, and rounds are few.
        let has_entries = |cache: &Cache| {
            cache.is_willing(self.now_ns) && cache.manner != Manner::Slow && !cache.entries.is_empty()
        };
        if free_pages > 0 {
            self.fail("the soft limit was given up beside free memory");
        } else if self.caches.iter().any(has_entries) {
            self.fail("the soft limit was given up while an entry could go");
        }
    }

    /// Checks that entries may go now.
    fn check_floor(&mut self) {
        if let For::Held { floor_bytes, .. } = self.goal
            && self.looked_bytes <= floor_bytes
        {
            self.fail("entries went while no more was held than may stay");
        }
    }

    /// Checks that a pass may take busy sheaves now.
    fn check_busy(&mut self) {
        let gentle: usize = Place::GENTLE.iter().map(|&place| self.free[place as usize]).sum();
        let is_enough = match self.goal {
            For::Bytes(bytes) | For::Held { bytes, .. } => {
                let given = (self.purged_bytes - self.purged_before) as usize;
                gentle * PAGE_BYTES >= bytes.saturating_sub(given)
            }
            For::Allocation(pages) => pages <= self.clean_pages() + gentle,
        };
        let has_entries =
            |cache: &Cache| cache.is_willing(self.now_ns) && cache.late == 0 && !cache.entries.is_empty();
        if is_enough {
            self.fail("busy sheaves went while gentler steps had enough");
        } else if self.priority > 1 && self.caches.iter().any(has_entries) {
            self.fail("busy sheaves went before entries at every priority but the last");
        }
    }
}

/// The state, shared by the world and the visits of a pass.
pub struct Model {
    pub state: RefCell<State>,
    /// A seeded mistake: the model claims that a shrinker that left is still open.
    pub hides_leaving: bool,
}

impl Model {
    pub fn new(hides_leaving: bool) -> Model {
        let state = State {
            caches: Vec::new(),
            free: [0; 6],
            held: 0,
            hard: 0,
            soft: 0,
            now_ns: 1_000_000_000,
            purged_bytes: 0,
            goal: For::Bytes(0),
            calls: 0,
            pauses: 0,
            purged_before: 0,
            priority: u32::MAX,
            is_disturbed: false,
            looked_bytes: 0,
            uncounted_bytes: 0,
            inside: None,
            meanwhile: Vec::new(),
            violation: None,
        };
        Model { state: RefCell::new(state), hides_leaving }
    }

    pub fn register(&self, seeks: u32, batch: usize, per_page: usize, stride: usize, lands: Place) {
        self.state.borrow_mut().caches.push(Cache {
            is_registered: true,
            manner: Manner::Honest,
            until_ns: 0,
            weight: Weight::of_seeks(seeks),
            batch,
            per_page,
            stride,
            lands,
            entries: Vec::new(),
            live: Vec::new(),
            owed: Owed(0),
            evicted: 0,
            has_stopped: false,
            late: 0,
        });
    }

    /// Counts a call of the pass in progress: time passes, and other threads act.
    fn call(&self) -> RefMut<'_, State> {
        let mut state = self.state.borrow_mut();
        state.calls += 1;
        state.now_ns += 1000;
        if state.calls > MAX_CALLS {
            state.fail("a pass does not end");
        }
        let calls = state.calls;
        while let Some(due) = state.meanwhile.iter().position(|&(at, _)| at <= calls) {
            let (_, act) = state.meanwhile.swap_remove(due);
            state.is_disturbed = true;
            match act {
                Act::Steal { pages } => (0..pages).for_each(|_| _ = state.allocate(1)),
                Act::Free { pages, lands } => state.free(pages, lands),
                Act::Purge { pages } => {
                    let pages = pages.min(state.held);
                    state.held -= pages;
                    state.uncounted_bytes += (pages * PAGE_BYTES) as u64;
                }
                // The unregistering thread waits for the thread inside.
                Act::Unregister { cache } if state.inside == Some(cache) => {
                    state.meanwhile.push((calls + 1, act));
                }
                Act::Unregister { cache } => state.unregister(cache),
            }
        }
        state
    }

    pub fn is_broken(&self) -> bool {
        self.state.borrow().violation.is_some()
    }
}

impl World for Model {
    type Shrinker = usize;
    type Visit<'a> = Inside<'a>;

    fn purged_bytes(&self) -> u64 {
        let state = self.state.borrow();
        // After a violation the pass may end.
        if state.violation.is_some() { state.purged_before + (u64::MAX >> 1) } else { state.purged_bytes }
    }

    fn used_bytes(&self, _: Basis) -> usize {
        self.state.borrow().used_pages() * PAGE_BYTES
    }

    fn purge(&self, bytes: usize, scattered: Scattered) -> usize {
        let mut state = self.call();
        let given_bytes = state.purge_some(bytes, scattered);
        state.looked_bytes = state.all_bytes();
        given_bytes
    }

    fn trim_some(&self, bytes: usize, scattered: Scattered) {
        let mut state = self.call();
        let mut wanted = bytes.div_ceil(PAGE_BYTES);
        for place in [Place::Resting, Place::Empty] {
            let taken = wanted.min(*state.place(place));
            *state.place(place) -= taken;
            *state.place(Place::Together) += taken;
            wanted -= taken;
        }
        state.purge_some(bytes, scattered);
        state.looked_bytes = state.all_bytes();
    }

    fn trim_all(&self, waits: bool) {
        let mut state = self.call();
        if !state.is_disturbed {
            state.check_busy();
        }
        for place in Place::ALL {
            if place != Place::InFlight || waits {
                state.purge(usize::MAX, place, 0);
            }
        }
        state.looked_bytes = state.all_bytes();
    }

    fn shrinkers(&self) -> impl Iterator<Item = usize> {
        let caches = self.call().caches.len();
        0..caches
    }

    fn visit(&self, shrinker: usize) -> Option<Inside<'_>> {
        let mut state = self.call();
        let cache = &state.caches[shrinker];
        let enters = cache.is_registered && !cache.is_busy(state.now_ns);
        state.inside = enters.then_some(shrinker);
        enters.then(|| Inside { model: self, cache: shrinker })
    }

    fn is_live(&self, shrinker: usize) -> bool {
        self.state.borrow().caches[shrinker].is_registered
    }

    fn now_ns(&self) -> u64 {
        self.state.borrow().now_ns
    }

    fn pause_ms(&self, ms: u64) {
        let mut state = self.call();
        state.pauses += 1;
        state.now_ns += ms * 1_000_000;
        if !matches!(state.goal, For::Allocation(_)) {
            state.fail("a pass waited that may not");
        }
    }
}

/// A visit of a pass.
pub struct Inside<'a> {
    model: &'a Model,
    cache: usize,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.model.state.borrow_mut().inside = None;
    }
}

impl Inside<'_> {
    fn with<R>(&self, of: impl FnOnce(&mut Cache) -> R) -> R {
        of(&mut self.model.state.borrow_mut().caches[self.cache])
    }

    /// Checks that a callback may run: the shrinker has not left.
    fn call(&self) -> RefMut<'_, State> {
        let mut state = self.model.call();
        if !state.caches[self.cache].is_registered {
            state.fail("a shrinker was asked after it left");
        }
        state
    }
}

impl Visit for Inside<'_> {
    fn count(&mut self, priority: u32) -> usize {
        let mut state = self.call();
        state.priority = state.priority.min(priority);
        state.caches[self.cache].entries.len()
    }

    fn scan(&mut self, _: u32, entries: usize) -> Option<usize> {
        let mut state = self.call();
        state.check_floor();
        let now_ns = state.now_ns;
        let (mut freed_pages, mut took_ns) = (0, 0);
        let cache = &mut state.caches[self.cache];
        cache.has_stopped = false;
        let mut leaves = false;
        let gone = match &mut cache.manner {
            Manner::Stops { .. } if now_ns < cache.until_ns => {
                cache.has_stopped = true;
                return None;
            }
            Manner::Liar => 0,
            Manner::Faker => return Some(entries),
            Manner::Late { asks } if *asks > 0 => {
                *asks -= 1;
                cache.late += 1;
                took_ns = 2 * BUDGET_NS;
                0
            }
            Manner::Leaves { asks: 0 } => {
                leaves = true;
                0
            }
            manner => {
                if let Manner::Leaves { asks } = manner {
                    *asks -= 1;
                }
                took_ns = if *manner == Manner::Slow { 2 * BUDGET_NS } else { 0 };
                entries.min(cache.entries.len())
            }
        };
        (0..gone).for_each(|_| freed_pages += usize::from(cache.evict()));
        let lands = cache.lands;
        *state.place(lands) += freed_pages;
        state.now_ns += took_ns;
        if leaves {
            // Entries that are dropped with it do not count as freed for the pass.
            state.is_disturbed = true;
            state.unregister(self.cache);
        }
        Some(gone)
    }

    fn is_open(&self) -> bool {
        self.model.hides_leaving || self.with(|cache| cache.is_registered)
    }

    fn weight(&mut self, _: usize) -> Weight {
        self.with(|cache| cache.weight)
    }

    fn batch(&mut self) -> usize {
        self.with(|cache| cache.batch)
    }

    fn owed(&mut self) -> Owed {
        self.with(|cache| cache.owed)
    }

    fn set_owed(&mut self, owed: Owed) {
        self.with(|cache| cache.owed = owed);
    }

    fn note_evicted(&mut self, _: usize) {}
}
