//! The metrics: their names, and the figure behind each.
//!
//! Every sample has the labels `command` and `pid`; those of caches have `cache` and `size` too. In
//! a process with several copies of the library, `copy` tells them apart.
//! Caches of one name and size are summed, because two samples must not have the same labels.

use std::collections::BTreeMap;

use super::Process;
use super::exposition::{Family, Kind, Sample};
use crate::accounts::{Division, Parts};
use crate::snapshot::{Cache, Shrinker, Snapshot, Source};
use crate::text::mode_name;

/// A metric and where its value comes from.
type Figure<T> = (Family, fn(&T) -> u64);

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, help }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, help }
}

const BUILD: Family = Family {
    name: "uslab_build",
    kind: Kind::Info,
    help: "Version of the library in the process, its mode, and the reason for locked mode.",
};

/// Figures of a process that its snapshot holds.
const OF_PROCESS: &[Figure<Snapshot>] = &[
    (gauge("uslab_active_bytes", "Pages that slabs and large objects hold."), |s| s.used_bytes),
    (gauge("uslab_dirty_bytes", "Free pages that still have memory behind them."), |s| s.dirty_bytes),
    (gauge("uslab_mapped_bytes", "Bytes of the arena that are mapped."), |s| s.committed_bytes),
    (gauge("uslab_retained_bytes", "Bytes of the arena's addresses that are not mapped."), |s| {
        s.reserved_bytes.saturating_sub(s.committed_bytes)
    }),
    (gauge("uslab_large_bytes", "Bytes of live large objects."), |s| s.large_bytes),
    (gauge("uslab_large_objects", "Live large objects."), |s| s.large_objects),
    (counter("uslab_large_allocations", "Large objects allocated."), |s| s.large_allocs),
    (gauge("uslab_soft_limit_bytes", "The soft limit; 0 for none."), |s| s.soft_limit_bytes),
    (gauge("uslab_hard_limit_bytes", "The hard limit; 0 for none."), |s| s.hard_limit_bytes),
    (counter("uslab_passes_given_bytes", "Bytes that passes of reclaim returned to the system."), |s| {
        s.passes_bytes
    }),
    (counter("uslab_purged_bytes", "Bytes that purges returned to the system."), |s| s.purged_bytes),
];

/// Figures of a process that are derived from its snapshot and the kernel's figures.
const OF_MEMORY: &[Figure<Parts>] = &[
    (gauge("uslab_allocated_bytes", "Objects that the program holds, at the size of their cache."), |p| {
        p.live
    }),
    (gauge("uslab_metadata_bytes", "Resident bytes of the allocator's tables."), |p| p.metadata),
    (gauge("uslab_resident_bytes", "Resident bytes of the allocator, tables included."), |p| {
        p.rss.saturating_sub(p.not_ours)
    }),
    (gauge("uslab_process_resident_bytes", "Resident bytes of the whole process."), |p| p.rss),
    (gauge("uslab_absent_bytes", "Bytes of the parts that are not resident."), |p| {
        u64::try_from(p.absent).unwrap_or(0)
    }),
];

const PART: Family = gauge(
    "uslab_part_bytes",
    "Parts of the process's resident bytes: their sum less uslab_absent_bytes is the whole.",
);

/// Figures of a cache.
const OF_CACHE: &[Figure<Cache>] = &[
    (gauge("uslab_cache_active_bytes", "Objects that the program holds, at the cache's size."), |c| {
        Division::of(c).live
    }),
    (gauge("uslab_cache_active_objects", "Objects that the program holds."), Cache::active_objects),
    (gauge("uslab_cache_objects", "Objects that the slabs have room for."), Cache::total_objects),
    (gauge("uslab_cache_slab_bytes", "Bytes of slabs."), Cache::slab_bytes),
    (gauge("uslab_cache_slabs", "Slabs."), |c| c.slabs),
    (gauge("uslab_cache_partial_slabs", "Slabs with free objects and objects in use."), |c| c.partial_slabs),
    (gauge("uslab_cache_empty_slabs", "Slabs with every object free."), |c| c.empty_slabs),
    (gauge("uslab_cache_slab_free_objects", "Objects free in slabs."), |c| c.slab_free),
    (gauge("uslab_cache_sheaf_free_objects", "Objects free in sheaves and barns."), |c| c.sheaf_free),
    (counter("uslab_cache_alloc_slow", "Slow paths of allocation."), |c| c.alloc_slow),
    (counter("uslab_cache_free_slow", "Slow paths of free."), |c| c.free_slow),
    (counter("uslab_cache_refills", "Times that a CPU took objects from slabs."), |c| c.refills),
    (counter("uslab_cache_flushes", "Times that objects of a sheaf went to slabs."), |c| c.flushes),
    (counter("uslab_cache_drains", "Sheaves that drains took out of slots."), |c| c.drains),
    (counter("uslab_cache_grows", "Slabs taken from the page layer."), |c| c.grows),
    (counter("uslab_cache_shrinks", "Slabs returned to the page layer."), |c| c.shrinks),
    (counter("uslab_cache_failures", "Allocations that failed for want of memory."), |c| c.failures),
];

/// Figures of a shrinker.
const OF_SHRINKER: &[Figure<Shrinker>] = &[
    (gauge("uslab_shrinker_freeable_entries", "Entries that could go, as counted last."), |s| s.freeable),
    (
        gauge("uslab_shrinker_deferred_entries", "Entries that passes asked for and that are still owed."),
        |s| s.deferred,
    ),
    (counter("uslab_shrinker_asked_entries", "Entries that passes asked for."), |s| s.asked),
    (counter("uslab_shrinker_freed_entries", "Entries that the shrinker freed."), |s| s.freed),
    (counter("uslab_shrinker_scans", "Calls of the shrinker's scan."), |s| s.scans),
];

/// Figures of a pressure source.
const OF_SOURCE: &[Figure<Source>] = &[
    (gauge("uslab_source_watched", "1 if the source is watched."), |s| u64::from(s.state == "watched")),
    (counter("uslab_source_reports", "Reports that memory is short."), |s| s.reports),
    (gauge("uslab_source_asked_bytes", "Bytes that the last report asked for."), |s| s.asked_bytes),
    (gauge("uslab_source_limit_bytes", "The lowest limit that the source knows; 0 for none."), |s| {
        s.limit_bytes
    }),
    (gauge("uslab_source_used_bytes", "Bytes used below that limit, when the library last read it."), |s| {
        s.used_bytes
    }),
];

const PASSES: Family = counter("uslab_passes", "Passes of reclaim that ended, by cause.");

/// All metrics of some processes.
pub fn of(processes: &[Process]) -> Vec<(Family, Vec<Sample>)> {
    let mut families = vec![(BUILD, processes.iter().map(build).collect())];
    for &(family, figure) in OF_PROCESS {
        let sample = |process: &Process| sample(process, [], figure(&process.snapshot));
        families.push((family, processes.iter().map(sample).collect()));
    }
    let with_parts = || processes.iter().filter_map(|process| Some((process, process.parts.as_ref()?)));
    for &(family, figure) in OF_MEMORY {
        families.push((family, with_parts().map(|(p, parts)| sample(p, [], figure(parts))).collect()));
    }
    let parts = |(process, parts): (&'_ Process, &Parts)| {
        parts.named().map(|(name, bytes)| sample(process, [("part", name.to_owned())], bytes))
    };
    families.push((PART, with_parts().flat_map(parts).collect()));
    for &(family, figure) in OF_CACHE {
        families.push((family, processes.iter().flat_map(|process| caches(process, figure)).collect()));
    }
    let passes = |process: &Process| {
        let passes = process.snapshot.passes.iter();
        passes.map(|(cause, &n)| sample(process, [("cause", (*cause).to_owned())], n)).collect::<Vec<_>>()
    };
    families.push((PASSES, processes.iter().flat_map(passes).collect()));
    for &(family, figure) in OF_SOURCE {
        let samples = |process: &Process| {
            let labelled =
                |source: &Source| sample(process, [("source", source.name.to_owned())], figure(source));
            process.snapshot.sources.iter().map(labelled).collect::<Vec<_>>()
        };
        families.push((family, processes.iter().flat_map(samples).collect()));
    }
    for &(family, figure) in OF_SHRINKER {
        families.push((family, processes.iter().flat_map(|process| shrinkers(process, figure)).collect()));
    }
    families
}

/// One figure of all shrinkers, by name.
fn shrinkers(process: &Process, figure: fn(&Shrinker) -> u64) -> Vec<Sample> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for shrinker in process.snapshot.shrinkers.iter().filter(|shrinker| !shrinker.destroyed) {
        let sum = sums.entry(&shrinker.name).or_default();
        *sum = sum.saturating_add(figure(shrinker));
    }
    sums.into_iter().map(|(name, value)| sample(process, [("shrinker", name.to_owned())], value)).collect()
}

fn sample<const N: usize>(process: &Process, more: [(&'static str, String); N], value: u64) -> Sample {
    let labels = [("command", process.command.clone()), ("pid", process.snapshot.pid.to_string())];
    let Snapshot { copy, copies, .. } = process.snapshot;
    let copy = (copies > 1).then(|| ("copy", copy.to_string()));
    Sample { labels: labels.into_iter().chain(copy).chain(more).collect(), value }
}

fn build(process: &Process) -> Sample {
    let snapshot = &process.snapshot;
    let facts = [
        ("version", snapshot.library()),
        ("mode", mode_name(snapshot.mode).to_owned()),
        ("reason", snapshot.reason().unwrap_or_default().to_owned()),
    ];
    sample(process, facts, 1)
}

/// One figure of all caches that ever had a slab, by name and size.
fn caches(process: &Process, figure: fn(&Cache) -> u64) -> Vec<Sample> {
    let mut sums: BTreeMap<(&str, u32), u64> = BTreeMap::new();
    for cache in process.snapshot.live_caches().filter(|cache| cache.was_used()) {
        let sum = sums.entry((&cache.name, cache.user_bytes)).or_default();
        *sum = sum.saturating_add(figure(cache));
    }
    let labels = |(name, size): (&str, u32)| [("cache", name.to_owned()), ("size", size.to_string())];
    sums.into_iter().map(|(key, value)| sample(process, labels(key), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::exposition::{Format, text};
    use crate::residence::{Arena, Residence};
    use crate::snapshot::tests::Image;
    use std::collections::HashSet;

    fn process(pid: u32) -> Process {
        let mut snapshot = Image::sample().parse().expect("whole");
        snapshot.pid = pid;
        snapshot.caches[1].name = snapshot.caches[0].name.clone();
        let arena = Some(Arena { data_bytes: 10 << 20, table_bytes: 100 << 10 });
        let parts = Parts::of(&snapshot, Residence { rss_bytes: 20 << 20, arena, is_arena_gone: false });
        Process { snapshot, command: "redis \"1\"".into(), parts: Some(parts) }
    }

    #[test]
    fn every_sample_is_unique_and_says_which_process() {
        let text = text(&of(&[process(1), process(2)]), Format::OpenMetrics);
        let mut seen = HashSet::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, _) = line.rsplit_once(' ').expect("a value");
            assert!(line.contains("{command=\"redis \\\"1\\\"\",pid=\""), "{line}");
            assert!(seen.insert(name.to_owned()), "twice: {line}");
        }
        let active = "uslab_cache_active_bytes{command=\"redis \\\"1\\\"\",pid=\"1\",cache=\"malloc-64\",size=\"64\"} 4665600";
        assert!(text.contains(active), "{text}");
        assert!(text.contains("version=\"1.2.3\",mode=\"rseq\",reason=\"\"} 1"));
        let freed = "uslab_shrinker_freed_entries_total{command=\"redis \\\"1\\\"\",pid=\"2\",shrinker=\"sessions\"} 33";
        assert!(text.contains(freed) && !text.contains("gone shrinker"), "{text}");
        assert!(text.contains("source=\"cgroup\"} 5\n") && text.contains("cause=\"call\"} 2\n"), "{text}");
        assert!(!text.contains("never used") && !text.contains("\"gone\""), "{text}");
    }

    /// The dashboard asks for metrics, and labels of them, that exist.
    #[test]
    fn the_dashboard_shows_metrics_that_exist() {
        let dashboard = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/grafana/uslab.json");
        let Ok(text) = std::fs::read_to_string(dashboard) else {
            eprintln!("skipped: a package has no dashboard");
            return;
        };
        let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let families = of(&[process(1)]);
        let labels = |name: &str| {
            let (_, samples) = families.iter().find(|(family, _)| family.sample_name() == name)?;
            Some(samples.iter().flat_map(|s| &s.labels).map(|(label, _)| *label).collect::<HashSet<_>>())
        };
        let mut asked = 0;
        for panel in dashboard["panels"].as_array().expect("panels") {
            for target in panel["targets"].as_array().expect("targets") {
                let expression = target["expr"].as_str().expect("an expression");
                let mut known = HashSet::new();
                let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                for name in words.filter(|word| word.starts_with("uslab_")) {
                    known.extend(labels(name).unwrap_or_else(|| panic!("{name} in {expression}")));
                    asked += 1;
                }
                let legend = target["legendFormat"].as_str().expect("a legend");
                for label in legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
                    assert!(known.contains(label), "{label} of {expression}");
                }
            }
        }
        assert!(asked >= 10, "{asked}");
    }

    #[test]
    fn names_follow_the_convention() {
        let families = of(&[process(1)]);
        let mut names = HashSet::new();
        for (family, samples) in &families {
            assert!(!samples.is_empty() && names.insert(family.name), "{}", family.name);
            assert!(family.name.starts_with("uslab_") && !family.name.ends_with("_total"));
            assert!(family.help.ends_with('.'));
        }
    }

    #[test]
    fn a_process_that_ended_keeps_the_figures_of_its_snapshot() {
        let mut ended = process(1);
        ended.parts = None;
        let text = text(&of(&[ended]), Format::Prometheus);
        assert!(text.contains("uslab_active_bytes{") && !text.contains("uslab_process_resident_bytes"));
    }
}
