//! Messages to the user, formatted on the stack and written to standard error without an
//! allocation.

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
    let mut rest = &line.bytes[..line.used];
    while !rest.is_empty() {
        // SAFETY: the pointer and length describe `rest`.
        let n = unsafe { libc::write(2, rest.as_ptr().cast(), rest.len()) };
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
