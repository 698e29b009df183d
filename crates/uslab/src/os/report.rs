//! Messages to the user: formatted on the stack, and written to standard error without an
//! allocation.

use super::calls;
use core::ffi::CStr;
use core::fmt::{self, Write};

/// Bytes of the longest message, line end included; a longer one is cut.
const LIMIT_BYTES: usize = 512;

struct Line {
    bytes: [u8; LIMIT_BYTES],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LIMIT_BYTES - self.used;
        let n = text.len().min(room);
        self.bytes[self.used..self.used + n].copy_from_slice(&text.as_bytes()[..n]);
        self.used += n;
        Ok(())
    }
}

/// Writes one line to standard error. Preserves `errno`; allocates nothing.
#[cold]
pub fn print(message: fmt::Arguments<'_>) {
    let _errno = super::errno::Preserved::new();
    let mut line = Line { bytes: [0; LIMIT_BYTES], used: 0 };
    let _ = writeln!(line, "uslab: {message}");
    write(&line.bytes[..line.used]);
}

/// Writes `text` to standard error.
pub fn write(text: &[u8]) {
    write_to(2, text);
}

/// Appends `text` to the file at `path`, which it creates if there is none; false if the file
/// cannot be opened.
pub fn append(path: &CStr, text: &[u8]) -> bool {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOCTTY;
    let fd = calls::open(path, flags, 0o600);
    if fd < 0 {
        return false;
    }
    write_to(fd, text);
    // SAFETY: the descriptor is ours and is closed once.
    unsafe { calls::close(fd) };
    true
}

fn write_to(fd: i32, mut rest: &[u8]) {
    while !rest.is_empty() {
        let n = calls::write(fd, rest);
        if n <= 0 {
            break;
        }
        rest = &rest[n as usize..];
    }
}

/// Ends the process with SIGABRT, so that a core dump shows the caller.
#[cold]
pub fn abort() -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::abort() }
}
