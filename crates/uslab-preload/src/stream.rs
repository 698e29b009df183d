//! Formatted text into a `FILE`, with no allocation of our own.
//!
//! The text goes through a buffer on the stack. The stream may allocate its own buffer at the first
//! write, from us: the caller must hold no lock of the library.

use core::ffi::{c_int, c_void};
use core::fmt;
use libc::FILE;

unsafe extern "C" {
    safe fn flockfile(stream: *mut FILE);
    safe fn funlockfile(stream: *mut FILE);
    safe fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

/// A stream that this thread has to itself until the value is dropped. The thread cannot be
/// cancelled meanwhile: a cancellation would unwind through Rust.
pub struct Locked {
    stream: *mut FILE,
    cancel_state: c_int,
    buffer: [u8; 1024],
    used: usize,
    failed: bool,
}

impl Locked {
    /// Waits for other threads that write to `stream`.
    ///
    /// # Safety
    /// It must be an open stream.
    pub unsafe fn new(stream: *mut FILE) -> Locked {
        let mut cancel_state = 0;
        pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancel_state);
        flockfile(stream);
        Locked { stream, cancel_state, buffer: [0; 1024], used: 0, failed: false }
    }

    /// Hands the rest to the stream; false if the stream refused any of the text.
    pub fn finish(mut self) -> bool {
        self.hand_over();
        !self.failed
    }

    fn hand_over(&mut self) {
        let text = &self.buffer[..core::mem::take(&mut self.used)];
        // SAFETY: the stream is open (`new`), the text valid for its length.
        let written = unsafe { libc::fwrite(text.as_ptr().cast::<c_void>(), 1, text.len(), self.stream) };
        self.failed |= written != text.len();
    }
}

impl fmt::Write for Locked {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.used == self.buffer.len() {
                self.hand_over();
            }
            self.buffer[self.used] = byte;
            self.used += 1;
        }
        Ok(())
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        funlockfile(self.stream);
        let mut ignored = 0;
        pthread_setcancelstate(self.cancel_state, &raw mut ignored);
    }
}
