//! The loader's list of objects, which is read under a lock of the loader's.
//!
//! glibc does not reset that lock in a fork child: a thread that was inside in the parent leaves it
//! taken for ever. Other threads of the program may be inside for reasons of their own (`dlopen`,
//! `dl_iterate_phdr`), so the child of a threaded fork never reads the list again. It finds
//! objects where that takes no lock (`_dl_find_object`), and else keeps the rules that the parent
//! had. A fork without such threads waits until the background thread is outside,
//! and keeps it out. musl's `fork` takes the lock itself.
//!
//! ```text
//!   reader   inside := 1 ─▶ forks 0? ─yes─▶ reads ─▶ inside := 0
//!   fork     forks + 1 ─▶ inside 0? ─yes─▶ copies the memory ─▶ forks - 1
//!   child    inside 1, or other threads under glibc? ─yes─▶ reads no more
//! ```
//!
//! Both wait for a bounded time only. A thread that visits the list for the program may allocate
//! there, and so wait for this library while it holds the loader's lock.

use crate::os::thread;
use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};

/// Whether a thread is inside. One at a time: reading takes 30 ns.
static IS_INSIDE: AtomicBool = AtomicBool::new(false);
/// Forks under way.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Whether the loader's lock may be taken for ever, by a thread of this process's parent.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Turns that a reader waits, and those of them without giving the CPU away.
const TURNS: u32 = 200;
const SPINS: u32 = 100;

/// Calls `read`, which may use `dl_iterate_phdr`. `None` where the caller must do without.
pub fn inside<R>(read: impl FnOnce() -> R) -> Option<R> {
    if is_lost() || !wait_until(|| !IS_INSIDE.swap(true, SeqCst), TURNS) {
        return None;
    }
    let result = (FORKS.load(SeqCst) == 0).then(read);
    IS_INSIDE.store(false, SeqCst);
    result
}

/// Whether the loader's list is never read again, so that changes of it stay unknown.
pub fn is_lost() -> bool {
    IS_LOST.load(Relaxed)
}

fn wait_until(is_so: impl Fn() -> bool, turns: u32) -> bool {
    (0..turns).any(|turn| {
        let is_so = is_so();
        match (is_so, turn < SPINS) {
            (true, _) => {}
            (false, true) => core::hint::spin_loop(),
            (false, false) => thread::give_way(),
        }
        is_so
    })
}

/// Keeps threads of this library out until [`end_fork`]. Forks may nest: a handler that interrupts
/// one may fork.
pub fn begin_fork() {
    FORKS.fetch_add(1, SeqCst);
    wait_until(|| !IS_INSIDE.load(SeqCst), 10 * TURNS);
}

/// Ends [`begin_fork`] in the child. `was_alone` tells that the parent had no thread of the program
/// but the one that forked.
pub fn end_fork_in_child(was_alone: bool) {
    let is_lost = IS_INSIDE.load(SeqCst) || cfg!(target_env = "gnu") && !was_alone;
    if is_lost {
        IS_LOST.store(true, Relaxed);
    }
    end_fork();
}

/// Ends [`begin_fork`] in the parent.
pub fn end_fork() {
    let _ = FORKS.fetch_update(SeqCst, SeqCst, |forks| forks.checked_sub(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_keeps_readers_out_until_it_ends() {
        assert_eq!(inside(|| 7), Some(7));
        begin_fork();
        begin_fork();
        assert_eq!(inside(|| 7), None);
        end_fork();
        assert_eq!(inside(|| 7), None);
        end_fork();
        assert_eq!(inside(|| 7), Some(7));
    }
}
