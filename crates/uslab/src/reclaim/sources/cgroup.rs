//! Where the process stands in the tree of control groups (version 2), and how much of their limits is left.
//!
//! ```text
//!   /proc/self/cgroup     0::/system.slice/web.service         the way from the hierarchy's root
//!   /proc/self/mountinfo  … / /sys/fs/cgroup … - cgroup2 …     where the hierarchy is mounted, and from which directory on
//!   = /sys/fs/cgroup/system.slice/web.service                  level 0; its parent is level 1, up to the mount point
//! ```
//!
//! Limits stand at any level and change at any time, without notice; so all levels are read at each look. Files are opened for the look
//! and closed again, but one: `memory.events` of the level with the lowest limit, which the kernel signals when the limit is hit.
//!
//! Pages of files that were read once, and that the kernel can drop as it likes (`inactive_file`), do not count as used: otherwise a
//! program that reads large files in a container would be told to empty its caches, for ever and for nothing.
//!
//! Must never: take a file that cannot be read, or makes no sense, for a limit.

use super::path::{Path, lines, number};
use super::why::Why;
use crate::os::file::Reader;
use crate::os::pressure::Descriptor;
use core::fmt;

/// Levels that are looked at, from the process's own upwards.
const LEVELS: usize = 16;
/// Most that is kept free below a limit.
const MAX_MARGIN_BYTES: u64 = 64 << 20;
/// No limit.
const NONE: u64 = u64::MAX;

/// Where the process stands.
#[derive(Clone, Copy)]
pub struct Place {
    own: Path,
    levels: usize,
}

impl Place {
    /// The process's path in the hierarchy, as `proc` has it.
    pub fn way(proc: &Path) -> Result<Path, Why> {
        let mut way = None;
        let mut cgroup = open(proc, b"/self/cgroup")?;
        lines(&mut |buffer| cgroup.read(buffer), &mut |line| {
            way = way_of(line);
            way.is_none()
        });
        way.ok_or(Why::NoCgroup)?.ok_or(Why::TooLong)
    }

    /// The directory that `way` comes to, among the mounts that `proc` has.
    pub fn find(proc: &Path, way: &Path) -> Result<Place, Why> {
        let mut found = Err(Why::NoCgroup);
        let mut mounts = open(proc, b"/self/mountinfo")?;
        lines(&mut |buffer| mounts.read(buffer), &mut |line| {
            if let Some((root, point)) = mount(line) {
                found = match below(way.as_bytes(), root.as_bytes()) {
                    Some(rest) => Place::at(point, rest),
                    None => Err(Why::Outside),
                };
            }
            found.is_err()
        });
        found
    }

    /// `rest` is empty or starts with a slash.
    fn at(point: Path, rest: &[u8]) -> Result<Place, Why> {
        let point = if point.as_bytes() == b"/" { Path::EMPTY } else { point };
        let own = point.with(rest).ok_or(Why::TooLong)?;
        let levels = 1 + rest.iter().filter(|&&byte| byte == b'/').count();
        Ok(Place { own, levels: levels.min(LEVELS) })
    }

    /// The directory `level` levels above the process's own; `None` above the mount point.
    pub fn level(&self, level: usize) -> Option<Path> {
        (level < self.levels).then(|| self.own.up(level))
    }

    pub fn levels(&self) -> usize {
        self.levels
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {} above", self.own, self.levels - 1)
    }
}

/// The path in the hierarchy of version 2, if this line of a process's cgroups is about that; `Some(None)` if it is too long.
fn way_of(line: &[u8]) -> Option<Option<Path>> {
    line.strip_prefix(b"0::").map(Path::of)
}

fn open(directory: &Path, name: &[u8]) -> Result<Reader, Why> {
    let path = directory.with(name).ok_or(Why::TooLong)?;
    Reader::open(path.as_c()).ok_or(Why::NoCgroup)
}

/// Root and mount point of a line of mountinfo, if it is a version 2 hierarchy (proc(5)).
fn mount(line: &[u8]) -> Option<(Path, Path)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (root, point) = (fields.nth(3)?, fields.next()?);
    // Options, any number of optional fields, a dash, the type.
    fields.find(|&field| field == b"-")?;
    if fields.next()? != b"cgroup2" {
        return None;
    }
    Some((unescaped(root)?, unescaped(point)?))
}

/// Undoes `\040` and the like.
fn unescaped(field: &[u8]) -> Option<Path> {
    let mut path = Path::EMPTY;
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal =
            |at: usize| after.get(at).filter(|digit| matches!(digit, b'0'..=b'7')).map(|digit| digit - b'0');
        (path, rest) = match (byte, octal(0), octal(1), octal(2)) {
            (b'\\', Some(a @ 0..=3), Some(b), Some(c)) => (path.with(&[a << 6 | b << 3 | c])?, &after[3..]),
            _ => (path.with(&[byte])?, after),
        };
    }
    Some(path)
}

/// What of `way` lies below `root`, with its slash, or empty. `None` if it lies elsewhere: out of the mount, or out of the namespace.
fn below<'a>(way: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    let rest = way.strip_prefix(root)?;
    let rest = rest.strip_suffix(b"/").unwrap_or(rest);
    let climbs = rest.split(|&byte| byte == b'/').any(|part| part == b"..");
    ((rest.is_empty() || rest[0] == b'/') && !climbs).then_some(rest)
}

/// How often a level's limits were hit, in total.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Hits {
    high: u64,
    max: u64,
}

/// What is known of the levels.
pub struct Headroom {
    /// As last seen.
    hits: [Option<Hits>; LEVELS],
    /// Events of the level with the lowest limit, and which it is.
    events: Option<(usize, Descriptor)>,
    /// The lowest limit.
    limit_bytes: Option<u64>,
    /// Of some limit more than half was used.
    near: bool,
}

/// What a look came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// What is to go at the level where most is, or 0.
    pub excess_bytes: u64,
    /// A limit was hit since the last look.
    pub hit: bool,
}

impl Headroom {
    pub const fn new() -> Headroom {
        Headroom { hits: [None; LEVELS], events: None, limit_bytes: None, near: false }
    }

    /// The lowest limit at the last look.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Whether more than half of a limit was used at the last look: it may be hit soon.
    pub fn is_near(&self) -> bool {
        self.near
    }

    /// The descriptor of the events, where one is kept.
    pub fn events(&self) -> Option<&Descriptor> {
        self.events.as_ref().map(|(_, descriptor)| descriptor)
    }

    /// Reads all levels.
    pub fn read(&mut self, place: &Place) -> Reading {
        let mut reading = Reading { excess_bytes: 0, hit: false };
        let mut lowest: Option<(u64, usize)> = None;
        self.near = false;
        for level in 0..place.levels() {
            let Some(directory) = place.level(level) else { break };
            let limit = limit(&directory);
            if limit == NONE {
                self.hits[level] = None;
                continue;
            }
            if lowest.is_none_or(|(bytes, _)| limit < bytes) {
                lowest = Some((limit, level));
            }
            let current = bytes_in(&directory, b"/memory.current").unwrap_or(0);
            self.near |= current > limit / 2;
            reading.excess_bytes = reading.excess_bytes.max(excess(&directory, limit, current));
            let hits = hits(&directory);
            if let (Some(before), Some(now)) = (self.hits[level], hits) {
                reading.hit |= now.high > before.high || now.max > before.max;
            }
            self.hits[level] = hits.or(self.hits[level]);
        }
        self.limit_bytes = lowest.map(|(bytes, _)| bytes);
        self.watch(place, lowest.map(|(_, level)| level));
        reading
    }

    /// Has the events of `level` signalled from now on.
    fn watch(&mut self, place: &Place, level: Option<usize>) {
        // A level's events are signalled until they are read.
        let mut scrap = [0u8; 1];
        if let Some((watched, descriptor)) = &self.events
            && Some(*watched) == level
            && descriptor.read_at_start(&mut scrap).is_some()
        {
            return;
        }
        self.events = None;
        let Some(level) = level else { return };
        let Some(path) = place.level(level).and_then(|path| path.with(b"/memory.events")) else { return };
        if let Ok(descriptor) = Descriptor::open_to_read(path.as_c())
            && descriptor.read_at_start(&mut scrap).is_some()
        {
            self.events = Some((level, descriptor));
        }
    }
}

/// The lower of a level's limits.
fn limit(directory: &Path) -> u64 {
    bytes_in(directory, b"/memory.high")
        .unwrap_or(NONE)
        .min(bytes_in(directory, b"/memory.max").unwrap_or(NONE))
}

/// What is to go for `limit` to be kept with some room: down to two margins below it, once there is less than one.
fn excess(directory: &Path, limit: u64, current: u64) -> u64 {
    let margin = (limit / 16).min(MAX_MARGIN_BYTES);
    let (from, to) = (limit - margin, limit - 2 * margin);
    if current <= from {
        return 0;
    }
    let used = current.saturating_sub(value_in(directory, b"/memory.stat", b"inactive_file").unwrap_or(0));
    if used > from { used - to } else { 0 }
}

fn hits(directory: &Path) -> Option<Hits> {
    let mut reader = open(directory, b"/memory.events").ok()?;
    hits_of(&mut |buffer| reader.read(buffer))
}

fn hits_of(read: &mut dyn FnMut(&mut [u8]) -> usize) -> Option<Hits> {
    let (mut high, mut max) = (None, None);
    lines(read, &mut |line| {
        if let Some(count) = line.strip_prefix(b"high ") {
            high = number(count);
        } else if let Some(count) = line.strip_prefix(b"max ") {
            max = number(count);
        }
        high.is_none() || max.is_none()
    });
    Some(Hits { high: high?, max: max? })
}

/// The number after `key` in a file of keys and values.
pub fn value_in(directory: &Path, name: &[u8], key: &[u8]) -> Option<u64> {
    let mut reader = open(directory, name).ok()?;
    let mut value = None;
    lines(&mut |buffer| reader.read(buffer), &mut |line| {
        value = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(b" ")).and_then(number);
        value.is_none()
    });
    value
}

/// The number that a file consists of.
pub fn bytes_in(directory: &Path, name: &[u8]) -> Option<u64> {
    let mut text = [0u8; 32];
    let used = open(directory, name).ok()?.read(&mut text);
    bytes_of(&text[..used])
}

fn bytes_of(text: &[u8]) -> Option<u64> {
    if text.trim_ascii() == b"max" { Some(NONE) } else { number(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn mounted(line: &str) -> Option<(Vec<u8>, Vec<u8>)> {
        mount(line.as_bytes()).map(|(root, point)| (root.as_bytes().to_vec(), point.as_bytes().to_vec()))
    }

    fn from(mut text: &[u8]) -> impl FnMut(&mut [u8]) -> usize {
        move |buffer| {
            let n = text.len().min(buffer.len());
            buffer[..n].copy_from_slice(&text[..n]);
            text = &text[n..];
            n
        }
    }

    #[test]
    fn mounts_of_version_2_are_found() {
        let pair = |root: &str, point: &str| Some((root.into(), point.into()));
        assert_eq!(
            mounted("35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"),
            pair("/", "/sys/fs/cgroup")
        );
        assert_eq!(
            mounted("41 31 0:38 /docker/ab /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"),
            pair("/docker/ab", "/sys/fs/cgroup/unified")
        );
        assert_eq!(
            mounted("41 31 0:38 / /a\\040b\\134c rw master:1 shared:2 - cgroup2 none rw"),
            pair("/", "/a b\\c")
        );
    }

    #[test]
    fn other_mounts_are_not() {
        for line in [
            "",
            "35 24 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "35 24 0:30 / /cgroup2 rw shared:9 - ext4 cgroup2 rw",
            "35 24 0:30 / /sys/fs/cgroup rw",
            "35 24 0:30 / /sys/fs/cgroup rw -",
            "cgroup2",
        ] {
            assert_eq!(mounted(line), None, "{line}");
        }
    }

    #[test]
    fn the_way_is_the_line_of_version_2() {
        let way = |line: &str| way_of(line.as_bytes()).flatten().map(|path| path.as_bytes().to_vec());
        assert_eq!(way("0::/system.slice/a:b"), Some(b"/system.slice/a:b".to_vec()));
        assert_eq!(way("0::/"), Some(b"/".to_vec()));
        for line in ["4:memory:/a", "10::/a", "1:name=systemd:/a", ""] {
            assert_eq!(way(line), None);
        }
    }

    #[test]
    fn the_way_is_taken_from_the_mounts_root() {
        for (way, root, rest) in [
            ("/", "/", Some("")),
            ("/a/b", "/", Some("/a/b")),
            ("/docker/ab", "/docker/ab", Some("")),
            ("/docker/ab/c", "/docker/ab", Some("/c")),
            ("/docker/abc", "/docker/ab", None),
            ("/../other", "/", None),
            ("/elsewhere", "/docker/ab", None),
            ("nonsense", "/", None),
        ] {
            assert_eq!(below(way.as_bytes(), root.as_bytes()), rest.map(str::as_bytes), "{way} of {root}");
        }
        let place = Place::at(Path::of(b"/sys/fs/cgroup").unwrap(), b"/a/b").ok().unwrap();
        let levels: Vec<_> = (0..4).map(|n| place.level(n).map(|path| path.as_bytes().to_vec())).collect();
        let path = |text: &str| Some(text.as_bytes().to_vec());
        let expected = [path("/sys/fs/cgroup/a/b"), path("/sys/fs/cgroup/a"), path("/sys/fs/cgroup"), None];
        assert_eq!(levels, expected);
    }

    #[test]
    fn events_are_counted() {
        let text = b"low 1\nhigh 22\nmax 333\noom 4\noom_kill 5\noom_group_kill 6\n";
        assert_eq!(hits_of(&mut from(text)), Some(Hits { high: 22, max: 333 }));
        for text in
            [&b""[..], b"low 1\nhigh 22\n", b"high x\nmax 1\n", b"high 1\nmax 2", b"highest 1\nmax 2\n"]
        {
            assert_eq!(hits_of(&mut from(text)), None);
        }
    }

    #[test]
    fn limits_are_numbers_or_none() {
        assert_eq!(bytes_of(b"max\n"), Some(NONE));
        assert_eq!(bytes_of(b"4096\n"), Some(4096));
        assert_eq!(bytes_of(b""), None);
        assert_eq!(bytes_of(b"maximum\n"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(text: Vec<u8>, other: Vec<u8>) {
            let _ = way_of(&text);
            let _ = mount(&text);
            let _ = unescaped(&text);
            let _ = below(&text, &other);
            let _ = bytes_of(&text);
            let _ = hits_of(&mut from(&text));
        }

        #[test]
        fn nor_do_lines_that_are_nearly_right(
            text in r"[0-9]{1,2} [0-9]{1,2} 0:[0-9] /[a-z\\0-9/]{0,9} /[a-z\\0-9/]{0,600} rw( -)?( cgroup2)?",
            events in r"((low|high|max) ?[0-9x]{0,25}\n?){0,9}",
        ) {
            let _ = mount(text.as_bytes());
            let _ = hits_of(&mut from(events.as_bytes()));
        }
    }
}
