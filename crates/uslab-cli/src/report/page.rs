//! The page: summary, charts, growth, events, flame graph.

use maud::{DOCTYPE, Markup, html};

use super::chart::{Chart, Layer, duration, raw};
use super::flame;
use super::series::{Point, Series};
use crate::profile::heap::Heap;
use crate::profile::text::rows;
use crate::record::format::Definition;
use crate::text::{bytes, count};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("zoom.js");
/// Caches with an area of their own; the rest share one.
const MAX_LAYERS: usize = 8;
/// Rows of the tables.
const MAX_ROWS: usize = 15;

/// The page of a record, with a flame graph if there is a profile.
pub fn page(series: &Series, heap: Option<&Heap>) -> String {
    let header = &series.header;
    let title = format!("{} (pid {})", header.command, header.pid);
    let times_s: Vec<f64> = series.points.iter().map(|point| point.at_ms as f64 / 1000.0).collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "uslab report: " (title) }
                style { (raw(STYLE)) }
            }
            body {
                main {
                    h1 { (title) }
                    (summary(series))
                    (memory(series, &times_s).draw())
                    (reclaim(series, &times_s).draw())
                    (activity(series, &times_s).draw())
                    (unused(series, &times_s).draw())
                    (growth(series))
                    (events(series))
                    @if let Some(heap) = heap { (profile(heap)) }
                }
                @if heap.is_some() { script { (raw(SCRIPT)) } }
            }
        }
    };
    page.into_string()
}

fn summary(series: &Series) -> Markup {
    let (first, last, header) = (series.first(), series.last(), &series.header);
    let seconds = last.at_ms as f64 / 1000.0;
    let tile = |name: &str, value: String, more: String| {
        html! { div.tile { div.name { (name) } div.number { (value) } div.more { (more) } } }
    };
    let slabs = last.total(|cache| cache.slab_bytes);
    let live = last.total(|cache| cache.live_bytes);
    let used = live.saturating_mul(100).checked_div(slabs);
    html! {
        p.about { (series.samples) " samples in " (duration(seconds)) ", from " (date(header.began_ms)) ". "
            "Mode: " (header.mode) ". Recorded by uslab " (header.version) "." }
        @if series.is_cut { p.note { "The record was cut short: it ends in the middle of a sample." } }
        div.tiles {
            (tile("resident", bytes(last.process.rss_bytes), format!(
                "{} since the first sample, {} at most",
                signed(first.process.rss_bytes, last.process.rss_bytes),
                bytes(series.peak_rss_bytes)
            )))
            (tile("held by the allocator", bytes(last.held()), signed(first.held(), last.held())))
            (tile("live in slabs", used.map_or("-".to_owned(), |used| format!("{used} %")), format!(
                "{} of {}", bytes(live), bytes(slabs)
            )))
            (tile("returned to the system", bytes(returned(series)), "in this time".to_owned()))
        }
    }
}

/// Bytes that purges returned in the time of the record.
fn returned(series: &Series) -> u64 {
    let rates = series.rates(|point| point.process.purged_bytes);
    let times = series.points.windows(2).map(|pair| pair[1].at_ms.saturating_sub(pair[0].at_ms));
    rates[1..].iter().zip(times).map(|(rate, ms)| rate * ms as f64 / 1000.0).sum::<f64>() as u64
}

fn memory<'a>(series: &Series, times_s: &'a [f64]) -> Chart<'a> {
    let largest = series.largest();
    let (shown, rest) = largest.split_at(largest.len().min(MAX_LAYERS));
    let of = |name: &Definition, point: &Point| point.caches.get(name).map_or(0, |cache| cache.slab_bytes);
    let mut layers = vec![
        layer("large objects", "large", series.values(|point| point.process.large_bytes)),
        layer("free pages", "free", series.values(|point| point.process.dirty_bytes)),
    ];
    if !rest.is_empty() {
        let sum = |point: &Point| rest.iter().map(|name| of(name, point)).fold(0, u64::saturating_add);
        let name = format!("{} other caches", rest.len());
        layers.push(layer(&name, "rest", series.values(sum)));
    }
    for (index, name) in shown.iter().enumerate().rev() {
        layers.push(layer(&shown_name(name), &format!("c{index}"), series.values(|point| of(name, point))));
    }
    let layers = drawn(layers);
    let lines = vec![layer("resident", "resident", series.values(|point| point.process.rss_bytes))];
    Chart {
        title: "Memory",
        about: "slabs by cache, large objects and free pages; the line is all that is resident",
        layers,
        lines,
        times_s,
        unit: |value| bytes(value as u64),
    }
}

fn reclaim<'a>(series: &Series, times_s: &'a [f64]) -> Chart<'a> {
    Chart {
        title: "Returned to the system",
        about: "bytes that purges gave back, each second",
        layers: vec![layer("purged", "c2", series.rates(|point| point.process.purged_bytes))],
        lines: drawn(vec![layer(
            "by passes of reclaim",
            "l0",
            series.rates(|point| point.process.passes_bytes),
        )]),
        times_s,
        unit: |value| format!("{}/s", bytes(value as u64)),
    }
}

fn activity<'a>(series: &Series, times_s: &'a [f64]) -> Chart<'a> {
    let rates = |figure: fn(&Point) -> u64| series.rates(figure);
    // Of a second, in thousandths: on the scale of the counts beside it.
    let stalled = rates(|point| point.process.stall_us).into_iter().map(|us| us / 1000.0).collect();
    let lines = vec![
        layer("sheaves drained", "l0", rates(|point| point.counts.drains)),
        layer("slabs released", "l1", rates(|point| point.counts.shrinks)),
        layer("slabs made", "l2", rates(|point| point.counts.grows)),
        layer("failed allocations", "l3", rates(|point| point.counts.failures)),
        layer("ms stalled for memory (PSI)", "l4", stalled),
        layer("passes of reclaim", "l5", rates(|point| point.process.passes)),
        layer("entries freed by shrinkers", "l6", rates(|point| point.process.shrinker_entries)),
    ];
    Chart {
        title: "Pressure and reclaim",
        about: "events each second",
        layers: Vec::new(),
        lines: drawn(lines),
        times_s,
        unit: |value| {
            if value < 10.0 && value > 0.0 {
                format!("{value:.1}/s")
            } else {
                format!("{}/s", count(value as u64))
            }
        },
    }
}

fn unused<'a>(series: &Series, times_s: &'a [f64]) -> Chart<'a> {
    let total =
        |figure: fn(&crate::record::format::CacheFigures) -> u64| series.values(|point| point.total(figure));
    let layers = vec![
        layer("slack: ends of slabs and of objects", "rest", total(|cache| cache.slack_bytes())),
        layer("empty slabs", "free", total(|cache| cache.empty_bytes)),
        layer("cached in sheaves and barns", "c1", total(|cache| cache.cached_bytes)),
        layer("fragmentation: free objects in slabs in use", "c0", total(|cache| cache.partial_bytes)),
    ];
    Chart {
        title: "Slabs without live objects",
        about: "bytes of slabs that no object in use holds",
        layers,
        lines: Vec::new(),
        times_s,
        unit: |value| bytes(value as u64),
    }
}

/// Those that are not zero throughout.
fn drawn(layers: Vec<Layer>) -> Vec<Layer> {
    layers.into_iter().filter(|layer| layer.values.iter().any(|&value| value > 0.0)).collect()
}

fn layer(name: &str, class: &str, values: Vec<f64>) -> Layer {
    Layer { name: name.to_owned(), class: class.to_owned(), values }
}

fn growth(series: &Series) -> Markup {
    let hours = (series.last().at_ms as f64 / 3_600_000.0).max(1e-6);
    let rows: Vec<_> = series.growth().into_iter().filter(|(_, first, last)| first != last).collect();
    html! {
        h2 { "Top growth" }
        p.about { "Bytes of slabs at the first and the last sample, and the change of live objects." }
        @if rows.is_empty() { p { "No cache changed." } } @else {
            div.wide { table {
                thead { tr { th { "cache" } th.n { "growth" } th.n { "an hour" } th.n { "first" } th.n { "last" } th.n { "live objects" } } }
                tbody { @for (name, first, last) in rows.iter().take(MAX_ROWS) {
                    @let by = last.slab_bytes as f64 - first.slab_bytes as f64;
                    tr {
                        td { (shown_name(name)) }
                        td.n { (signed(first.slab_bytes, last.slab_bytes)) }
                        td.n { (if by < 0.0 { "-" } else { "+" }) (bytes((by.abs() / hours) as u64)) }
                        td.n { (bytes(first.slab_bytes)) }
                        td.n { (bytes(last.slab_bytes)) }
                        td.n { (format!("{:+}", i128::from(last.live_objects) - i128::from(first.live_objects))) }
                    }
                } }
            } }
            @if rows.len() > MAX_ROWS { p.about { (rows.len() - MAX_ROWS) " more caches changed." } }
        }
    }
}

fn events(series: &Series) -> Markup {
    html! {
        @if !series.events.is_empty() {
            h2 { "Events" }
            ul { @for (at_ms, event) in &series.events {
                li { "after " (duration(*at_ms as f64 / 1000.0)) ": " (event) }
            } }
        }
    }
}

fn profile(heap: &Heap) -> Markup {
    html! {
        h2 { "Where the memory was allocated" }
        (flame::graph(heap))
        div.wide { table {
            thead { tr { th { "function" } th { "cache" } th.n { "in use" } th.n { "allocated" } th.n { "ages" } th { "kept" } } }
            tbody { @for row in rows(heap).into_iter().take(MAX_ROWS) {
                tr {
                    td { code { (row.function) } }
                    td { (row.cache) }
                    td.n { (row.in_use) }
                    td.n { (row.allocated) }
                    td.n { (row.ages) }
                    td { (row.kept) }
                }
            } }
        } }
        p.about { (crate::profile::text::LEGEND) }
    }
}

fn shown_name(name: &Definition) -> String {
    let of_size =
        name.name.rsplit('-').next().is_some_and(|end| end.starts_with(|c: char| c.is_ascii_digit()));
    if of_size { name.name.clone() } else { format!("{} ({} B)", name.name, name.user_bytes) }
}

/// A change of bytes with its sign.
fn signed(then: u64, now: u64) -> String {
    let sign = if now < then { '-' } else { '+' };
    format!("{sign}{}", bytes(now.abs_diff(then)))
}

/// Unix time as a date and time of day, UTC (days to dates after Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms").
fn date(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3600 % 24, seconds / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::dump::tests::sample as heap;
    use crate::report::series::tests::sample;

    #[test]
    fn the_page_stands_alone_and_names_its_parts() {
        let page = page(&sample(30), Some(&heap()));
        for part in [
            "server (pid 7)",
            "name=\"viewport\"",
            "Returned to the system",
            "Pressure and reclaim",
            "entries freed by shrinkers: 5.0/s at the end, 5.0/s at most",
            "by passes of reclaim: ",
            "Slabs without live objects",
            "Top growth",
            "after 3.0 s: process 7 became another program",
            "session &lt;table&gt; (1001 B)",
            "leak_here",
            "[malloc-64]",
        ] {
            assert!(page.contains(part), "{part} is missing");
        }
        for foreign in ["http:", "https:", "src=", "@import", "url(", "<table>&gt;", "NaN"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        let short = super::page(&sample(1), None);
        assert!(!short.contains("<script") && !short.contains("shrinkers"));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(1_709_164_800_000), "2024-02-29 00:00 UTC");
        assert_eq!(date(1_700_000_000_000), "2023-11-14 22:13 UTC");
    }
}
