//! Synchronisation that every layer uses: the atomics facade, the ranked lock, cache-line padding,
//! the count of memory in flight, the marks of entries in use, and the intrusive list.
//!
//! This module makes no system call. The lock parks through the [`Park`] trait, which `os`
//! implements with futexes and the model tests with loom's scheduler.

pub mod atomic;
pub mod in_flight;
pub mod list;
mod lock;
mod marks;
mod prefetch;
mod rank;

pub use lock::{CONTENDED, Guard, Lock, Park};
pub use marks::Marks;
pub use prefetch::{prefetch_for_read, prefetch_for_write};
pub use rank::{Rank, only_thread_left};

/// A value alone on its cache line, so that writes to its neighbours do not evict it.
///
/// 64 bytes is the line of every x86-64 and of most 64-bit Arm cores; where the line is 128 bytes,
/// two values share it, which costs speed only.
#[repr(align(64))]
pub struct CachePadded<T>(pub T);

impl<T> CachePadded<T> {
    /// The value, through an address that the compiler must assume to have escaped.
    ///
    /// The compiler splits a static that is only loaded and stored, and so drops its padding
    /// (docs/adr/0017). One call of this function, in cold code, prevents that.
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
