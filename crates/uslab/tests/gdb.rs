//! The script for gdb on a Rust program with caches of its own: this test, in a process that gdb
//! starts. `tests/debug/gdb.rs` has the preloaded library, and cores.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uslab::{Cache, CacheBuilder, Flags, Heap};

/// Set in the process that gdb starts.
const IN_GDB: &str = "USLAB_TEST_IN_GDB";

static LOCALS: Cache<[u64; 9]> = Cache::new("of a thread");
static SESSIONS: Cache<[u64; 6]> = Cache::new("session");

static FOLLOWED: Cache<[u64; 11]> = Cache::new("followed");

/// Addresses for gdb: of a live session, one that was freed, a tracked object, one of a heap, a
/// free one in a slot of a thread's own, and one of a cache that hides its sheaves.
#[unsafe(no_mangle)]
static ADDRESSES_FOR_GDB: [AtomicUsize; 6] = [const { AtomicUsize::new(0) }; 6];

/// gdb stops here.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn look_here() {
    std::hint::black_box(&ADDRESSES_FOR_GDB);
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn make_tracked_here(cache: &Cache<[u8; 61]>) -> usize {
    std::hint::black_box(cache.alloc().expect("there is memory").as_ptr() as usize)
}

/// Leaves a cache with a sample in use, for which it hides its sheaves; returns a free object.
fn follow() -> usize {
    uslab::profile::start(1).expect("there is memory");
    let objects = [(); 2].map(|()| FOLLOWED.alloc().expect("there is memory"));
    uslab::profile::stop();
    // SAFETY: just allocated.
    unsafe { FOLLOWED.free(objects[1]) };
    objects[1].as_ptr() as usize
}

/// The program that gdb looks at.
fn program() {
    let hidden = follow();
    let kept: Vec<_> = (0..10).map(|n| SESSIONS.insert([n; 6]).expect("there is memory")).collect();
    let gone = SESSIONS.alloc().expect("there is memory");
    // SAFETY: just allocated.
    unsafe { SESSIONS.free(gone) };
    let tracked = CacheBuilder::new("tracked").flags(Flags::STORE_USER).build().expect("a cache");
    let heap = Heap::new().expect("a heap");
    let local = LOCALS.local().expect("there is memory");
    let own = local.alloc().expect("there is memory").as_ptr();
    // SAFETY: just allocated.
    unsafe { local.free(std::ptr::NonNull::new_unchecked(own)) };
    let addresses = [
        (&raw const *kept[3]) as usize,
        gone.as_ptr() as usize,
        make_tracked_here(&tracked),
        heap.alloc(100, 8).expect("there is memory").as_ptr() as usize,
        own as usize,
        hidden,
    ];
    ADDRESSES_FOR_GDB.iter().zip(addresses).for_each(|(place, address)| place.store(address, Relaxed));
    look_here();
    drop(local);
}

#[test]
fn gdb_shows_the_objects_of_a_rust_program() {
    if std::env::var_os(IN_GDB).is_some() {
        return program();
    }
    modes::in_both_modes("gdb_shows_the_objects_of_a_rust_program", &[], || {
        let output = look();
        let kind = if uslab::mode() == uslab::Mode::Rseq { "hidden " } else { "" };
        let followed = format!(" of cache followed\n  free in the {kind}main sheaf of CPU ");
        assert!(output.contains(&followed), "no {followed:?} in:\n{output}");
        for expected in [
            "\n  live, 48 bytes; object ",
            " of cache session\n  free in ",
            " of cache tracked\n  live, 61 bytes requested, of a cache; object ",
            " make_tracked_here + ",
            " of cache of a thread\n  free in the main sheaf of a thread's own slot, 72 bytes; object ",
            " of cache heap\n  live, 112 bytes; object ",
            "live objects of cache session, 48 bytes each\n  0x",
            "\n10 live objects\n",
            "session\n",
            "  61 bytes requested  allocated at 0x",
        ] {
            assert!(output.contains(expected), "no {expected:?} in:\n{output}");
        }
    });
}

/// Runs gdb on this test; returns what it wrote.
fn look() -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/gdb/uslab.py");
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off"]);
    gdb.args(["-ex", "set width 0", "-ex", "set disable-randomization off"]);
    gdb.args(["-ex", &format!("set environment {IN_GDB} 1"), "-ex", &format!("source {script}")]);
    gdb.args(["-ex", "break look_here", "-ex", "run", "-ex", "set language c"]);
    for n in 0..ADDRESSES_FOR_GDB.len() {
        gdb.args(["-ex", &format!("uslab find ((unsigned long *) &ADDRESSES_FOR_GDB)[{n}]")]);
    }
    gdb.args([
        "-ex",
        "uslab objects session",
        "-ex",
        "uslab objects tracked",
        "-ex",
        "uslab",
        "-ex",
        "uslab caches",
        "-ex",
        "kill",
    ]);
    let this = std::env::current_exe().expect("the path of this test");
    gdb.arg("--args").arg(this).args(["--exact", "gdb_shows_the_objects_of_a_rust_program"]);
    let output = gdb.output().expect("gdb (apt install gdb)");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{}\n{text}", output.status);
    text
}
