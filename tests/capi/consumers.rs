//! Programs that use the library in less common ways: wholly static, beside the preloaded one, in
//! forks and at the program's exit, under valgrind and the compilers' sanitizers. The common ways
//! are in `main.rs`.

use crate::library::{Link, capi, compile, prefix, program, program_with, root};
use crate::{run_both, run_in_both};
use std::path::{Path, PathBuf};
use uslab_tests::harness::{Mode, Outcome, Program, Scratch, artifacts, tool};

#[allow(dead_code)]
#[path = "../../crates/uslab/src/counters/layout.rs"]
mod layout;

/// A program of this directory.
fn source(name: &str) -> String {
    format!("tests/capi/{name}")
}

#[test]
fn wholly_static() {
    for name in ["caches", "memory", "reclaim", "sources", "arguments", "endings", "forks"] {
        let file = source(&format!("{name}.c"));
        let static_program = format!("{name}-whole");
        run_both(&static_program, &program(&static_program, &file, "c11", Link::Whole));
    }
    run_both("objects-whole", &program("objects-whole", &source("objects.cpp"), "c++17", Link::Whole));
}

/// The archive works in programs without any shared library, and restartable sequences work there.
#[test]
fn a_wholly_static_program_needs_no_library() {
    let scratch = Scratch::new("whole");
    let text = "#include <uslab.h>\n#include <stdio.h>\nint main(void) { return puts(uslab_mode()) < 0; }\n";
    let file = scratch.write("mode.c", text).display().to_string();
    let shared = program("mode-linked", &file, "c99", Link::Shared);
    let whole = program("mode-whole", &file, "c99", Link::Whole);
    let readelf = Program::new(tool("readelf", "binutils")).arg("-dW").arg(&whole);
    let needed = readelf.run_clean(&scratch, Mode::Plain);
    needed.expect(!needed.stdout().contains("NEEDED"), "the program needs a shared library");
    let said = |program: &Path| Program::new(program).run_clean(&scratch, Mode::Plain).stdout();
    assert_eq!(said(&whole), said(&shared));
}

/// Debug builds check the assumptions of release builds: the ranks of locks, and that a freed
/// object was in use.
#[test]
fn on_a_debug_build() {
    for name in ["caches", "memory", "reclaim", "sources", "arguments", "endings", "forks"] {
        let checked = format!("{name}-checked");
        run_both(&checked, &program(&checked, &source(&format!("{name}.c")), "c11", Link::Checked));
    }
    run_both("objects-checked", &program("objects-checked", &source("objects.cpp"), "c++17", Link::Checked));
}

/// Programs of the other compiler, in C and in C++.
#[test]
fn compiled_by_clang() {
    let scratch = Scratch::new("clang");
    let lib = prefix().join("lib").display().to_string();
    for (compiler, std, file) in [("clang", "c99", "caches.c"), ("clang++", "c++17", "objects.cpp")] {
        let program = scratch.join(compiler);
        let args =
            ["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-D_POSIX_C_SOURCE=200809L"];
        let mut args: Vec<String> = args.map(String::from).into();
        args.extend([
            format!("-std={std}"),
            format!("-I{}", prefix().join("include").display()),
            source(file),
            format!("-L{lib}"),
            format!("-Wl,-rpath,{lib}"),
            "-luslab".into(),
            "-o".into(),
            program.display().to_string(),
        ]);
        compile(compiler, "clang", &args);
        run_both(compiler, &program);
    }
}

/// Loaded late into a process whose malloc is the preload library's.
#[test]
fn loaded_late_beside_the_preloaded_library() {
    let late = program("late-beside", &source("late.c"), "c11", Link::None);
    for mode in [Mode::Rseq, Mode::Locked] {
        let scratch = Scratch::new("late-beside");
        let late = Program::new(&late).arg(prefix().join("lib/libuslab.so.1")).limit_s(240);
        said_ok(&late.run_clean(&scratch, mode));
    }
}

#[test]
fn wrong_arguments() {
    run_both("arguments", &program("arguments", &source("arguments.c"), "c99", Link::Shared));
    run_both("arguments-cxx", &program("arguments-cxx", &source("arguments.c"), "c++17", Link::Static));
}

/// With the background thread and without.
#[test]
fn forks_of_a_threaded_program() {
    let forks = program("forks", &source("forks.c"), "c99", Link::Shared);
    run_both("forks", &forks);
    run_in_both("forks-reaper", &Program::new(forks));
    run_both("forks-static", &program("forks-static", &source("forks.c"), "c2x", Link::Static));
}

#[test]
fn beginnings_and_endings() {
    let endings = program("endings", &source("endings.c"), "c99", Link::Shared);
    run_both("endings", &endings);
    run_in_both("endings-reaper", &Program::new(endings));
    run_both("endings-static", &program("endings-static", &source("endings.c"), "c11", Link::Static));
}

fn said_ok(outcome: &Outcome) {
    outcome.expect(outcome.stdout().ends_with("ok\n"), "the program did not print its last line");
}

/// With both libraries in one process the snapshot with the plain name is malloc's, for every
/// reader: the process, its child, and `uslab run --stats`. The other one has a file beside it.
#[test]
fn the_snapshot_is_the_preloaded_librarys() {
    let linked = [("beside-shared", Link::Shared), ("beside-archive", Link::Static)]
        .map(|(name, link)| program(name, &source("beside.c"), "c99", link));
    for (name, program) in ["beside-shared", "beside-archive"].into_iter().zip(&linked) {
        for mode in [Mode::Rseq, Mode::Locked] {
            let scratch = Scratch::new(name);
            let running = Program::new(program).start(&scratch, mode);
            let outcome = running.wait().expect_clean();
            said_ok(&outcome);
            let large = large_objects(&scratch);
            let seen = format!("large objects in the snapshots: {large:?}");
            outcome.expect(large == [(false, 100), (true, 0)], &seen);
            // Each copy of the library writes its profile when the process ends.
            let profiled = Program::new(program)
                .env("USLAB_PROFILE", "65536")
                .env("USLAB_PROFILE_FILE", scratch.join("heap"));
            let running = profiled.start(&scratch, mode);
            let pid = running.pid();
            let outcome = running.wait().expect_clean();
            let names = [format!("heap.{pid}"), format!("heap.{pid}.2")];
            let profiles = names.map(|name| std::fs::read_to_string(scratch.join(name)).unwrap_or_default());
            let whole = profiles.iter().all(|text| text.contains("\nmaps\n"));
            let sites = profiles.each_ref().map(|text| text.contains("\nsite "));
            outcome.expect(whole && sites.contains(&true), &format!("profiles with samples: {sites:?}"));
        }
    }
    let Some(uslab) = &artifacts().command else { return };
    for rseq in ["1", "0"] {
        let scratch = Scratch::new("beside-stats");
        let run = Program::new(uslab)
            .args(["run", "--stats-json=figures.json", "--"])
            .arg(&linked[0])
            .env("USLAB_LIB", &artifacts().library)
            .env("USLAB_SNAPSHOT", scratch.private_dir("snapshots"))
            .env("USLAB_RSEQ", rseq);
        let outcome = run.run_clean(&scratch, Mode::Plain);
        said_ok(&outcome);
        let figures = std::fs::read_to_string(scratch.join("figures.json")).expect("the figures");
        outcome.expect(figures.contains("\"large_objects\": 100,"), "the figures are not malloc's");
        outcome.expect(!figures.contains("in the library"), "the figures are the library's own");
    }
}

/// Live large objects at the end, from each snapshot left behind: there is one, because the child
/// removed its own.
fn large_objects(scratch: &Scratch) -> Vec<(bool, u64)> {
    let at = std::mem::offset_of!(layout::Header, large_objects);
    let directories = std::fs::read_dir(scratch.path()).expect("the scratch directory").flatten();
    let snapshots = directories.filter(|entry| entry.file_name().to_string_lossy().starts_with("snapshots-"));
    let files = snapshots.flat_map(|entry| std::fs::read_dir(entry.path()).expect("snapshots").flatten());
    let mut found: Vec<(bool, u64)> = files
        .map(|file| {
            let bytes = std::fs::read(file.path()).expect("a snapshot");
            let is_second = file.file_name().to_string_lossy().ends_with(".2");
            (is_second, u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes")))
        })
        .collect();
    found.sort_unstable();
    found
}

/// Restartable sequences do not work under valgrind, and the library must detect that by itself.
#[test]
fn under_valgrind() {
    for name in ["caches", "memory", "reclaim", "arguments", "endings", "forks"] {
        let program =
            program(&format!("{name}-valgrind"), &source(&format!("{name}.c")), "c11", Link::Shared);
        let scratch = Scratch::new(name);
        let valgrind = Program::new(tool("valgrind", "valgrind"))
            .args(["--quiet", "--error-exitcode=99", "--leak-check=no", "--fair-sched=yes"])
            .arg(program)
            .env("USLAB_REAPER", "0")
            .limit_s(590);
        let valgrind = if name == "arguments" { valgrind } else { valgrind.env("USLAB_RSEQ", "0") };
        said_ok(&valgrind.run_clean(&scratch, Mode::Plain));
    }
}

/// The program is instrumented, the library is not: its memory comes from its own mappings, which
/// the sanitizers ignore.
fn sanitized(name: &str, compiler_flag: &str, link: Link) -> PathBuf {
    let sanitizer = compiler_flag.rsplit('=').next().expect("a flag").replace(',', "-");
    let flags = [compiler_flag, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
    program_with(&format!("{name}-{sanitizer}"), &source(&format!("{name}.c")), "c11", link, &flags)
}

/// Without leak detection: in a fork child of a threaded program it waits for threads that do not
/// exist there.
#[test]
fn with_the_sanitizers_of_addresses_and_undefined_behaviour() {
    let run = |name: &str, link: Link| {
        let program = Program::new(sanitized(name, "-fsanitize=address,undefined", link));
        let program = program.env("USLAB_REAPER", "0").env("ASAN_OPTIONS", "detect_leaks=0");
        run_in_both(&format!("{name}-asan"), &program);
    };
    for name in ["caches", "memory", "reclaim", "sources", "arguments", "endings", "forks"] {
        run(name, Link::Shared);
    }
    run("memory", Link::Static);
}

/// The sanitizer does not see the order that the library's atomic instructions establish. So these
/// programs order shared accesses by locks, or share nothing.
#[test]
fn with_the_sanitizer_of_threads() {
    for name in ["memory", "reclaim", "sources", "arguments"] {
        run_both(&format!("{name}-tsan"), &sanitized(name, "-fsanitize=thread", Link::Shared));
    }
}

/// Every symbol that the header declares is found by name in the shipped library.
#[test]
fn every_function_is_found_by_name() {
    let map = root().join("crates/uslab-capi/uslab.map");
    let mut text =
        String::from("#include <dlfcn.h>\n#include <stdio.h>\nstatic const char *const names[] = {\n");
    for name in capi::exports(&map).expect("the map") {
        text.push_str(&format!("    \"{name}\",\n"));
    }
    text.push_str(
        "};\nint main(int argc, char **argv)\n{\n    size_t i;\n    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;\n    \
         if (library == NULL) return puts(\"no library\") * 0 + 1;\n    for (i = 0; i < sizeof names / sizeof *names; i++)\n        \
         if (dlsym(library, names[i]) == NULL) return puts(names[i]) * 0 + 1;\n    \
         return dlclose(library) != 0 || puts(\"ok\") < 0;\n}\n",
    );
    let scratch = Scratch::new("names");
    let file = scratch.write("names.c", text).display().to_string();
    let names = program("names", &file, "c99", Link::None);
    run_in_both("names", &Program::new(names).arg(prefix().join("lib/libuslab.so.1")));
}
