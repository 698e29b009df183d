//! The text of /proc/slabinfo, version 2.1 (slabinfo(5)), so that slabtop and scripts for it can
//! read it.
//!
//! Numbers that the kernel has and uslab does not are those that mean the same: `limit` and
//! `batchcount` are what a CPU keeps and moves at once, the capacity of a sheaf; nothing is shared
//! between CPUs in slabinfo's sense, so the two shared figures are 0. Names are one word there, so
//! blanks become underscores.

use std::fmt::Write;

use crate::snapshot::{Cache, SLAB_PAGE_BYTES, Snapshot};

const HEADER: &str = "\
slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>
";

/// All live caches of a process, by id.
pub fn text(snapshot: &Snapshot) -> String {
    let mut text = HEADER.to_owned();
    for cache in snapshot.caches.iter().filter(|cache| !cache.destroyed) {
        let _ = writeln!(text, "{}", row(cache, snapshot.page_bytes));
    }
    text
}

fn row(cache: &Cache, page_bytes: u32) -> String {
    format!(
        "{:<17} {:>6} {:>6} {:>6} {:>4} {:>4} : tunables {:>4} {:>4} {:>4} : slabdata {:>6} {:>6} {:>6}",
        one_word(&cache.name),
        cache.active_objects(),
        cache.total_objects(),
        cache.object_bytes,
        cache.objects_per_slab,
        system_pages(cache.pages_per_slab, page_bytes),
        cache.sheaf_capacity,
        cache.sheaf_capacity,
        0,
        cache.slabs.saturating_sub(cache.empty_slabs),
        cache.slabs,
        0
    )
}

/// Readers multiply `pagesperslab` by the system's page, which may be larger than the pages that we
/// count in.
fn system_pages(pages_per_slab: u32, page_bytes: u32) -> u64 {
    let slab_bytes = u64::from(pages_per_slab) * SLAB_PAGE_BYTES;
    slab_bytes.div_ceil(u64::from(page_bytes).max(SLAB_PAGE_BYTES))
}

fn one_word(name: &str) -> String {
    if name.is_empty() {
        return "?".to_owned();
    }
    name.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::Image;

    #[test]
    fn text_is_that_of_proc_slabinfo() {
        let snapshot = Image::sample().parse().expect("whole");
        let expected = "\
slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>
malloc-64          72900  76800     64   64    1 : tunables   60   60    0 : slabdata   1198   1200      0
malloc-1024           62    192   1024   16    4 : tunables   60   60    0 : slabdata     11     12      0
never_used             0      0     32  128    1 : tunables   60   60    0 : slabdata      0      0      0
session_table_with_a_long_name 15999976 16000000   4096    8    8 : tunables   60   60    0 : slabdata 2000000 2000000      0
";
        assert_eq!(text(&snapshot), expected);
    }

    #[test]
    fn every_row_has_the_kernels_sixteen_words() {
        let snapshot = Image::sample().parse().expect("whole");
        for row in text(&snapshot).lines().skip(2) {
            assert_eq!(row.split_ascii_whitespace().count(), 16, "{row}");
        }
    }

    #[test]
    fn large_system_pages_are_counted_as_such() {
        assert_eq!(system_pages(16, 65536), 1);
        assert_eq!(system_pages(32, 65536), 2);
        assert_eq!(system_pages(8, 4096), 8);
        assert_eq!(system_pages(u32::MAX, 0), u64::from(u32::MAX));
    }

    #[test]
    fn a_name_is_one_word() {
        assert_eq!(one_word("a b\u{a0}c"), "a_b_c");
        assert_eq!(one_word(""), "?");
    }
}
