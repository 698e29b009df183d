//! A seccomp filter refuses `membarrier` after start: caches can still be drained, destroyed and
//! forked.
//!
//! Threads own stamped objects while other threads drain, fork, and create and destroy caches. No
//! object may have two owners, and a cache that no thread uses must still be drained and destroyed.
//! Locked mode uses no barrier.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[allow(dead_code, reason = "shared with a test that starts threads in children")]
#[path = "storm/child.rs"]
mod child;
#[path = "support/modes.rs"]
mod modes;
#[path = "storm/stamp.rs"]
mod stamp;

use modes::in_both_modes;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use uslab::debug::SwitchError;
use uslab::internal::layout::{REASON_FORCED, REASON_NO_MEMBARRIER};
use uslab::{CacheBuilder, Mode, RawCache};

const BYTES: usize = 64;
const USERS: u32 = 3;
const ROUNDS: usize = 60;

/// Refuses the call to this thread, and to all threads that it starts.
fn refuse_membarrier() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_membarrier as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which is as long as it says.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        assert_ne!(libc::syscall(libc::SYS_membarrier, 0, 0, 0), 0, "the filter does not hold");
    }
}

fn take(cache: &RawCache, n: usize, owner: u32) -> Vec<NonNull<u8>> {
    let objects: Vec<_> = (0..n).map(|_| cache.alloc().expect("memory")).collect();
    for &object in &objects {
        assert_eq!(stamp::stamp(object, BYTES, owner), Ok(()), "an object has two owners");
    }
    objects
}

fn give_back(cache: &RawCache, objects: Vec<NonNull<u8>>, owner: u32) {
    for object in objects {
        assert!(stamp::unstamp(object, BYTES, owner), "an object in use was written to");
        // SAFETY: owned by this thread, and freed once.
        unsafe { cache.free(object) };
    }
}

/// Objects in a cache's sheaves.
fn in_sheaves(cache: &RawCache) -> i64 {
    uslab::internal::account_all();
    uslab::internal::record(cache.core().id()).sheaf_free.load(Relaxed)
}

/// The checks of a child: its objects are unchanged, the slots, which it cannot trust, are empty,
/// and the library works. `few` has a sheaf in a slot and none in barns.
fn live_on(cache: &RawCache, few: &RawCache, kept: &[NonNull<u8>], owner: u32) -> Result<(), &'static str> {
    if uslab::mode() == Mode::Rseq && in_sheaves(few) != 0 {
        return Err("sheaves that may have changed while they were copied are trusted");
    }
    let mut objects = [null_mut(); 500];
    if !cache.alloc_bulk(&mut objects) {
        return Err("no memory");
    }
    if kept.iter().any(|object| objects.contains(&object.as_ptr())) {
        return Err("an object in use was allocated again");
    }
    // SAFETY: just allocated, and unused.
    unsafe { cache.free_bulk(&objects) };
    cache.shrink();
    uslab::trim(0);
    if !kept.iter().all(|&object| stamp::is_owned_by(object, BYTES, owner)) {
        return Err("an object in use was written to");
    }
    let own = CacheBuilder::new("child").build_raw(BYTES).map_err(|_| "no cache in the child")?;
    if !own.alloc_bulk(&mut objects) {
        return Err("no memory in the child's cache");
    }
    // SAFETY: as above.
    unsafe { own.free_bulk(&objects) };
    own.destroy().map_err(|_| "the child's cache lost an object")
}

#[test]
fn without_barriers_nothing_has_two_owners_and_nothing_is_lost() {
    in_both_modes(
        "without_barriers_nothing_has_two_owners_and_nothing_is_lost",
        &[("USLAB_REAPER", "0")],
        || {
            let cache = CacheBuilder::new("refused").build_raw(BYTES).unwrap();
            give_back(&cache, take(&cache, 10, 1), 1);
            let few = CacheBuilder::new("few").build_raw(BYTES).unwrap();
            refuse_membarrier();
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for user in 1..=USERS {
                    let (cache, stop) = (&cache, &stop);
                    scope.spawn(move || {
                        while !stop.load(Relaxed) {
                            give_back(cache, take(cache, 90, user), user);
                        }
                    });
                }
                let kept = take(&cache, 200, 99);
                for _ in 0..ROUNDS {
                    for _ in 0..200 {
                        cache.shrink();
                    }
                    uslab::trim(0);
                    // Locked mode needs no barrier.
                    let switched = uslab::debug::switch("F,refused");
                    let is_locked = uslab::mode() == Mode::Locked;
                    assert_eq!(switched, if is_locked { Ok(1) } else { Err(SwitchError::NoBarrier) });
                    assert_eq!(uslab::debug::switch("-,refused"), Ok(1));
                    let brief = CacheBuilder::new("brief").build_raw(BYTES).unwrap();
                    give_back(&brief, take(&brief, 300, 98), 98);
                    brief.destroy().expect("an object was lost");
                    give_back(&few, take(&few, 3, 97), 97);
                    assert!(in_sheaves(&few) > 0);
                    let child = child::fork(|| live_on(&cache, &few, &kept, 99));
                    child::wait(child).unwrap();
                }
                give_back(&cache, kept, 99);
                stop.store(true, Relaxed);
            });
            cache.destroy().expect("an object was lost");
            few.destroy().expect("an object was lost");
            let reason = uslab::internal::header().mode_reason.load(Relaxed);
            let expected = if uslab::mode() == Mode::Rseq { REASON_NO_MEMBARRIER } else { REASON_FORCED };
            assert_eq!(reason, expected, "the figures must show that barriers are refused");
        },
    );
}

#[test]
fn a_profile_counts_caches_that_are_made_after_membarrier_was_refused() {
    in_both_modes("a_profile_counts_caches_that_are_made_after_membarrier_was_refused", &[], || {
        let old = CacheBuilder::new("from-before").build_raw(BYTES).expect("a cache");
        give_back(&old, take(&old, 300, 1), 1);
        refuse_membarrier();
        // Each allocation that is counted is a sample.
        uslab::profile::start(1).expect("there is memory");
        let new = CacheBuilder::new("from-after").build_raw(BYTES).expect("a cache");
        for cache in [&old, &new] {
            give_back(cache, take(cache, 300, 2), 2);
        }
        let mut text = Vec::new();
        uslab::profile::write(&mut |piece| text.extend_from_slice(piece)).expect("it was started");
        let text = String::from_utf8(text).expect("UTF-8");
        assert!(text.contains("\nsite from-after 64 300 19200 0 0 300 0 "), "{text}");
        assert_eq!(text.contains("\nsite from-before "), uslab::mode() == Mode::Locked, "{text}");
        uslab::profile::stop();
        for cache in [old, new] {
            give_back(&cache, take(&cache, 300, 3), 3);
            cache.destroy().expect("no object is in use");
        }
        uslab::debug::validate().expect("the library's structures are whole");
    });
}
