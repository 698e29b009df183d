//! The heap profile: which stacks allocated the memory in use, and all memory so far, from samples.
//!
//! ```text
//!   start ──▶ one allocation in 512 KiB is a sample ──▶ its stack's site: allocated, in use, ages
//!   write ──▶ text: a line for each site, already scaled to all allocations, and /proc/self/maps
//! ```
//!
//! Samples are a Poisson process over the bytes that the malloc family, [`crate::Uslab`], caches of
//! the program ([`crate::Cache`], [`crate::RawCache`]) and private heaps ([`crate::Heap`])
//! allocate, as in gperftools and jemalloc. Each allocation of a class of `s` bytes is a sample
//! with the probability `1 - exp(-s / period)`, whether it lives for a nanosecond or for ever. So
//! the estimates have no bias; with `n` samples a site's error is about `1 / √n`.
//!
//! An object that is resized in place counts as a new one if its pages change. Bytes are those that
//! the program asked for; those of small objects of heaps are their size class's.
//!
//! Nothing is compiled into the fast path. While no profile runs, nothing is different. While one
//! runs, allocations by `malloc` pop from sheaves that end where the next sample is due, and each
//! call to a cache of the program or of a heap takes its slow path, some 20 ns more for a pair (ADR
//! 0048). After [`stop`] such a cache does so until its last sampled object is free.
//!
//! A thread's own sheaf ([`crate::RawLocal`]) is counted from its next refill or flush on; its
//! frees before are not seen, and such a sample ends when its address is allocated again. A
//! prefilled sheaf counts when it is filled. Where the kernel refuses `membarrier(2)`, caches from
//! before the start are not sampled, unless they serve each call on the slow path.
//!
//! Memory: 5 MiB for sites and samples, of which touched pages count; for each class a cache line,
//! and up to 16 KiB of free objects, for each CPU; for each cache of the program a cache line for
//! each CPU and node; and a page or more for each sampled object of `malloc` in use. What finds no
//! room is counted as dropped.
//!
//! A fork child has the samples of its parent, for the objects that it inherited, and goes on
//! sampling.

mod at_exit;

#[doc(hidden)]
pub use at_exit::{start_from_environment, write_at_exit};

use crate::counters::{Changer, note_change};
use crate::malloc::profiled::{self, state};
use crate::os;
use core::fmt;

/// Mean bytes from one sample to the next, unless the program or user chooses: 512 KiB.
pub const DEFAULT_PERIOD_BYTES: usize = os::config::PROFILE_PERIOD_BYTES as usize;

/// Why there is no profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProfileError {
    /// There is no memory for samples.
    OutOfMemory,
    /// No profile was ever started in this process.
    NotStarted,
    /// The system refused to write; its error number.
    Write(i32),
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::OutOfMemory => f.write_str("there is no memory for samples"),
            ProfileError::NotStarted => f.write_str("no heap profile was started"),
            ProfileError::Write(number) => write!(f, "the profile cannot be written: system error {number}"),
        }
    }
}

impl core::error::Error for ProfileError {}

/// Starts to sample: about one allocation in `period_bytes` bytes, or in [`DEFAULT_PERIOD_BYTES`]
/// with 0. While a profile runs, this changes its period. After [`stop`] it goes on with the
/// samples so far.
///
/// Takes locks and allocates memory of the library's own. May be called from any thread and in fork
/// children, but not from a signal handler.
///
/// ```
/// uslab::profile::start(0).unwrap();
/// assert!(uslab::profile::is_running());
/// uslab::profile::stop();
/// uslab::profile::write(&mut |text| assert!(text.len() <= 4096)).unwrap();
/// ```
///
/// # Errors
/// [`ProfileError::OutOfMemory`].
pub fn start(period_bytes: usize) -> Result<(), ProfileError> {
    if !profiled::start(period_bytes) {
        return Err(ProfileError::OutOfMemory);
    }
    note_change("profile", Changer::Call, format_args!("{}", state::period_bytes()));
    Ok(())
}

/// Takes no more samples. Those of objects in use are followed until the objects are freed, and
/// [`write()`] still shows all. Takes locks. Threads and forks: as [`start`].
pub fn stop() {
    profiled::stop();
    note_change("profile", Changer::Call, format_args!("off"));
}

/// Whether samples are taken.
pub fn is_running() -> bool {
    state::period_bytes() != 0
}

/// Writes the profile as text, in pieces of up to 4 KiB, by calls of `out`. The guide
/// (`docs/guide/seeing-inside.md`) describes the form.
///
/// Allocates nothing. `out` runs with no lock held: it may allocate, and may panic. Several threads
/// may write at once. Samples go on meanwhile: lines are consistent in themselves. May be called
/// from any thread and in fork children, but not from a signal handler.
///
/// # Errors
/// [`ProfileError::NotStarted`].
pub fn write(out: &mut dyn FnMut(&[u8])) -> Result<(), ProfileError> {
    if profiled::write(out) { Ok(()) } else { Err(ProfileError::NotStarted) }
}

/// [`write()`] to a file descriptor. May block, as writing to it does.
///
/// # Errors
/// [`ProfileError::NotStarted`]; [`ProfileError::Write`], also if `fd` is not open for writing.
///
/// # Safety
/// Where `fd` is open, it must be the caller's to write to, as for
/// [`BorrowedFd::borrow_raw`](std::os::fd::BorrowedFd::borrow_raw).
pub unsafe fn write_to(fd: i32) -> Result<(), ProfileError> {
    match profiled::write_to(fd) {
        None => Err(ProfileError::NotStarted),
        Some(result) => result.map_err(ProfileError::Write),
    }
}
