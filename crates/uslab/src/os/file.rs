//! Small reads of `/proc` and `/sys`, and the ids of processes.

use super::calls;
use core::ffi::CStr;

/// A file open for reading; closed on drop.
pub struct Reader {
    fd: i32,
}

impl Reader {
    /// Opens `path`; `None` if that fails for any reason.
    pub fn open(path: &CStr) -> Option<Reader> {
        // O_CLOEXEC keeps the descriptor out of children.
        let fd = calls::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
        (fd >= 0).then(|| Reader { fd })
    }

    /// The magic number of the file's file system; `None` if the kernel refuses the call.
    pub fn file_system(&self) -> Option<i64> {
        // SAFETY: zero is a valid value of these integers, and the kernel fills them in.
        unsafe {
            let mut facts: libc::statfs = core::mem::zeroed();
            (calls::fstatfs(self.fd, &mut facts) == 0).then_some(facts.f_type as i64)
        }
    }

    /// Reads into `buffer` and returns the number of bytes; 0 at the end of the file and on errors.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        loop {
            let n = calls::read(self.fd, buffer);
            if n >= 0 {
                return n as usize;
            }
            if super::errno::get() != libc::EINTR {
                return 0;
            }
        }
    }

    /// Reads on until `text`, of at most 32 bytes, was found; returns whether it was.
    pub fn contains(&mut self, text: &[u8]) -> bool {
        let mut buffer = [0u8; 512];
        let mut kept = 0;
        loop {
            let bytes = self.read(&mut buffer[kept..]);
            if bytes == 0 {
                return false;
            }
            let end = kept + bytes;
            if buffer[..end].windows(text.len()).any(|part| part == text) {
                return true;
            }
            // The text may begin at the end of what was read.
            kept = end.min(text.len() - 1);
            buffer.copy_within(end - kept..end, 0);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is closed once.
        unsafe { calls::close(self.fd) };
    }
}

/// Writes all of `bytes` to a descriptor; the error is `errno`.
///
/// # Errors
/// Those of `write(2)`.
pub fn write_all(fd: i32, mut bytes: &[u8]) -> Result<(), i32> {
    while !bytes.is_empty() {
        let n = calls::write(fd, bytes);
        match n {
            1.. => bytes = &bytes[n as usize..],
            0 => return Err(libc::EIO),
            _ if super::errno::get() == libc::EINTR => {}
            _ => return Err(super::errno::get()),
        }
    }
    Ok(())
}

/// Writes the file at `path`, which its owner alone may read, in place of another: `fill` writes it
/// to a descriptor, as `draft`, which then gets the name `path`.
///
/// Both names may lie in a directory where every user may create files. So the draft is a new file:
/// a link or file that stands there is removed if the system lets this user do so, and is never
/// followed or written to. A link at `path` is replaced.
///
/// # Errors
/// `errno`, or what `fill` returns. Then no file is left behind.
pub fn replace(draft: &CStr, path: &CStr, fill: impl FnOnce(i32) -> Result<(), i32>) -> Result<(), i32> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let create = || calls::open(draft, flags, 0o600);
    let mut fd = create();
    if fd < 0 && super::errno::get() == libc::EEXIST {
        // An earlier process with this id left it, unless another user planted it.
        calls::unlinkat(libc::AT_FDCWD, draft);
        fd = create();
    }
    if fd < 0 {
        return Err(super::errno::get());
    }
    let mut result = fill(fd);
    // SAFETY: the descriptor is ours and is closed once.
    unsafe { calls::close(fd) };
    if result.is_ok() && calls::renameat(libc::AT_FDCWD, draft, path) != 0 {
        result = Err(super::errno::get());
    }
    if result.is_err() {
        calls::unlinkat(libc::AT_FDCWD, draft);
    }
    result
}

/// When the plain file of this user at `path` was last changed, in milliseconds since 1970. `None`
/// if there is no such file.
pub fn own_file_changed_ms(path: &CStr) -> Option<u64> {
    // SAFETY: zero is a valid value of these integers, and the kernel fills them in.
    unsafe {
        let mut status: libc::stat = core::mem::zeroed();
        let is_own = calls::fstatat(libc::AT_FDCWD, path, &mut status, libc::AT_SYMLINK_NOFOLLOW) == 0
            && status.st_mode & libc::S_IFMT == libc::S_IFREG
            && status.st_uid == calls::geteuid();
        is_own.then_some(status.st_ctime as u64 * 1000 + status.st_ctime_nsec as u64 / 1_000_000)
    }
}

/// The inode of the process's pid namespace; 0 if the kernel does not tell.
pub fn pid_namespace() -> u64 {
    // SAFETY: zero is a valid value of these integers, and the kernel fills them in.
    unsafe {
        let mut status: libc::stat = core::mem::zeroed();
        match calls::fstatat(libc::AT_FDCWD, c"/proc/self/ns/pid", &mut status, 0) {
            0 => status.st_ino,
            _ => 0,
        }
    }
}

/// The id of the calling process.
pub fn process_id() -> u32 {
    calls::getpid() as u32
}

/// The id of its parent.
pub fn parent_process_id() -> u32 {
    calls::getppid() as u32
}

/// The path of the program, at most as long as `buffer`; empty where `/proc` is missing.
pub fn own_path(buffer: &mut [u8]) -> &[u8] {
    let n = calls::readlink(c"/proc/self/exe", buffer);
    &buffer[..n.max(0) as usize]
}
