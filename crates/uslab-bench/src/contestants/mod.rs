//! Who takes part: one allocator, called one way, is one type that implements [`Contestant`], in one small
//! file.
//!
//! ```text
//!   trait Contestant ── rounds/ are generic over it: the same loop, compiled anew for each, no dyn call inside
//!         │
//!   Entry::of::<C>() ── its loops as plain function pointers, so that suites can hold a list of contestants
//!         │
//!   peers(), uslab_cache::entry(size), uslab_malloc::… ── what suites pick from
//! ```
//!
//! Peers are called as their users call them: a plain call of the C function, linked statically, never
//! installed as anybody's malloc. To add one: a file here, a line in [`PEERS`]. Some that the system may have as
//! shared libraries are looked for when the program runs (found.rs); who is missing then, and why, is told
//! beside the results. To add one of these: a file here, a line in `FINDERS`.
//!
//! Must never: give one contestant a loop, a check or a hint that another does not get; enable a feature of a
//! peer's crate that takes over malloc.

pub mod dpdk;
pub mod floor;
pub mod found;
pub mod glibc;
pub mod gperftools;
pub mod jemalloc;
pub mod mimalloc;
#[cfg(mimalloc_v2)]
pub mod mimalloc_v2;
pub mod none;
pub mod rpmalloc;
pub mod snmalloc;
pub mod tbb;
pub mod uslab_cache;
pub mod uslab_malloc;

use crate::rounds::latency::{self, Course};
use crate::rounds::{BatchRound, LocalRound, RemoteRound, batch, crew, local, remote};
use found::Missing;
use serde::Serialize;
use std::sync::OnceLock;

/// One allocator, called one way. The functions are static: a contestant is a type, so that its calls are
/// compiled into the loop.
pub trait Contestant: 'static {
    /// What the tables call it; unique.
    const NAME: &'static str;

    /// Version, how it was built, and what a reader must know about it.
    fn about() -> About;

    /// Called once by every thread before it uses the allocator, and by the same thread after its last use.
    fn enter_thread() {}
    fn leave_thread() {}

    /// Whether it can take part: asked before its first round. The error is one line.
    fn ready() -> Result<(), String> {
        Ok(())
    }

    /// Memory for `size` bytes, or null. Typed caches have their size in the type and ignore this one.
    fn alloc(size: usize) -> *mut u8;

    /// # Safety
    /// `pointer` came from `alloc(size)` of this contestant and has not been freed since.
    unsafe fn free(pointer: *mut u8, size: usize);

    /// The free that is told the size; [`free`](Self::free) where the allocator has none.
    ///
    /// # Safety
    /// As for `free`.
    #[inline(always)]
    unsafe fn free_sized(pointer: *mut u8, size: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { Self::free(pointer, size) }
    }

    /// Fills `objects`, all or nothing; one at a time where the allocator has no bulk call.
    #[inline(always)]
    fn alloc_bulk(size: usize, objects: &mut [*mut u8]) -> bool {
        for object in objects.iter_mut() {
            *object = Self::alloc(size);
            if object.is_null() {
                return false;
            }
        }
        true
    }

    /// # Safety
    /// Each of `objects` as for `free`, and no two are the same.
    #[inline(always)]
    unsafe fn free_bulk(size: usize, objects: &[*mut u8]) {
        for &object in objects {
            // SAFETY: the caller's promise holds for each.
            unsafe { Self::free(object, size) }
        }
    }

    /// Gives back to slabs, and empty slabs to the page layer, what is kept in front of them for objects of that
    /// size. Nothing where the rows that flush do not ask it: of peers they want the cost without.
    fn flush(_size: usize) {}
}

/// What the results say about a contestant.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    pub name: &'static str,
    pub version: String,
    /// How it was built and is called.
    pub build: String,
    /// Something that makes its figures doubtful; empty if nothing does.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub warning: String,
}

/// A contestant as a value: its loops, compiled for it.
#[derive(Clone, Copy)]
pub struct Entry {
    pub name: &'static str,
    pub about: fn() -> About,
    pub ready: fn() -> Result<(), String>,
    pub enter_thread: fn(),
    pub leave_thread: fn(),
    /// For what is not timed.
    pub alloc: fn(usize) -> *mut u8,
    /// [`Contestant::free`], under the same conditions.
    pub free: unsafe fn(*mut u8, usize),
    pub latency: fn(&mut Course),
    pub local: fn(&LocalRound, &mut [*mut u8]) -> u64,
    pub batch: fn(&BatchRound, usize, &mut [*mut u8]) -> batch::Parts,
    pub produce: fn(&RemoteRound),
    pub consume: fn(&RemoteRound),
    /// What it does in any number of threads.
    pub crew: crew::Loops,
}

impl Entry {
    pub const fn of<C: Contestant>() -> Self {
        Self {
            name: C::NAME,
            about: C::about,
            ready: C::ready,
            enter_thread: C::enter_thread,
            leave_thread: C::leave_thread,
            alloc: C::alloc,
            free: C::free,
            latency: latency::run::<C>,
            local: local::run::<C>,
            batch: batch::run::<C>,
            produce: remote::produce::<C>,
            consume: remote::consume::<C>,
            crew: crew::Loops::of::<C>(),
        }
    }
}

/// The peers that are part of this program.
pub const PEERS: &[Entry] = &[
    Entry::of::<mimalloc::Mimalloc>(),
    #[cfg(mimalloc_v2)]
    Entry::of::<mimalloc_v2::MimallocV2>(),
    Entry::of::<jemalloc::Jemalloc>(),
    Entry::of::<snmalloc::Snmalloc>(),
    Entry::of::<rpmalloc::Rpmalloc>(),
    Entry::of::<glibc::Glibc>(),
];

/// Looks for a peer; the error is one line.
type Finder = fn() -> Result<Entry, String>;

/// The peers that the system may have.
const FINDERS: &[(&str, Finder)] = &[(gperftools::NAME, gperftools::find), (tbb::NAME, tbb::find)];

struct Looked {
    peers: Vec<Entry>,
    missing: Vec<Missing>,
}

/// Looks once in the life of the process.
fn looked() -> &'static Looked {
    static LOOKED: OnceLock<Looked> = OnceLock::new();
    LOOKED.get_or_init(|| look(FINDERS))
}

fn look(finders: &[(&'static str, Finder)]) -> Looked {
    let (mut peers, mut missing) = (PEERS.to_vec(), Vec::new());
    for &(name, find) in finders {
        match find() {
            Ok(entry) => peers.push(entry),
            Err(why) => missing.push(Missing { name, why }),
        }
    }
    Looked { peers, missing }
}

/// The other allocators that there are on this machine. The best of them in a row is what uslab is compared
/// with.
pub fn peers() -> &'static [Entry] {
    &looked().peers
}

/// Those who were looked for and are not there: peers, and the rival if a row wanted it.
pub fn missing() -> Vec<Missing> {
    looked().missing.iter().cloned().chain(dpdk::missing()).collect()
}

/// The allocator's own thread set-up, for every peer at once: called at the start and at the end of each
/// thread that runs rounds.
pub struct InThread(());

impl InThread {
    pub fn enter() -> Self {
        peers().iter().for_each(|peer| (peer.enter_thread)());
        Self(())
    }
}

impl Drop for InThread {
    fn drop(&mut self) {
        peers().iter().for_each(|peer| (peer.leave_thread)());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every contestant must be able to do before its speed means anything.
    pub(super) fn works(entry: &Entry, size: usize) {
        for bulk in [false, true] {
            for sized in [false, true] {
                let round =
                    LocalRound { size, repeats: 3, bulk, sized, touch: true, ..LocalRound::default() };
                let mut slots = vec![std::ptr::null_mut(); 100];
                (entry.local)(&round, &mut slots);
                let mut addresses: Vec<usize> = slots.iter().map(|slot| slot.addr()).collect();
                addresses.sort_unstable();
                addresses.dedup();
                assert_eq!(addresses.len(), 100, "{}: two live objects at one address", entry.name);
                let apart = addresses.windows(2).all(|pair| pair[1] - pair[0] >= size);
                assert!(apart, "{}: live objects overlap", entry.name);
            }
        }
    }

    #[test]
    fn every_peer_allocates_and_frees() {
        let _in_thread = InThread::enter();
        for peer in peers() {
            [16, 256, 1024].into_iter().for_each(|size| works(peer, size));
            assert_eq!((peer.about)().name, peer.name);
            assert!(!(peer.about)().version.is_empty());
        }
    }

    #[test]
    fn every_way_of_calling_uslab_allocates_and_frees() {
        let _in_thread = InThread::enter();
        for &size in uslab_cache::SIZES {
            uslab_cache::entries(size)
                .expect("a listed size has a cache")
                .iter()
                .for_each(|entry| works(entry, size));
            works(&uslab_malloc::CALLED, size);
        }
        assert!(uslab_cache::entries(7).is_none());
    }

    #[test]
    fn the_unprotected_array_allocates_and_frees() {
        let [_, array] = floor::REFERENCES;
        [8, 16, 256, 1024, 16384].into_iter().for_each(|size| works(&array, size));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = peers().iter().map(|peer| peer.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), peers().len());
    }

    #[test]
    fn whoever_is_looked_for_is_a_peer_or_missing_with_one_line() {
        assert_eq!(peers().len() + looked().missing.len(), PEERS.len() + FINDERS.len());
        assert!(missing().iter().all(|missing| !missing.why.is_empty() && !missing.why.contains('\n')));
    }

    #[test]
    fn a_library_that_is_not_installed_leaves_its_peer_out() {
        fn nowhere() -> Result<Entry, String> {
            found::Library::open("libno-such-allocator.so.7", "libno-such7").map(|_| PEERS[0])
        }
        let looked = look(&[("nobody", nowhere)]);
        assert_eq!(looked.peers.len(), PEERS.len());
        let why = "libno-such-allocator.so.7 is not installed (Debian: libno-such7)".into();
        assert_eq!(looked.missing, [Missing { name: "nobody", why }]);
    }
}
