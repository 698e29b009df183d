//! `uslab diff`: what grew between two files of `uslab info --json` or `uslab top --json`.
//!
//! Caches are matched by name and size, because ids differ between processes. So the files may also
//! come from two runs of one program.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use crate::args::Diff;
use crate::failure::{FAILED, Failure, Outcome, print};
use crate::input;
use crate::process::printable;
use crate::text::bytes;

/// Figures of the whole process, and their names on the page.
const PROCESS: [(&str, &str); 5] = [
    ("used_bytes", "used"),
    ("large_bytes", "large objects"),
    ("dirty_bytes", "dirty"),
    ("committed_bytes", "committed"),
    ("metadata_bytes", "metadata"),
];

/// The figures of one cache.
const OF_CACHE: [&str; 4] = ["user_bytes", "slab_bytes", "active_objects", "total_objects"];

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

fn read(file: &Path) -> Result<Value, Failure> {
    let fail = |reason: String| Failure::new(FAILED, format_args!("cannot use {}: {reason}", file.display()));
    let text = input::read(file, MAX_BYTES).map_err(|error| fail(error.to_string()))?;
    let value: Value = serde_json::from_slice(&text).map_err(|error| fail(error.to_string()))?;
    if value["format"] != 1 || !value["caches"].is_array() {
        return Err(fail("it is not what `uslab info PID --json` prints".to_owned()));
    }
    if let Some(name) = not_a_number(&value) {
        return Err(fail(format!("its `{name}` is not a number")));
    }
    Ok(value)
}

/// The name of the first figure that is there and is no number.
fn not_a_number(process: &Value) -> Option<&'static str> {
    let is_wrong = |of: &Value, name: &str| of.get(name).is_some_and(|figure| !figure.is_u64());
    let caches = process["caches"].as_array().into_iter().flatten();
    let of_caches = caches.flat_map(|cache| OF_CACHE.iter().map(move |&name| (cache, name)));
    let mut all = PROCESS.iter().map(|&(name, _)| (process, name)).chain(of_caches);
    all.find(|(of, name)| is_wrong(of, name)).map(|(_, name)| name)
}

/// A figure; 0 where there is none, as in files of earlier versions.
fn figure(of: &Value, name: &str) -> i64 {
    i64::try_from(of[name].as_u64().unwrap_or(0)).unwrap_or(i64::MAX)
}

fn caches(process: &Value) -> Caches {
    let mut found = Caches::new();
    for cache in process["caches"].as_array().into_iter().flatten() {
        let name = printable(cache["name"].as_str().unwrap_or("?"));
        let figures = found.entry((name, cache["user_bytes"].as_u64().unwrap_or(0))).or_default();
        let add = |sum: &mut i64, name: &str| *sum = sum.saturating_add(figure(cache, name));
        add(&mut figures.slab_bytes, "slab_bytes");
        add(&mut figures.active_objects, "active_objects");
        add(&mut figures.total_objects, "total_objects");
    }
    found
}

fn text(before: &Value, after: &Value) -> String {
    let mut text = String::new();
    for (name, shown) in PROCESS {
        let (then, now) = (figure(before, name), figure(after, name));
        let size = |bytes_now: i64| bytes(u64::try_from(bytes_now).unwrap_or(0));
        let _ = writeln!(text, "{shown:<14} {:>11} -> {:>11}  {}", size(then), size(now), change(now, then));
    }
    let (then, now) = (caches(before), caches(after));
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
    use crate::layout::{MAX_RECORDS, STATE_LIVE};
    use crate::snapshot::tests::Image;

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

    #[test]
    fn growth_comes_first_and_the_unchanged_is_left_out() {
        let (before, after) = values();
        let expected = "\
used              12.2 MiB ->    13.2 MiB  +1 MiB
large objects        5 MiB ->       5 MiB  +0 B
dirty                1 MiB ->       1 MiB  +0 B
committed           18 MiB ->      18 MiB  +0 B
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
    fn a_figure_that_is_no_number_is_named() {
        let (mut before, _) = values();
        assert_eq!(not_a_number(&before), None);
        before["caches"][1]["slab_bytes"] = (-1).into();
        assert_eq!(not_a_number(&before), Some("slab_bytes"));
        before["dirty_bytes"] = "many".into();
        assert_eq!(not_a_number(&before), Some("dirty_bytes"));
    }

    #[test]
    fn caches_of_one_name_are_summed() {
        let (mut before, _) = values();
        let list = before["caches"].as_array_mut().expect("a list");
        list.push(list[0].clone());
        assert_eq!(caches(&before)[&("malloc-64".to_owned(), 64)].total_objects, 2 * 76_800);
    }
}
