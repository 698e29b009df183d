//! The program's own limits: above the soft limit the background reclaims, at the hard limit the
//! allocating thread does.
//!
//! The limits count the memory that the arena holds: pages in use, and free pages with memory
//! behind them. The page layer compares at each allocation of pages.

use super::install;
use super::ladder::Until;
use super::{pass, registry};
use crate::cache::{background, start};
use crate::{os, pages};

/// Why [`set_limit`] refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LimitError {
    /// The soft limit is above the hard one.
    SoftAboveHard,
    /// The library could not be set up: there is no address space.
    OutOfMemory,
}

impl core::fmt::Display for LimitError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            LimitError::SoftAboveHard => "the soft limit is above the hard one",
            LimitError::OutOfMemory => "there is no address space for the allocator",
        })
    }
}

impl core::error::Error for LimitError {}

/// Limits the memory that the allocator of this process holds, in bytes; 0 means no limit. Takes
/// effect at once. May be called at any time, from any thread.
///
/// * Above `soft_bytes` the background thread reclaims ([`crate::reclaim()`]) down to a little
///   less. If there can be no such thread (`USLAB_REAPER=0`, or the system refuses it), allocating
///   threads reclaim, once the arena exceeds 16 MiB.
/// * An allocation that would exceed `hard_bytes` first reclaims, on the allocating thread, and
///   runs callbacks of shrinkers, until it succeeds. If shrinkers have nothing left, it fails: null
///   with ENOMEM, `None`, `AllocError`. It never ends the process by itself, although Rust does so
///   for collections such as `Vec`. Frees always work, even if the limit is below the memory held.
///
/// The limits count whole pages: those of slabs, those of large objects, and free pages that still
/// have memory. They do not count the allocator's own tables, about 2 %.
///
/// ```
/// uslab::set_limit(768 << 20, 1 << 30).unwrap();
/// assert!(uslab::set_limit(2, 1).is_err());
/// uslab::set_limit(0, 0).unwrap();
/// ```
///
/// # Errors
/// See [`LimitError`]. On an error the limits stay as they were.
pub fn set_limit(soft_bytes: usize, hard_bytes: usize) -> Result<(), LimitError> {
    if hard_bytes != 0 && soft_bytes > hard_bytes {
        return Err(LimitError::SoftAboveHard);
    }
    if !start::ensure() {
        return Err(LimitError::OutOfMemory);
    }
    install();
    pages::set_limits(soft_bytes, hard_bytes);
    if soft_bytes != 0 {
        background::begin();
        os::sleep::wake();
    }
    Ok(())
}

/// If held memory exceeds the soft limit, returns the bytes that may stay held.
pub(super) fn beyond_soft() -> Option<usize> {
    floor(pages::held_bytes(), pages::soft_limit_bytes()?)
}

/// If `held` exceeds `soft`, returns the bytes that may stay held: a sixteenth less than the limit.
/// After a pass that ended at the limit, another one would follow at once.
pub(super) fn floor(held: usize, soft: usize) -> Option<usize> {
    (held > soft).then(|| soft / 16 * 15)
}

/// Serves an allocation that found no pages for `bytes`: reclaims on the calling thread until
/// `attempt` succeeds. Returns false if it never did, and at once within a callback of a shrinker.
#[cold]
pub fn short(bytes: usize, attempt: &mut dyn FnMut() -> bool) -> bool {
    if registry::live() > 0 && registry::is_inside() {
        return false;
    }
    let mut done = false;
    let mut attempt = || {
        done = attempt();
        done
    };
    pass::run(bytes, &mut Until { bytes, attempt: &mut attempt });
    done
}
