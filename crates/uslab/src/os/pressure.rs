//! Descriptors that signal short memory, and the wait for them.
//!
//! They live in the program's table. Daemons close all descriptors; shells and servers expect the
//! lowest free number to be theirs. So a descriptor kept here has a high number, and its file's
//! identity is noted when it is opened and compared before each use. A number that has become
//! another file is forgotten: never read, written or closed. (Between the comparison and the use
//! another thread can still exchange it; the system has no call that closes this gap.)
//!
//! Only [`wait`] blocks, and only for a bounded time.

use super::calls::{self, poll};
use super::{descriptors, errno};
use core::ffi::CStr;
use core::mem::MaybeUninit;

/// Kept descriptors have this number or a higher one: the program may count on the lowest.
const LOWEST_FD: i32 = 64;
/// Upper bound on the bytes read from a pipe or a socket at once: what a pipe holds by default.
const DRAIN_BYTES: usize = 64 << 10;

/// The kind of file at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A regular file: `memory.pressure`, or one like it.
    File,
    /// A named pipe.
    Fifo,
    /// A socket to connect to.
    Socket,
}

/// Returns the kind of file at `path`; `Ok(None)` for a file of any other kind.
///
/// # Errors
/// `errno`.
pub fn form_of(path: &CStr) -> Result<Option<Form>, i32> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `status` is a place for the answer.
    if unsafe { calls::fstatat(libc::AT_FDCWD, path, status.as_mut_ptr(), 0) } != 0 {
        return Err(errno::get());
    }
    // SAFETY: the call filled it.
    Ok(form(unsafe { status.assume_init() }.st_mode))
}

fn form(mode: libc::mode_t) -> Option<Form> {
    match mode & libc::S_IFMT {
        libc::S_IFREG => Some(Form::File),
        libc::S_IFIFO => Some(Form::Fifo),
        libc::S_IFSOCK => Some(Form::Socket),
        _ => None,
    }
}

/// The meaning of an `errno` for a source of pressure; `None` if only its number can be reported.
pub fn reason(number: i32) -> Option<&'static str> {
    Some(match number {
        libc::ENOENT | libc::ENOTDIR => "it is not there",
        libc::EACCES | libc::EPERM => "permission denied",
        libc::EOPNOTSUPP | libc::ENODEV | libc::ENXIO => "the kernel does not offer it",
        libc::EINVAL => "the kernel refuses the threshold",
        libc::ECONNREFUSED => "no process listens",
        libc::ENAMETOOLONG => "the path is too long",
        libc::EMFILE | libc::ENFILE => "there are no descriptors left",
        _ => return None,
    })
}

/// Whether `number` is the `errno` of a process or a system that has no descriptors left.
pub fn is_without_descriptors(number: i32) -> bool {
    matches!(number, libc::EMFILE | libc::ENFILE)
}

/// An open descriptor and the identity of its file. Closed on drop, if it is still that file.
pub struct Descriptor {
    fd: i32,
    form: Form,
    device: u64,
    inode: u64,
}

/// The present state of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It still names the file that was opened.
    Ours,
    /// It still names the file that was opened, but no path leads to that file any more.
    Unlinked,
    /// The number is closed, or names another file.
    Lost,
}

/// The event that [`wait`] found at a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// No event, or the number names another file now.
    Nothing,
    /// The kernel signalled the file, or bytes were there and are read.
    Fired,
    /// The last writer of the pipe has left; another one may open it later.
    HungUp,
    /// There will be no more events. The files of cgroup events show this whenever they fire.
    Ended,
}

impl Descriptor {
    /// Opens `path` as its form needs: a file for reading and writing, a pipe for reading. Does not
    /// wait.
    ///
    /// # Errors
    /// `errno`.
    pub fn open(path: &CStr, form: Form) -> Result<Descriptor, i32> {
        match form {
            Form::File => Self::open_with(path, libc::O_RDWR, form),
            Form::Fifo => Self::open_with(path, libc::O_RDONLY, form),
            Form::Socket => Self::connect(path),
        }
    }

    /// Opens `path` for reading.
    ///
    /// # Errors
    /// `errno`.
    pub fn open_to_read(path: &CStr) -> Result<Descriptor, i32> {
        Self::open_with(path, libc::O_RDONLY, Form::File)
    }

    fn open_with(path: &CStr, access: i32, form: Form) -> Result<Descriptor, i32> {
        let flags = access | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        Self::keep(calls::open(path, flags, 0), form)
    }

    fn connect(path: &CStr) -> Result<Descriptor, i32> {
        // SAFETY: all zeroes are a valid address of no family.
        let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
        let name = path.to_bytes();
        if name.len() >= address.sun_path.len() {
            return Err(libc::ENAMETOOLONG);
        }
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(name) {
            *to = *from as core::ffi::c_char;
        }
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let socket = Self::keep(calls::socket(libc::AF_UNIX, kind), Form::Socket)?;
        if calls::connect(socket.fd, &address) != 0 {
            return Err(errno::get());
        }
        Ok(socket)
    }

    /// Moves a fresh descriptor, or a failed call's -1, to a high number.
    fn keep(fresh: i32, form: Form) -> Result<Descriptor, i32> {
        if fresh < 0 {
            return Err(errno::get());
        }
        let high = calls::fcntl(fresh, libc::F_DUPFD_CLOEXEC, LOWEST_FD);
        let failed = errno::get();
        // SAFETY: `fresh` was opened just now and no other code knows it.
        unsafe { calls::close(fresh) };
        if high < 0 {
            // EINVAL: the process may not have numbers as high as this.
            return Err(if failed == libc::EINVAL { libc::EMFILE } else { failed });
        }
        match descriptors::status(high) {
            Some(status) => {
                descriptors::note(high, status.st_dev, status.st_ino);
                Ok(Descriptor { fd: high, form, device: status.st_dev, inode: status.st_ino })
            }
            None => Err(libc::EBADF),
        }
    }

    /// The form that it was opened as.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The present state of the descriptor.
    pub fn state(&self) -> State {
        match descriptors::status(self.fd) {
            Some(now) if (now.st_dev, now.st_ino) != (self.device, self.inode) => State::Lost,
            Some(now) if now.st_nlink == 0 => State::Unlinked,
            Some(_) => State::Ours,
            None => State::Lost,
        }
    }

    fn is_ours(&self) -> bool {
        self.state() != State::Lost
    }

    /// Writes all of `bytes` with one call, without SIGPIPE where the other side has closed it.
    ///
    /// # Errors
    /// `errno`; EAGAIN where only a part was taken.
    pub fn write(&self, bytes: &[u8]) -> Result<(), i32> {
        if !self.is_ours() {
            return Err(libc::EBADF);
        }
        // `send` suppresses SIGPIPE; it fails on all but sockets.
        let mut n = calls::send(self.fd, bytes, libc::MSG_NOSIGNAL);
        if n < 0 && errno::get() == libc::ENOTSOCK {
            n = calls::write(self.fd, bytes);
        }
        match usize::try_from(n) {
            Ok(n) if n == bytes.len() => Ok(()),
            Ok(_) => Err(libc::EAGAIN),
            Err(_) => Err(errno::get()),
        }
    }

    /// Reads from the start of the file into `buffer`; `None` on failure. The kernel takes the
    /// file's present state as known.
    pub fn read_at_start(&self, buffer: &mut [u8]) -> Option<usize> {
        if !self.is_ours() {
            return None;
        }
        usize::try_from(calls::read_at(self.fd, buffer, 0)).ok()
    }

    /// The event that `poll` found. Reads what there is to read of a pipe or a socket.
    fn event(&self, found: i16) -> Event {
        if found == 0 || !self.is_ours() {
            return Event::Nothing;
        }
        let has_ended = found & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
        match self.form {
            Form::File if has_ended => Event::Ended,
            Form::File => Event::Fired,
            Form::Fifo | Form::Socket => match self.drain() {
                Event::Nothing if has_ended => Event::Ended,
                event => event,
            },
        }
    }

    /// Reads what there is to read, of an endless stream a part, and drops it.
    fn drain(&self) -> Event {
        let mut scrap = [0u8; 1024];
        let empty = if self.form == Form::Fifo { Event::HungUp } else { Event::Nothing };
        let mut seen = empty;
        for _ in 0..DRAIN_BYTES / scrap.len() {
            if !self.is_ours() {
                return Event::Ended;
            }
            match calls::read(self.fd, &mut scrap) {
                1.. => seen = Event::Fired,
                // The end: that of a pipe comes with its last writer.
                0 if seen == Event::Nothing => return Event::Ended,
                0 => return seen,
                _ => match errno::get() {
                    libc::EINTR => {}
                    libc::EAGAIN => return seen,
                    _ if seen == Event::Fired => return seen,
                    _ => return Event::Ended,
                },
            }
        }
        seen
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        descriptors::forget(self.fd, self.device, self.inode);
        descriptors::close_if(self.fd, self.device, self.inode);
    }
}

/// Waits for an event of one of `watched`: on a file the kernel's signal (POLLPRI), else bytes
/// (POLLIN). Also returns after `timeout_ms`, or when a signal arrives.
pub fn wait<const N: usize>(watched: [Option<&Descriptor>; N], timeout_ms: u64) -> [Event; N] {
    // The kernel ignores entries with a negative number.
    let mut polled = [libc::pollfd { fd: -1, events: 0, revents: 0 }; N];
    for (place, descriptor) in polled.iter_mut().zip(&watched) {
        if let Some(descriptor) = descriptor.filter(|descriptor| descriptor.is_ours()) {
            place.fd = descriptor.fd;
            place.events = if descriptor.form == Form::File { libc::POLLPRI } else { libc::POLLIN };
        }
    }
    if super::background::rest(|| poll(&mut polled, timeout_ms)) < 0 {
        if errno::get() != libc::EINTR {
            // Refused (a limit of descriptors below the number of places): the time must pass all
            // the same.
            super::background::rest(|| poll(&mut [], timeout_ms));
        }
        return [Event::Nothing; N];
    }
    core::array::from_fn(|n| match watched[n] {
        Some(descriptor) => descriptor.event(polled[n].revents),
        None => Event::Nothing,
    })
}
