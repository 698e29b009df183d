//! The reports of slabinfo(1): where slabs hold more memory than objects need, totals, one cache.
//!
//! | here | slabinfo | shows |
//! |---|---|---|
//! | `--loss` | `-L` | caches by the bytes that no live object holds |
//! | `--sort size` | `-S` | caches by the bytes of their slabs |
//! | `--partial`, `--empty` | `-P`, `-e` | caches with such slabs |
//! | `--numa` | `-n` | the arena and the slabs of caches by node (`nodes.rs`) |
//! | `--totals` | `-T` | all caches together, and the least, the mean and the most of a cache |
//! | `PID CACHE` | `-r` | one cache in detail |

use std::fmt::Write;

use clap::{Args, ValueEnum};

use super::{bytes, count, nodes};
use crate::accounts::Division;
use crate::residence;
use crate::snapshot::{Cache, SLAB_PAGE_BYTES, Snapshot};

/// What stands below the help of `uslab info`.
pub const EXAMPLES: &str = "
Reports:
  uslab info 4711 --loss                  caches whose slabs hold most without a live object
  uslab info 4711 --sort size             caches by the bytes of their slabs
  uslab info 4711 --partial               caches with fragmented slabs, most of them first
  uslab info 4711 --numa                  which node holds the memory, by cache
  uslab info 4711 --totals                all caches together
  uslab info 4711 session                 all about one cache

The loss of a cache is what its slabs hold beyond live objects: slack (ends of slabs and of
objects), cached (in sheaves and barns), partial (free objects between live ones: fragmentation)
and empty (whole slabs kept for later).";

/// Options of the reports.
#[derive(Args)]
pub struct Reports {
    /// The cache to show in detail
    #[arg(value_name = "CACHE", conflicts_with_all = ["json", "table", "all", "sort", "totals", "numa"])]
    #[arg(conflicts_with_all = ["loss", "partial", "empty"])]
    pub cache: Option<String>,

    /// Show all used caches by name, size, loss, partial or objects
    #[arg(short = 'S', long, value_name = "KEY", requires = "pid", conflicts_with_all = ["json", "table"], hide_possible_values = true)]
    pub sort: Option<Sort>,

    /// Show the caches whose slabs hold memory beyond live objects, the largest loss first
    #[arg(short = 'L', long, requires = "pid", conflicts_with_all = ["json", "table"])]
    pub loss: bool,

    /// Show the caches with partial slabs, the most free bytes in them first
    #[arg(short = 'P', long, requires = "pid", conflicts_with_all = ["json", "table", "loss"])]
    pub partial: bool,

    /// Show the caches with empty slabs, the most bytes in them first
    #[arg(short = 'e', long, requires = "pid", conflicts_with_all = ["json", "table", "loss", "partial"])]
    pub empty: bool,

    /// Show the totals of all caches
    #[arg(short = 'T', long, requires = "pid", conflicts_with_all = ["json", "table", "loss", "partial", "empty", "sort"])]
    pub totals: bool,

    /// Show which node holds the memory: of the arena, and the slabs of each cache
    #[arg(short = 'n', long, requires = "pid", conflicts_with_all = ["table", "sort", "totals"])]
    #[arg(conflicts_with_all = ["loss", "partial", "empty"])]
    pub numa: bool,
}

/// The order of caches.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    Name,
    Size,
    Loss,
    Partial,
    Objects,
}

/// Columns of a cache's name.
pub const NAME_WIDTH: usize = 24;

/// A figure of a row, and its name.
type Part = (&'static str, fn(&Row) -> u64);

/// A cache and the division of its slabs.
struct Row<'a> {
    cache: &'a Cache,
    division: Division,
}

impl Row<'_> {
    fn rank(&self, sort: Sort) -> u64 {
        match sort {
            Sort::Name => 0,
            Sort::Size => self.cache.slab_bytes(),
            Sort::Loss => self.division.loss(),
            Sort::Partial => self.division.partial,
            Sort::Objects => self.cache.active_objects(),
        }
    }
}

impl Reports {
    /// The report that was asked for; `None` if none was. The error is that no cache has the name.
    pub fn text(&self, snapshot: &Snapshot) -> Result<Option<String>, String> {
        if let Some(name) = &self.cache {
            return details(snapshot, name).map(Some);
        }
        if self.totals {
            return Ok(Some(totals(snapshot)));
        }
        if self.numa {
            return Ok(Some(nodes::text(snapshot, residence::read_by_node(snapshot).as_ref())));
        }
        let (is_shown, usual): (fn(&Row) -> bool, Sort) = match (self.loss, self.partial, self.empty) {
            (true, ..) => (|row| row.division.loss() > 0, Sort::Loss),
            (_, true, _) => (|row| row.cache.partial_slabs > 0, Sort::Partial),
            (.., true) => (|row| row.cache.empty_slabs > 0, Sort::Size),
            _ if self.sort.is_some() => (|_| true, Sort::Size),
            _ => return Ok(None),
        };
        let mut shown = rows(snapshot);
        shown.retain(is_shown);
        shown.sort_by(|one, other| one.cache.name.cmp(&other.cache.name));
        match (self.sort, self.empty) {
            (None, true) => shown.sort_by_key(|row| std::cmp::Reverse(row.division.empty)),
            (sort, _) => {
                let sort = sort.unwrap_or(usual);
                shown.sort_by_key(|row| std::cmp::Reverse(row.rank(sort)));
            }
        }
        Ok(Some(table(&shown)))
    }
}

fn rows(snapshot: &Snapshot) -> Vec<Row<'_>> {
    let used = snapshot.live_caches().filter(|cache| cache.slabs > 0);
    used.map(|cache| Row { cache, division: Division::of(cache) }).collect()
}

fn percent(part: u64, whole: u64) -> u64 {
    (100 * u128::from(part)).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no such caches\n".to_owned();
    }
    let mut text = format!("{:<NAME_WIDTH$} {:>5} {:>5} {:>5}", "cache", "size", "live", "slabs");
    for title in ["bytes", "loss", "cached", "partial", "empty"] {
        let _ = write!(text, " {title:>9}");
    }
    text.push_str("  loss%\n");
    for Row { cache, division } in rows {
        let name: String = cache.name.chars().take(NAME_WIDTH).collect();
        let _ = write!(
            text,
            "{name:<NAME_WIDTH$} {:>5} {:>5} {:>5}",
            count(cache.user_bytes.into()),
            count(cache.active_objects()),
            count(cache.slabs)
        );
        let Division { cached, partial, empty, .. } = *division;
        for figure in [cache.slab_bytes(), division.loss(), cached, partial, empty] {
            let shown = if figure == 0 { "-".to_owned() } else { bytes(figure) };
            let _ = write!(text, " {shown:>9}");
        }
        let _ = writeln!(text, " {:>5}%", percent(division.loss(), cache.slab_bytes()));
    }
    text
}

fn totals(snapshot: &Snapshot) -> String {
    let rows = rows(snapshot);
    let sum = |figure: &dyn Fn(&Row) -> u64| rows.iter().map(figure).fold(0, u64::saturating_add);
    let slabs = sum(&|row| row.cache.slab_bytes());
    let mut text = format!(
        "{} caches with {} slabs, {} partial and {} empty; {} of {} objects live\n\n",
        rows.len(),
        sum(&|row| row.cache.slabs),
        sum(&|row| row.cache.partial_slabs),
        sum(&|row| row.cache.empty_slabs),
        sum(&|row| row.cache.active_objects()),
        sum(&|row| row.cache.total_objects()),
    );
    let parts: [Part; 6] = [
        ("slabs", |row| row.cache.slab_bytes()),
        ("live", |row| row.division.live),
        ("slack", |row| row.division.slack),
        ("cached", |row| row.division.cached),
        ("partial", |row| row.division.partial),
        ("empty", |row| row.division.empty),
    ];
    let _ = writeln!(
        text,
        "{:<8} {:>12} {:>5} {:>12} {:>12} {:>12}",
        "bytes", "total", "", "least cache", "mean", "most"
    );
    for (name, part) in parts {
        let total = sum(&part);
        let _ = writeln!(
            text,
            "{name:<8} {:>12} {:>4}% {:>12} {:>12} {:>12}",
            bytes(total),
            percent(total, slabs),
            bytes(rows.iter().map(part).min().unwrap_or(0)),
            bytes(total / (rows.len() as u64).max(1)),
            bytes(rows.iter().map(part).max().unwrap_or(0)),
        );
    }
    let large = (snapshot.large_objects, bytes(snapshot.large_bytes));
    let _ = writeln!(text, "\nbeside them {} large objects with {}", large.0, large.1);
    text
}

fn details(snapshot: &Snapshot, name: &str) -> Result<String, String> {
    let found: Vec<&Cache> = snapshot.live_caches().filter(|cache| cache.name == name).collect();
    if found.is_empty() {
        let likely = snapshot.live_caches().filter(|cache| cache.was_used() && cache.name.contains(name));
        let likely: Vec<&str> = likely.map(|cache| cache.name.as_str()).take(5).collect();
        let hint =
            if likely.is_empty() { String::new() } else { format!("; there is {}", likely.join(", ")) };
        return Err(format!("no cache is called {name}{hint}"));
    }
    Ok(found.into_iter().map(detail).collect::<Vec<_>>().join("\n"))
}

fn detail(cache: &Cache) -> String {
    let division = Division::of(cache);
    let whole = cache.slab_bytes();
    let slab_bytes = u64::from(cache.pages_per_slab) * SLAB_PAGE_BYTES;
    let waste = slab_bytes.saturating_sub(u64::from(cache.objects_per_slab) * u64::from(cache.object_bytes));
    let mut text = format!("cache {} (id {})\n\n", cache.name, cache.id);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12} {value}");
    };
    line("object", format!("{} B, {} B apart", cache.user_bytes, cache.object_bytes));
    line(
        "slab",
        format!("{}: {} objects, {} left over", bytes(slab_bytes), cache.objects_per_slab, bytes(waste)),
    );
    line("sheaf", format!("{} objects", cache.sheaf_capacity));
    let full = cache.slabs.saturating_sub(cache.partial_slabs).saturating_sub(cache.empty_slabs);
    line(
        "slabs",
        format!(
            "{}: {full} full, {} partial, {} empty (it keeps {})",
            cache.slabs, cache.partial_slabs, cache.empty_slabs, cache.empty_target
        ),
    );
    line(
        "objects",
        format!(
            "{}: {} live, {} in sheaves and barns, {} in slabs",
            cache.total_objects(),
            cache.active_objects(),
            cache.sheaf_free,
            cache.slab_free
        ),
    );
    line("bytes", format!("{} in slabs", bytes(whole)));
    let Division { live, slack, cached, partial, empty } = division;
    for (name, part) in
        [("live", live), ("slack", slack), ("cached", cached), ("partial", partial), ("empty", empty)]
    {
        line(&format!("  {name}"), format!("{:>11} {:>3}%", bytes(part), percent(part, whole)));
    }
    line("slow paths", format!("{} of allocation, {} of free", cache.alloc_slow, cache.free_slow));
    line(
        "sheaves",
        format!("{} refills, {} flushes, {} sheaves drained", cache.refills, cache.flushes, cache.drains),
    );
    line("pages", format!("{} slabs made, {} released", cache.grows, cache.shrinks));
    if cache.slabs > 0 && !cache.node_slabs.is_empty() {
        let on_node = |(node, slabs): (usize, &u64)| format!("{slabs} slabs on node {node}");
        let used = cache.node_slabs.iter().enumerate().filter(|(_, slabs)| **slabs > 0);
        let other = Some(cache.slabs_on_no_node()).filter(|&slabs| slabs > 0);
        let other = other.map(|slabs| format!("{slabs} interleaved or not counted"));
        line("nodes", used.map(on_node).chain(other).collect::<Vec<_>>().join(", "));
    }
    if cache.home_objects > 0 {
        let told = "objects that another node freed are back";
        line(
            "went home",
            format!("{} {told}, in {} whole sheaves and by slabs", cache.home_objects, cache.home_sheaves),
        );
    }
    line("failures", cache.failures.to_string());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::Image;

    fn none() -> Reports {
        Reports {
            cache: None,
            sort: None,
            loss: false,
            partial: false,
            empty: false,
            totals: false,
            numa: false,
        }
    }

    fn text(reports: Reports) -> String {
        let snapshot = Image::sample().parse().expect("whole");
        reports.text(&snapshot).expect("a report").expect("asked for")
    }

    /// The caches of a table, in order.
    fn names(table: &str) -> Vec<&str> {
        table.lines().skip(1).map(|line| line[..NAME_WIDTH].trim_end()).collect()
    }

    #[test]
    fn the_largest_loss_comes_first() {
        let table = text(Reports { loss: true, ..none() });
        assert_eq!(names(&table), ["malloc-64", "malloc-1024", "session table with a lon"]);
        let first = table.lines().nth(1).expect("a row");
        let row = "malloc-64                   64 72900  1200   4.6 MiB 243.7 KiB  56.2 KiB 179.5 KiB     8 KiB     5%";
        assert_eq!(first, row);
    }

    #[test]
    fn caches_are_sorted_and_chosen() {
        let by_size = text(Reports { sort: Some(Sort::Size), ..none() });
        assert_eq!(names(&by_size)[0], "session table with a lon");
        let by_name = text(Reports { sort: Some(Sort::Name), ..none() });
        assert_eq!(names(&by_name)[0], "malloc-1024");
        assert_eq!(names(&text(Reports { empty: true, ..none() })), ["malloc-1024", "malloc-64"]);
        assert_eq!(names(&text(Reports { partial: true, ..none() })).len(), 3);
        let snapshot = Image::sample().parse().expect("whole");
        assert_eq!(none().text(&snapshot), Ok(None));
    }

    #[test]
    fn one_cache_is_shown_in_detail() {
        let shown = text(Reports { cache: Some("malloc-64".into()), ..none() });
        let expected = "\
cache malloc-64 (id 0)

object       64 B, 64 B apart
slab         4 KiB: 64 objects, 0 B left over
sheaf        60 objects
slabs        1200: 1158 full, 40 partial, 2 empty (it keeps 5)
objects      76800: 72900 live, 900 in sheaves and barns, 3000 in slabs
bytes        4.6 MiB in slabs
  live           4.4 MiB  94%
  slack              0 B   0%
  cached        56.2 KiB   1%
  partial      179.5 KiB   3%
  empty            8 KiB   0%
slow paths   3600 of allocation, 2400 of free
sheaves      2400 refills, 1200 flushes, 0 sheaves drained
pages        1200 slabs made, 0 released
failures     0
";
        assert_eq!(shown, expected);
        let snapshot = Image::sample().parse().expect("whole");
        let missing = Reports { cache: Some("malloc-".into()), ..none() }.text(&snapshot);
        assert_eq!(missing, Err("no cache is called malloc-; there is malloc-64, malloc-1024".to_owned()));
    }

    #[test]
    fn one_cache_is_told_by_node() {
        let mut image = Image::sample();
        image.nodes(3);
        image.node_slabs(0, &[1000, 0, 50]);
        let snapshot = image.parse().expect("whole");
        let shown = |name: &str| {
            let reports = Reports { cache: Some(name.into()), ..none() };
            reports.text(&snapshot).expect("a report").expect("asked for")
        };
        let line =
            "\nnodes        1000 slabs on node 0, 50 slabs on node 2, 150 interleaved or not counted\n";
        assert!(shown("malloc-64").contains(line), "{}", shown("malloc-64"));
        assert!(!shown("never used").contains("\nnodes"));
    }

    #[test]
    fn totals_add_up() {
        let shown = text(Reports { totals: true, ..none() });
        assert!(shown.starts_with("3 caches with 2001212 slabs, 52 partial and 3 empty; "), "{shown}");
        assert!(shown.ends_with("\nbeside them 3 large objects with 5 MiB\n"), "{shown}");
        assert_eq!(shown.lines().filter(|line| line.contains('%')).count(), 6);
    }
}
