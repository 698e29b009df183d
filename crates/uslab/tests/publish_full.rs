//! A file system without memory for the snapshot: the process goes on, with its figures in private
//! memory, where an access to the file would raise SIGBUS.
//!
//! Each test mounts a small file system in a mount namespace of its own, which requires root.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::ffi::CString;
use std::os::unix::fs::PermissionsExt;
use uslab::{CacheBuilder, RawCache, stats};

const CACHES: usize = 2500;

fn make(range: std::ops::Range<usize>) -> Vec<RawCache> {
    let make = |n: usize| {
        let cache = CacheBuilder::new(&format!("cache {n}")).build_raw(64).expect("a cache");
        let object = cache.alloc().expect("there is memory");
        assert_eq!(cache.stats().expect("a record").active_objects, 1);
        // SAFETY: allocated above.
        unsafe { cache.free(object) };
        cache
    };
    range.map(make).collect()
}

/// Mounts a file system of `bytes` bytes at `path`, for this thread and those that it starts.
/// Returns whether that is allowed.
fn mount(path: &str, bytes: usize) -> bool {
    let [kind, path, options] = ["tmpfs", path, &format!("size={bytes},mode=0700")]
        .map(|text| CString::new(text).expect("no zero byte"));
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the texts live through the calls.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(kind.as_ptr(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()) == 0
            && libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) == 0
    }
}

/// A shrinker without entries.
struct Nothing;
impl uslab::Shrinker for Nothing {
    fn count(&self, _: &uslab::ShrinkControl) -> usize {
        0
    }
    fn scan(&self, _: &uslab::ShrinkControl) -> uslab::Scan {
        uslab::Scan::Stop
    }
}

/// Makes caches in a process whose snapshot has room for `bytes` bytes, and in its child.
fn with_room(name: &str, bytes: usize) {
    let directory = std::env::temp_dir().join(format!("uslab-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("made");
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).expect("changed");
    let path = directory.to_str().expect("UTF-8").to_owned();
    in_both_modes(name, &[("USLAB_SNAPSHOT", &path)], || {
        let path = std::env::var("USLAB_SNAPSHOT").expect("set above");
        if !mount(&path, bytes) {
            println!("NOT TESTED: {name}: mounts are refused here");
            return;
        }
        let _shrinker = uslab::register_shrinker("none", uslab::ShrinkerOptions::default(), Nothing);
        let caches = make(0..CACHES);
        assert!(stats::caches().count() >= CACHES);
        // SAFETY: the child makes caches and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let more = make(CACHES..CACHES + 100);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(more.len() != 100)) };
        }
        let mut status = 1;
        // SAFETY: the place lives through the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child ends without a signal");
        drop(caches);
    });
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn nothing_can_be_published() {
    with_room("nothing_can_be_published", 8 << 10);
}

#[test]
fn room_ends_before_the_shrinkers() {
    for pages in 5..9 {
        with_room("room_ends_before_the_shrinkers", pages << 12);
    }
}

#[test]
fn room_ends_within_the_first_records() {
    with_room("room_ends_within_the_first_records", 100 << 10);
}

#[test]
fn room_ends_within_the_later_records() {
    with_room("room_ends_within_the_later_records", 400 << 10);
}

#[test]
fn a_child_finds_no_room() {
    with_room("a_child_finds_no_room", 700 << 10);
}
