//! The process's place in the tree of control groups (version 2).
//!
//! ```text
//!   /proc/self/cgroup     0::/system.slice/web.service         the way from the hierarchy's root
//!   /proc/self/mountinfo  … / /sys/fs/cgroup … - cgroup2 …     its mount point, and the directory mounted there
//!   = /sys/fs/cgroup/system.slice/web.service                  level 0; its parent is level 1, up to the mount point
//! ```
//!
//! A directory outside the mount is never taken for the process's own.

use super::files::{lines, open};
use super::reason::Reason;
use crate::os::path::Path;
use core::fmt;

/// Levels that are read, from the process's own upwards.
pub const LEVELS: usize = 16;

/// The process's directory and those above it.
#[derive(Clone, Copy)]
pub struct Place {
    own: Path,
    levels: usize,
}

impl Place {
    /// The process's path in the hierarchy, as `proc` names it.
    pub fn way(proc: &Path) -> Result<Path, Reason> {
        let mut way = None;
        let mut cgroup = open(proc, b"/self/cgroup").ok_or(Reason::NoCgroup)?;
        lines(&mut |buffer| cgroup.read(buffer), &mut |line| {
            way = way_of(line);
            way.is_none()
        });
        way.ok_or(Reason::NoCgroup)?.ok_or(Reason::TooLong)
    }

    /// The directory that `way` leads to, by the mounts that `proc` lists.
    pub fn find(proc: &Path, way: &Path) -> Result<Place, Reason> {
        let mut found = Err(Reason::NoCgroup);
        let mut mounts = open(proc, b"/self/mountinfo").ok_or(Reason::NoCgroup)?;
        lines(&mut |buffer| mounts.read(buffer), &mut |line| {
            if let Some((root, point)) = mount(line) {
                found = match below(way.as_bytes(), root.as_bytes()) {
                    Some(rest) => Place::at(point, rest),
                    None => Err(Reason::Outside),
                };
            }
            found.is_err()
        });
        found
    }

    /// `rest` is empty or starts with a slash.
    fn at(point: Path, rest: &[u8]) -> Result<Place, Reason> {
        let point = if point.as_bytes() == b"/" { Path::EMPTY } else { point };
        let own = point.with(rest).ok_or(Reason::TooLong)?;
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

/// The path in the hierarchy of version 2, if this line of a process's cgroups is about that;
/// `Some(None)` if it is too long.
fn way_of(line: &[u8]) -> Option<Option<Path>> {
    line.strip_prefix(b"0::").map(Path::of)
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

/// The part of `way` below `root`, with its slash, or empty. `None` if `way` leads out of the mount
/// or out of the namespace.
fn below<'a>(way: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    let rest = way.strip_prefix(root)?;
    let rest = rest.strip_suffix(b"/").unwrap_or(rest);
    let climbs = rest.split(|&byte| byte == b'/').any(|part| part == b"..");
    ((rest.is_empty() || rest[0] == b'/') && !climbs).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn mounted(line: &str) -> Option<(Vec<u8>, Vec<u8>)> {
        mount(line.as_bytes()).map(|(root, point)| (root.as_bytes().to_vec(), point.as_bytes().to_vec()))
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

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(text: Vec<u8>, other: Vec<u8>) {
            let _ = way_of(&text);
            let _ = mount(&text);
            let _ = unescaped(&text);
            let _ = below(&text, &other);
        }

        #[test]
        fn nor_do_lines_that_are_nearly_right(
            text in r"[0-9]{1,2} [0-9]{1,2} 0:[0-9] /[a-z\\0-9/]{0,9} /[a-z\\0-9/]{0,600} rw( -)?( cgroup2)?",
        ) {
            let _ = mount(text.as_bytes());
        }
    }
}
