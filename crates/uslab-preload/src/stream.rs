//! Writes formatted text into a `FILE` through a buffer on the stack.
//!
//! This file allocates nothing, but the stream may allocate its buffer at the first write, from
//! this library. So the caller must hold no lock of the library.

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

/// A stream locked by this thread until the value is dropped. Cancellation is off meanwhile, since
/// it would unwind through Rust.
pub struct Locked {
    stream: *mut FILE,
    cancel_state: c_int,
    buffer: [u8; 1024],
    used: usize,
    failed: bool,
}

impl Locked {
    /// Locks `stream`; waits for other threads that write to it.
    ///
    /// # Safety
    /// `stream` must be open.
    pub unsafe fn new(stream: *mut FILE) -> Locked {
        let mut cancel_state = 0;
        pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancel_state);
        flockfile(stream);
        Locked { stream, cancel_state, buffer: [0; 1024], used: 0, failed: false }
    }

    /// Writes the rest of the buffer. Returns false if the stream has refused any of the text.
    pub fn finish(mut self) -> bool {
        self.write_buffer();
        !self.failed
    }

    fn write_buffer(&mut self) {
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
                self.write_buffer();
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
