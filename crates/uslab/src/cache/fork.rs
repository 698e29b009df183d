//! Fork: the forking thread holds all locks, and the sheaves of all CPUs are out of use, while the
//! kernel copies the memory.
//!
//! It takes, in this order: the C library's list of streams, the lock of forks, start-up, hooks,
//! registry, slots of threads, capacities, marks, slots (gate and barriers, or their locks), barns,
//! marks of slab lists, heaps, slab lists, marks of page lists, CPU page lists, pages. From the
//! lock of forks on this is the rank order, so that other threads that hold one of the locks can
//! finish. SAFETY.md gives the order with the C library's locks.
//!
//! The fork leaves out slots, barns, slab lists and CPU page lists that no thread has used
//! (`sync/marks.rs`): its cost follows what is in use, not the number of CPUs.
//!
//! The parent and the child undo it backwards. The child has a single thread, so it resets the
//! locks instead of waking waiters that do not exist there.
//!
//! A process whose only other thread is the background thread, asleep, needs none of this: its
//! memory does not change while it is copied, and the child goes on where the parent stands
//! (`cache/alone.rs`). So such a fork is cheap, and works in a signal handler that interrupted this
//! library. Handlers of crashes fork to start a debugger.
//!
//! The child loses what other threads had in flight at that moment (a sheaf between two slots, a
//! page between two lists), and what their own slots held (`cache/local.rs`). The loss is bounded
//! by the number of those threads and slots, and nothing is shared.

use super::{alone, background, debugged, hooks, registry, state, trim};
use crate::counters;
use crate::os;
use crate::os::invariant::assert_valid;
use crate::pages;
use crate::percpu::{self, sheaf};
use crate::slab;
use crate::sync::{Park, only_thread_left};

/// Registers the handlers with the C library.
pub(super) fn register() {
    if !os::fork::register(prepare, parent, child) {
        os::report::print(format_args!(
            "no memory for fork handlers: children of threaded forks are at risk"
        ));
    }
}

fn for_each_cpu_cache(visit: &dyn Fn(&percpu::CpuCache)) {
    registry::for_each(|core| visit(&core.cpu));
}

extern "C" fn prepare() {
    os::unwind::begin_fork();
    if alone::begin() {
        alone::push(true);
        counters::note_fork();
        pages::note_fork();
        (hooks::get().note_fork)();
        return;
    }
    os::fork::lock_streams();
    percpu::begin_fork();
    alone::push(false);
    hold();
}

/// Takes the sheaves out of use, and all locks but those that [`prepare`] has.
fn hold() {
    state::lock_for_fork();
    hooks::lock_for_fork();
    registry::lock_for_fork();
    percpu::local::lock_for_fork();
    percpu::park_slots(for_each_cpu_cache);
    registry::for_each(|core| core.cpu.lock_barns_for_fork());
    (hooks::get().note_fork)();
    slab::lock_marks_for_fork();
    (hooks::get().before_fork)();
    registry::for_each(|core| core.cpu.slabs().lock_for_fork());
    sheaf::slabs().iter().for_each(|slabs| slabs.lock_for_fork());
    pages::lock_for_fork();
    counters::note_fork();
}

fn undo(child: bool) {
    pages::unlock_after_fork(child);
    sheaf::slabs().iter().for_each(|slabs| slabs.unlock_after_fork(child));
    registry::for_each(|core| core.cpu.slabs().unlock_after_fork(child));
    (hooks::get().after_fork)(child);
    slab::unlock_marks_after_fork(child);
    if child {
        debugged::reset_in_child();
        trim::reset_in_child();
        background::reset_in_child();
        os::fault::reset_in_child();
    }
    registry::for_each(|core| core.cpu.unlock_barns_after_fork(child));
    percpu::unpark_slots(child, for_each_cpu_cache);
    percpu::local::unlock_after_fork(child);
    registry::unlock_after_fork(child);
    hooks::unlock_after_fork(child);
    state::unlock_after_fork(child);
    percpu::end_fork(child);
    // SAFETY: `prepare` took the lock on this thread, and `child` comes from the C library.
    unsafe { os::fork::unlock_streams(child) };
}

extern "C" fn parent() {
    os::unwind::end_fork();
    if alone::pop() {
        return alone::end();
    }
    undo(false);
}

/// Does what the handlers do in a parent with other threads, without a fork: for the model of many
/// CPUs.
pub fn rehearse() {
    os::fork::lock_streams();
    percpu::begin_fork();
    hold();
    undo(false);
}

extern "C" fn child() {
    let is_alone = alone::pop();
    os::unwind::end_fork_in_child(is_alone);
    // First of all: the child's figures must not go into the parent's file.
    counters::publish_in_child(is_alone);
    only_thread_left(os::Futex::thread_key);
    slab::forget_other_threads();
    (hooks::get().in_child)(is_alone);
    if is_alone {
        background::reset_in_child();
        pages::reset_in_child();
        os::first::reset_in_child();
        return;
    }
    os::fork::note_threads_lost();
    undo(true);
    // After the locks are free: a thread's first value of a late key is allocated.
    os::first::reset_in_child();
    assert_valid_in_child();
}

/// Asserts, in debug builds, that the copy of the memory is consistent, as far as that shows
/// without walks of slabs. All locks are free, and there is no other thread.
#[inline(always)]
fn assert_valid_in_child() {
    assert_valid(|| {
        registry::check(&mut |core| core.cpu.check_heads())?;
        percpu::adapt::check()?;
        sheaf::slabs().iter().try_for_each(|slabs| slabs.check_heads())?;
        pages::check_sums()
    });
}
