//! Text in memory of the library's own malloc, which the caller of the C function frees.

use core::ffi::c_char;
use core::fmt;
use uslab::internal::entry as malloc;

/// A growing text. Its drop frees the memory.
pub struct Text {
    start: *mut u8,
    used: usize,
    room: usize,
}

impl Text {
    /// An empty text.
    pub const fn new() -> Text {
        Text { start: core::ptr::null_mut(), used: 0, room: 0 }
    }

    /// Returns the NUL-terminated text, which the caller must free; null without memory.
    pub fn finish(mut self) -> *mut c_char {
        if self.push(b"\0").is_err() {
            return core::ptr::null_mut();
        }
        let start = self.start;
        core::mem::forget(self);
        start.cast()
    }

    fn push(&mut self, bytes: &[u8]) -> fmt::Result {
        let needed = self.used + bytes.len();
        if needed > self.room {
            let room = needed.max(2 * self.room).max(1024);
            // SAFETY: null, or memory of `malloc` that only this text refers to.
            let start = unsafe { malloc::realloc(self.start, room) };
            if start.is_null() {
                return Err(fmt::Error);
            }
            (self.start, self.room) = (start, room);
        }
        // SAFETY: `room` is at least `needed`.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(self.used), bytes.len()) };
        self.used = needed;
        Ok(())
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes())
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: null, or memory of `malloc` that only this text refers to.
        unsafe { malloc::free(self.start) };
    }
}
