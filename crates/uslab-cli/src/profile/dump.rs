//! The text in which a process writes its profile.
//!
//! ```text
//!   uslab-profile 1
//!   pid, command, period_bytes, started_ms, written_ms, sampled_ms, samples_dropped: a word and its
//!   value
//!   site CACHE SIZE  4 values  SAMPLES LIVE  3 ages  FRAME…     return addresses, innermost first
//!   maps
//!   the text of /proc/PID/maps
//! ```
//!
//! Values are estimates of the whole, not counts of samples. Lines that begin with another word are
//! passed over.

use std::collections::HashMap;

use super::heap::{Ages, Heap, Location, Mapping, Site};
use crate::input::Identity;
use crate::process::printable;

/// The first line.
pub const MAGIC: &str = "uslab-profile 1";
/// The library has room for 2^19 frames.
const MAX_LOCATIONS: usize = 1 << 20;
/// The kernel allows a process 65 530 mappings, unless an administrator chose otherwise.
const MAX_MAPPINGS: usize = 1 << 17;

/// Reads a profile without symbols; the error names the line that cannot be.
pub fn parse(text: &str) -> Result<Heap, String> {
    let mut lines = text.lines().enumerate();
    if lines.next().is_none_or(|(_, line)| line != MAGIC) {
        return Err(format!("it does not begin with `{MAGIC}`"));
    }
    let mut heap = Heap::default();
    let mut places = HashMap::new();
    let (mut started_ms, mut sampled_ms, mut is_whole) = (0, None, false);
    for (index, line) in lines.by_ref() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = || rest.parse::<u64>().map_err(|_| format!("line {}: not a number", index + 1));
        match word {
            "pid" => heap.pid = u32::try_from(number()?).unwrap_or(0),
            "command" => heap.command = unescape(rest),
            "period_bytes" => heap.period_bytes = number()?,
            "started_ms" => started_ms = number()?,
            "written_ms" => heap.written_ms = number()?,
            "sampled_ms" => sampled_ms = Some(number()?),
            "samples_dropped" => heap.dropped = number()?,
            "site" => {
                let site = site(rest, &mut heap.locations, &mut places);
                heap.sites.push(site.ok_or_else(|| format!("line {}: not a site", index + 1))?);
                if heap.locations.len() > MAX_LOCATIONS {
                    return Err(format!("line {}: more than {MAX_LOCATIONS} addresses", index + 1));
                }
            }
            "maps" => {
                is_whole = true;
                break;
            }
            _ => {}
        }
    }
    if !is_whole {
        return Err("it ends before its mappings".to_owned());
    }
    // Sampling may have been off for a part of the time.
    heap.duration_ms = sampled_ms.unwrap_or_else(|| heap.written_ms.saturating_sub(started_ms));
    heap.mappings = lines.filter_map(|(_, line)| mapping(line)).take(MAX_MAPPINGS).collect();
    let mut starts: Vec<(u64, usize)> =
        heap.mappings.iter().enumerate().map(|(index, mapping)| (mapping.start, index)).collect();
    starts.sort_unstable();
    for location in &mut heap.locations {
        let before = starts.partition_point(|&(start, _)| start <= location.address);
        let nearest = before.checked_sub(1).map(|at| starts[at].1);
        location.mapping = nearest.filter(|&index| location.address < heap.mappings[index].end);
    }
    Ok(heap)
}

fn site(text: &str, locations: &mut Vec<Location>, places: &mut HashMap<u64, usize>) -> Option<Site> {
    let mut words = text.split_ascii_whitespace();
    let cache = unescape(words.next()?);
    let mut numbers = [0_u64; 10];
    for number in &mut numbers {
        *number = words.next()?.parse().ok()?;
    }
    let [object_bytes, values @ .., _, live_samples, youngest_ms, median_ms, oldest_ms] = numbers;
    let mut site = Site { cache, object_bytes, ..Site::default() };
    for (value, number) in site.values.iter_mut().zip(values) {
        *value = i64::try_from(number).unwrap_or(i64::MAX);
    }
    site.ages = (live_samples > 0).then_some(Ages { live_samples, youngest_ms, median_ms, oldest_ms });
    for word in words {
        let returns_to = u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()?;
        // The call may be the last instruction of its function: look it up, not its successor.
        let address = returns_to.saturating_sub(1);
        let index = *places.entry(address).or_insert_with(|| {
            locations.push(Location { address, ..Location::default() });
            locations.len() - 1
        });
        site.locations.push(index);
    }
    Some(site)
}

/// A line of /proc/PID/maps (proc_pid_maps(5)), if it maps a file to be executed.
fn mapping(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        rest = rest.trim_start_matches(' ');
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        word
    };
    let (range, permissions, offset, device, inode) = (word(), word(), word(), word(), word());
    let path = rest.trim_start_matches(' ');
    if !permissions.contains('x') || path.is_empty() {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        file_offset: hex(offset)?,
        identity: Identity { device: device_number(device).unwrap_or(0), inode: inode.parse().ok()? },
        path: path.to_owned(),
        build_id: String::new(),
    })
}

/// The number of a device, as stat(2) has it: `08:01`.
fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    Some(libc::makedev(hex(major)?, hex(minor)?))
}

/// Text in which `\xNN` stands for a byte, made safe to print.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.strip_prefix(b"x").and_then(|after| after.get(..2));
        let digits = digits.filter(|_| byte == b'\\').and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    printable(&String::from_utf8_lossy(&bytes))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::profile::heap::Line;

    pub const TEXT: &str = "\
uslab-profile 1
pid 4711
command my\\x20server
period_bytes 524288
started_ms 1700000000000
written_ms 1700000030000
samples_dropped 0
later words are passed over
site malloc-64 64 100 6400 50 3200 25 12 100 15000 29000 7f0000001235 401001 402001
site session\\x20table 1000 9 9000 9 9000 9 9 28000 29000 29900 7f0000001235 403001 402001
maps
00400000-00500000 r-xp 00001000 08:01 77                                 /srv/my server
00500000-00600000 rw-p 00101000 08:01 77                                 /srv/my server
7f0000000000-7f0000010000 r-xp 00002000 08:01 78                         /usr/lib/libuslab_malloc.so
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0                          [vdso]
";

    /// The profile of the text, with symbols.
    pub fn sample() -> Heap {
        let mut heap = parse(TEXT).expect("a profile");
        let names = ["malloc", "leak_here", "main", "fill"];
        for (location, name) in heap.locations.iter_mut().zip(names) {
            let line = Line { function: name.into(), file: format!("/src/{name}.c"), line: 7 };
            location.lines = vec![line];
        }
        heap
    }

    #[test]
    fn a_profile_is_read() {
        let heap = parse(TEXT).expect("a profile");
        assert_eq!((heap.pid, heap.command.as_str(), heap.period_bytes), (4711, "my server", 524_288));
        assert_eq!((heap.duration_ms, heap.sites.len(), heap.locations.len()), (30_000, 2, 4));
        let shorter = TEXT.replace("samples_dropped", "sampled_ms 9000\nsamples_dropped");
        assert_eq!(parse(&shorter).expect("a profile").duration_ms, 9000, "sampling was off for a while");
        let site = &heap.sites[1];
        assert_eq!(
            (site.cache.as_str(), site.object_bytes, site.values),
            ("session table", 1000, [9, 9000, 9, 9000])
        );
        let ages = Ages { live_samples: 12, youngest_ms: 100, median_ms: 15_000, oldest_ms: 29_000 };
        assert_eq!(heap.sites[0].ages, Some(ages));
        assert_eq!(heap.locations[1].address, 0x40_1000);
        let paths: Vec<&str> = heap.mappings.iter().map(|mapping| mapping.path.as_str()).collect();
        assert_eq!(paths, ["/srv/my server", "/usr/lib/libuslab_malloc.so", "[vdso]"]);
        assert_eq!((heap.locations[0].mapping, heap.locations[1].mapping), (Some(1), Some(0)));
        assert_eq!(heap.mappings[0].identity, Identity { device: 0x801, inode: 77 });
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        assert!(parse("").is_err() && parse("heap_v2/1\n").is_err());
        assert_eq!(parse("uslab-profile 1\npid x\n"), Err("line 2: not a number".to_owned()));
        assert_eq!(parse("uslab-profile 1\nsite a 1 2\nmaps\n"), Err("line 2: not a site".to_owned()));
        assert_eq!(parse("uslab-profile 1\npid 1\n"), Err("it ends before its mappings".to_owned()));
        for end in 0..TEXT.len() {
            let _ = parse(&TEXT[..end]);
        }
    }

    #[test]
    fn escapes_are_bytes() {
        assert_eq!(unescape("a\\x20b\\xc3\\xa9\\x5c"), "a bé\\");
        assert_eq!(unescape("\\x1b[2J\\x\\xg0\\"), "\u{fffd}[2J\\x\\xg0\\");
    }
}
