//! `errno`: slow paths preserve it, and allocation sets it where the C standard requires that.

/// The calling thread's `errno`.
#[inline]
pub fn location() -> *mut i32 {
    // SAFETY: no preconditions; the C library returns this thread's own cell.
    unsafe { libc::__errno_location() }
}

/// Sets `errno` to ENOMEM.
#[cold]
pub fn set_out_of_memory() {
    set(libc::ENOMEM);
}

/// Sets `errno` to EINVAL.
#[cold]
pub fn set_invalid() {
    set(libc::EINVAL);
}

/// Sets `errno`.
pub fn set(value: i32) {
    // SAFETY: the cell is this thread's and lives as long as the thread.
    unsafe { *location() = value }
}

/// The current `errno`.
pub fn get() -> i32 {
    // SAFETY: as in `set`.
    unsafe { *location() }
}

/// Restores `errno` on drop to its value at creation. `free` must not change it (POSIX.1-2024), but
/// its slow path makes system calls.
pub struct Preserved(i32);

impl Preserved {
    /// Saves `errno`.
    #[must_use]
    pub fn new() -> Self {
        Preserved(get())
    }
}

impl Default for Preserved {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Preserved {
    fn drop(&mut self) {
        set(self.0);
    }
}
