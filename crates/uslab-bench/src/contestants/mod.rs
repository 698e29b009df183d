//! The contestants: one allocator, called one way, is one type that implements [`Contestant`].
//!
//! ```text
//!   linked   peers that are part of this program: a table
//!   found    peers that the system may have as shared libraries: a table
//!   uslab    the typed cache, inlined and called; malloc
//!   local    the local cache, inlined and called
//!   heaps    private heaps: a trait of their own
//!   floor    no allocator, and the least that one could do
//! ```
//!
//! The loops are generic over the type (rounds/), so that a contestant's calls are compiled into
//! them; lineup.rs holds the contestants of all kinds as values.
//!
//! Must never: give one contestant a loop, a check or a hint that another does not get; enable a
//! feature of a peer's crate that takes over malloc.

pub mod floor;
pub mod found;
pub mod heaps;
pub mod linked;
pub mod local;
pub mod uslab;

pub use crate::results::About;

/// One allocator, called one way. The functions are static: a contestant is a type, so that its
/// calls are compiled into the loop.
pub trait Contestant: 'static {
    /// Its unique name in tables.
    const NAME: &'static str;

    /// Version, how it was built, and what a reader must know about it.
    fn about() -> About;

    /// Called once by every thread before it uses the allocator, and by the same thread after its
    /// last use.
    fn enter_thread() {}
    fn leave_thread() {}

    /// Memory for `size` bytes, or null. Typed caches have their size in the type and ignore this
    /// one.
    fn alloc(size: usize) -> *mut u8;

    /// # Safety
    /// `pointer` came from `alloc(size)` of this contestant and has not been freed since.
    unsafe fn free(pointer: *mut u8, size: usize);

    /// Sized free; [`free`](Self::free) where the allocator has none.
    ///
    /// # Safety
    /// As for `free`.
    #[inline(always)]
    unsafe fn free_sized(pointer: *mut u8, size: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { Self::free(pointer, size) }
    }

    /// Fills `objects`, all or nothing; one at a time where the allocator has no bulk call.
    #[inline(always)]
    fn alloc_bulk(size: usize, objects: &mut [*mut u8]) -> bool {
        for object in objects.iter_mut() {
            *object = Self::alloc(size);
            if object.is_null() {
                return false;
            }
        }
        true
    }

    /// # Safety
    /// Each of `objects` as for `free`, and no two are the same.
    #[inline(always)]
    unsafe fn free_bulk(size: usize, objects: &[*mut u8]) {
        for &object in objects {
            // SAFETY: the caller's promise holds for each.
            unsafe { Self::free(object, size) }
        }
    }

    /// Flushes the sheaves for objects of that size to their slabs, and returns empty slabs to the
    /// page layer. Peers flush nothing: the rows compare with their cost without a flush.
    fn flush(_size: usize) {}
}

/// The set-up of all contestants in a thread that runs rounds: the fields are dropped at its end.
pub struct InThread(());

impl InThread {
    pub fn enter() -> Self {
        linked::Rpmalloc::enter_thread();
        local::enter_thread();
        Self(())
    }
}

impl Drop for InThread {
    fn drop(&mut self) {
        local::leave_thread();
        linked::Rpmalloc::leave_thread();
    }
}

#[cold]
#[inline(never)]
pub(crate) fn out_of_memory(name: &str) -> ! {
    eprintln!("uslab-bench: {name} returned no memory in a round; free some, or lower the live set");
    std::process::exit(1);
}
