//! Divides a process's resident memory into parts that add up to it.
//!
//! ```text
//!   RSS = live + slack + cached + partial + empty + other + dirty + metadata − absent + not ours
//! ```
//!
//! The one place that derives the parts; `top`, `metrics` and the reports print what it returns:
//!
//! | part | derived from |
//! |---|---|
//! | live | objects in the program's hands × the size of their cache, and large objects |
//! | slack | those objects × (distance − size), and the ends of slabs that hold no whole object |
//! | cached | objects in sheaves and barns × distance, as of the last slow paths of each CPU |
//! | partial | free objects × distance in slabs that also hold objects in use, less the pages of slabs that are not charged: not used yet, or given back |
//! | empty | slabs with every object free |
//! | other | used pages that belong to no listed cache: those of private heaps and of the heap profile |
//! | dirty | free pages with memory behind them |
//! | metadata | resident bytes of the arena's tables; an upper bound where the kernel tells nothing |
//! | absent | bytes of the parts above that are not resident: never touched, or swapped out |
//! | not ours | the rest of the process: code, stacks, files, mappings of other allocators |
//!
//! All but dirty, metadata, absent and not ours add up to the snapshot's used bytes.
//!
//! Live counts the size of the cache, not the size that the caller of malloc asked for: the
//! allocator keeps no requested sizes. Where smaps shows no arena, `absent` is a lower bound and
//! `not ours` an estimate: [`Parts::is_estimated`].

use serde::Serialize;

use crate::residence::Residence;
use crate::snapshot::{Cache, SLAB_PAGE_BYTES, Snapshot};

/// The parts of a process's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parts {
    #[serde(rename = "rss_bytes")]
    pub rss: u64,
    #[serde(rename = "live_bytes")]
    pub live: u64,
    #[serde(rename = "slack_bytes")]
    pub slack: u64,
    #[serde(rename = "cached_bytes")]
    pub cached: u64,
    #[serde(rename = "partial_bytes")]
    pub partial: u64,
    #[serde(rename = "empty_bytes")]
    pub empty: u64,
    #[serde(rename = "other_bytes")]
    pub other: u64,
    #[serde(rename = "dirty_bytes")]
    pub dirty: u64,
    #[serde(rename = "metadata_bytes")]
    pub metadata: u64,
    /// Negative where the arena grew between the two reads.
    #[serde(rename = "absent_bytes")]
    pub absent: i64,
    #[serde(rename = "not_ours_bytes")]
    pub not_ours: u64,
    /// The kernel did not tell which resident bytes are the arena's.
    pub is_estimated: bool,
}

/// What the slabs of one cache hold, in bytes; the five add up to [`Cache::slab_bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Division {
    pub live: u64,
    pub slack: u64,
    pub cached: u64,
    pub partial: u64,
    pub empty: u64,
}

impl Division {
    /// Divides the slabs of a cache.
    pub fn of(cache: &Cache) -> Division {
        let slab_bytes = u64::from(cache.pages_per_slab) * SLAB_PAGE_BYTES;
        let (per_slab, distance) = (u64::from(cache.objects_per_slab), u64::from(cache.object_bytes));
        let empty_slabs = cache.empty_slabs.min(cache.slabs);
        let holes = cache.slab_free.saturating_sub(empty_slabs.saturating_mul(per_slab));
        // Each part takes from what the ones before it left, so that the five add up also where the
        // counters moved between two loads.
        let mut rest = cache.slab_bytes();
        let mut take = |bytes: u64| {
            let taken = bytes.min(rest);
            rest -= taken;
            taken
        };
        let live = take(cache.active_objects().saturating_mul(cache.user_bytes.into()));
        let empty = take(empty_slabs.saturating_mul(slab_bytes));
        let cached = take(cache.sheaf_free.saturating_mul(distance));
        let partial = take(holes.saturating_mul(distance));
        let slack = rest;
        Division { live, slack, cached, partial, empty }
    }

    /// Bytes of slabs that no live object occupies.
    pub fn loss(&self) -> u64 {
        [self.slack, self.cached, self.partial, self.empty].into_iter().fold(0, u64::saturating_add)
    }
}

impl Parts {
    /// Divides the memory of a process.
    pub fn of(snapshot: &Snapshot, residence: Residence) -> Parts {
        let mut parts = Parts { rss: residence.rss_bytes, live: snapshot.large_bytes, ..Parts::default() };
        let mut slab_bytes: u64 = 0;
        for cache in snapshot.live_caches() {
            let of_cache = Division::of(cache);
            for (sum, part) in [
                (&mut parts.live, of_cache.live),
                (&mut parts.slack, of_cache.slack),
                (&mut parts.cached, of_cache.cached),
                (&mut parts.partial, of_cache.partial),
                (&mut parts.empty, of_cache.empty),
                (&mut slab_bytes, cache.slab_bytes()),
            ] {
                *sum = sum.saturating_add(part);
            }
        }
        let listed = slab_bytes.saturating_add(snapshot.large_bytes);
        parts.other = snapshot.used_bytes.saturating_sub(listed);
        let mut uncharged = listed.saturating_sub(snapshot.used_bytes);
        // Only free objects lie on such pages; the other parts give where the counters contradict
        // each other.
        for part in
            [&mut parts.partial, &mut parts.empty, &mut parts.slack, &mut parts.cached, &mut parts.live]
        {
            let taken = uncharged.min(*part);
            (*part, uncharged) = (*part - taken, uncharged - taken);
        }
        parts.dirty = snapshot.dirty_bytes;
        let held = snapshot.used_bytes.saturating_add(parts.dirty);
        match residence.arena {
            Some(arena) => {
                parts.metadata = arena.table_bytes;
                parts.absent = signed(held) - signed(arena.data_bytes);
                let ours = arena.data_bytes.saturating_add(arena.table_bytes);
                parts.not_ours = parts.rss.saturating_sub(ours);
            }
            None => {
                parts.metadata = snapshot.metadata_bytes.min(parts.rss);
                let ours = held.saturating_add(parts.metadata);
                parts.absent = signed(ours.saturating_sub(parts.rss));
                parts.not_ours = parts.rss.saturating_sub(ours);
                parts.is_estimated = true;
            }
        }
        parts
    }

    /// The parts in the order in which they are shown, without `absent`.
    pub fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("live", self.live),
            ("slack", self.slack),
            ("cached", self.cached),
            ("partial", self.partial),
            ("empty", self.empty),
            ("other", self.other),
            ("dirty", self.dirty),
            ("metadata", self.metadata),
            ("not_ours", self.not_ours),
        ]
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residence::Arena;
    use crate::snapshot::tests::Image;

    fn sample() -> Snapshot {
        Image::sample().parse().expect("whole")
    }

    fn total(parts: &Parts) -> i64 {
        parts.named().iter().map(|(_, bytes)| signed(*bytes)).sum::<i64>() - parts.absent
    }

    #[test]
    fn the_slabs_of_a_cache_are_divided_without_a_rest() {
        let snapshot = sample();
        let first = Division::of(&snapshot.caches[0]);
        let (live, cached, empty) = (72_900 * 64, 900 * 64, 2 * 4096);
        let expected = Division { live, slack: 0, cached, partial: (3000 - 128) * 64, empty };
        assert_eq!(first, expected);
        for mut cache in snapshot.caches {
            for torn in [0, 10, 1 << 40] {
                (cache.slab_free, cache.sheaf_free) = (cache.slab_free + torn, cache.sheaf_free + torn);
                let division = Division::of(&cache);
                assert_eq!(division.live + division.loss(), cache.slab_bytes(), "{}", cache.name);
            }
        }
    }

    #[test]
    fn the_parts_add_up_to_the_resident_bytes() {
        let mut snapshot = sample();
        snapshot.caches.truncate(3);
        for data_bytes in [1 << 20, 9 << 20, 99 << 20] {
            let arena = Some(Arena { data_bytes, table_bytes: 100 << 10 });
            let residence = Residence { rss_bytes: 200 << 20, arena, is_arena_gone: false };
            let parts = Parts::of(&snapshot, residence);
            assert_eq!(total(&parts), 200 << 20);
            assert_eq!(parts.not_ours, (200 << 20) - data_bytes - (100 << 10));
            assert!(!parts.is_estimated);
        }
    }

    #[test]
    fn pages_of_slabs_that_are_not_charged_count_nowhere() {
        let mut snapshot = sample();
        snapshot.caches.truncate(3);
        let residence = Residence { rss_bytes: 200 << 20, arena: None, is_arena_gone: false };
        let whole = Parts::of(&snapshot, residence);
        snapshot.used_bytes -= whole.other + 100_000;
        let parts = Parts::of(&snapshot, residence);
        assert_eq!((parts.partial, parts.other), (whole.partial - 100_000, 0));
        let used = parts.live + parts.slack + parts.cached + parts.partial + parts.empty;
        assert_eq!(used, snapshot.used_bytes);
        assert_eq!(total(&parts), 200 << 20);
    }

    #[test]
    fn without_the_arenas_mappings_the_rest_is_an_estimate() {
        let mut snapshot = sample();
        snapshot.caches.truncate(3);
        for rss_bytes in [1 << 20, 13 << 20, 1 << 30] {
            let parts = Parts::of(&snapshot, Residence { rss_bytes, arena: None, is_arena_gone: false });
            assert!(parts.is_estimated);
            assert_eq!(total(&parts), signed(rss_bytes));
        }
    }

    #[test]
    fn absurd_figures_do_not_overflow() {
        let mut snapshot = sample();
        for cache in &mut snapshot.caches {
            (cache.slabs, cache.slab_free, cache.sheaf_free) = (u64::MAX, u64::MAX, u64::MAX);
            (cache.objects_per_slab, cache.object_bytes, cache.user_bytes) = (u32::MAX, u32::MAX, u32::MAX);
        }
        (snapshot.used_bytes, snapshot.dirty_bytes, snapshot.large_bytes) = (u64::MAX, u64::MAX, u64::MAX);
        let arena = Some(Arena { data_bytes: u64::MAX, table_bytes: u64::MAX });
        Parts::of(&snapshot, Residence { rss_bytes: u64::MAX, arena, is_arena_gone: false });
        Parts::of(&snapshot, Residence { rss_bytes: 0, arena: None, is_arena_gone: false });
    }
}
