//! The capacity of a cache's sheaves: learnt from misses, bounded in bytes over all caches.
//!
//! A cache starts with the kernel's capacity for its object size, rounded up to the next sheaf
//! size. The bound does not count this default: the objects in such sheaves were in use a moment
//! ago, or lie in a slab that exists, and an idle cache gives them up. The cache doubles a capacity
//! that proves too small, which shows in one of three ways:
//!
//! * A CPU overflows and next underflows, or the other way round: it frees and allocates more in a
//!   row than its sheaves hold. After a streak that the largest sheaves would not have absorbed, a
//!   cache with 62 objects or more in a sheaf keeps its capacity: larger sheaves would only hold
//!   more objects back from their slabs.
//! * The barn serves the cache many times: objects wander between CPUs.
//! * A CPU exchanges its two sheaves over and over. Unlike the other reasons, this one counts only
//!   while the charge of all caches stays within half of the bound. Every few exchanges the slow
//!   path moves objects until both sheaves hold about equally many, so that the main sheaf alone
//!   usually suffices.
//!
//! ```text
//!   capacity of each cache  ▓▓▓▓▓▓▓▓▓▓▓▓ default   not charged
//!                           ▒▒▒▒▒▒▒▒▒▒▒▒ beyond    of all caches together: at most bound_bytes()
//! ```
//!
//! The bound follows the memory that slabs hold, and falls to its floor under pressure. Caches
//! beyond their default stand in a ring. If the bound is used up, a search takes capacity for a
//! growing cache from caches of the ring without recent misses ([`search`]). The background thread
//! takes capacity from idle caches and, if the bound has fallen, from all caches in turn. A thread
//! that takes capacity drains the cache's sheaves, those of many caches with one barrier.
//!
//! If `USLAB_CPU_BYTES` sets the bound, the bound is constant, and caches are charged for all
//! capacity beyond the smallest sheaf.
//!
//! **Caches of runs** have a ring and a bound of their own ([`run_bound_bytes`]), in which every
//! object counts. Such a cache starts with the smallest sheaves, or with none if the bound has no
//! room for these. It grows when a CPU runs out of objects after it flushed some for lack of room:
//! it had to fetch again what it gave away.

use super::CpuCache;
use super::cpu_cache::PIECE;
use super::sheaf::{SIZES, Size};
use crate::counters::{self, Tally};
use crate::os::invariant::invariant;
use crate::os::{self, Lock};
use crate::pages;
use crate::slab::{Delayed, Geometry};
use crate::sync::list::{Linked, Links, List};
use crate::sync::{CachePadded, Rank};
use core::cell::Cell;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

mod search;
mod valid;
pub use search::search;
pub use valid::check;
#[cfg(test)]
pub(super) use {search::take_from_idle, valid::check_broken};

/// The floor of [`bound_bytes`]: 1.5 MiB.
const FLOOR_BYTES: usize = 3 << 19;
/// Beyond their defaults, the sheaves of all CPUs may hold 1/64 of the memory of slabs.
const HEAP_PART: usize = 64;
/// Upper bound on the bytes of objects in one sheaf.
const MAX_SHEAF_BYTES: usize = 512 << 10;
/// Upper bound on the bytes of runs in the sheaves of a CPU, where the background thread takes them
/// back once they idle. It falls with the number of CPUs, down to [`MIN_RUN_BYTES`].
const MAX_RUN_BYTES: usize = 16 << 20;
/// See [`MAX_RUN_BYTES`].
const MIN_RUN_BYTES: usize = 4 << 20;
/// Each CPU's bound is its share of this, clamped to the two above.
const MAX_ALL_RUN_BYTES: usize = 64 << 20;
/// The bound on runs falls to this part, a quarter, under pressure, and in a large process without
/// a background thread.
const TIGHT_PART: usize = 4;
/// A cache grows once the barn has served a CPU so many times.
const BARN_SERVED: u8 = 16;
/// Upper bound on the length of a streak of misses that makes a cache grow: the objects moved must
/// fit so many sheaves of the largest size. On a node with one barn, slots and barn hold half as
/// many sheaves or fewer; of objects of 8 to 32 bytes the barn may hold as many more.
const MAX_STREAK_SHEAVES: usize = 8;
/// A cache with smaller sheaves, whose objects share slabs, grows after a streak of any length: it
/// visits the slow path so often that the path itself costs most.
const MODERATE_CAPACITY: usize = 62;
/// A cache grows once a CPU's spare has had room for a freed object so many times. A CPU that
/// exchanges its sheaves over and over takes objects from the spare as often, so only frees count.
const SPARE_SERVED: u8 = 32;
/// After so many of these the slow path levels the two sheaves. A CPU whose main sheaf is full and
/// whose spare is empty, or the other way round, would exchange them every few calls.
const SPARE_LEVELS: u8 = 4;
/// Time that the bound stays at its floor after memory was short.
const PRESSED_MS: u64 = 10_000;

/// The bound that the user chose, or [`FOLLOWS`].
static CHOSEN: AtomicUsize = AtomicUsize::new(FOLLOWS);
/// The user chose no bound: it follows the memory of slabs.
const FOLLOWS: usize = usize::MAX;
static CPUS: AtomicUsize = AtomicUsize::new(1);
/// Bytes that the caches of each kind are charged. Changed under the rings' lock. Padded, because
/// misses read the neighbouring words.
static USED: CachePadded<[AtomicUsize; KINDS]> = CachePadded([const { AtomicUsize::new(0) }; KINDS]);
static PRESSED_UNTIL_MS: AtomicU64 = AtomicU64::new(0);

/// What the objects of a cache are. Caches of one kind share a ring and a bound.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Objects that share a slab.
    Objects,
    /// Runs of pages; see `runs`.
    Runs,
}

const KINDS: usize = 2;

impl Kind {
    const ALL: [Kind; KINDS] = [Kind::Objects, Kind::Runs];

    fn bound_bytes(self) -> usize {
        match self {
            Kind::Objects => bound_bytes(),
            Kind::Runs => run_bound_bytes(),
        }
    }

    /// Bytes that the caches are charged.
    fn used(self) -> &'static AtomicUsize {
        &USED[self as usize]
    }
}

fn is_pressed() -> bool {
    os::clock::coarse_ms() < PRESSED_UNTIL_MS.load(Relaxed)
}

/// Upper bound on the bytes of runs in the sheaves of one CPU.
fn run_bound_bytes() -> usize {
    match CHOSEN.load(Relaxed) {
        FOLLOWS if is_pressed() || !(os::sleep::has_background_thread() || pages::is_small()) => {
            max_run_bytes() / TIGHT_PART
        }
        FOLLOWS => max_run_bytes(),
        chosen => chosen,
    }
}

fn max_run_bytes() -> usize {
    (MAX_ALL_RUN_BYTES / CPUS.load(Relaxed)).clamp(MIN_RUN_BYTES, MAX_RUN_BYTES)
}

/// Upper bound on the bytes, per CPU, that all caches together are charged, but for caches of runs.
/// A cache beyond its default is charged for all that the two sheaves of a CPU may hold.
pub fn bound_bytes() -> usize {
    match CHOSEN.load(Relaxed) {
        FOLLOWS if is_pressed() => FLOOR_BYTES,
        FOLLOWS => {
            let header = counters::header();
            let slabs = header.used_bytes.load(Relaxed).saturating_sub(header.large_bytes.load(Relaxed));
            FLOOR_BYTES.max(slabs as usize / HEAP_PART / CPUS.load(Relaxed))
        }
        chosen => chosen,
    }
}

/// Sets the number of CPUs and the bound that the user chose, if any. Called before the first cache
/// is made.
pub fn init(cpus: usize, chosen_bytes: Option<usize>) {
    CPUS.store(cpus.max(1), Relaxed);
    CHOSEN.store(chosen_bytes.map_or(FOLLOWS, |bytes| bytes.min(FOLLOWS - 1)), Relaxed);
}

/// Notes that memory is short: for a while the bound stays at its floor, if the user chose none.
pub fn note_pressure() {
    PRESSED_UNTIL_MS.store(os::clock::coarse_ms() + PRESSED_MS, Relaxed);
}

/// The need that took a CPU beyond its own sheaves.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Miss {
    /// It needed objects.
    Underflow = 1,
    /// It needed room.
    Overflow = 2,
}

/// The size of a cache's sheaves, or that it has none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Level(u8);

impl Level {
    /// No sheaf.
    const NONE: Level = Level(0);
    const SMALLEST: Level = Level::of(Size(0));

    const fn of(size: Size) -> Level {
        Level(size.0 + 1)
    }

    fn size(self) -> Option<Size> {
        self.0.checked_sub(1).map(Size)
    }

    /// Objects that a sheaf holds.
    fn capacity(self) -> usize {
        self.size().map_or(0, Size::capacity)
    }

    fn below(self) -> Level {
        Level(self.0.saturating_sub(1))
    }
}

/// A streak of misses of one kind: the kind in the low bits, and above them how many there were;
/// kept in [`crate::rseq::Slot::last_miss`]. 0 before the first miss.
#[derive(Clone, Copy)]
pub(super) struct Streak(pub u32);

impl Streak {
    const KIND_BITS: u32 = 2;

    /// The streak after one more miss.
    pub fn with(self, miss: Miss) -> Streak {
        let before = if self.is_of(miss) { self.misses() } else { 0 };
        Streak((before + 1).min(u32::MAX >> Self::KIND_BITS) << Self::KIND_BITS | miss as u32)
    }

    /// Whether at least the last two misses were of this kind.
    pub fn is_under_way(self, miss: Miss) -> bool {
        self.is_of(miss) && self.misses() > 1
    }

    fn is_of(self, miss: Miss) -> bool {
        self.0 & ((1 << Self::KIND_BITS) - 1) == miss as u32
    }

    fn misses(self) -> u32 {
        self.0 >> Self::KIND_BITS
    }
}

/// The adaptive part of a cache.
pub(super) struct Adapt {
    /// The present level. Threads change it under the rings' lock.
    level: AtomicU8,
    /// The level that the cache starts with, and falls back to when it is idle.
    start: Level,
    /// The largest level that is not charged.
    free_of_charge: Level,
    /// The largest level that the cache may have.
    most: Level,
    /// The user chose the level.
    fixed: bool,
    kind: Kind,
    /// Bytes charged for each object of a sheaf's capacity, over all sheaves that a CPU may have.
    charged_bytes: usize,
    /// Neighbours in the ring, guarded by its lock; null outside the ring.
    links: Cell<Links<*const CpuCache>>,
}

// SAFETY: threads access the links only under the ring's lock; the other fields are atomics or
// never change.
unsafe impl Sync for Adapt {}

/// The kernel's capacity for an object size.
fn default_capacity(object_bytes: usize) -> usize {
    match object_bytes {
        16384.. => 2,
        4096.. => 4,
        1024.. => 12,
        256.. => 26,
        _ => 60,
    }
}

impl Adapt {
    /// The capacity of a cache for objects of `geometry`. If the user asks for a capacity,
    /// `wanted`, it is fixed. With 0 the cache starts at the default and adapts.
    pub fn new(geometry: &Geometry, wanted: usize) -> Adapt {
        let object_bytes = geometry.object_bytes;
        let (kind, max_bytes, sheaves) = match geometry.is_run() {
            true => (Kind::Runs, max_run_bytes(), 1),
            false => (Kind::Objects, MAX_SHEAF_BYTES, 2),
        };
        let fixed = wanted > 0;
        let least = if kind == Kind::Runs { Level::NONE } else { Level::SMALLEST };
        let start = Level::of(Size::holding(if fixed { wanted } else { default_capacity(object_bytes) }));
        let most = (0..SIZES as u8)
            .map(Size)
            .take_while(|size| size.capacity() * object_bytes <= max_bytes)
            .last()
            .map_or(least, Level::of);
        let charged = kind == Kind::Runs || CHOSEN.load(Relaxed) != FOLLOWS;
        Adapt {
            level: AtomicU8::new(if charged { least } else { start }.0),
            start,
            free_of_charge: if charged { least } else { start },
            most: if fixed { start } else { most.max(start) },
            fixed,
            kind,
            charged_bytes: sheaves * object_bytes,
            links: Cell::new(Links::OUTSIDE),
        }
    }

    fn level(&self) -> Level {
        Level(self.level.load(Relaxed))
    }

    /// The size that sheaves of the cache should have now; `None` if it should have none.
    pub fn size(&self) -> Option<Size> {
        self.level().size()
    }

    /// Objects that a sheaf of that size holds; 0 for none.
    pub fn capacity(&self) -> usize {
        self.level().capacity()
    }

    /// Bytes that the cache is charged, per CPU.
    pub(super) fn charged(&self) -> usize {
        self.charge(self.level())
    }

    /// Notes a miss of a CPU after the streak `last`; `barn` is true if the barn served it. Returns
    /// whether that is a reason to grow.
    fn count_miss(&self, tally: &Tally, last: Streak, miss: Miss, barn: bool) -> bool {
        note_use(tally);
        let bounced = match self.kind {
            Kind::Objects => last.misses() > 0 && !last.is_of(miss),
            Kind::Runs => last.is_of(Miss::Overflow) && miss == Miss::Underflow,
        };
        let wandered = barn && tally.barn_served.fetch_add(1, Relaxed) >= BARN_SERVED - 1;
        if (bounced || wandered) && tally.barn_served.load(Relaxed) > 0 {
            tally.barn_served.store(0, Relaxed);
        }
        let moved = last.misses() as usize * self.capacity().min(PIECE);
        let is_small = self.kind == Kind::Objects && self.capacity() < MODERATE_CAPACITY;
        bounced && (is_small || moved <= MAX_STREAK_SHEAVES * self.most.capacity()) || wandered
    }

    /// Notes a free that used the room of the spare: cheap, but some twenty times as much as the
    /// fast path. Returns how many such frees there were since the last time that they reached
    /// [`SPARE_SERVED`], which is a reason to grow.
    fn count_exchange(tally: &Tally) -> u8 {
        note_use(tally);
        let exchanges = tally.spare_served.fetch_add(1, Relaxed).saturating_add(1);
        if exchanges >= SPARE_SERVED {
            tally.spare_served.store(0, Relaxed);
        }
        exchanges
    }

    /// Bytes that the cache is charged, per CPU, at `level`.
    fn charge(&self, level: Level) -> usize {
        if level > self.free_of_charge { level.capacity() * self.charged_bytes } else { 0 }
    }
}

/// Whether the cache had a miss since the last call.
pub(super) fn take_misses(cache: &CpuCache) -> bool {
    let forget = |tally: &Tally| tally.is_used.load(Relaxed) && tally.is_used.swap(false, Relaxed);
    cache.slabs().tallies().fold(false, |had, tally| forget(tally) | had)
}

/// Notes a miss, or a call that the spare served, for [`take_misses`].
fn note_use(tally: &Tally) {
    if !tally.is_used.load(Relaxed) {
        tally.is_used.store(true, Relaxed);
    }
}

/// See [`Adapt::count_miss`].
pub(super) fn note_miss(cache: &CpuCache, tally: &Tally, last: Streak, miss: Miss, barn: bool) {
    let kind = cache.adapt().kind;
    if cache.adapt().count_miss(tally, last, miss, barn) {
        grow(cache, kind.bound_bytes(), true);
    } else if kind == Kind::Runs && !os::sleep::has_background_thread() {
        // The bound may have fallen, and there is no background thread that applies it.
        begin_period_of(kind);
    }
}

/// Notes an allocation that used the objects of the spare.
pub(super) fn note_spare_objects(tally: &Tally) {
    note_use(tally);
}

/// See [`Adapt::count_exchange`]. Returns whether the caller should level the two sheaves.
pub(super) fn note_spare_room(cache: &CpuCache, tally: &Tally) -> bool {
    let exchanges = Adapt::count_exchange(tally);
    let has_grown = exchanges >= SPARE_SERVED && grow(cache, bound_bytes() / 2, false);
    exchanges.is_multiple_of(SPARE_LEVELS) && !has_grown
}

impl Linked for CpuCache {
    type Name = *const CpuCache;

    unsafe fn links(cache: *const CpuCache) -> *mut Links<*const CpuCache> {
        // SAFETY: the caller's promise.
        unsafe { (*cache).adapt().links.as_ptr() }
    }
}

/// The caches of a kind that are charged. A thread that takes capacity asks the first one next.
struct Ring {
    kind: Kind,
    caches: List<CpuCache>,
}
// SAFETY: threads use the pointers only under the lock, and a cache leaves the ring, under the same
// lock, before it goes away.
unsafe impl Send for Ring {}

/// A ring for each kind, behind one lock. Padded, because misses read the neighbouring words.
static RINGS: CachePadded<Lock<[Ring; KINDS]>> =
    CachePadded(Lock::new(Rank::Adapt, [Ring::new(Kind::Objects), Ring::new(Kind::Runs)]));

impl Ring {
    const fn new(kind: Kind) -> Ring {
        Ring { kind, caches: List::new() }
    }

    /// Sets the level of a cache and its charge. A cache that becomes charged enters the ring at
    /// the end, where it is asked last; one that is charged no more leaves it.
    fn set_level(&mut self, cache: &CpuCache, level: Level) {
        let adapt = cache.adapt();
        let (before, now) = (adapt.charged(), adapt.charge(level));
        let used = self.kind.used();
        invariant!(adapt.kind == self.kind, "a ring has caches of one kind");
        invariant!(level <= adapt.most, "a cache's sheaves are no larger than allowed", level.0);
        invariant!(used.load(Relaxed) >= before, "the charges of caches are summed up", before);
        adapt.level.store(level.0, Relaxed);
        used.fetch_add(now.wrapping_sub(before), Relaxed);
        cache.publish_capacity();
        match (before > 0, now > 0) {
            // SAFETY: a cache without a charge is in no list, and each leaves before it goes away.
            (false, true) => unsafe { self.caches.link_last(cache) },
            // SAFETY: a cache with a charge is in the list.
            (true, false) => unsafe { self.caches.unlink(cache) },
            _ => {}
        }
        self.assert_valid(cache);
    }
}

/// Doubles the capacity of a cache, if all caches together are then charged at most `bound`. If
/// they would be charged more, and with `may_take`, capacity is taken from idle caches. The
/// background thread takes it, and the cache grows at a later miss. Where there is no such thread,
/// this call takes it. Gives up if another thread holds the rings' lock. Returns false if the
/// capacity is unchanged.
fn grow(cache: &CpuCache, bound: usize, may_take: bool) -> bool {
    let adapt = cache.adapt();
    let level = adapt.level();
    if level >= adapt.most {
        return false;
    }
    let next = Level(level.0 + 1);
    let Some(goal) = bound.checked_sub(adapt.charge(next) - adapt.charge(level)) else { return false };
    let fits = || adapt.kind.used().load(Relaxed) <= goal;
    if !(fits() || may_take && search::claim_turn()) {
        return false;
    }
    if !fits() && os::sleep::has_background_thread() {
        search::ask(adapt.kind, bound - goal);
        return false;
    }
    let Some(mut rings) = RINGS.try_lock().map(Delayed::within) else { return false };
    let ring = &mut rings[adapt.kind as usize];
    // Another thread may have changed the level meanwhile.
    if adapt.level() != level {
        return true;
    }
    if !fits() {
        ring.take_from_idle(goal, cache);
    }
    let grows = fits();
    if grows {
        ring.set_level(cache, next);
    }
    grows
}

/// While the guard lives, no thread drains a cache to give its capacity to another one. So the
/// sheaves of a cache are in its slots, and not with such a drainer.
pub fn pause() -> impl Drop {
    RINGS.lock()
}

/// Lowers the capacity of an idle cache, which has no sheaf in slots or barns, to its start. Other
/// caches may use the charge that this frees.
pub(super) fn rest(cache: &CpuCache) {
    if cache.adapt().level() > cache.adapt().start {
        set_level(cache, cache.adapt().start);
    }
}

fn set_level(cache: &CpuCache, level: Level) {
    RINGS.lock()[cache.adapt().kind as usize].set_level(cache, level);
}

/// Lets a new cache take part in the balance. A cache whose default is charged starts with the
/// smallest sheaves, a cache of runs with none, and gets its default here if the bound has room.
///
/// # Safety
/// `cache` must stay valid at this address until [`leave`].
pub(super) unsafe fn enter(cache: &CpuCache) {
    let adapt = cache.adapt();
    if adapt.level() < adapt.start {
        let mut rings = RINGS.lock();
        let bound = adapt.kind.bound_bytes();
        if adapt.kind.used().load(Relaxed).saturating_add(adapt.charge(adapt.start)) <= bound {
            rings[adapt.kind as usize].set_level(cache, adapt.start);
        }
    }
}

/// Takes a cache that is about to be destroyed out of its ring. No thread reaches it through the
/// ring afterwards.
pub(super) fn leave(cache: &CpuCache) {
    set_level(cache, Level::NONE);
}

/// If the charges exceed the bound, which may have fallen, takes capacity from a bounded number of
/// caches. The background thread calls this once a period.
pub fn begin_period() {
    Kind::ALL.into_iter().for_each(begin_period_of);
}

fn begin_period_of(kind: Kind) {
    let bound = kind.bound_bytes();
    if kind.used().load(Relaxed) > bound {
        Delayed::within(RINGS.lock())[kind as usize].take_from_all(bound);
    }
}

pub(super) fn lock_for_fork() {
    RINGS.acquire_for_fork();
}

pub(super) fn unlock_after_fork(child: bool) {
    if child { RINGS.reset_in_child() } else { RINGS.release_after_fork() }
}
