//! `errno`: kept over slow paths, set where the C standard asks for it.

fn location() -> *mut i32 {
    // SAFETY: no preconditions; the C library answers with this thread's own cell.
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

/// `errno` now.
pub fn get() -> i32 {
    // SAFETY: as in `set`.
    unsafe { *location() }
}

/// Keeps `errno` as it was when this was made: `free` must not change it (POSIX.1-2024), whatever system calls the slow
/// path makes.
pub struct Preserved(i32);

impl Preserved {
    /// Remembers `errno`.
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
