//! Forks beside a thread that is in its process's first call of the library.
//!
//! The first call sets the library up under a lock, for milliseconds. A child that was forked
//! meanwhile must find that lock free. Each round is a process of its own that has not used the
//! library. It forks while its other thread makes the first call. A child that hangs fails the test
//! after a time limit.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "storm/child.rs"]
mod child;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::hint::spin_loop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use uslab::CacheBuilder;

const ROUNDS: u32 = 60;
/// Forks of a round.
const FORKS: u32 = 4;
/// A round starts to fork so much later than the one before, from the first call on.
const STEP: Duration = Duration::from_micros(20);

/// The first call, or one like it in a child.
fn use_library() -> Result<(), &'static str> {
    let cache = CacheBuilder::new("first").build_raw(64).map_err(|_| "no cache")?;
    let object = cache.alloc().ok_or("no memory")?;
    // SAFETY: just allocated, and unused.
    unsafe { cache.free(object) };
    cache.destroy().map_err(|_| "an object was lost")?;
    uslab::debug::validate().map(drop).map_err(|invalid| invalid.invariant)
}

/// Whether the thread that makes the first call has begun.
static BEGUN: AtomicBool = AtomicBool::new(false);

extern "C" fn first_call(_: *mut libc::c_void) -> *mut libc::c_void {
    BEGUN.store(true, Relaxed);
    // Null on success.
    if use_library().is_ok() { null_mut() } else { (&raw const BEGUN).cast_mut().cast() }
}

extern "C" fn fork_beside(round: *mut libc::c_void) -> *mut libc::c_void {
    while !BEGUN.load(Relaxed) {
        spin_loop();
    }
    let start = Instant::now();
    while start.elapsed() < STEP * round.addr() as u32 {
        spin_loop();
    }
    let forked = (0..FORKS).try_for_each(|_| child::wait(child::fork(use_library)));
    if let Err(how) = &forked {
        eprintln!("fork beside the first call, round {}: {how}", round.addr());
    }
    if forked.is_ok() { null_mut() } else { (&raw const BEGUN).cast_mut().cast() }
}

/// A process with two threads: one makes its first call, the other forks beside it.
fn round(round: u32) -> Result<(), &'static str> {
    let mut forker = 0;
    let round = std::ptr::without_provenance_mut(round as usize);
    // SAFETY: the out-pointer is valid; the argument is a number.
    if unsafe { libc::pthread_create(&mut forker, std::ptr::null(), fork_beside, round) } != 0 {
        return Err("no thread");
    }
    let called = child::on_a_thread(first_call, null_mut());
    let mut forked = null_mut();
    // SAFETY: the thread was created above, and is joined once.
    let joined = unsafe { libc::pthread_join(forker, &mut forked) } == 0;
    if called && joined && forked.is_null() { Ok(()) } else { Err("a thread failed") }
}

#[test]
fn a_child_can_use_the_library_wherever_the_first_call_stood() {
    in_both_modes("a_child_can_use_the_library_wherever_the_first_call_stood", &[], || {
        for number in 0..ROUNDS {
            let process = child::fork(|| round(number));
            child::wait(process).unwrap_or_else(|how| panic!("round {number}: {how}"));
        }
    });
}
