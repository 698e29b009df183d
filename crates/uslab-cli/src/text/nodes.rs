//! The report of slabinfo's `--numa`: which node holds the arena's memory, and which the slabs of
//! each cache.
//!
//! The kernel tells where the pages of the arena lie. The library counts the slabs of each cache by
//! the node that it took their memory from, on a machine of several nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::reports::NAME_WIDTH;
use super::{bytes, count};
use crate::residence::ByNode;
use crate::snapshot::{Cache, Snapshot};

/// The report; `resident` is what the kernel tells, if it does.
pub fn text(snapshot: &Snapshot, resident: Option<&ByNode>) -> String {
    let mut text = String::new();
    let mut caches: Vec<&Cache> = snapshot.live_caches().filter(|cache| cache.slabs > 0).collect();
    caches.sort_by_key(|cache| (std::cmp::Reverse(cache.slab_bytes()), cache.id));
    memory(&mut text, resident, &caches);
    text.push('\n');
    // Where nodes without CPUs have memory, one node with CPUs does not mean one node of slabs.
    if snapshot.nodes > 1 || caches.iter().any(|cache| !cache.node_slabs.is_empty()) {
        slabs(&mut text, &caches);
    } else if let Some(node) = only_node(resident) {
        let _ = writeln!(text, "node {node} holds the slabs of all caches");
    } else {
        text.push_str(
            "no slab is counted by node: the library heeds one node here, or all caches are interleaved\n",
        );
    }
    text
}

/// The node that holds all of the arena.
fn only_node(resident: Option<&ByNode>) -> Option<u32> {
    let mut nodes = resident?.keys();
    nodes.next().copied().filter(|_| nodes.next().is_none())
}

/// A line for each node with memory of the arena, or with slabs.
fn memory(text: &mut String, resident: Option<&ByNode>, caches: &[&Cache]) {
    let mut slab_bytes: BTreeMap<u32, u64> = BTreeMap::new();
    let mut add = |node: u32, cache: &Cache, slabs: u64| {
        let sum = slab_bytes.entry(node).or_default();
        *sum = sum.saturating_add(cache.bytes_of_slabs(slabs));
    };
    for cache in caches {
        match only_node(resident) {
            Some(node) if cache.node_slabs.is_empty() => add(node, cache, cache.slabs),
            _ => (0..).zip(&cache.node_slabs).for_each(|(node, &slabs)| add(node, cache, slabs)),
        }
    }
    slab_bytes.retain(|_, bytes| *bytes > 0);
    let nodes: BTreeSet<u32> =
        slab_bytes.keys().chain(resident.into_iter().flatten().map(|(node, _)| node)).copied().collect();
    if resident.is_none() {
        text.push_str("the kernel does not tell on which nodes the pages are\n\n");
    }
    let _ = writeln!(text, "{:<6} {:>12} {:>12} {:>12}", "node", "resident", "tables", "slabs");
    for node in nodes {
        let of_kernel = resident.and_then(|nodes| nodes.get(&node));
        let figures = [
            of_kernel.map(|arena| arena.data_bytes),
            of_kernel.map(|arena| arena.table_bytes),
            slab_bytes.get(&node).copied(),
        ];
        let _ = write!(text, "{node:<6}");
        for figure in figures {
            let _ = write!(text, " {:>12}", figure.map_or("-".to_owned(), bytes));
        }
        text.push('\n');
    }
}

/// A line for each cache. Nodes without a slab have no column.
fn slabs(text: &mut String, caches: &[&Cache]) {
    let is_used =
        |node: &usize| caches.iter().any(|cache| cache.node_slabs.get(*node).is_some_and(|n| *n > 0));
    let nodes: Vec<usize> = (0..crate::layout::RECORD_NODES).filter(is_used).collect();
    let has_others = caches.iter().any(|cache| cache.slabs_on_no_node() > 0);
    let _ = write!(text, "{:<NAME_WIDTH$} {:>5} {:>10}", "slabs of cache", "all", "bytes");
    for node in &nodes {
        let _ = write!(text, " {:>5}", format!("N{node}"));
    }
    text.push_str(if has_others { " other  home\n" } else { "  home\n" });
    for cache in caches {
        let name: String = cache.name.chars().take(NAME_WIDTH).collect();
        let _ =
            write!(text, "{name:<NAME_WIDTH$} {:>5} {:>10}", count(cache.slabs), bytes(cache.slab_bytes()));
        let on_nodes = nodes.iter().map(|&node| cache.node_slabs.get(node).copied().unwrap_or(0));
        let others = has_others.then(|| cache.slabs_on_no_node());
        for figure in on_nodes.chain(others).chain([cache.home_objects]) {
            let shown = if figure == 0 { "-".to_owned() } else { count(figure) };
            let _ = write!(text, " {shown:>5}");
        }
        text.push('\n');
    }
    text.push_str("\nhome: objects that CPUs of other nodes freed, and that are back on their node\n");
    if has_others {
        text.push_str("other: slabs that are interleaved, or of nodes that are not counted\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residence::Arena;
    use crate::snapshot::tests::Image;

    fn arena(data: u64, tables: u64) -> Arena {
        Arena { data_bytes: data << 20, table_bytes: tables << 20 }
    }

    #[test]
    fn one_node_holds_everything() {
        let snapshot = Image::sample().parse().expect("whole");
        let shown = text(&snapshot, Some(&ByNode::from([(0, arena(12, 1))])));
        let expected = "\
node       resident       tables        slabs
0            12 MiB        1 MiB       61 GiB

node 0 holds the slabs of all caches
";
        assert_eq!(shown, expected);
    }

    #[test]
    fn slabs_are_told_by_node() {
        let mut image = Image::sample();
        image.nodes(4);
        image.node_slabs(0, &[1000, 200]);
        image.node_slabs(1, &[0, 0, 0, 10]);
        let snapshot = image.parse().expect("whole");
        let resident = ByNode::from([(0, arena(5, 1)), (1, arena(1, 0))]);
        let shown = text(&snapshot, Some(&resident));
        let expected = "\
node       resident       tables        slabs
0             5 MiB        1 MiB      3.9 MiB
1             1 MiB          0 B      800 KiB
3                 -            -      160 KiB

slabs of cache             all      bytes    N0    N1    N3 other  home
session table with a lon  2.0M     61 GiB     -     -     -  2.0M     -
malloc-64                 1200    4.6 MiB  1000   200     -     -     -
malloc-1024                 12    192 KiB     -     -    10     2     -

home: objects that CPUs of other nodes freed, and that are back on their node
other: slabs that are interleaved, or of nodes that are not counted
";
        assert_eq!(shown, expected);
        let untold = text(&snapshot, None);
        assert!(untold.starts_with("the kernel does not tell"), "{untold}");
        assert!(untold.contains("\n3                 -            -      160 KiB\n"), "{untold}");
    }

    #[test]
    fn a_library_that_ignores_nodes_counts_none() {
        let snapshot = Image::sample().parse().expect("whole");
        let resident = ByNode::from([(0, arena(5, 1)), (1, arena(1, 0))]);
        let shown = text(&snapshot, Some(&resident));
        assert!(shown.ends_with("or all caches are interleaved\n"), "{shown}");
        assert!(text(&snapshot, None).ends_with("or all caches are interleaved\n"));
    }
}
