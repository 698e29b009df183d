//! The errors of making and destroying a cache.

use crate::slab::GeometryError;
use core::fmt;

/// Why a cache could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// Size 0, or an alignment that is not a power of two.
    Invalid,
    /// An object or alignment beyond 256 KiB.
    TooLarge,
    /// There is no memory for it.
    OutOfMemory,
    /// All 65 475 ids of caches are in use; the size classes of `malloc` use some of them.
    TooManyCaches,
    /// The [`NumaPolicy`](crate::NumaPolicy) names a node that does not exist, has no memory or is
    /// not the process's to use (`cpuset`), or a seccomp filter forbids `mbind`.
    NumaRefused,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CreateError::Invalid => "object size is 0 or the alignment is not a power of two",
            CreateError::TooLarge => "object size or alignment is beyond 256 KiB",
            CreateError::OutOfMemory => "out of memory",
            CreateError::TooManyCaches => "too many caches",
            CreateError::NumaRefused => "no such NUMA node, or the kernel refuses the policy",
        })
    }
}

impl core::error::Error for CreateError {}

impl From<GeometryError> for CreateError {
    fn from(error: GeometryError) -> Self {
        match error {
            GeometryError::Invalid => CreateError::Invalid,
            GeometryError::TooLarge => CreateError::TooLarge,
        }
    }
}

/// Why a cache was not destroyed: objects of it live, or lie in the sheaf of a
/// [`LocalCache`](crate::LocalCache) or [`Prefilled`](crate::Prefilled) that was forgotten. In a
/// fork child also objects that other threads of the parent had in flight count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// Their number.
    pub objects: usize,
    /// The first of them; null beyond their number.
    pub first: [*mut u8; 8],
}

// SAFETY: the pointers are printed, never followed.
unsafe impl Send for Busy {}
// SAFETY: as above.
unsafe impl Sync for Busy {}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} live:", self.objects, if self.objects == 1 { "object" } else { "objects" })?;
        for &object in self.first.iter().take_while(|object| !object.is_null()) {
            write!(f, " {object:p}")?;
        }
        if self.objects > self.first.len() { f.write_str(" …") } else { Ok(()) }
    }
}

impl core::error::Error for Busy {}
