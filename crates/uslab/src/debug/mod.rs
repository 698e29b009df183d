//! Checks the library's own structures on request.
//!
//! ```text
//!   registry ─▶ each cache ─▶ slots ─▶ barns ─▶ slabs ─▶ bitmaps, counts, lists, page map
//!            ─▶ capacities ─▶ sheaves' slabs ─▶ heaps' owners ─▶ CPU page lists ─▶ chunks, buddy
//! ```
//!
//! Debug builds assert the same invariants after each change, one structure at a time: see
//! ARCHITECTURE.md, "Invariants", and SAFETY.md.
//!
//! A check never allocates, and waits only for the library's locks, in rank order.

pub mod guard;
pub(crate) mod leaks;

use crate::cache::{registry, start};
use crate::os;
pub use crate::os::invariant::Invalid;
use crate::os::invariant::{Checked, Subject};
use crate::percpu::{self, adapt, sheaf};
use crate::{malloc, pages, report};
pub use leaks::{Leaks, SearchError, find_leaks};

pub use crate::report::{Format, Sink};

/// Sets the destination of reports of faults; the default is standard error, or the file of
/// `USLAB_DEBUG_REPORT`. Any thread may call it at any time; it takes no lock.
pub fn set_sink(sink: Sink) {
    // Start-up sets what the environment says.
    start::know();
    report::set_sink(sink);
}

/// Sets the form of reports of faults. As [`set_sink`].
pub fn set_format(format: Format) {
    start::know();
    report::set_format(format);
}

/// Sets whether a fault ends the process, which is the default without `USLAB_ON_MISUSE=report`.
/// Otherwise the program continues: a faulty free does nothing, a free that names a wrong size or
/// family frees, and overwritten bytes of debugged objects get their value back. As [`set_sink`].
pub fn set_abort(abort: bool) {
    start::know();
    report::set_abort(abort);
}

/// The totals of [`validate`]'s walk.
///
/// Other threads continue during the walk, so the numbers belong to different moments.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Caches, those of `malloc`'s size classes included.
    pub caches: usize,
    /// Slots: one for each cache and CPU.
    pub slots: usize,
    /// Sheaves that the walk looked into: those of barns, and in locked mode those of slots.
    pub sheaves: usize,
    /// Slabs, those of sheaves included.
    pub slabs: usize,
    /// Objects that are free in these slabs.
    pub free_objects: usize,
    /// Chunks of the arena, of 2 MiB each.
    pub chunks: usize,
    /// Pages of 4 KiB that are free in chunks.
    pub free_pages: usize,
    /// Objects of debugged caches that the program overwrote; each was reported.
    pub faulty_objects: usize,
    /// Runs of pages in the lists of CPUs.
    pub listed_runs: usize,
}

/// Checks the structures of the whole library: caches with their slots, barns and slabs, the
/// capacities of sheaves, and the page layer. In every build, and in both modes.
///
/// It takes each structure's lock in turn, in the order of ranks, and checks what holds under it:
/// each slab's bitmap against its count, the list that it stands in, and the page map; each chunk's
/// maps against their counts and the buddy's lists; counters against what they count. Of words that
/// other threads change without a lock it checks what holds at any time.
///
/// It cannot reach the sheaves in slots of CPUs that run restartable sequences, the slabs of
/// private heaps' classes that have no cache, and the shards of an
/// [`LruCache`](crate::reclaim::LruCache).
///
/// It allocates nothing. Before the library is set up it finds nothing to walk.
///
/// # Errors
/// Returns the first invariant that is violated, and changes nothing. The program should report it
/// and end: either code that does not own the memory wrote to it, or the library has a defect.
///
/// # Threads, forks and signals
/// Any thread may call it at any time; it blocks only for the library's locks. While it walks
/// caches, threads that create or destroy a cache wait, and forks wait. Fork children, constructors
/// and shrinkers may call it; signal handlers may not.
///
/// # Cost
/// The time grows with the memory that the library manages: about a microsecond a slab, and 512
/// loads a chunk. Threads that need a structure's lock wait while it is walked.
///
/// ```
/// static NUMBERS: uslab::Cache<u64> = uslab::Cache::new("numbers");
/// let seven = NUMBERS.insert(7).unwrap();
/// assert_eq!(*seven, 7);
/// uslab::debug::validate().expect("the library's structures are whole");
/// ```
pub fn validate() -> Result<Summary, Invalid> {
    let mut summary = Summary::default();
    if !start::is_ready() {
        return Ok(summary);
    }
    let _errno = os::errno::Preserved::new();
    summary.faulty_objects = check_objects();
    percpu::check_dummy()?;
    summary.caches = registry::check(&mut |core| {
        let walked = core.check()?;
        summary.slots += walked.slots;
        summary.sheaves += walked.sheaves;
        summary.slabs += walked.slabs.slabs;
        summary.free_objects += walked.slabs.free_objects;
        Ok(())
    })?;
    adapt::check()?;
    for slabs in sheaf::slabs() {
        let walked = slabs.check()?;
        summary.slabs += walked.slabs;
        summary.free_objects += walked.free_objects;
    }
    malloc::check()?;
    check_owners()?;
    let walked = pages::check()?;
    summary.chunks = walked.chunks;
    summary.free_pages = walked.free_pages;
    summary.listed_runs = walked.listed_runs;
    Ok(summary)
}

/// Checks the objects of all debugged caches, and those in the quarantine of large ones. Reports
/// each that the program overwrote, then ends the process or, if the program continues after
/// faults, repairs it. Returns how many there were, at most 64 a cache.
///
/// The libraries for C programs call it at exit. As [`validate`], of which it is a part; it takes
/// no time without debugged caches.
pub fn check_objects() -> usize {
    if !start::is_ready() || !report::is_detailed() {
        return 0;
    }
    let _errno = os::errno::Preserved::new();
    registry::sum(|core| core.check_objects()) + malloc::debugged::check_quarantine()
}

/// Checks that the page map names no destroyed cache: each owner that is a cache is registered
/// under its id. It holds the registry's lock, which keeps caches as they are, for a chunk of pages
/// at a time.
fn check_owners() -> Checked {
    (0..pages::arena::committed_bytes() / pages::CHUNK_BYTES).try_for_each(|chunk| {
        registry::with_lock(|| {
            let first = pages::PageIndex((chunk * pages::CHUNK_PAGES) as u32);
            (0..pages::CHUNK_PAGES).try_for_each(|n| {
                let owner = pages::owner(first.plus(n));
                let subject = Subject::new("page", pages::address_of(first.plus(n)));
                let id = owner.id();
                if id < registry::FIRST_CACHE_ID {
                    return Ok(());
                }
                let slots = registry::cache(id).map(|core| core.slots());
                // Unit tests of lower layers have caches that are not registered.
                let is_known = slots == Some(owner.slots()) || (cfg!(test) && slots.is_none());
                subject.holds(is_known, "the page map names caches that there are")
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheBuilder;
    use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::vec::Vec;

    /// One test at a time holds this lock: one of them breaks structures that the others check.
    fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn it_walks_what_there_is() {
        let _turn = turn();
        let cache = CacheBuilder::new("validated").build_raw(100).expect("there is memory");
        let mut objects = [core::ptr::null_mut(); 1000];
        assert!(cache.core().alloc_bulk(&mut objects));
        let summary = validate().expect("valid");
        assert!(summary.caches >= 1 && summary.slots >= 1 && summary.slabs >= 25, "{summary:?}");
        assert!(summary.chunks >= 1);
        // SAFETY: just allocated.
        unsafe { cache.core().free_bulk(&objects) };
        validate().expect("valid");
    }

    #[test]
    fn it_runs_beside_threads() {
        let _turn = turn();
        let cache = CacheBuilder::new("busy").build_raw(64).expect("there is memory");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3usize {
                let (cache, is_over) = (&cache, &is_over);
                scope.spawn(move || {
                    let mut round = thread;
                    while !is_over.load(Relaxed) {
                        round += 1;
                        let objects: Vec<_> =
                            (0..round * 37 % 500).map(|_| cache.alloc().expect("there is memory")).collect();
                        // SAFETY: just allocated, freed once.
                        objects.into_iter().for_each(|object| unsafe { cache.free(object) });
                        if round % 50 == thread {
                            cache.shrink();
                        }
                    }
                });
            }
            for _ in 0..30 {
                validate().expect("valid");
            }
            is_over.store(true, Relaxed);
        });
        cache.destroy().expect("empty");
        validate().expect("valid");
    }

    #[test]
    fn what_is_broken_is_told_with_place_and_numbers() {
        let _turn = turn();
        let cache = CacheBuilder::new("broken").build_raw(2000).expect("there is memory");
        let (id, slots) = (u32::from(cache.core().id()), cache.core().slots());
        // SAFETY: a cache's first slot is valid for ever.
        let word = unsafe { &(*slots).id };
        word.store(id + 1, Relaxed);
        let invalid = validate().expect_err("it is broken");
        word.store(id, Relaxed);
        assert_eq!((invalid.structure, invalid.invariant), ("cache", "the owner has the cache's id"));
        assert_eq!((invalid.expected, invalid.found), (i64::from(id), i64::from(id) + 1));
        validate().expect("valid again");
    }
}
