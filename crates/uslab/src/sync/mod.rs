//! What every layer uses: the atomics facade, the ranked lock, cache-line padding, memory in flight,
//! and the intrusive list.
//!
//! Nothing here performs a system call. The lock parks through the [`Park`] trait, which `os` implements
//! with futexes and the model tests with loom's scheduler.

pub mod atomic;
pub mod in_flight;
pub mod list;
mod lock;
mod prefetch;
mod rank;

pub use lock::{Guard, Lock, Park};
pub use prefetch::prefetch_for_write;
pub use rank::{Rank, only_thread_left};

/// A value alone on its cache line, so that writers of its neighbours do not disturb it.
///
/// 64 bytes is the line of every x86-64 and of most 64-bit Arm cores; where the line is 128 bytes two values share it,
/// which costs speed, never correctness.
#[repr(align(64))]
pub struct CachePadded<T>(pub T);

impl<T> CachePadded<T> {
    /// The value, by an address that the compiler must believe to be known elsewhere. Used once, in cold code, it keeps the padding of a static
    /// that is only loaded and stored: those are taken apart otherwise (docs/adr/0017).
    pub fn whole(&self) -> &T {
        &core::hint::black_box(self).0
    }
}

impl<T> core::ops::Deref for CachePadded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
