//! malloc: small sizes come from size classes, each a cache; larger ones are runs of pages.
//!
//! ```text
//!  size ≤ 1 KiB    ──table──▶ slots ──▶ pop          45 classes: see `classes`
//!  size ≤ 32 KiB   ──table, one call away──▶ slots ──▶ pop
//!  size ≤ 1 MiB    ──table, one call away──▶ slots ──▶ pop          20 classes of page runs
//!  larger          ──────────▶ page run, described in its first page's descriptor
//!  free(pointer)   ──page map──▶ slots ──▶ push      an object of any cache
//!  free(p, size)   ──table──▶ slots ──▶ push         no look at the page map: the cheap path
//! ```
//!
//! The C symbols, [`crate::Uslab`] and [`crate::Heap`] build on these functions. Each may be called
//! from any thread, before the C library is set up, in fork children, and after `exit` began. None
//! may be called from a signal handler that interrupted one of them.

#[cfg(any(feature = "allocator-api2", feature = "allocator-api2-02"))]
pub(crate) mod allocator;
mod bare;
mod caller;
pub(crate) mod classes;
pub(crate) mod debugged;
pub(crate) mod entry;
pub(crate) mod global;
pub(crate) mod heap;
mod large;
mod list;
mod medium;
mod owners;
pub(crate) mod profiled;
pub(crate) mod sampled;
mod small;
#[cfg(test)]
mod tests;

use crate::cache::hooks::{self, Hooks};

pub use entry::{
    ALIGN, aligned_alloc, calloc, free, free_aligned_sized, free_bulk, free_sized, malloc, malloc_bulk,
    realloc, usable_size, zeroed,
};

/// The hooks of heaps: their locks, for a fork, and their checks. Plain `malloc` has no locks of
/// its own. A fork must take the locks that the check takes.
pub(crate) const HOOKS: Hooks = Hooks {
    before_fork: lock_for_fork,
    after_fork: unlock_after_fork,
    in_child: |_| profiled::state::note_fork(),
    check: || owners::check().map(|_| ()),
    check_objects: debugged::check_objects,
    ..Hooks::ALONE
};

/// Installs the hooks, so that forks take the locks of heaps. Called before the first use of these
/// locks.
pub(crate) fn install_hooks() {
    static HOOKS: Hooks = self::HOOKS;
    hooks::install_first(&HOOKS);
}

/// Takes the locks of heaps for the duration of a fork.
pub(crate) fn lock_for_fork() {
    sampled::lock_for_fork();
    list::lock_for_fork();
    owners::lock_for_fork();
    profiled::table::lock_for_fork();
    bare::lock_for_fork();
}

/// Undoes [`lock_for_fork`]; `child` is true in the fork child.
pub(crate) fn unlock_after_fork(child: bool) {
    bare::unlock_after_fork(child);
    profiled::table::unlock_after_fork(child);
    owners::unlock_after_fork(child);
    list::unlock_after_fork(child);
    sampled::unlock_after_fork(child);
}
