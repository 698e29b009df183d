//! Small reads of `/proc` and `/sys`, and the shared mapping of the snapshot file.

use core::ffi::CStr;

/// A file open for reading; closed on drop.
pub struct Reader {
    fd: i32,
}

impl Reader {
    /// Opens `path`; `None` if that fails for any reason.
    pub fn open(path: &CStr) -> Option<Reader> {
        // SAFETY: `path` is NUL-terminated; O_CLOEXEC keeps the descriptor out of children.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        (fd >= 0).then(|| Reader { fd })
    }

    /// The magic number of the file system that the file is on; `None` if the kernel does not say.
    pub fn file_system(&self) -> Option<i64> {
        // SAFETY: zero is a valid value of these integers, and the kernel fills them in.
        unsafe {
            let mut facts: libc::statfs = core::mem::zeroed();
            (libc::fstatfs(self.fd, &mut facts) == 0).then_some(facts.f_type as i64)
        }
    }

    /// Reads into `buffer`; 0 at the end and on errors.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        loop {
            // SAFETY: pointer and length describe `buffer`.
            let n = unsafe { libc::read(self.fd, buffer.as_mut_ptr().cast(), buffer.len()) };
            if n >= 0 {
                return n as usize;
            }
            if super::errno::get() != libc::EINTR {
                return 0;
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is closed once.
        unsafe { libc::close(self.fd) };
    }
}

/// Makes the file `path` anew, `bytes` long, readable by its owner only, and maps it shared.
///
/// With `at`, the mapping replaces what is there (a fork child moves its figures to a file of its own so). `None` if any step
/// is refused; then nothing is left behind but perhaps an empty file.
///
/// # Safety
/// `at`, if given, must be the start of at least `bytes` bytes that the library mapped for this purpose.
pub unsafe fn map_shared(path: &CStr, bytes: usize, at: Option<*mut u8>) -> Option<*mut u8> {
    // SAFETY: plain system calls on a path of ours; `unlink` first so that a file somebody else left there, or a link, is
    // replaced and never followed (O_EXCL | O_NOFOLLOW).
    unsafe {
        libc::unlink(path.as_ptr());
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let fd = libc::open(path.as_ptr(), flags, 0o600);
        if fd < 0 {
            return None;
        }
        let mut address = libc::MAP_FAILED;
        if libc::ftruncate(fd, bytes as libc::off_t) == 0 {
            let (hint, fixed) = match at {
                Some(place) => (place, libc::MAP_FIXED),
                None => (core::ptr::null_mut(), 0),
            };
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            address = libc::mmap(hint.cast(), bytes, protection, libc::MAP_SHARED | fixed, fd, 0);
        }
        libc::close(fd);
        (address != libc::MAP_FAILED).then_some(address.cast())
    }
}

/// Removes `path`, if it is there.
pub fn remove(path: &CStr) {
    // SAFETY: `path` is NUL-terminated.
    unsafe { libc::unlink(path.as_ptr()) };
}

/// The calling process.
pub fn process_id() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() as u32 }
}

/// Its parent.
pub fn parent_process_id() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::getppid() as u32 }
}
