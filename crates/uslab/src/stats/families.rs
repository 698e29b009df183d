//! The families of metrics: their names, the figure behind each, and the order in which all outputs
//! list them.
//!
//! ```text
//!   counters ─▶ write() ─┬─▶ OpenMetrics text            openmetrics.rs
//!                        ├─▶ the crate metrics           publisher.rs, feature `metrics`
//!                        └─▶ the crate prometheus-client collector.rs, feature `prometheus-client`
//! ```
//!
//! The names are those of `uslab metrics`. Caches and shrinkers that share a name differ by the
//! label `id`. This file allocates nothing. It holds no lock while an output runs.

use super::CacheName;
use super::caches::{CacheStats, counted_caches};
use crate::cache;
use crate::counters::{header, layout, shrinker, sources};
use crate::rseq::Mode;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The types of families that this library has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
    Info,
}

impl Kind {
    /// The word for it in the texts that Prometheus reads.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Info => "info",
        }
    }

    /// The ending of a sample's name behind the family's.
    pub fn ending(self) -> &'static str {
        match self {
            Kind::Gauge => "",
            Kind::Counter => "_total",
            Kind::Info => "_info",
        }
    }
}

/// A family.
#[derive(Clone, Copy)]
pub(super) struct Family {
    /// The name, without the ending of the samples.
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

impl Family {
    /// Whether the values are bytes; then the name ends with the unit.
    pub fn is_bytes(&self) -> bool {
        self.name.ends_with("_bytes")
    }
}

/// Takes one sample: its labels, names before values, and its value.
pub(super) type Emit<'a> = dyn FnMut(&[(&str, &str)], u64) -> fmt::Result + 'a;

/// A form in which the figures leave the library.
pub(super) trait Output {
    /// Takes a family. `samples` passes each of its samples to the function that it is given; the
    /// output calls it once.
    fn family(
        &mut self,
        family: &Family,
        samples: &mut dyn FnMut(&mut Emit<'_>) -> fmt::Result,
    ) -> fmt::Result;
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, help }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, help }
}

const BUILD: Family = Family {
    name: "uslab_build",
    kind: Kind::Info,
    help: "Version of the library in the process, and its mode.",
};
const ALLOCATED: Family =
    gauge("uslab_allocated_bytes", "Objects that the program holds, at the size of their cache.");
const PASSES: Family = counter("uslab_passes", "Passes of reclaim that ended, by cause.");
const REPORTS: Family = counter("uslab_source_reports", "Reports that memory is short.");

/// A figure of the process, of a cache, and of a shrinker.
type OfProcess = (Family, fn(&layout::Header) -> u64);
type OfCache = (Family, fn(&CacheStats) -> u64);
type OfShrinker = (Family, fn(&layout::Shrinker) -> u64);

const OF_PROCESS: [OfProcess; 11] = [
    (gauge("uslab_active_bytes", "Pages that slabs and large objects hold."), |h| load(&h.used_bytes)),
    (gauge("uslab_dirty_bytes", "Free pages that still have memory behind them."), |h| load(&h.dirty_bytes)),
    (gauge("uslab_mapped_bytes", "Bytes of the arena that are mapped."), |h| load(&h.committed_bytes)),
    (gauge("uslab_retained_bytes", "Bytes of the arena's addresses that are not mapped."), |h| {
        load(&h.reserved_bytes).saturating_sub(load(&h.committed_bytes))
    }),
    (gauge("uslab_large_bytes", "Bytes of live large objects."), |h| load(&h.large_bytes)),
    (gauge("uslab_large_objects", "Live large objects."), |h| load(&h.large_objects)),
    (counter("uslab_large_allocations", "Large objects allocated."), |h| load(&h.large_allocs)),
    (gauge("uslab_soft_limit_bytes", "The soft limit; 0 for none."), |h| load(&h.soft_limit_bytes)),
    (gauge("uslab_hard_limit_bytes", "The hard limit; 0 for none."), |h| load(&h.hard_limit_bytes)),
    (counter("uslab_passes_given_bytes", "Bytes that passes of reclaim returned to the system."), |h| {
        load(&h.passes_bytes)
    }),
    (counter("uslab_purged_bytes", "Bytes that purges returned to the system."), |h| load(&h.purged_bytes)),
];

const OF_CACHE: [OfCache; 17] = [
    (gauge("uslab_cache_active_bytes", "Objects that the program holds, at the cache's size."), active_bytes),
    (gauge("uslab_cache_active_objects", "Objects that the program holds."), |c| c.active_objects),
    (gauge("uslab_cache_objects", "Objects that the slabs have room for."), |c| c.total_objects),
    (gauge("uslab_cache_slab_bytes", "Bytes of slabs."), |c| c.slab_bytes),
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

const OF_SHRINKER: [OfShrinker; 5] = [
    (gauge("uslab_shrinker_freeable_entries", "Entries that could go, as counted last."), |s| {
        load(&s.freeable)
    }),
    (
        gauge("uslab_shrinker_deferred_entries", "Entries that passes asked for and that are still owed."),
        |s| load(&s.deferred),
    ),
    (counter("uslab_shrinker_asked_entries", "Entries that passes asked for."), |s| load(&s.asked)),
    (counter("uslab_shrinker_freed_entries", "Entries that the shrinker freed."), |s| load(&s.freed)),
    (counter("uslab_shrinker_scans", "Calls of the shrinker's scan."), |s| load(&s.scans)),
];

/// Bytes of a cache's active objects, as `uslab metrics` counts them. Counters that moved between
/// two loads make no more of them than there are slabs.
fn active_bytes(cache: &CacheStats) -> u64 {
    cache.active_objects.saturating_mul(cache.user_bytes).min(cache.slab_bytes)
}

/// The caches with figures of their own.
fn used_caches() -> impl Iterator<Item = CacheStats> {
    counted_caches().filter(|cache| !cache.is_destroyed && cache.grows > 0)
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

/// Passes all families to `out`, with the figures of this moment.
///
/// # Errors
/// Those of `out`.
pub(super) fn write(out: &mut dyn Output) -> fmt::Result {
    // This counts what the sheaves hold, for the caches below, too.
    let usage = super::usage();
    let header = header();
    let mode = match cache::mode() {
        Mode::Rseq => "rseq",
        Mode::Locked => "locked",
    };
    out.family(&BUILD, &mut |emit| emit(&[("version", env!("CARGO_PKG_VERSION")), ("mode", mode)], 1))?;
    out.family(&ALLOCATED, &mut |emit| {
        let in_caches = used_caches().map(|cache| active_bytes(&cache)).fold(0, u64::saturating_add);
        emit(&[], in_caches.saturating_add(usage.large_bytes as u64))
    })?;
    for (family, figure) in &OF_PROCESS {
        out.family(family, &mut |emit| emit(&[], figure(header)))?;
    }
    out.family(&PASSES, &mut |emit| {
        let mut passes = layout::PASSES.iter().zip(&header.passes);
        passes.try_for_each(|(cause, passes)| emit(&[("cause", cause)], load(passes)))
    })?;
    out.family(&REPORTS, &mut |emit| {
        let mut sources = layout::SOURCES.iter().zip(sources());
        sources.try_for_each(|(name, source)| emit(&[("source", name)], load(&source.reports)))
    })?;
    for (family, figure) in &OF_SHRINKER {
        out.family(family, &mut |emit| {
            let used = load(&header.shrinkers_used) as usize;
            let all = (0..used).map_while(shrinker).enumerate();
            let mut live = all.filter(|(_, figures)| figures.state.load(Relaxed) == layout::STATE_LIVE);
            live.try_for_each(|(id, figures)| {
                let (name, id) = (CacheName::of(&figures.name), Decimal::of(id as u32));
                emit(&[("shrinker", name.as_str()), ("id", id.as_str())], figure(figures))
            })
        })?;
    }
    for (family, figure) in &OF_CACHE {
        out.family(family, &mut |emit| {
            used_caches().try_for_each(|cache| {
                let id = Decimal::of(cache.id);
                emit(&[("cache", cache.name.as_str()), ("id", id.as_str())], figure(&cache))
            })
        })?;
    }
    Ok(())
}

/// A number in digits, without an allocation.
struct Decimal {
    digits: [u8; 10],
    used: usize,
}

impl Decimal {
    fn of(number: u32) -> Decimal {
        let mut decimal = Decimal { digits: [0; 10], used: 0 };
        let written = write!(decimal, "{number}");
        debug_assert!(written.is_ok(), "ten digits are enough");
        decimal
    }

    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.digits[..self.used]).unwrap_or("?")
    }
}

impl Write for Decimal {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.used + text.len();
        let place = self.digits.get_mut(self.used..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.used = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_in_digits() {
        for number in [0, 7, 3327, u32::MAX] {
            assert_eq!(Decimal::of(number).as_str(), std::format!("{number}"));
        }
    }

    #[test]
    fn names_follow_the_rules_of_openmetrics() {
        struct Names(HashSet<&'static str>);
        impl Output for Names {
            fn family(
                &mut self,
                family: &Family,
                _: &mut dyn FnMut(&mut Emit<'_>) -> fmt::Result,
            ) -> fmt::Result {
                let Family { name, help, .. } = family;
                assert!(name.starts_with("uslab_") && help.ends_with('.'), "{name}: {help}");
                assert!(!name.ends_with("_total") && !name.ends_with("_info"), "{name}");
                assert!(self.0.insert(name), "twice: {name}");
                Ok(())
            }
        }
        let mut names = Names(HashSet::new());
        write(&mut names).expect("it takes everything");
        assert!(names.0.contains("uslab_cache_active_bytes"), "{:?}", names.0);
    }
}
