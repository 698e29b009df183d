//! A directory that no other user can change, and the shared mapping of a file in it.
//!
//! A process publishes under a name that every user can guess: its id. So the directory must meet
//! the rules of `ssh`: it belongs to the effective user or to root, no other user may write to it,
//! and its last component is no link.
//!
//! The library opens it once, checks it through that descriptor, and names files below the
//! descriptor. So a user who exchanges the directory between check and use gains nothing.
//!
//! Must never: follow a link; replace or remove anything but a plain file of the effective user.

use super::{calls, errno};
use core::ffi::{CStr, c_int};
use core::fmt;
use core::mem::MaybeUninit;

/// Permission bits that a trusted directory must not have: write for the group and for other users.
const OTHERS_WRITE: libc::mode_t = 0o022;

/// A checked directory, open; closed on drop.
pub struct Directory {
    fd: i32,
    user: libc::uid_t,
}

/// Why the library does not use a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// `errno` of opening it.
    Error(i32),
    /// It is not a directory, or a link.
    NotADirectory,
    /// It belongs to this user, neither root nor the effective user.
    Owner(u32),
    /// Other users may write there; its mode.
    Mode(u32),
}

impl Refusal {
    /// There is no such directory.
    pub const MISSING: Refusal = Refusal::Error(libc::ENOENT);

    /// The error number that stands for it.
    pub fn number(&self) -> i32 {
        match *self {
            Refusal::Error(number) => number,
            _ => libc::EACCES,
        }
    }

    /// Whether the directory exists and is not to be trusted. False where it could not be opened.
    pub fn is_distrust(&self) -> bool {
        !matches!(self, Refusal::Error(_))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Error(number) => write!(f, "system error {number}"),
            Refusal::NotADirectory => f.write_str("it is not a directory, or a symbolic link"),
            Refusal::Owner(user) => write!(f, "it belongs to user {user}"),
            Refusal::Mode(mode) => write!(f, "other users may write there (mode {mode:o})"),
        }
    }
}

/// The file that a name leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The file system.
    pub device: u64,
    /// The file in it.
    pub inode: u64,
}

/// A part of a file that is mapped in one piece.
pub struct Part {
    /// Where it begins in the file, in bytes; whole system pages.
    pub offset: usize,
    /// Its length, in bytes; whole system pages.
    pub bytes: usize,
    /// The mapping that it replaces, if any.
    pub at: Option<*mut u8>,
}

/// One name in the directory.
struct Entry {
    identity: Identity,
    /// Whether it is a plain file of the effective user.
    is_own_file: bool,
}

/// The user whose directories are trusted: the effective one.
pub fn user() -> u32 {
    calls::geteuid()
}

/// Makes a directory that only the user may use, unless something has that name. Whether it may be
/// used, [`Directory::open`] finds out.
pub fn make(path: &CStr) {
    calls::mkdir(path, 0o700);
}

/// Whether the process may make a file so long. The kernel would end it by a signal where it may
/// not (`RLIMIT_FSIZE`).
fn may_write(bytes: usize) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let is_known = calls::getrlimit(libc::RLIMIT_FSIZE as c_int, &mut limit) == 0;
    !is_known || limit.rlim_cur >= bytes as libc::rlim_t
}

impl Directory {
    /// Opens the directory at `path`, which should not end in a slash: the kernel follows a link
    /// before one.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn open(path: &CStr) -> Result<Directory, Refusal> {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let fd = calls::open(path, flags, 0);
        if fd < 0 {
            return Err(match errno::get() {
                libc::ENOTDIR | libc::ELOOP => Refusal::NotADirectory,
                error => Refusal::Error(error),
            });
        }
        let directory = Directory { fd, user: user() };
        directory.check()?;
        Ok(directory)
    }

    fn check(&self) -> Result<(), Refusal> {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `status` is a place for the answer.
        if unsafe { calls::fstat(self.fd, status.as_mut_ptr()) } != 0 {
            return Err(Refusal::Error(errno::get()));
        }
        // SAFETY: the call filled it.
        let status = unsafe { status.assume_init() };
        if status.st_uid != self.user && status.st_uid != 0 {
            return Err(Refusal::Owner(status.st_uid));
        }
        if status.st_mode & OTHERS_WRITE != 0 {
            return Err(Refusal::Mode(status.st_mode & 0o7777));
        }
        Ok(())
    }

    /// Whether the directory has an entry called `name`; a dangling link counts.
    pub fn has(&self, name: &CStr) -> bool {
        self.entry(name).is_some()
    }

    fn entry(&self, name: &CStr) -> Option<Entry> {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: `status` is a place for the answer.
        if unsafe { calls::fstatat(self.fd, name, status.as_mut_ptr(), flags) } != 0 {
            return None;
        }
        // SAFETY: the call filled it.
        Some(self.judged(&unsafe { status.assume_init() }))
    }

    fn judged(&self, status: &libc::stat) -> Entry {
        Entry {
            identity: Identity { device: status.st_dev, inode: status.st_ino },
            is_own_file: status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_uid == self.user,
        }
    }

    /// Creates the file `name`, `bytes` long and readable by its owner only, and maps `parts` of it
    /// shared. Returns the address of the first part and the file's identity.
    ///
    /// A plain file of the effective user with that name is replaced. Any other entry stays, and
    /// the call is refused.
    ///
    /// A part may replace a mapping: a fork child so moves its figures to a file of its own. `None`
    /// if any step is refused; then parts that replace a mapping may have done so.
    ///
    /// # Safety
    /// Each [`Part::at`] must be the start of as many bytes that the library mapped for this
    /// purpose.
    pub unsafe fn map_shared(
        &self,
        name: &CStr,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Part>,
    ) -> Option<(*mut u8, Identity)> {
        if !may_write(bytes) {
            return None;
        }
        let fd = self.create(name)?;
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the descriptor is ours and closed once; `status` is a place for the answer, read
        // where the call filled it; a fixed mapping replaces what the caller promises.
        unsafe {
            let has_status = calls::fstat(fd, status.as_mut_ptr()) == 0;
            let is_made = has_status && calls::ftruncate(fd, bytes as libc::off_t) == 0;
            let map = |part: Part| {
                let (hint, fixed) = match part.at {
                    Some(place) => (place, libc::MAP_FIXED),
                    None => (core::ptr::null_mut(), 0),
                };
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let (flags, offset) = (libc::MAP_SHARED | fixed, part.offset as libc::off_t);
                let address = calls::mmap(hint.cast(), part.bytes, access, flags, fd, offset);
                (address != libc::MAP_FAILED).then(|| {
                    // Mounted with `huge=within_size`, the file would take 2 MiB at once.
                    calls::madvise(address, part.bytes, libc::MADV_NOHUGEPAGE);
                    address.cast()
                })
            };
            let first = if is_made { parts.next().and_then(map) } else { None };
            let is_mapped = first.is_some() && parts.map(map).all(|part| part.is_some());
            calls::close(fd);
            let identity = has_status.then(|| self.judged(&status.assume_init()).identity)?;
            if !is_mapped {
                self.remove(name, identity);
            }
            first.filter(|_| is_mapped).map(|first| (first, identity))
        }
    }

    fn create(&self, name: &CStr) -> Option<i32> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let create = || calls::open_at(self.fd, name, flags, 0o600);
        let mut fd = create();
        if fd < 0 && errno::get() == libc::EEXIST {
            // An earlier process with this id left the file, or this process did before an `exec`.
            let left = self.entry(name)?;
            if !left.is_own_file {
                return None;
            }
            self.remove(name, left.identity);
            fd = create();
        }
        (fd >= 0).then_some(fd)
    }

    /// Writes a file that its owner alone may read: `fill` writes it to a descriptor, as `draft`.
    /// Then it gets its name, in place of another file.
    ///
    /// # Errors
    /// `errno`, or what `fill` returns. Then no file is left behind.
    pub fn write(
        &self,
        draft: &CStr,
        name: &CStr,
        fill: impl FnOnce(i32) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let fd = self.create(draft).ok_or_else(|| errno::get().max(1))?;
        let mut result = fill(fd);
        // SAFETY: the descriptor is ours and is closed once.
        unsafe { calls::close(fd) };
        if result.is_ok() && calls::renameat(self.fd, draft, name) != 0 {
            result = Err(errno::get());
        }
        if result.is_err() {
            calls::unlinkat(self.fd, draft);
        }
        result
    }

    /// Removes `name` if it is a plain file of the effective user.
    pub fn discard(&self, name: &CStr) {
        if let Some(entry) = self.entry(name) {
            self.remove(name, entry.identity);
        }
    }

    /// Removes `name` if it is the file `identity` and a plain file of the effective user.
    pub fn remove(&self, name: &CStr, identity: Identity) {
        if self.entry(name).is_some_and(|entry| entry.is_own_file && entry.identity == identity) {
            calls::unlinkat(self.fd, name);
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is closed once.
        unsafe { calls::close(self.fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs::{self, Permissions};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(std::format!("uslab-dir-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn open(path: &Path) -> Result<Directory, Refusal> {
        Directory::open(&CString::new(path.as_os_str().as_bytes()).unwrap())
    }

    /// Maps `17` in the directory and unmaps it; `None` if the directory refused.
    fn publishes(directory: &Directory) -> Option<Identity> {
        let part = Part { offset: 0, bytes: 4096, at: None };
        // SAFETY: a fresh mapping, unmapped once.
        let (block, identity) = unsafe { directory.map_shared(c"17", 4096, &mut [part].into_iter())? };
        // SAFETY: as above.
        unsafe { libc::munmap(block.cast(), 4096) };
        Some(identity)
    }

    #[test]
    fn only_a_directory_that_no_other_user_changes_is_opened() {
        let scratch = Scratch::new("open");
        assert!(open(&scratch.0).is_ok());
        for mode in [0o770, 0o702, 0o1777] {
            fs::set_permissions(&scratch.0, Permissions::from_mode(mode)).unwrap();
            assert_eq!(open(&scratch.0).err(), Some(Refusal::Mode(mode)));
        }
        fs::set_permissions(&scratch.0, Permissions::from_mode(0o755)).unwrap();
        assert!(open(&scratch.0).is_ok());
        symlink(&scratch.0, scratch.0.join("link")).unwrap();
        fs::write(scratch.0.join("file"), "").unwrap();
        for name in ["link", "file"] {
            assert_eq!(open(&scratch.0.join(name)).err(), Some(Refusal::NotADirectory), "{name}");
        }
        let absent = open(&scratch.0.join("absent")).err().unwrap();
        assert!(!absent.is_distrust() && Refusal::Owner(7).is_distrust());
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let scratch = Scratch::new("owner");
        // Only root can give a directory away; without that right the test checks nothing.
        if std::os::unix::fs::chown(&scratch.0, Some(7), None).is_ok() {
            assert_eq!(open(&scratch.0).err(), Some(Refusal::Owner(7)));
        }
    }

    #[test]
    fn an_own_file_is_replaced_and_anything_else_stays() {
        let scratch = Scratch::new("replace");
        let (name, other) = (scratch.0.join("17"), scratch.0.join("other"));
        let directory = open(&scratch.0).unwrap();
        assert!(publishes(&directory).is_some());
        fs::write(&name, "left behind").unwrap();
        assert!(publishes(&directory).is_some());
        assert_eq!(fs::read(&name).unwrap(), [0; 4096]);
        assert_eq!(fs::metadata(&name).unwrap().permissions().mode() & 0o777, 0o600);

        fs::remove_file(&name).unwrap();
        fs::write(&other, "precious").unwrap();
        symlink(&other, &name).unwrap();
        assert_eq!(publishes(&directory), None);
        assert!(directory.has(c"17") && fs::read_link(&name).is_ok());
        assert_eq!(fs::read(&other).unwrap(), b"precious");

        fs::remove_file(&name).unwrap();
        fs::create_dir(&name).unwrap();
        assert_eq!(publishes(&directory), None);
        assert!(name.is_dir());
    }

    #[test]
    fn only_the_identified_file_is_removed() {
        let scratch = Scratch::new("remove");
        let name = scratch.0.join("17");
        let directory = open(&scratch.0).unwrap();
        let identity = publishes(&directory).unwrap();
        fs::rename(&name, scratch.0.join("aside")).unwrap();
        fs::write(&name, "another").unwrap();
        directory.remove(c"17", identity);
        assert_eq!(fs::read(&name).unwrap(), b"another");
        fs::rename(scratch.0.join("aside"), &name).unwrap();
        directory.remove(c"17", identity);
        assert!(!directory.has(c"17"));
    }
}
