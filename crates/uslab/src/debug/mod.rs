//! Finds faults: checks of structures and objects on request, debugging of running caches, the
//! destination of reports, guard pages ([`guard`]), and leaks ([`find_leaks`]).
//!
//! [`validate`] walks the library's own structures:
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
pub(crate) mod regions;

use crate::cache::start;
use crate::counters::{Changer, note_change};
use crate::{cache, malloc, report};
pub use leaks::{Leaks, SearchError, find_leaks};

pub use crate::cache::{Summary, SwitchError};
pub use crate::os::debugging::Bad as BadText;
pub use crate::os::invariant::Invalid;
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

/// Switches debugging of running caches, from now on. `text` has blocks of letters and names, as
/// `USLAB_DEBUG` has: `FU,session,malloc-*`. Letter `-` switches off. Returns the number of caches
/// that it switched; `uslab debug PID CACHE LETTERS` does the same from outside.
///
/// Objects of a running cache have no room for a record, so only letters F, U and T are possible.
/// From the switch on every call of the cache takes the slow path to its slabs, and a free is
/// checked against the slab's bitmap: pointer, cache, double free. Objects from before are freed as
/// before. With U, reports tell the last users of objects that were allocated or freed after the
/// switch, for the last 32 768 of them at most.
///
/// It does not switch caches that `USLAB_DEBUG` or their flags debug, nor those of hardened
/// processes (`USLAB_SECURE`). The caches of a private heap have its name: `heap`, if it was made
/// without.
///
/// # Errors
/// See [`SwitchError`]. On an error no cache was switched.
///
/// # Threads, forks and signals
/// Any thread may call it at any time, fork children too; signal handlers and callers inside a
/// constructor may not. It takes the registry's lock, and makes system calls to drain the caches'
/// sheaves. A call that another thread has in flight may still use a sheaf; its objects are checked
/// when they reach their slabs, moments later.
///
/// ```
/// static NODES: uslab::Cache<[u64; 6]> = uslab::Cache::new("nodes");
/// let node = NODES.insert([0; 6]).unwrap();
/// match uslab::debug::switch("FU,nodes") {
///     Ok(caches) => assert_eq!(caches, 1),
///     Err(error) => assert_eq!(error, uslab::debug::SwitchError::NoBarrier),
/// }
/// drop(node);
/// ```
pub fn switch(text: &str) -> Result<usize, SwitchError> {
    let switched = cache::switch(text.as_bytes());
    if switched.is_ok() {
        note_change("debug", Changer::Call, format_args!("{text}"));
    }
    switched
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
    malloc::install_hooks();
    cache::validate()
}

/// Checks the objects of all debugged and hardened caches, in use and free, and the large ones in
/// use and in their quarantine. Reports each that the program overwrote, then ends the process or,
/// if the program continues after faults, repairs it. Returns how many there were, at most 64 a
/// cache.
///
/// The libraries for C programs call it at exit. As [`validate`], of which it is a part; it takes
/// no time without debugged caches.
pub fn check_objects() -> usize {
    cache::check_objects()
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
        let object = cache.alloc().expect("there is memory");
        let owner = crate::pages::owner_of(object.as_ptr()).expect("it is a page of the cache");
        let id = u32::from(cache.core().id());
        // SAFETY: an owner's first slot is valid for ever.
        let word = unsafe { &(*owner.slots()).id };
        word.store(id + 1, Relaxed);
        let invalid = validate().expect_err("it is broken");
        word.store(id, Relaxed);
        assert_eq!((invalid.structure, invalid.invariant), ("cache", "the owner has the cache's id"));
        assert_eq!((invalid.expected, invalid.found), (i64::from(id), i64::from(id) + 1));
        validate().expect("valid again");
        // SAFETY: just allocated, freed once.
        unsafe { cache.free(object) };
    }
}
