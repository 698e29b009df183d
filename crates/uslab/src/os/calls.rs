//! System calls made without the C library's functions of their names.
//!
//! There are two reasons. `malloc` is no cancellation point (POSIX.1-2024): a thread that was
//! canceled goes on as long as it only allocates. But the C library's `open`, `read`, `write`,
//! `close` and others end such a thread. They unwind its stack: through Rust, which does not allow
//! that, and past locks that then stay taken.
//!
//! And a program may preload a library that defines `getpid`, `clock_gettime` or `mmap`, as
//! libfaketime does. Such a function may allocate, while the library makes the call under a lock
//! that this allocation needs. `cargo xtask tidy` forbids the C library's functions.
//!
//! Each function returns what the C library's returns, and sets `errno` as that does.

use core::ffi::{CStr, c_int, c_long, c_ulong, c_void};
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

/// `mmap(2)`.
///
/// # Safety
/// As `mmap`: with `MAP_FIXED` nothing may use what lies there.
pub unsafe fn mmap(
    start: *mut c_void,
    bytes: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_mmap, start, bytes, access, flags, fd, offset) as *mut c_void }
}

/// `munmap(2)`.
///
/// # Safety
/// Nothing may use the pages any more.
pub unsafe fn munmap(start: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_munmap, start, bytes) as c_int }
}

/// `mremap(2)`. `to` counts with `MREMAP_FIXED`.
///
/// # Safety
/// As `mremap`: nothing may use the pages that move or lie at `to`.
pub unsafe fn mremap(
    start: *mut c_void,
    bytes: usize,
    new_bytes: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_mremap, start, bytes, new_bytes, flags, to) as *mut c_void }
}

/// `mprotect(2)`.
///
/// # Safety
/// Nothing may use the pages in a way that they then forbid.
pub unsafe fn mprotect(start: *mut c_void, bytes: usize, access: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_mprotect, start, bytes, access) as c_int }
}

/// `madvise(2)`.
///
/// # Safety
/// As `madvise`: with advice that discards pages, nothing may use what they hold.
pub unsafe fn madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_madvise, start, bytes, advice) as c_int }
}

/// `mincore(2)`.
///
/// # Safety
/// `residence` must have room for a byte a page.
pub unsafe fn mincore(start: *mut c_void, bytes: usize, residence: *mut u8) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_mincore, start, bytes, residence) as c_int }
}

/// `prctl(2)` with one argument.
///
/// # Safety
/// As that option of `prctl`.
pub unsafe fn prctl(option: c_int, argument: c_ulong) -> c_int {
    // The kernel requires that whole words are zero.
    let none: c_ulong = 0;
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_prctl, option, argument, none, none, none) as c_int }
}

/// `getpid(2)`.
pub fn getpid() -> libc::pid_t {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_getpid) as libc::pid_t }
}

/// `getppid(2)`.
pub fn getppid() -> libc::pid_t {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_getppid) as libc::pid_t }
}

/// `geteuid(2)`.
pub fn geteuid() -> libc::uid_t {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_geteuid) as libc::uid_t }
}

/// `sched_yield(2)`.
pub fn sched_yield() {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// `clock_gettime(2)`; [`super::clock`] has a faster way.
pub fn clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) -> c_int {
    // SAFETY: `time` is a place to write to.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, ptr::from_mut(time)) as c_int }
}

/// `getrlimit(2)`.
pub fn getrlimit(resource: c_int, limit: &mut libc::rlimit) -> c_int {
    let (this, none) = (0, ptr::null::<libc::rlimit>());
    // SAFETY: `limit` is a place to write to, and no new limit is set.
    unsafe { libc::syscall(libc::SYS_prlimit64, this, resource, none, ptr::from_mut(limit)) as c_int }
}

/// `sysinfo(2)`.
pub fn sysinfo(facts: &mut libc::sysinfo) -> c_int {
    // SAFETY: `facts` is a place to write to.
    unsafe { libc::syscall(libc::SYS_sysinfo, ptr::from_mut(facts)) as c_int }
}

/// `fstat(2)`.
///
/// # Safety
/// `status` must be a place to write to.
pub unsafe fn fstat(fd: c_int, status: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise. On 64-bit machines both have the kernel's structure.
    unsafe { libc::syscall(libc::SYS_fstat, fd, status) as c_int }
}

/// `fstatat(2)`.
///
/// # Safety
/// `status` must be a place to write to.
pub unsafe fn fstatat(directory: c_int, path: &CStr, status: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: the caller's promise; `path` is NUL-terminated.
    unsafe { libc::syscall(libc::SYS_newfstatat, directory, path.as_ptr(), status, flags) as c_int }
}

/// `fstatfs(2)`.
pub fn fstatfs(fd: c_int, facts: &mut libc::statfs) -> c_int {
    // SAFETY: `facts` is a place to write to, of the kernel's structure.
    unsafe { libc::syscall(libc::SYS_fstatfs, fd, ptr::from_mut(facts)) as c_int }
}

/// `ftruncate(2)`.
pub fn ftruncate(fd: c_int, bytes: i64) -> c_int {
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_ftruncate, fd, bytes) as c_int }
}

/// `mkdir(2)`.
pub fn mkdir(path: &CStr, mode: libc::mode_t) -> c_int {
    // SAFETY: `path` is NUL-terminated.
    unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), mode) as c_int }
}

/// `unlinkat(2)` of a file.
pub fn unlinkat(directory: c_int, path: &CStr) -> c_int {
    // SAFETY: `path` is NUL-terminated.
    unsafe { libc::syscall(libc::SYS_unlinkat, directory, path.as_ptr(), 0) as c_int }
}

/// `renameat(2)` within a directory.
pub fn renameat(directory: c_int, from: &CStr, to: &CStr) -> c_int {
    // SAFETY: both are NUL-terminated.
    unsafe {
        libc::syscall(libc::SYS_renameat2, directory, from.as_ptr(), directory, to.as_ptr(), 0) as c_int
    }
}

/// `readlink(2)`; returns the bytes that it wrote.
pub fn readlink(path: &CStr, into: &mut [u8]) -> isize {
    let (at, bytes) = (into.as_mut_ptr(), into.len());
    // SAFETY: `path` is NUL-terminated; pointer and length describe `into`.
    unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), at, bytes) as isize }
}

/// `socket(2)`.
pub fn socket(family: c_int, kind: c_int) -> c_int {
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_socket, family, kind, 0) as c_int }
}

/// `fcntl(2)` with a number as its argument.
pub fn fcntl(fd: c_int, command: c_int, argument: c_int) -> c_int {
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) as c_int }
}
