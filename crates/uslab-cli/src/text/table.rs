//! The table for people: what the process is, what its heap holds, and a row for each cache that
//! was ever used.
//!
//! It is as wide as its figures need and never wider than [`WIDTH`], so that it survives a
//! terminal, a mail and a bug report. Numbers have at most five characters (seven for KiB); what is
//! then left is the name's.

use std::cmp::Reverse;
use std::fmt::Write;

use super::{bytes, count, mode_line};
use crate::snapshot::{Cache, Snapshot};

/// Columns of the widest line.
const WIDTH: usize = 100;
/// KiB up to this are shown whole: they are what the table is sorted by.
const KIB_WHOLE: u64 = 9_999_999;

/// A numeric column: the group that stands above it, its title, its cell.
struct Column {
    group: &'static str,
    title: &'static str,
    cell: fn(&Cache) -> String,
}

const COLUMNS: [Column; 12] = [
    Column { group: "", title: "size", cell: |c| count(c.user_bytes.into()) },
    Column { group: "objects", title: "active", cell: |c| count(c.active_objects()) },
    Column { group: "", title: "total", cell: |c| count(c.total_objects()) },
    Column { group: "", title: "use", cell: |c| percent(c.active_objects(), c.total_objects()) },
    Column { group: "", title: "slabs", cell: |c| count(c.slabs) },
    Column { group: "", title: "KiB", cell: |c| kib(c.slab_bytes()) },
    Column { group: "sheaves", title: "size", cell: |c| count(c.sheaf_capacity.into()) },
    Column { group: "", title: "held", cell: |c| count(c.sheaf_free) },
    Column { group: "slow path", title: "alloc", cell: |c| count(c.alloc_slow) },
    Column { group: "", title: "free", cell: |c| count(c.free_slow) },
    Column { group: "", title: "refill", cell: |c| count(c.refills) },
    Column { group: "", title: "flush", cell: |c| count(c.flushes) },
];

/// The whole table for a process that is, or was, called `command`.
pub fn text(snapshot: &Snapshot, command: &str) -> String {
    let mut text = String::new();
    header(&mut text, snapshot, command);
    let mut caches: Vec<&Cache> = snapshot.caches.iter().filter(|cache| cache.was_used()).collect();
    caches.sort_by_key(|cache| (Reverse(cache.slab_bytes()), cache.id));
    if caches.is_empty() {
        text.push_str("no cache has had a slab\n");
        return text;
    }
    rows(&mut text, &caches);
    footer(&mut text, snapshot, &caches);
    text
}

fn header(text: &mut String, snapshot: &Snapshot, command: &str) {
    let plural = |n: u64| if n == 1 { "" } else { "s" };
    let nodes = snapshot.nodes;
    let cpus = match snapshot.cpus {
        0 => "CPUs unknown".to_string(),
        cpus => format!("{cpus} CPU{}", plural(cpus.into())),
    };
    let _ = writeln!(text, "uslab: {command} (pid {}), {}", snapshot.pid, mode_line(snapshot));
    let _ = writeln!(
        text,
        "heap:  {} used, {} dirty, {} mapped, {} metadata; {cpus}, {nodes} node{}",
        bytes(snapshot.used_bytes),
        bytes(snapshot.dirty_bytes),
        bytes(snapshot.committed_bytes),
        bytes(snapshot.metadata_bytes),
        plural(nodes.into()),
    );
    let _ = writeln!(
        text,
        "large: {} object{}, {}; {} ever",
        snapshot.large_objects,
        plural(snapshot.large_objects),
        bytes(snapshot.large_bytes),
        snapshot.large_allocs
    );
}

fn rows(text: &mut String, caches: &[&Cache]) {
    let cells: Vec<Vec<String>> =
        caches.iter().map(|cache| COLUMNS.iter().map(|column| (column.cell)(cache)).collect()).collect();
    let widths: Vec<usize> = COLUMNS
        .iter()
        .enumerate()
        .map(|(i, column)| cells.iter().map(|row| row[i].len()).fold(column.title.len(), usize::max))
        .collect();
    let room = WIDTH.saturating_sub(widths.iter().map(|width| width + 1).sum());
    let names: Vec<String> = caches.iter().map(|cache| shown_name(cache, room)).collect();
    let name_width = names.iter().map(|name| name.chars().count()).fold("cache".len(), usize::max);

    let _ = writeln!(text, "\n{}", groups(name_width, &widths));
    let mut line = |name: &str, cells: &mut dyn Iterator<Item = &str>| {
        let _ = write!(text, "{name:<name_width$}");
        for (cell, width) in cells.zip(&widths) {
            let _ = write!(text, " {cell:>width$}");
        }
        text.push('\n');
    };
    line("cache", &mut COLUMNS.iter().map(|column| column.title));
    for (name, row) in names.iter().zip(&cells) {
        line(name, &mut row.iter().map(String::as_str));
    }
}

/// The line above the titles: each group's name begins at its first column's left edge.
fn groups(name_width: usize, widths: &[usize]) -> String {
    let mut line = String::new();
    let mut edge = name_width;
    for (column, width) in COLUMNS.iter().zip(widths) {
        if !column.group.is_empty() {
            // Over the first title's first letter, which stands at the right of its column.
            let at = edge + 1 + width - column.title.len();
            let _ = write!(line, "{:at$}{}", "", column.group, at = at.saturating_sub(line.len()));
        }
        edge += 1 + width;
    }
    line
}

fn footer(text: &mut String, snapshot: &Snapshot, caches: &[&Cache]) {
    let sum = |figure: fn(&Cache) -> u64| caches.iter().map(|c| figure(c)).fold(0, u64::saturating_add);
    let unused = snapshot.caches.len() - caches.len();
    let (active, total) = (sum(Cache::active_objects), sum(Cache::total_objects));
    let _ = writeln!(
        text,
        "\n{} cache{} with {} in slabs, {} of their objects in use{}",
        caches.len(),
        if caches.len() == 1 { "" } else { "s" },
        bytes(sum(Cache::slab_bytes)),
        percent(active, total),
        if unused == 0 { String::new() } else { format!("; {unused} never used") }
    );
    if caches.iter().any(|cache| cache.destroyed) {
        text.push_str("(in brackets: destroyed)\n");
    }
    if snapshot.nodes > 1 {
        let (home, sheaves) = (sum(|cache| cache.home_objects), sum(|cache| cache.home_sheaves));
        let _ = writeln!(
            text,
            "nodes: {home} objects that another node freed went home, {sheaves} times as a whole sheaf"
        );
    }
    for cache in caches.iter().filter(|cache| cache.failures > 0) {
        let _ = writeln!(text, "{}: {} allocations failed for want of memory", cache.name, cache.failures);
    }
}

/// The name in at most `room` characters, in brackets for a cache that is gone.
fn shown_name(cache: &Cache, room: usize) -> String {
    let (open, close) = if cache.destroyed { ("(", ")") } else { ("", "") };
    let room = room.saturating_sub(open.len() + close.len()).max(2);
    if cache.name.chars().count() <= room {
        return format!("{open}{}{close}", cache.name);
    }
    let kept: String = cache.name.chars().take(room - 1).collect();
    format!("{open}{kept}~{close}")
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{}%", u128::from(part) * 100 / u128::from(whole)),
    }
}

fn kib(bytes: u64) -> String {
    let kib = bytes / 1024;
    if kib <= KIB_WHOLE { kib.to_string() } else { count(kib) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;
    use crate::snapshot::tests::Image;

    #[test]
    fn table_is_this() {
        let snapshot = Image::sample().parse().expect("whole");
        let expected = "
uslab: redis-server (pid 4711), rseq
heap:  12.2 MiB used, 1 MiB dirty, 18 MiB mapped, 152 KiB metadata; 8 CPUs, 1 node
large: 3 objects, 5 MiB; 19 ever

                                    objects                     sheaves   slow path
cache                          size active total use slabs  KiB size held alloc free refill flush
session table with a long name 4096    15M   16M 99%  2.0M  64M   60   12  6.0M 4.0M   4.0M  2.0M
malloc-64                        64  72900 76800 94%  1200 4800   60  900  3600 2400   2400  1200
malloc-1024                    1024     62   192 32%    12  192   60  100    36   24     24    12
(gone)                          200      0     0   -     0    0   60    0     0    0      0     0

4 caches with 61 GiB in slabs, 99% of their objects in use; 1 never used
(in brackets: destroyed)
";
        assert_eq!(text(&snapshot, "redis-server"), expected[1..]);
    }

    #[test]
    fn the_locked_mode_says_why() {
        let mut snapshot = Image::sample().parse().expect("whole");
        snapshot.mode = crate::snapshot::Mode::Locked;
        snapshot.mode_reason = layout::REASON_FORCED;
        let text = text(&snapshot, "a");
        assert_eq!(text.lines().next(), Some("uslab: a (pid 4711), locked (forced by USLAB_RSEQ=0)"));
    }

    #[test]
    fn no_figure_makes_it_wider_than_a_hundred_columns() {
        let mut snapshot = Image::sample().parse().expect("whole");
        for cache in &mut snapshot.caches {
            cache.name = "ü".repeat(48);
            (cache.slabs, cache.user_bytes, cache.sheaf_capacity) = (u64::MAX / 3, u32::MAX, u32::MAX);
            (cache.alloc_slow, cache.free_slow, cache.refills) = (99_999, 99_999, 99_999);
            (cache.flushes, cache.sheaf_free, cache.objects_per_slab) = (99_999, 99_999, 512);
        }
        let text = text(&snapshot, "a");
        let rows = text.lines().skip(3);
        assert!(rows.clone().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(rows.clone().any(|line| line.contains("üüüüüü~")), "{text}");
    }

    #[test]
    fn a_process_without_slabs_has_no_rows() {
        let mut snapshot = Image::sample().parse().expect("whole");
        snapshot.caches.clear();
        assert!(text(&snapshot, "a").ends_with("no cache has had a slab\n"));
    }

    #[test]
    fn what_went_home_is_told_on_several_nodes() {
        let mut snapshot = Image::sample().parse().expect("whole");
        snapshot.caches[0].home_objects = 600;
        snapshot.caches[0].home_sheaves = 9;
        assert!(!text(&snapshot, "a").contains("went home"));
        snapshot.nodes = 2;
        let told = "nodes: 600 objects that another node freed went home, 9 times as a whole sheaf";
        assert!(text(&snapshot, "a").contains(told));
    }

    #[test]
    fn failures_are_told() {
        let mut snapshot = Image::sample().parse().expect("whole");
        snapshot.caches[0].failures = 3;
        assert!(text(&snapshot, "a").contains("malloc-64: 3 allocations failed"));
    }
}
