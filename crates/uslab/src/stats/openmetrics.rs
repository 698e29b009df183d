//! The figures as OpenMetrics text, with the names that `uslab metrics` uses.

use super::caches::CacheStats;
use super::{CacheName, caches};
use crate::cache;
use crate::counters::{header, layout, shrinker, sources};
use crate::rseq::Mode;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A family: its name, without the ending of counters, its type, and its help.
type Family = (&'static str, &'static str, &'static str);

/// A figure of a cache, and of a shrinker.
type OfCache = (Family, fn(&CacheStats) -> u64);
type OfShrinker = (Family, fn(&layout::Shrinker) -> &AtomicU64);

const OF_CACHE: [OfCache; 7] = [
    (("uslab_cache_active_objects", "gauge", "Objects that the program holds."), |c| c.active_objects),
    (("uslab_cache_objects", "gauge", "Objects that the slabs have room for."), |c| c.total_objects),
    (("uslab_cache_slab_bytes", "gauge", "Bytes of slabs."), |c| c.slab_bytes),
    (("uslab_cache_slabs", "gauge", "Slabs."), |c| c.slabs),
    (("uslab_cache_alloc_slow", "counter", "Slow paths of allocation."), |c| c.alloc_slow),
    (("uslab_cache_free_slow", "counter", "Slow paths of free."), |c| c.free_slow),
    (("uslab_cache_failures", "counter", "Allocations that failed for want of memory."), |c| c.failures),
];

const OF_SHRINKER: [OfShrinker; 3] = [
    (("uslab_shrinker_freeable_entries", "gauge", "Entries that could go, as counted last."), |s| {
        &s.freeable
    }),
    (("uslab_shrinker_asked_entries", "counter", "Entries that passes asked for."), |s| &s.asked),
    (("uslab_shrinker_freed_entries", "counter", "Entries that the shrinker freed."), |s| &s.freed),
];

/// Writes the figures of this process as OpenMetrics 1.0 text, for a program that serves metrics
/// itself. The names are those of `uslab metrics`, without the labels `command` and `pid`: the
/// scraper labels its targets.
///
/// Caches and shrinkers that share a name differ by the label `id`. The function allocates nothing,
/// and takes the locks that all of this module take. Not for signal handlers.
///
/// ```
/// let mut text = String::new();
/// uslab::stats::write_openmetrics(&mut text).unwrap();
/// assert!(text.starts_with("# TYPE uslab_build info\n") && text.ends_with("# EOF\n"));
/// ```
///
/// # Errors
/// Those of `out`.
pub fn write_openmetrics(out: &mut dyn Write) -> fmt::Result {
    let usage = super::usage();
    let header = header();
    head(out, ("uslab_build", "info", "Version of the library in the process, and its mode."))?;
    let mode = match cache::mode() {
        Mode::Rseq => "rseq",
        Mode::Locked => "locked",
    };
    writeln!(out, "uslab_build_info{{version=\"{}\",mode=\"{mode}\"}} 1", env!("CARGO_PKG_VERSION"))?;
    let load = |counter: &AtomicU64| counter.load(Relaxed);
    for (family, value) in [
        (
            ("uslab_allocated_bytes", "gauge", "Objects that the program holds, at their size class."),
            usage.allocated_bytes as u64,
        ),
        (
            ("uslab_active_bytes", "gauge", "Pages that slabs and large objects hold."),
            load(&header.used_bytes),
        ),
        (
            ("uslab_dirty_bytes", "gauge", "Free pages that still have memory behind them."),
            load(&header.dirty_bytes),
        ),
        (
            ("uslab_mapped_bytes", "gauge", "Bytes of the arena that are mapped."),
            load(&header.committed_bytes),
        ),
        (("uslab_large_bytes", "gauge", "Bytes of live large objects."), load(&header.large_bytes)),
        (("uslab_soft_limit_bytes", "gauge", "The soft limit; 0 for none."), load(&header.soft_limit_bytes)),
        (("uslab_hard_limit_bytes", "gauge", "The hard limit; 0 for none."), load(&header.hard_limit_bytes)),
        (
            ("uslab_purged_bytes", "counter", "Bytes that purges returned to the system."),
            load(&header.purged_bytes),
        ),
    ] {
        head(out, family)?;
        writeln!(out, "{} {value}", Name(family))?;
    }
    let passes = ("uslab_passes", "counter", "Passes of reclaim that ended, by cause.");
    head(out, passes)?;
    for (cause, passes) in layout::PASSES.iter().zip(&header.passes) {
        writeln!(out, "uslab_passes_total{{cause=\"{cause}\"}} {}", load(passes))?;
    }
    head(out, ("uslab_source_reports", "counter", "Reports that memory is short."))?;
    for (name, source) in layout::SOURCES.iter().zip(sources()) {
        writeln!(out, "uslab_source_reports_total{{source=\"{name}\"}} {}", load(&source.reports))?;
    }
    for (family, figure) in OF_SHRINKER {
        head(out, family)?;
        let used = load(&header.shrinkers_used) as usize;
        for (id, figures) in (0..used).map_while(shrinker).enumerate() {
            if figures.state.load(Relaxed) == layout::STATE_LIVE {
                let name = CacheName::of(&figures.name);
                let (labels, value) = (Labels("shrinker", name.as_str(), id), load(figure(figures)));
                writeln!(out, "{}{labels} {value}", Name(family))?;
            }
        }
    }
    for (family, figure) in OF_CACHE {
        head(out, family)?;
        for cache in caches().filter(|cache| cache.grows > 0) {
            let labels = Labels("cache", cache.name.as_str(), cache.id as usize);
            writeln!(out, "{}{labels} {}", Name(family), figure(&cache))?;
        }
    }
    out.write_str("# EOF\n")
}

fn head(out: &mut dyn Write, (name, kind, help): Family) -> fmt::Result {
    writeln!(out, "# TYPE {name} {kind}")?;
    if name.ends_with("_bytes") {
        writeln!(out, "# UNIT {name} bytes")?;
    }
    writeln!(out, "# HELP {name} {help}")
}

/// The name of a family's samples.
struct Name(Family);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, kind, _) = self.0;
        write!(f, "{name}{}", if kind == "counter" { "_total" } else { "" })
    }
}

/// The labels of a cache or shrinker: the label's name, its value, and the id.
struct Labels<'a>(&'static str, &'a str, usize);

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Labels(label, value, id) = self;
        write!(f, "{{{label}=\"")?;
        for letter in value.chars() {
            match letter {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                letter => f.write_char(letter)?,
            }
        }
        write!(f, "\",id=\"{id}\"}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::string::String;

    #[test]
    fn each_sample_is_unique_and_below_its_family() {
        let cache = crate::Cache::<[u8; 72]>::new("open \"metrics\"");
        let object = cache.insert([1; 72]).expect("there is memory");
        let mut text = String::new();
        write_openmetrics(&mut text).expect("strings take everything");
        drop(object);
        let (mut family, mut seen) = ("", HashSet::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().expect("a name");
            } else if !line.starts_with('#') {
                let (sample, value) = line.rsplit_once(' ').expect("a value");
                assert!(sample.starts_with(family) && value.parse::<u64>().is_ok(), "{line}");
                assert!(seen.insert(sample), "twice: {line}");
            }
        }
        assert!(text.contains("uslab_cache_active_objects{cache=\"open \\\"metrics\\\"\",id=\""), "{text}");
        assert!(text.contains("uslab_cache_alloc_slow_total{") && text.ends_with("# EOF\n"));
    }
}
