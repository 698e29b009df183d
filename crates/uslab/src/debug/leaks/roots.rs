//! Roots: the memory from which the program reaches its objects.
//!
//! ```text
//!   every mapping that the process wrote to     globals, stacks, thread-local storage, memory of
//!                                               mmap, of other allocators, of private heaps
//!   but not   the heap's tracked objects, the search's own memory, the unused parts of stacks,
//!             and the library's tables, of which it searches those of shrinkers
//!   registers of the stopped threads; the caller's own registers stand on its stack
//! ```
//!
//! LeakSanitizer searches globals, stacks and registers alone. A program that keeps pointers in
//! memory of `mmap` would get false reports, and these cost users more than a missed leak.

use super::heap::{self, Heap, Part};
use super::mark::Marker;
use super::stacks::Stacks;
use crate::os::maps::{self, Mapping};
use crate::pages::{self, CHUNK_BYTES};
use crate::reclaim;
use core::ops::Range;

/// Shared memory that is searched, by the start of its name: files on a disk hold no pointers that
/// the process needs, and those of devices must not be read.
const SHARED: [&[u8]; 5] = [b"/dev/zero", b"/memfd:", b"/SYSV", b"/dev/shm/", b"[anon_shmem"];

/// Mappings of the kernel.
const KERNEL: [&[u8]; 3] = [b"[vvar", b"[vdso]", b"[vsyscall]"];

/// Searches all roots, and what they lead to. `own` is the memory of the search. False if the
/// kernel does not list the mappings.
pub fn search(marker: &mut Marker<'_>, mut stacks: Stacks<'_>, own: Range<usize>) -> bool {
    let [descriptors, chunks, map, boot] = pages::arena::tables();
    let excluded = [descriptors, chunks, map, boot, marker.heap.data(), own];
    let is_listed = maps::for_each(|mapping| {
        stacks.note(mapping, marker.memory);
        if is_searched(mapping) {
            let mut rest = mapping.range.clone();
            while let Some(part) = first_part(&mut rest, &excluded, &stacks) {
                marker.region(part, mapping.is_shared);
            }
        }
    });
    for thread in stacks.threads() {
        thread.registers().iter().for_each(|&word| marker.word(word));
    }
    reclaim::for_each_registration(&mut |entry| marker.region(entry, false));
    foreign(marker, marker.heap);
    heap::walk(&mut |part| {
        if let Part::Memory(range) = part {
            marker.region(range, false);
        }
    });
    is_listed
}

fn is_searched(mapping: &Mapping<'_>) -> bool {
    let starts = |names: &[&[u8]]| names.iter().any(|name| mapping.name.starts_with(name));
    mapping.is_readable && !starts(&KERNEL) && (!mapping.is_shared || starts(&SHARED))
}

/// Takes the first part of `rest` off it that is neither excluded nor the unused part of a stack.
fn first_part(rest: &mut Range<usize>, excluded: &[Range<usize>], stacks: &Stacks) -> Option<Range<usize>> {
    while rest.start < rest.end {
        let all = || excluded.iter().cloned().chain(stacks.unused());
        if let Some(hole) = all().find(|hole| hole.contains(&rest.start)) {
            rest.start = hole.end;
            continue;
        }
        let next = all().map(|hole| hole.start).filter(|start| (rest.start..rest.end).contains(start)).min();
        let part = rest.start..next.unwrap_or(rest.end);
        rest.start = part.end;
        return Some(part);
    }
    None
}

/// Searches the mappings of the program that stand in the arena's way.
fn foreign(marker: &mut Marker<'_>, heap: Heap<'_>) {
    let data = heap.data();
    for chunk in (0..data.len() / CHUNK_BYTES).filter(|&chunk| heap.is_foreign(chunk)) {
        let start = data.start + chunk * CHUNK_BYTES;
        marker.region(start..start + CHUNK_BYTES, false);
    }
}
