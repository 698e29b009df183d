//! Files that this program did not make: read up to a limit, and symbol files of other processes
//! found without trust in their paths.
//!
//! Every length in such a file may be a lie. So a file is read up to [`MAX_BYTES`], and what it is
//! unpacked into is counted before it takes memory ([`Budget`]).

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statfs::{FsType, fstatfs};

use crate::process::directory;

/// The most that one file may hold, unpacked. A profile with every place used takes 12 MiB.
pub const MAX_BYTES: u64 = 64 << 20;

/// An error about the content of a file.
pub fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Reads all of a stream, unless it holds more than `max_bytes`.
pub fn read_stream(stream: impl Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(invalid(&format!("it holds more than {} MiB", max_bytes >> 20)));
    }
    Ok(bytes)
}

/// Reads a file that the user named.
pub fn read(file: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    read_stream(File::open(file)?, max_bytes)
}

/// An amount of memory that a file may be unpacked into.
pub struct Budget {
    left: Cell<usize>,
    is_exceeded: Cell<bool>,
}

impl Budget {
    pub fn new(bytes: usize) -> Budget {
        Budget { left: Cell::new(bytes), is_exceeded: Cell::new(false) }
    }

    /// Whether so many bytes more are within the budget.
    pub fn allows(&self, bytes: usize) -> bool {
        match self.left.get().checked_sub(bytes) {
            Some(left) if !self.is_exceeded.get() => self.left.set(left),
            _ => self.is_exceeded.set(true),
        }
        !self.is_exceeded.get()
    }

    /// Whether more was asked for than there was.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }
}

/// The fields of a protobuf message: the number of each, and its bytes if it is a text, a message
/// or a list. A decoder makes a structure of each message that it meets, of dozens of bytes for two
/// of the file, so the fields are counted first. `None` ends a message that is damaged.
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for place in 0..10 {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn field(&mut self) -> Option<(u64, &'a [u8])> {
        let key = self.number()?;
        let (skipped, is_shown) = match key & 7 {
            0 => self.number().map(|_| (0, false))?,
            1 => (8, false),
            2 => (usize::try_from(self.number()?).ok()?, true),
            5 => (4, false),
            _ => return None,
        };
        let (part, rest) = self.rest.split_at_checked(skipped)?;
        self.rest = rest;
        Some((key >> 3, if is_shown { part } else { &[] }))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// A plain file that was identified, and not yet opened: its path leads to it for as long as this
/// lives.
#[derive(Debug)]
pub struct Identified {
    file: OwnedFd,
}

impl Identified {
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// The identity of a mapped file, as /proc/PID/maps has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// 0 if it is not known.
    pub device: u64,
    pub inode: u64,
}

/// Finds the file `path` as process `pid` sees it. `None` if that is not the plain file `identity`.
///
/// The process chose the path. So links lead where they lead inside its root, and nothing is opened
/// before it is known to be a plain file: to open a device may have an effect, and a pipe waits.
pub fn find_in_process(pid: u32, path: &str, identity: Identity) -> Option<Identified> {
    let root = File::open(format!("{}/root", directory(pid))).ok()?;
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    identified(&root, path, resolve, identity)
}

/// As [`find_in_process`], as this program sees the path.
pub fn find_here(path: &str, identity: Identity) -> Option<Identified> {
    identified(&File::open("/").ok()?, path, ResolveFlag::RESOLVE_NO_MAGICLINKS, identity)
}

fn identified(root: &File, path: &str, resolve: ResolveFlag, identity: Identity) -> Option<Identified> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let file = openat2(root, path, OpenHow::new().flags(flags).resolve(resolve)).ok()?;
    let data = fstat(&file).ok()?;
    let is_plain = SFlag::from_bits_truncate(data.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
    let is_device = identity.device == 0 || identity.device == data.st_dev;
    // Where a file system gives each subvolume or layer a number of its own, maps has another one.
    let is_it = data.st_ino == identity.inode && (is_device || has_other_devices(&file));
    (is_plain && is_it).then_some(Identified { file })
}

/// Whether the devices of stat(2) and of maps differ on the file's system: on btrfs, overlayfs,
/// and bcachefs.
fn has_other_devices(file: &OwnedFd) -> bool {
    const KINDS: [FsType; 3] = [FsType(0x9123_683e), FsType(0x794c_7630), FsType(0xca45_1a4e)];
    fstatfs(file).is_ok_and(|facts| KINDS.contains(&facts.filesystem_type()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn a_stream_beyond_the_limit_is_refused() {
        assert_eq!(read_stream(&[7; 9][..], 9).expect("short enough").len(), 9);
        let error = read_stream(io::repeat(0), 1 << 20).expect_err("endless").to_string();
        assert_eq!(error, "it holds more than 1 MiB");
    }

    #[test]
    fn a_budget_ends_once() {
        let budget = Budget::new(10);
        assert!(budget.allows(4) && budget.allows(6) && !budget.is_exceeded());
        assert!(!budget.allows(1) && budget.is_exceeded() && !budget.allows(0));
    }

    #[test]
    fn only_the_plain_file_that_was_mapped_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        let text = |name: &str| place(name).to_str().expect("UTF-8").to_owned();
        fs::write(place("file"), "x").expect("written");
        symlink(place("file"), place("link")).expect("a link");
        nix::unistd::mkfifo(&place("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let data = fs::metadata(place("file")).expect("there");
        let own = Identity { device: data.dev(), inode: data.ino() };
        let me = std::process::id();
        for name in ["file", "link"] {
            for found in [find_in_process(me, &text(name), own), find_here(&text(name), own)] {
                assert_eq!(fs::read(found.expect(name).path()).expect("readable"), b"x");
            }
        }
        let other = Identity { inode: own.inode + 1, ..own };
        assert!(find_here(&text("file"), other).is_none(), "another inode");
        let inode = |path: &Path| fs::metadata(path).map_or(0, |data| data.ino());
        let pipe = Identity { device: 0, inode: inode(&place("pipe")) };
        assert!(find_here(&text("pipe"), pipe).is_none(), "a pipe is not waited for");
        let null = Identity { device: 0, inode: inode(Path::new("/dev/null")) };
        assert!(find_in_process(me, "/dev/null", null).is_none(), "a device is not opened");
        let magic = format!("/proc/{me}/exe");
        let exe = Identity { device: 0, inode: inode(Path::new(&magic)) };
        assert!(find_in_process(me, &magic, exe).is_none(), "a link of the kernel leads anywhere");
    }
}
