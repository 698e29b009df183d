//! A process's memory as the kernel counts it: its resident bytes, and how many of them are the
//! arena's, and on which nodes.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::process::kernel_text;
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
/// each GiB. Both figures come from that one walk. A process that may not be traced shows only
/// `/proc/PID/statm`.
pub fn read(snapshot: &Snapshot) -> Option<Residence> {
    let pid = snapshot.pid;
    let (start, base) = snapshot.arena;
    if base > 0
        && let Ok(maps) = kernel_text(format!("/proc/{pid}/smaps"))
        && !maps.is_empty()
    {
        return Some(sum(&maps, start, base, base.saturating_add(snapshot.reserved_bytes)));
    }
    let statm = kernel_text(format!("/proc/{pid}/statm")).ok()?;
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
    let maps = kernel_text(format!("/proc/{}/numa_maps", snapshot.pid)).ok()?;
    (base > 0 && !maps.is_empty())
        .then(|| sum_by_node(&maps, start, base, base.saturating_add(snapshot.reserved_bytes)))
}

/// Sums the pages of numa_maps that lie between the arena's addresses. A line has the first address
/// of a mapping, its policy, and among other words `N0=123`, in pages of `kernelpagesize_kB`.
fn sum_by_node(maps: &str, start: u64, base: u64, end: u64) -> ByNode {
    let mut found = ByNode::new();
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().and_then(|first| u64::from_str_radix(first, 16).ok());
        let Some(at) = first.filter(|at| (start..end).contains(at)) else { continue };
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
    found
}

/// Sums the `Rss` lines of smaps: of all mappings, and of those between the arena's addresses.
fn sum(maps: &str, start: u64, base: u64, end: u64) -> Residence {
    let mut found = Residence::default();
    let mut arena = Arena::default();
    let mut at = 0;
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
        } else if let Some(first) = first_address(line) {
            at = first;
            found.is_arena_gone &= !(start..end).contains(&first);
        }
    }
    found.arena = Some(arena);
    found
}

/// The address at which a line of maps begins; `None` for the other lines of smaps.
fn first_address(line: &str) -> Option<u64> {
    let (range, _) = line.split_once(' ')?;
    let (first, _) = range.split_once('-')?;
    u64::from_str_radix(first, 16).ok()
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
        let found = sum(MAPS, 0x7000, 0x9000, 0xf000);
        let arena = Some(Arena { data_bytes: 16 << 10, table_bytes: 8 << 10 });
        assert_eq!(found, Residence { rss_bytes: 60 << 10, arena, is_arena_gone: false });
        assert!(sum(MAPS, 0xa000, 0xb000, 0xc000).is_arena_gone);
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
        assert_eq!(found, ByNode::from([(0, arena(0, 4)), (1, arena(132, 16)), (12, arena(12, 0))]));
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
