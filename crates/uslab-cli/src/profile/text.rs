//! Profiles as text: a table for people, folded stacks, and jemalloc's heap_v2.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use super::heap::{Ages, Heap, Site};
use crate::text::{bytes, count};

/// Call stacks that the text shows.
const MAX_SITES: usize = 30;
/// Callers that the text shows of each.
const MAX_CALLERS: usize = 12;
/// Fewer samples tell nothing about ages.
const MIN_AGED: u64 = 8;

/// What the column of ages, and the words behind it, mean.
pub const LEGEND: &str = "Ages are those of the youngest, the middle and the oldest sample in use. \
start: allocated near the start and kept since. grows: of all ages, and none was freed, as leaks are. \
turns: none is old, as in a cache that renews itself. mixed: none of these.";

/// A call stack, in words.
pub struct Row {
    pub function: String,
    pub cache: String,
    pub in_use: String,
    pub allocated: String,
    pub ages: String,
    pub kept: &'static str,
}

/// Sites, those first that hold most; of a difference, those that grew most.
fn sorted(heap: &Heap) -> Vec<&Site> {
    let mut sites: Vec<&Site> = heap.sites.iter().collect();
    sites.sort_by_key(|site| (-site.values[3].saturating_abs(), -site.values[1].saturating_abs()));
    if heap.is_difference {
        sites.sort_by_key(|site| Reverse(site.values[3]));
    }
    sites
}

/// All call stacks in the order of [`text`].
pub fn rows(heap: &Heap) -> Vec<Row> {
    let row = |site: &Site| Row {
        function: heap.stack(site).into_iter().next().unwrap_or_else(|| "?".to_owned()),
        cache: site.cache.clone(),
        in_use: signed(heap, site.values[3]),
        allocated: signed(heap, site.values[1]),
        ages: site.ages.map_or_else(|| "-".to_owned(), ages),
        kept: kept(site, heap.duration_ms),
    };
    sorted(heap).into_iter().map(row).collect()
}

fn ages(ages: Ages) -> String {
    [ages.youngest_ms, ages.median_ms, ages.oldest_ms].map(age).join(" / ")
}

fn age(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        10_000..600_000 => format!("{} s", ms / 1000),
        600_000..36_000_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

/// How a site keeps its objects, as far as their ages show it.
fn kept(site: &Site, duration_ms: u64) -> &'static str {
    let Some(ages) = site.ages.filter(|ages| ages.live_samples >= MIN_AGED) else { return "-" };
    let part = |ms: u64| ms.saturating_mul(100) / duration_ms.max(1);
    let is_never_freed = site.values[3] >= site.values[1] / 10 * 9;
    match (part(ages.youngest_ms), part(ages.oldest_ms)) {
        (75.., _) => "start",
        (_, 0..=33) => "turns",
        (0..=33, 66..) if is_never_freed => "grows",
        _ => "mixed",
    }
}

fn signed(heap: &Heap, value: i64) -> String {
    let sign = match (heap.is_difference, value < 0) {
        (_, true) => "-",
        (true, false) => "+",
        _ => "",
    };
    format!("{sign}{}", bytes(value.unsigned_abs()))
}

/// The profile for people: the call stacks that hold most.
pub fn text(heap: &Heap) -> String {
    let mut text = format!(
        "{} (pid {}): {} in use, {} allocated in {}, one sample in {}\n",
        heap.command,
        heap.pid,
        signed(heap, heap.total(3)),
        signed(heap, heap.total(1)),
        age(heap.duration_ms),
        bytes(heap.period_bytes)
    );
    if heap.dropped > 0 {
        let _ =
            writeln!(text, "the process had no room for {} samples: the figures are too low", heap.dropped);
    }
    if heap.sites.is_empty() {
        text.push_str(if heap.is_difference { "no call stack changed\n" } else { "no samples\n" });
        return text;
    }
    let whole = heap.total(3).max(1);
    let has_ages = heap.sites.iter().any(|site| site.ages.is_some());
    for (site, row) in sorted(heap).into_iter().zip(rows(heap)).take(MAX_SITES) {
        let share = if heap.is_difference {
            String::new()
        } else {
            format!(" {:.1}%", 100.0 * site.values[3] as f64 / whole as f64)
        };
        let _ = write!(
            text,
            "\n{}{share} in {} objects of {} ({}); {} allocated",
            row.in_use,
            count(site.values[2].unsigned_abs()),
            site.cache,
            bytes(site.object_bytes),
            row.allocated
        );
        if site.ages.is_some() {
            let _ = write!(text, "; ages {}: {}", row.ages, row.kept);
        }
        text.push('\n');
        for (line, _) in heap.frames(site).into_iter().take(MAX_CALLERS) {
            let place =
                if line.file.is_empty() { String::new() } else { format!("  {}:{}", line.file, line.line) };
            let _ = writeln!(text, "    {}{place}", line.function);
        }
    }
    if heap.sites.len() > MAX_SITES {
        let _ = writeln!(
            text,
            "\n{} more call stacks; --format pprof has them all",
            heap.sites.len() - MAX_SITES
        );
    }
    if has_ages {
        let _ = writeln!(text, "\n{}", LEGEND.replace(". ", ".\n"));
    }
    text
}

/// One line a call stack, the outermost caller first, and the bytes in use; of a profile without
/// any in use, the allocated ones. Differences show growth alone: the format has no sign.
pub fn folded(heap: &Heap) -> String {
    let value = if heap.sites.iter().any(|site| site.values[3] != 0) { 3 } else { 1 };
    let mut stacks: BTreeMap<String, i64> = BTreeMap::new();
    for site in &heap.sites {
        let mut names: Vec<String> =
            heap.stack(site).iter().rev().map(|name| name.replace([';', '\n'], ":")).collect();
        names.push(format!("[{}]", site.cache.replace([';', ' '], "_")));
        let sum = stacks.entry(names.join(";")).or_default();
        *sum = sum.saturating_add(site.values[value]);
    }
    let lines = stacks.iter().filter(|(_, bytes)| **bytes > 0);
    lines.map(|(stack, bytes)| format!("{stack} {bytes}\n")).collect()
}

/// jemalloc's text. The values are estimates already, so the period is 1: jeprof then corrects
/// nothing.
pub fn jeprof(heap: &Heap, maps: &str) -> String {
    let line = |text: &mut String, values: [i64; 4]| {
        let [alloc_objects, alloc_bytes, objects, bytes] = values.map(|value| value.max(0));
        let _ = writeln!(text, "  t*: {objects}: {bytes} [{alloc_objects}: {alloc_bytes}]");
    };
    let mut text = "heap_v2/1\n".to_owned();
    line(&mut text, [0, 1, 2, 3].map(|value| heap.total(value)));
    for site in &heap.sites {
        text.push('@');
        for &index in &site.locations {
            // jeprof subtracts one from each address itself.
            let _ = write!(text, " {:#x}", heap.locations[index].address.wrapping_add(1));
        }
        text.push('\n');
        line(&mut text, site.values);
    }
    let _ = write!(text, "\nMAPPED_LIBRARIES:\n{maps}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::dump::tests::{TEXT, sample};

    #[test]
    fn the_text_shows_stacks_and_ages() {
        let expected = "\
my server (pid 4711): 11.9 KiB in use, 15 KiB allocated in 30 s, one sample in 512 KiB

8.7 KiB 73.8% in 9 objects of session table (1000 B); 8.7 KiB allocated; ages 28 s / 29 s / 29 s: start
    fill  /src/fill.c:7
    main  /src/main.c:7

3.1 KiB 26.2% in 50 objects of malloc-64 (64 B); 6.2 KiB allocated; ages 0.1 s / 15 s / 29 s: mixed
    leak_here  /src/leak_here.c:7
    main  /src/main.c:7

Ages are those of the youngest, the middle and the oldest sample in use.
";
        assert!(text(&sample()).starts_with(expected), "{}", text(&sample()));
    }

    #[test]
    fn a_leak_is_told_from_a_cache() {
        let mut site = sample().sites.remove(0);
        assert_eq!(kept(&site, 30_000), "mixed", "half of it was freed");
        site.values[3] = site.values[1];
        assert_eq!(kept(&site, 30_000), "grows");
        assert_eq!(kept(&site, 300_000), "turns");
        site.ages = site.ages.map(|ages| Ages { live_samples: 7, ..ages });
        assert_eq!(kept(&site, 30_000), "-");
    }

    #[test]
    fn folded_stacks_begin_with_the_outermost_caller() {
        assert_eq!(folded(&sample()), "main;fill;[session_table] 9000\nmain;leak_here;[malloc-64] 3200\n");
    }

    #[test]
    fn jemallocs_text_has_return_addresses_and_mappings() {
        let maps = TEXT.split_once("maps\n").expect("mappings").1;
        let text = jeprof(&sample(), maps);
        let start = "heap_v2/1\n  t*: 59: 12200 [109: 15400]\n@ 0x7f0000001235 0x401001 0x402001\n  t*: 50: 3200 [100: 6400]\n";
        assert!(text.starts_with(start), "{text}");
        assert!(text.ends_with(&format!("\nMAPPED_LIBRARIES:\n{maps}")));
    }
}
