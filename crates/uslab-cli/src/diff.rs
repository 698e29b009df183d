//! `uslab diff`: what grew between two files of `uslab info --json` or `uslab top --json`.
//!
//! Caches are matched by name and size, because ids differ between processes. So the files may also
//! come from two runs of one program.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::error::Category;

use crate::args::Diff;
use crate::failure::{FAILED, Failure, Outcome, print};
use crate::input;
use crate::layout::{MAX_RECORDS, NAME_BYTES};
use crate::process::printable;
use crate::text::bytes;

/// The figures of a file, 0 where there are none, as in files of earlier versions. What else is in
/// the file takes no memory.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Process {
    format: u64,
    used_bytes: u64,
    large_bytes: u64,
    dirty_bytes: u64,
    committed_bytes: u64,
    metadata_bytes: u64,
    #[serde(deserialize_with = "caches")]
    caches: Option<Caches>,
}

impl Process {
    /// The figures of the whole process, with their names on the page.
    fn figures(&self) -> [(&'static str, u64); 5] {
        [
            ("used", self.used_bytes),
            ("large objects", self.large_bytes),
            ("dirty", self.dirty_bytes),
            ("mapped", self.committed_bytes),
            ("metadata", self.metadata_bytes),
        ]
    }
}

/// The figures of one cache.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Cache<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    user_bytes: u64,
    slab_bytes: u64,
    active_objects: u64,
    total_objects: u64,
}

/// A larger file is not what `uslab top` prints. One cache takes up to 1.7 KiB there, so all that
/// can be take up to 110 MiB.
const MAX_BYTES: u64 = 128 << 20;

/// The figures of all caches of one name and size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Figures {
    slab_bytes: i64,
    active_objects: i64,
    total_objects: i64,
}

type Caches = BTreeMap<(String, u64), Figures>;

/// Prints what changed, the largest growth first.
pub fn diff(options: &Diff) -> Outcome {
    let before = read(&options.before)?;
    let after = read(&options.after)?;
    print(text(&before, &after))
}

fn read(file: &Path) -> Result<Process, Failure> {
    let fail = |reason: String| Failure::new(FAILED, format_args!("cannot use {}: {reason}", file.display()));
    let text = input::read(file, MAX_BYTES).map_err(|error| fail(error.to_string()))?;
    parse(&text).map_err(fail)
}

fn parse(text: &[u8]) -> Result<Process, String> {
    const NOT_FIGURES: &str = "it is not what `uslab info PID --json` prints";
    let process: Process = serde_json::from_slice(text).map_err(|error| match error.classify() {
        Category::Data => format!("{NOT_FIGURES}: {error}"),
        _ => error.to_string(),
    })?;
    let is_known = process.format == 1 && process.caches.is_some();
    if is_known { Ok(process) } else { Err(NOT_FIGURES.to_owned()) }
}

/// Adds up the caches of a list.
fn caches<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Caches>, D::Error> {
    struct List;
    impl<'de> Visitor<'de> for List {
        type Value = Caches;

        fn expecting(&self, text: &mut fmt::Formatter) -> fmt::Result {
            text.write_str("a list of caches")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Caches, A::Error> {
            let mut found = Caches::new();
            let mut count = 0;
            while let Some(cache) = list.next_element::<Cache>()? {
                count += 1;
                if count > MAX_RECORDS {
                    return Err(A::Error::custom(format_args!("more than {MAX_RECORDS} caches")));
                }
                let name: String = cache.name.chars().take(NAME_BYTES).collect();
                let figures = found.entry((printable(&name), cache.user_bytes)).or_default();
                let add = |sum: &mut i64, figure: u64| *sum = sum.saturating_add(signed(figure));
                add(&mut figures.slab_bytes, cache.slab_bytes);
                add(&mut figures.active_objects, cache.active_objects);
                add(&mut figures.total_objects, cache.total_objects);
            }
            Ok(found)
        }
    }
    deserializer.deserialize_seq(List).map(Some)
}

fn signed(figure: u64) -> i64 {
    i64::try_from(figure).unwrap_or(i64::MAX)
}

fn text(before: &Process, after: &Process) -> String {
    let mut text = String::new();
    for ((shown, then), (_, now)) in before.figures().into_iter().zip(after.figures()) {
        let change = change(signed(now), signed(then));
        let _ = writeln!(text, "{shown:<14} {:>11} -> {:>11}  {change}", bytes(then), bytes(now));
    }
    let none = Caches::new();
    let [then, now] = [before, after].map(|process| process.caches.as_ref().unwrap_or(&none));
    let mut changed: Vec<(&(String, u64), Figures, Figures)> = now
        .keys()
        .chain(then.keys().filter(|key| !now.contains_key(*key)))
        .map(|key| {
            (key, then.get(key).copied().unwrap_or_default(), now.get(key).copied().unwrap_or_default())
        })
        .filter(|(_, then, now)| then != now)
        .collect();
    changed.sort_by_key(|(_, then, now)| {
        (
            then.slab_bytes.saturating_sub(now.slab_bytes),
            then.active_objects.saturating_sub(now.active_objects),
        )
    });
    if changed.is_empty() {
        text.push_str("\nno cache changed\n");
        return text;
    }
    let _ =
        writeln!(text, "\n{:<32} {:>7} {:>12} {:>12} {:>12}", "cache", "size", "bytes", "live", "objects");
    for ((name, size), then, now) in changed {
        let name: String = name.chars().take(32).collect();
        let count = |now: i64, then: i64| format!("{:+}", now.saturating_sub(then));
        let _ = writeln!(
            text,
            "{name:<32} {size:>7} {:>12} {:>12} {:>12}",
            change(now.slab_bytes, then.slab_bytes),
            count(now.active_objects, then.active_objects),
            count(now.total_objects, then.total_objects)
        );
    }
    text
}

/// A change of bytes with its sign.
fn change(now: i64, then: i64) -> String {
    let by = now.saturating_sub(then);
    let sign = if by < 0 { '-' } else { '+' };
    format!("{sign}{}", bytes(by.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use crate::layout::STATE_LIVE;
    use crate::snapshot::tests::Image;
    use serde_json::{Value, json};

    fn values() -> (Value, Value) {
        let mut snapshot = Image::sample().parse().expect("whole");
        let parsed = |snapshot: &_| serde_json::from_str(&json::process(snapshot, "x")).expect("JSON");
        let before = parsed(&snapshot);
        snapshot.used_bytes += 1 << 20;
        snapshot.caches[0].slabs += 256;
        snapshot.caches[1].slabs -= 2;
        snapshot.caches[2].name = "new".into();
        (before, parsed(&snapshot))
    }

    fn parse(value: &Value) -> Result<Process, String> {
        super::parse(value.to_string().as_bytes())
    }

    #[test]
    fn growth_comes_first_and_the_unchanged_is_left_out() {
        let (before, after) = values();
        let (before, after) = (parse(&before).expect("figures"), parse(&after).expect("figures"));
        let expected = "\
used              12.2 MiB ->    13.2 MiB  +1 MiB
large objects        5 MiB ->       5 MiB  +0 B
dirty                1 MiB ->       1 MiB  +0 B
mapped              18 MiB ->      18 MiB  +0 B
metadata           152 KiB ->     152 KiB  +0 B

cache                               size        bytes         live      objects
malloc-64                             64       +1 MiB       +16384       +16384
malloc-1024                         1024      -32 KiB          -32          -32
";
        assert_eq!(text(&before, &after), expected);
        assert!(text(&before, &before).ends_with("no cache changed\n"));
    }

    #[test]
    fn a_file_of_as_many_caches_as_there_can_be_is_read() {
        let mut image = Image::sample();
        let (first, end) = (image.base(0), image.base(1));
        image.0[first..end].fill(0xff);
        image.0[first..first + 4].copy_from_slice(&STATE_LIVE.to_ne_bytes());
        let mut snapshot = image.parse().expect("whole");
        snapshot.caches.truncate(1);
        let cache = &mut snapshot.caches[0];
        (cache.slabs, cache.partial_slabs, cache.empty_slabs) = (u64::MAX, u64::MAX, u64::MAX);
        (cache.slab_free, cache.sheaf_free) = (u64::MAX, u64::MAX);
        let with = json::process(&snapshot, "x").len();
        snapshot.caches.clear();
        // `uslab top` adds four rates.
        let rates = 16 + 4 * "        \"net_objects_per_s\": -1.7976931348623157e308,\n".len();
        let of_cache = (with - json::process(&snapshot, "x").len() + rates) as u64;
        assert!((1200..1740).contains(&of_cache), "{of_cache}");
        assert!(of_cache * MAX_RECORDS as u64 + (1 << 20) <= MAX_BYTES);
    }

    #[test]
    fn what_does_not_hold_figures_is_refused() {
        let (mut before, _) = values();
        assert!(parse(&before).is_ok());
        let reason = |value: &Value| parse(value).err().expect("refused");
        before["caches"][1]["slab_bytes"] = (-1).into();
        let start =
            "it is not what `uslab info PID --json` prints: invalid value: integer `-1`, expected u64 at";
        assert!(reason(&before).starts_with(start), "{}", reason(&before));
        before["caches"] = vec![json!({}); MAX_RECORDS + 1].into();
        assert!(reason(&before).contains("more than 65536 caches"), "{}", reason(&before));
        for other in [json!({}), json!({"format": 2, "caches": []}), json!({"format": 1}), json!([])] {
            assert!(reason(&other).starts_with("it is not what `uslab info"), "{other}");
        }
        // Elements that would take memory of their own are refused, and unknown ones skipped.
        assert!(reason(&json!({"format": 1, "caches": [0, 0]})).contains("integer `0`"));
        assert!(parse(&json!({"format": 1, "caches": [], "other": [0, 0]})).is_ok());
    }

    #[test]
    fn caches_of_one_name_are_summed() {
        let (mut before, _) = values();
        let list = before["caches"].as_array_mut().expect("a list");
        list.push(list[0].clone());
        let caches = parse(&before).expect("figures").caches.expect("a list");
        assert_eq!(caches[&("malloc-64".to_owned(), 64)].total_objects, 2 * 76_800);
    }
}
