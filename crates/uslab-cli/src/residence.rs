//! A process's memory as the kernel counts it: its resident bytes, and how many of them are the
//! arena's, and on which nodes.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::process::{self, kernel_text};
use crate::snapshot::Snapshot;

/// Resident bytes of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residence {
    /// All of the process's, file pages and shared memory included.
    pub rss_bytes: u64,
    /// Those of the arena; `None` where the kernel does not tell.
    pub arena: Option<Arena>,
    /// The process has an address space without the arena: it is another program since it wrote
    /// the snapshot.
    pub is_arena_gone: bool,
}

/// Resident bytes of the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Arena {
    /// Of slabs, large objects and free pages.
    pub data_bytes: u64,
    /// Of the page map, the descriptors and the library's own structures.
    pub table_bytes: u64,
}

/// Reads the resident bytes of the snapshot's process; `None` once it has ended.
///
/// `/proc/PID/smaps` makes the kernel walk the page tables of the process: about a millisecond for
/// each GiB. Both figures come from that one walk. A process that may not be traced, or whose
/// mappings change during each of several walks, shows only `/proc/PID/statm`.
pub fn read(snapshot: &Snapshot) -> Option<Residence> {
    let directory = process::directory(snapshot.pid);
    let (start, base) = snapshot.arena;
    let end = base.saturating_add(snapshot.reserved_bytes);
    if base > 0
        && let Some(found) =
            read_undisturbed(&format!("{directory}/smaps"), |maps| sum(maps, start, base, end))
    {
        return Some(found);
    }
    let statm = kernel_text(format!("{directory}/statm")).ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Residence {
        rss_bytes: pages.saturating_mul(snapshot.page_bytes.into()),
        arena: None,
        is_arena_gone: false,
    })
}

/// Resident bytes of the arena on each node that has some.
pub type ByNode = BTreeMap<u32, Arena>;

/// Reads on which nodes the arena of the snapshot's process is resident; `None` where the kernel
/// does not tell.
pub fn read_by_node(snapshot: &Snapshot) -> Option<ByNode> {
    let (start, base) = snapshot.arena;
    let end = base.saturating_add(snapshot.reserved_bytes);
    if base == 0 {
        return None;
    }
    let file = format!("{}/numa_maps", process::directory(snapshot.pid));
    read_undisturbed(&file, |maps| sum_by_node(maps, start, base, end))
}

/// Sums a list of mappings that the kernel writes a few at a time. Where mappings merge meanwhile,
/// the kernel lists memory twice: `sum` answers `None` then, and the list is read again. `None`
/// where the list is empty, cannot be read, or changes during each of several reads.
fn read_undisturbed<T>(file: &str, sum: impl Fn(&str) -> Option<T>) -> Option<T> {
    const READS: u32 = 8;
    for _ in 0..READS {
        let maps = kernel_text(file).ok().filter(|maps| !maps.is_empty())?;
        if let Some(found) = sum(&maps) {
            return Some(found);
        }
    }
    None
}

/// Sums the pages of numa_maps that lie between the arena's addresses. A line has the first address
/// of a mapping, its policy, and among other words `N0=123`, in pages of `kernelpagesize_kB`.
/// `None` where a mapping does not lie behind the one before it.
fn sum_by_node(maps: &str, start: u64, base: u64, end: u64) -> Option<ByNode> {
    let mut found = ByNode::new();
    let mut last = None;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(at) = words.next().and_then(|first| u64::from_str_radix(first, 16).ok()) else { continue };
        if last.replace(at).is_some_and(|last| at <= last) {
            return None;
        }
        if !(start..end).contains(&at) {
            continue;
        }
        let words: Vec<(&str, u64)> = words
            .filter_map(|word| word.split_once('='))
            .filter_map(|(key, value)| Some((key, value.parse().ok()?)))
            .collect();
        let page_kib = words.iter().find(|(key, _)| *key == "kernelpagesize_kB").map_or(4, |word| word.1);
        let on_nodes =
            words.iter().filter_map(|(key, pages)| Some((key.strip_prefix('N')?.parse().ok()?, pages)));
        for (node, pages) in on_nodes {
            let arena = found.entry(node).or_default();
            let part = if at < base { &mut arena.table_bytes } else { &mut arena.data_bytes };
            *part = part.saturating_add(pages.saturating_mul(page_kib).saturating_mul(1024));
        }
    }
    Some(found)
}

/// Sums the `Rss` lines of smaps: of all mappings, and of those between the arena's addresses.
/// `None` where a mapping begins before the end of the one before it.
fn sum(maps: &str, start: u64, base: u64, end: u64) -> Option<Residence> {
    let mut found = Residence::default();
    let mut arena = Arena::default();
    let (mut at, mut at_end) = (0, 0);
    found.is_arena_gone = true;
    for line in maps.lines() {
        if let Some(kib) = line.strip_prefix("Rss:") {
            let kib: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            let bytes = kib.saturating_mul(1024);
            found.rss_bytes = found.rss_bytes.saturating_add(bytes);
            let part = match at {
                at if (base..end).contains(&at) => &mut arena.data_bytes,
                at if (start..base).contains(&at) => &mut arena.table_bytes,
                _ => continue,
            };
            *part = part.saturating_add(bytes);
        } else if let Some((first, behind)) = addresses(line) {
            if first < at_end {
                return None;
            }
            (at, at_end) = (first, behind);
            found.is_arena_gone &= !(start..end).contains(&first);
        }
    }
    found.arena = Some(arena);
    Some(found)
}

/// The addresses at which a mapping begins and ends; `None` for the other lines of smaps.
fn addresses(line: &str) -> Option<(u64, u64)> {
    let (range, _) = line.split_once(' ')?;
    let (first, behind) = range.split_once('-')?;
    Some((u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(behind, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::Strange;
    use crate::snapshot::tests::Image;

    const MAPS: &str = "\
1000-2000 r-xp 00000000 08:01 17   /bin/a-b c
Rss:                   4 kB
Pss:                   1 kB
7000-8000 rw-p 00000000 00:00 0
Size:                  4 kB
Rss:                   8 kB
9000-a000 rw-p 00000000 00:00 0
Rss:                  16 kB
VmFlags: rd wr mr mw me ac
f000-f100 rw-p 00000000 00:00 0 [stack]
Rss:                  32 kB
";

    #[test]
    fn mappings_are_the_arenas_by_their_address() {
        let found = sum(MAPS, 0x7000, 0x9000, 0xf000).expect("a list in order");
        let arena = Some(Arena { data_bytes: 16 << 10, table_bytes: 8 << 10 });
        assert_eq!(found, Residence { rss_bytes: 60 << 10, arena, is_arena_gone: false });
        assert!(sum(MAPS, 0xa000, 0xb000, 0xc000).expect("a list in order").is_arena_gone);
    }

    #[test]
    fn a_list_with_memory_twice_is_read_again() {
        let merged = MAPS.replace("9000-a000", "7000-a000");
        assert_eq!(sum(&merged, 0x7000, 0x9000, 0xf000), None);
        let merged = "7000 default N0=5\n7000 default N0=7\n";
        assert_eq!(sum_by_node(merged, 0x7000, 0x9000, 0xf000), None);
        let reads = std::cell::Cell::new(0);
        let third = |_: &str| (reads.replace(reads.get() + 1) == 2).then_some("whole");
        assert_eq!(read_undisturbed("/proc/self/maps", third), Some("whole"));
        assert_eq!(read_undisturbed("/proc/self/maps", |_| None::<()>), None);
    }

    #[test]
    fn pages_of_the_arena_are_summed_by_node() {
        let maps = "\
1000 default file=/bin/a\\040N7=9 mapped=3 N0=3 kernelpagesize_kB=4
7000 default anon=5 dirty=5 N0=1 N1=4 kernelpagesize_kB=4
9000 bind:1 anon=2 dirty=2 N1=2 kernelpagesize_kB=64
a000 default
b000 default anon=1 dirty=1 N1=1 N12=3 kernelpagesize_kB=4
f000 default stack anon=9 dirty=9 N0=9 kernelpagesize_kB=4
";
        let found = sum_by_node(maps, 0x7000, 0x9000, 0xf000);
        let arena = |data: u64, tables: u64| Arena { data_bytes: data << 10, table_bytes: tables << 10 };
        assert_eq!(found, Some(ByNode::from([(0, arena(0, 4)), (1, arena(132, 16)), (12, arena(12, 0))])));
    }

    #[test]
    fn a_mapped_file_whose_name_is_not_utf8_hides_nothing() {
        let strange = Strange::start();
        let mut snapshot = Image::sample().parse().expect("whole");
        snapshot.pid = strange.pid().unsigned_abs();
        let found = read(&snapshot).expect("alive");
        assert!(found.rss_bytes > 0 && found.arena.is_some() && found.is_arena_gone);
    }

    #[test]
    fn this_process_is_resident_and_one_that_ended_is_not() {
        let mut snapshot = Image::sample().parse().expect("whole");
        snapshot.pid = std::process::id();
        assert!(read(&snapshot).expect("alive").rss_bytes > 1 << 20);
        snapshot.arena = (0, 0);
        let found = read(&snapshot).expect("alive");
        assert!(found.rss_bytes > 1 << 20 && found.arena.is_none());
        snapshot.pid = i32::MAX as u32;
        assert_eq!(read(&snapshot), None);
    }
}
