//! Messages to the user: formatted on the stack, and written to standard error without an
//! allocation.

use super::{calls, clock, errno, signal};
use core::ffi::CStr;
use core::fmt::{self, Write};

/// Bytes of the longest message, line end included; a longer one is cut before its end.
const LIMIT_BYTES: usize = 512;

/// How long a write waits, in all, for room in a pipe or terminal whose descriptor never blocks.
const MAX_WAIT_MS: u64 = 1000;
const WAIT_MS: u64 = 50;

struct Line {
    bytes: [u8; LIMIT_BYTES],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Room for the line end.
        let room = LIMIT_BYTES - 1 - self.used;
        let n = (0..=room.min(text.len())).rfind(|&n| text.is_char_boundary(n)).unwrap_or(0);
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
    let _ = write!(line, "uslab: {message}");
    line.bytes[line.used] = b'\n';
    write(&line.bytes[..=line.used]);
}

/// Writes `text` to standard error, if it takes the text.
pub fn write(text: &[u8]) {
    write_to(2, text);
}

/// Appends `text` to the file at `path`, which it creates if there is none; false if the file
/// cannot be opened, or does not take all of the text.
pub fn append(path: &CStr, text: &[u8]) -> bool {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOCTTY;
    let fd = calls::open(path, flags, 0o600);
    if fd < 0 {
        return false;
    }
    let is_written = write_to(fd, text);
    // SAFETY: the descriptor is ours and is closed once.
    unsafe { calls::close(fd) };
    is_written
}

/// Writes all of `text`; false if the file does not take it. A pipe without a reader raises no
/// SIGPIPE, which would end a process that goes on after faults.
fn write_to(fd: i32, text: &[u8]) -> bool {
    let pipe = signal::block_pipe();
    let is_written = write_all(fd, text);
    signal::unblock_pipe(pipe, !is_written && errno::get() == libc::EPIPE);
    is_written
}

fn write_all(fd: i32, mut rest: &[u8]) -> bool {
    let mut end_ms = None;
    while !rest.is_empty() {
        match calls::write(fd, rest) {
            n @ 1.. => rest = &rest[n as usize..],
            0 => return false,
            _ => match errno::get() {
                libc::EINTR => {}
                // The program's descriptor does not block, and other code writes there too.
                libc::EAGAIN => {
                    let now_ms = clock::coarse_ms();
                    if now_ms >= *end_ms.get_or_insert(now_ms + MAX_WAIT_MS) {
                        return false;
                    }
                    let mut place = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
                    calls::poll(&mut place, WAIT_MS);
                }
                _ => return false,
            },
        }
    }
    true
}

/// Ends the process with SIGABRT, so that a core dump shows the caller.
#[cold]
pub fn abort() -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::abort() }
}
