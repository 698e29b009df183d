//! The C interface as users get it: staged headers and libraries, and C and C++ programs built
//! without Cargo, in both modes.
//!
//! ```text
//!   library.rs  builds and stages what is tested        *.c, *.cpp  programs, each of which ends with "ok"
//!   header.rs   the headers alone                         interface.rs  the header against the library
//!   builds.rs   pkg-config and CMake                    kernel.rs     a module in kernel style, on uslab/kmem.h
//!   consumers.rs  less usual ways: wholly static, beside the preloaded library, valgrind, sanitizers
//!   privileged.rs  set-user-ID programs, file capabilities, and directories that are not to be trusted
//!   probes.rs   static probes, in notes and under gdb
//!   gdb.rs      the script for gdb, on a wholly static program and its core
//!   unload.rs   plug-ins that contain the library and are unloaded
//! ```
//!
//! By hand: compile a program of this directory as `library.rs` does, and run it, with
//! `USLAB_RSEQ=0` for the locked mode and `USLAB_REAPER=0` for exact figures.

mod builds;
mod consumers;
mod gdb;
mod header;
mod interface;
mod kernel;
mod library;
mod privileged;
mod probes;
mod unload;

use library::{Link, prefix, program, program_with};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use uslab_tests::harness::{Mode, Outcome, Program, Scratch, tool};

/// Without the preloaded library: rseq and locked.
const MODES: [&str; 2] = ["1", "0"];

/// Runs a program in both modes of the library that it is linked with. Without the background
/// thread, because most programs check exact figures, which exclude memory that the thread has in
/// flight.
fn run_both(name: &str, program: &Path) -> Vec<Outcome> {
    run_in_both(name, &Program::new(program).env("USLAB_REAPER", "0"))
}

fn run_in_both(name: &str, program: &Program) -> Vec<Outcome> {
    let scratch = Scratch::new(name);
    MODES
        .map(|rseq| {
            let program = program.clone().env("USLAB_RSEQ", rseq).limit_s(240);
            let outcome = program.run_clean(&scratch, Mode::Plain);
            outcome.expect(outcome.stdout().ends_with("ok\n"), "the program did not print its last line");
            outcome.expect(!outcome.stderr().contains(" free of "), "uslab reported misuse");
            eprintln!("{name} USLAB_RSEQ={rseq}: {:.1} s", outcome.wall_s());
            outcome
        })
        .into()
}

/// One program, linked with the shared library and with the archive.
fn both_links(name: &str, source: &str, std: &str) {
    for (link, suffix) in [(Link::Shared, "shared"), (Link::Static, "static")] {
        let name = format!("{name}-{suffix}");
        run_both(&name, &program(&name, source, std, link));
    }
}

#[test]
fn caches() {
    both_links("caches", "tests/capi/caches.c", "c99");
}

#[test]
fn sizes_hold_in_debugged_and_hardened_processes() {
    let fortified = ["-O2", "-D_FORTIFY_SOURCE=3"];
    let source = "tests/capi/kept_sizes.c";
    let program = program_with("kept_sizes", source, "c11", Link::Static, &fortified);
    let settings = [
        ("USLAB_DEBUG", "-"),
        ("USLAB_DEBUG", "F"),
        ("USLAB_DEBUG", "FZPU,malloc-64,malloc-80k"),
        ("USLAB_LEAKS", "report"),
        ("USLAB_SECURE", "1"),
    ];
    for (name, value) in settings {
        run_in_both("kept_sizes", &Program::new(&program).env(name, value));
    }
}

#[test]
fn memory() {
    both_links("memory", "tests/capi/memory.c", "c11");
}

#[test]
fn misuse() {
    both_links("misuse", "tests/capi/misuse.c", "c11");
}

/// Leaks on request, and at exit, where the status is that of a leak.
#[test]
fn leaks() {
    for (link, name) in [(Link::Shared, "leaks-shared"), (Link::Static, "leaks-static")] {
        let program = program(name, "tests/capi/leaks.c", "c11", link);
        run_in_both(name, &Program::new(&program).arg("untracked"));
        run_in_both(name, &Program::new(&program).env("USLAB_LEAKS", "report").env("USLAB_REAPER", "0"));
        let at_exit = Program::new(&program).env("USLAB_LEAKS", "1");
        let scratch = Scratch::new(name);
        let outcome = at_exit.run(&scratch, Mode::Plain);
        outcome.expect(outcome.ended() == "exit status 23", "the status is that of a leak");
        outcome.expect(outcome.stdout() == "ok\n", "what was printed is not lost");
    }
}

/// A seccomp filter that comes after start refuses `membarrier`.
#[test]
fn barriers_are_refused() {
    both_links("membarrier", "tests/capi/membarrier.c", "c11");
}

/// The heap profile counts the objects of a cache, whichever function serves them.
#[test]
fn profiled_caches() {
    both_links("profiled", "tests/capi/profiled.c", "c99");
}

#[test]
fn reclaim_and_figures() {
    both_links("reclaim", "tests/capi/reclaim.c", "c2x");
}

/// With the background thread, which the program starts by its size.
#[test]
fn a_fork_after_a_late_publication() {
    for (link, name) in [(Link::Shared, "publish-shared"), (Link::Static, "publish-static")] {
        let program = program(name, "tests/capi/publish.c", "c11", link);
        run_in_both(name, &Program::new(program));
    }
}

#[test]
fn sources_and_visits() {
    both_links("sources", "tests/capi/sources.c", "c99");
    let threaded = program("sources-reaper", "tests/capi/sources.c", "c11", Link::Shared);
    run_in_both("sources-reaper", &Program::new(threaded).arg("reaper"));
}

#[test]
fn kernel_names_in_c_and_cxx() {
    both_links("kmem", "tests/capi/kmem.c", "c99");
    let as_cxx = program("kmem-cxx", "tests/capi/kmem.c", "c++17", Link::Shared);
    run_both("kmem-cxx", &as_cxx);
}

#[test]
fn objects_of_cxx() {
    both_links("objects", "tests/capi/objects.cpp", "c++17");
    let newer = program("objects-20", "tests/capi/objects.cpp", "c++20", Link::Shared);
    run_both("objects-20", &newer);
}

#[test]
fn loaded_late_and_closed() {
    let late = program("late", "tests/capi/late.c", "c11", Link::None);
    run_in_both("late", &Program::new(late).arg(prefix().join("lib/libuslab.so.1")));
}

#[test]
fn loaded_late_by_a_thread_that_is_not_the_first() {
    let late = program("late-first", "tests/capi/late_first.c", "c11", Link::None);
    run_in_both("late-first", &Program::new(late).arg(prefix().join("lib/libuslab.so.1")));
}

/// Caches and threads that use them, while the background thread drains idle slots.
#[test]
fn with_the_background_thread() {
    let caches = program("caches-reaper", "tests/capi/caches.c", "c17", Link::Shared);
    run_in_both("caches-reaper", &Program::new(caches));
}

/// Two copies of the library in one process: each has its own memory.
#[test]
fn beside_the_preloaded_library() {
    for (name, source, std) in [
        ("memory-beside", "tests/capi/memory.c", "c11"),
        ("objects-beside", "tests/capi/objects.cpp", "c++17"),
    ] {
        let scratch = Scratch::new(name);
        let program = program(name, source, std, Link::Shared);
        for mode in [Mode::Rseq, Mode::Locked] {
            let quiet = Program::new(&program).env("USLAB_REAPER", "0").limit_s(240);
            let outcome = quiet.run_clean(&scratch, mode);
            outcome.expect(outcome.stdout().ends_with("ok\n"), "the program did not print its last line");
        }
    }
}

#[test]
fn the_mode_is_the_one_that_was_asked_for() {
    let name = "mode";
    let scratch = Scratch::new(name);
    let source = scratch.write(
        "mode.c",
        "#include <uslab.h>\n#include <stdio.h>\nint main(void) { return puts(uslab_mode()) < 0; }\n",
    );
    let program = program(name, &source.display().to_string(), "c99", Link::Shared);
    let locked = Program::new(program).env("USLAB_RSEQ", "0").run_clean(&scratch, Mode::Plain);
    locked.expect(locked.stdout() == "locked\n", "not locked");
}

#[test]
fn examples() {
    for name in ["packet_pool", "shrinking_cache"] {
        let source = format!("crates/uslab-capi/examples/{name}.c");
        run_both(name, &program(name, &source, "c11", Link::Shared));
    }
}

/// With the background thread, a system that is short of memory asks for entries besides the
/// example's own request. The example switches these sources off: the report stays unread.
#[test]
fn the_shrinking_cache_leaves_the_systems_pressure_alone() {
    let name = "shrinking_cache-pressure";
    let scratch = Scratch::new(name);
    let pipe = scratch.join("pressure");
    Program::new(tool("mkfifo", "coreutils")).arg(&pipe).run_clean(&scratch, Mode::Plain);
    let mut pipe_end =
        File::options().read(true).write(true).open(&pipe).expect("a pipe, whose other end is this one too");
    pipe_end.write_all(b"!").expect("room in the pipe");
    let source = "crates/uslab-capi/examples/shrinking_cache.c";
    let example =
        Program::new(program(name, source, "c11", Link::Shared)).env("MEMORY_PRESSURE_WATCH", &pipe);
    run_in_both(name, &example);
    pipe_end.write_all(b".").expect("room in the pipe");
    let mut unread = [0; 2];
    let bytes = pipe_end.read(&mut unread).expect("the bytes that were written");
    assert_eq!(&unread[..bytes], b"!.", "the library has read the report");
}
