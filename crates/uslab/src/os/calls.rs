//! The system calls for which the C library has cancellation points, made without them; and
//! futexes, for which it has no function.
//!
//! `malloc` is no cancellation point (POSIX.1-2024): a thread that was canceled goes on as long as
//! it only allocates. But the C library's `open`, `read`, `write`, `close` and others end such a
//! thread. They unwind its stack: through Rust, which does not allow that, and past locks that
//! then stay taken. So the library makes these calls as raw system calls. `cargo xtask tidy`
//! forbids the C library's functions.
//!
//! Each function returns what the C library's returns, and sets `errno` as that does.

use core::ffi::{CStr, c_int, c_long};
use core::ptr;
use core::sync::atomic::AtomicU32;

/// `exit_group(2)`: ends the process at once.
pub fn end(status: c_int) -> ! {
    loop {
        // SAFETY: no preconditions; it does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// `open(2)`. `mode` counts for new files.
pub fn open(path: &CStr, flags: c_int, mode: libc::mode_t) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

/// `openat(2)`. `mode` counts for new files.
pub fn open_at(directory: c_int, path: &CStr, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: `path` is NUL-terminated.
    unsafe { libc::syscall(libc::SYS_openat, directory, path.as_ptr(), flags, mode) as c_int }
}

/// `close(2)`.
///
/// # Safety
/// The descriptor must be the library's own, and no code may use it afterwards.
pub unsafe fn close(fd: c_int) {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// `read(2)`.
pub fn read(fd: c_int, into: &mut [u8]) -> isize {
    // SAFETY: pointer and length describe `into`.
    unsafe { libc::syscall(libc::SYS_read, fd, into.as_mut_ptr(), into.len()) as isize }
}

/// `pread(2)`: reads from `offset` on.
pub fn read_at(fd: c_int, into: &mut [u8], offset: i64) -> isize {
    // SAFETY: pointer and length describe `into`.
    unsafe { libc::syscall(libc::SYS_pread64, fd, into.as_mut_ptr(), into.len(), offset) as isize }
}

/// `write(2)`.
pub fn write(fd: c_int, bytes: &[u8]) -> isize {
    // SAFETY: pointer and length describe `bytes`.
    unsafe { libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) as isize }
}

/// `send(2)`.
pub fn send(fd: c_int, bytes: &[u8], flags: c_int) -> isize {
    let (to, to_bytes) = (ptr::null::<libc::sockaddr>(), 0usize);
    // SAFETY: pointer and length describe `bytes`; there is no address.
    unsafe { libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, to, to_bytes) as isize }
}

/// `connect(2)` to a socket with a path.
pub fn connect(fd: c_int, address: &libc::sockaddr_un) -> c_int {
    // SAFETY: pointer and length describe `address`.
    unsafe { libc::syscall(libc::SYS_connect, fd, ptr::from_ref(address), size_of_val(address)) as c_int }
}

/// `poll(2)`, in milliseconds.
pub fn poll(places: &mut [libc::pollfd], timeout_ms: u64) -> c_int {
    const DAY_MS: u64 = 86_400_000;
    let timeout_ms = timeout_ms.min(DAY_MS);
    // The kernel stores the time that is left.
    let mut timeout = libc::timespec {
        tv_sec: (timeout_ms / 1000) as _,
        tv_nsec: (timeout_ms % 1000 * 1_000_000) as c_long,
    };
    let (mask, mask_bytes) = (ptr::null::<u64>(), 0usize);
    let (start, count) = (places.as_mut_ptr(), places.len());
    // SAFETY: pointer and length describe `places`; the time is a valid one; the mask of signals is
    // left as it is.
    unsafe { libc::syscall(libc::SYS_ppoll, start, count, &raw mut timeout, mask, mask_bytes) as c_int }
}

/// `waitpid(2)`.
pub fn wait_for(child: libc::pid_t, status: &mut c_int, options: c_int) -> libc::pid_t {
    let usage = ptr::null_mut::<libc::rusage>();
    // SAFETY: `status` is a place for the answer; none is asked for what the child used.
    unsafe { libc::syscall(libc::SYS_wait4, child, ptr::from_mut(status), options, usage) as libc::pid_t }
}

/// Sleeps while `word` holds `expected`, for `us` microseconds at most if that is given. Private to
/// the process. May return early. `errno` stays: a lock is taken in calls that succeed.
pub fn futex_wait(word: &AtomicU32, expected: u32, us: Option<u64>) {
    let _errno = super::errno::Preserved::new();
    let time =
        us.map(|us| libc::timespec { tv_sec: (us / 1_000_000) as _, tv_nsec: (us % 1_000_000 * 1000) as _ });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` and the time outlive the call, and no time waits without limit.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, time) };
}

/// Wakes up to `most` threads that sleep on `word`.
pub fn futex_wake(word: &AtomicU32, most: i32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a key only, and the words that threads wait on are
    // never unmapped.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, most) };
}
