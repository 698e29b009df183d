//! The contestants as values: all that this machine has, and a look-up by name.
//!
//! A new peer is a line in a table of contestants/, and one here.

use crate::contestants::floor::{BareArray, EmptyCalls, NoAllocator};
use crate::contestants::found::{Gperftools, Tbb};
use crate::contestants::heaps::{MimallocHeaps, UslabHeaps};
use crate::contestants::linked::{self, Glibc, Jemalloc, Mimalloc, Rpmalloc, Snmalloc};
use crate::contestants::local::{Local, Placed};
use crate::contestants::uslab::{Cached, Object, SIZES, Typed, UslabMalloc};
use crate::results::{About, Skipped};
use crate::rounds::Entry;
use crate::rounds::heaps::HeapEntry;
use std::sync::OnceLock;

/// uslab's malloc.
pub const MALLOC: Entry = Entry::of::<UslabMalloc>();

/// The round without an allocator.
pub const NOTHING: Entry = Entry::of::<NoAllocator>();

/// References beside the tables of malloc; neither is an allocator.
pub const EMPTY_CALLS: Entry = Entry::of::<EmptyCalls>();
pub const BARE_ARRAY: Entry = Entry::of::<BareArray>();

/// The allocators with private heaps: uslab, then the peer.
pub const WITH_HEAPS: [HeapEntry; 2] = [HeapEntry::of::<UslabHeaps>(), HeapEntry::of::<MimallocHeaps>()];

/// The peers that are part of this program.
const LINKED: &[Entry] = &[
    Entry::of::<Mimalloc>(),
    #[cfg(mimalloc_v2)]
    Entry::of::<linked::MimallocV2>(),
    Entry::of::<Jemalloc>(),
    Entry::of::<Snmalloc>(),
    Entry::of::<Rpmalloc>(),
    Entry::of::<Glibc>(),
];

/// The peers that may be installed, and the functions that open them.
type Opened = (Entry, fn() -> Result<(), String>);
const FOUND: &[Opened] = &[(Entry::of::<Gperftools>(), Gperftools::open), (Entry::of::<Tbb>(), Tbb::open)];

/// The typed cache of a size of [`SIZES`]: inlined, then called.
pub fn caches(size: usize) -> Option<[Entry; 2]> {
    let [inlined, called, ..] = ways(size)?;
    Some([inlined, called])
}

/// The local cache of a size of [`SIZES`]: inlined, then called.
pub fn locals(size: usize) -> Option<[Entry; 2]> {
    let [.., inlined, called] = ways(size)?;
    Some([inlined, called])
}

/// The typed cache and the local cache of a size, each inlined and called.
fn ways(size: usize) -> Option<[Entry; 4]> {
    const fn all<const SIZE: usize>() -> Option<[Entry; 4]>
    where
        Object<SIZE>: Cached + Placed<SIZE>,
    {
        Some([
            Entry::of::<Typed<SIZE, false>>(),
            Entry::of::<Typed<SIZE, true>>(),
            Entry::of::<Local<SIZE, false>>(),
            Entry::of::<Local<SIZE, true>>(),
        ])
    }
    match size {
        16 => all::<16>(),
        64 => all::<64>(),
        256 => all::<256>(),
        1024 => all::<1024>(),
        4096 => all::<4096>(),
        _ => None,
    }
}

/// The inlined typed cache of a size that is one of [`SIZES`].
pub fn cache(size: usize) -> Entry {
    let [inlined, _] = caches(size).unwrap_or_else(|| panic!("there are caches of {SIZES:?} bytes"));
    inlined
}

struct Looked {
    peers: Vec<Entry>,
    missing: Vec<Skipped>,
}

/// Looks for libraries, once in the life of the process.
fn looked() -> &'static Looked {
    static LOOKED: OnceLock<Looked> = OnceLock::new();
    LOOKED.get_or_init(|| {
        let mut looked = Looked { peers: LINKED.to_vec(), missing: Vec::new() };
        for &(entry, open) in FOUND {
            match open() {
                Ok(()) => looked.peers.push(entry),
                Err(why) => looked.missing.push(Skipped { contestant: entry.name.into(), why }),
            }
        }
        looked
    })
}

/// The other allocators on this machine. uslab is compared with the best of them in each row.
pub fn peers() -> &'static [Entry] {
    &looked().peers
}

/// The peers that are not installed, each with its reason.
pub fn missing() -> Vec<Skipped> {
    looked().missing.clone()
}

/// The descriptions of all contestants with objects of that size.
pub fn took_part(object_size: usize) -> Vec<About> {
    let ours = ways(object_size).into_iter().flatten().chain([MALLOC]);
    ours.chain(peers().iter().copied()).map(|entry| (entry.about)()).collect()
}

/// The contestant of that name; `size_bytes` chooses between the typed caches, which have one name.
pub fn find(name: &str, size_bytes: usize) -> Result<Entry, String> {
    let ours = ways(size_bytes).into_iter().flatten().chain([MALLOC]);
    ours.chain(LINKED.iter().copied())
        .find(|entry| entry.name == name)
        // Libraries come last, because they would stay in memory.
        .or_else(|| peers().iter().copied().find(|entry| entry.name == name))
        .ok_or_else(|| format!("no contestant is called '{name}' (of {size_bytes} bytes)"))
}

/// The allocator with private heaps of that name.
pub fn find_heaps(name: &str) -> Result<HeapEntry, String> {
    let found = WITH_HEAPS.into_iter().find(|entry| entry.name == name);
    found.ok_or_else(|| format!("no allocator with heaps is called '{name}'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestants::InThread;
    use crate::rounds::LocalRound;

    /// The function that every contestant must have before its speed is measured.
    fn works(entry: &Entry, size: usize) {
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
        for &size in SIZES {
            let all = ways(size).expect("a listed size has a cache");
            all.iter().chain([&MALLOC]).for_each(|entry| works(entry, size));
        }
        assert!(caches(7).is_none());
    }

    #[test]
    fn the_unprotected_array_allocates_and_frees() {
        [8, 16, 256, 1024, 16384].into_iter().for_each(|size| works(&BARE_ARRAY, size));
    }

    #[test]
    fn every_contestant_is_found_by_its_name_which_is_unique() {
        for peer in peers() {
            assert_eq!(peers().iter().filter(|other| other.name == peer.name).count(), 1);
            assert_eq!(find(peer.name, 256).unwrap().name, peer.name);
        }
        for name in ["uslab cache", "uslab cache, called", "uslab local cache", "uslab malloc"] {
            assert_eq!(find(name, 64).unwrap().name, name);
        }
        assert!(find("uslab cache", 63).err().is_some_and(|line| line.contains("63")));
        for entry in WITH_HEAPS {
            assert_eq!(find_heaps(entry.name).unwrap().name, entry.name);
        }
        assert!(find_heaps("glibc").err().is_some_and(|line| line.contains("glibc")));
    }

    #[test]
    fn a_library_is_a_peer_or_missing_with_one_line() {
        assert_eq!(peers().len() + looked().missing.len(), LINKED.len() + FOUND.len());
        assert!(missing().iter().all(|missing| !missing.why.is_empty() && !missing.why.contains('\n')));
    }
}
