//! The time that fork handlers take, by the side of a fork without them, and that of a drain of all
//! caches.

use std::time::Instant;
use uslab::{CacheBuilder, RawCache};

unsafe extern "C" {
    /// glibc 2.34's fork that runs no handlers.
    fn _Fork() -> libc::pid_t;
}

/// Prints the least times of forks with `caches` caches, of which one CPU has used each.
pub fn measure(caches: usize) {
    const ROUNDS: usize = 40;
    let caches: Vec<RawCache> =
        (0..caches).map(|_| CacheBuilder::new("model").build_raw(64).expect("memory for a cache")).collect();
    for cache in &caches {
        let object = cache.alloc().expect("memory for an object");
        // SAFETY: just allocated, and freed once.
        unsafe { cache.free(object) };
    }
    // Forks of a process with one thread take no locks, so another thread sleeps meanwhile.
    let (done, waits) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || waits.recv());
    let (mut with, mut without, mut drain) = (u128::MAX, u128::MAX, u128::MAX);
    for _ in 0..ROUNDS {
        // SAFETY: the child does nothing but exit.
        with = with.min(timed(|| unsafe { libc::fork() }));
        // SAFETY: as above.
        without = without.min(timed(|| unsafe { _Fork() }));
    }
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        uslab::trim(usize::MAX);
        drain = drain.min(begin.elapsed().as_nanos());
    }
    drop(done);
    let _ = other.join();
    let [with, without, drain] = [with, without, drain].map(|ns| ns / 1000);
    println!("{} caches: fork {with} us, without handlers {without} us, trim {drain} us", caches.len());
}

fn timed(fork: impl FnOnce() -> libc::pid_t) -> u128 {
    let begin = Instant::now();
    let child = fork();
    if child == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let elapsed = begin.elapsed().as_nanos();
    // SAFETY: waits for the child.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    elapsed
}
