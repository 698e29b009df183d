//! Checks the malloc family of the preload library against POSIX and C23, by a C and C++ program of
//! many named checks.
//!
//! The system's compiler compiles the program once. Each check is a process of its own and, in each
//! mode, a test of its own. Its requirements stand beside it in `tests/conformance/*.c`. Some
//! checks run once more with an address space of 4 GiB. By hand: `malloc_conformance NAME`, under
//! any allocator.
//!
//! `USLAB_TEST_CC` names another C compiler, and so another C library; then the C++ checks are left
//! out.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Program, Scratch, tool};

const SOURCES: [&str; 8] =
    ["malloc_conformance", "limits", "content", "alignment", "lifecycle", "signals", "forks", "threads"];

/// Little optimisation, with debug information. The compiler must not treat calls of the family as
/// builtins, because it would elide the calls under test.
const FLAGS: [&str; 7] =
    ["-O1", "-g", "-fPIE", "-Wall", "-Wextra", "-fno-builtin", "-Wno-alloc-size-larger-than"];

/// Defines the tests `rseq` and `locked` of each check, in a module with its name, and the list of
/// the names.
macro_rules! checks {
    ($list:ident, $limit_kib:expr; $($name:ident),+ $(,)?) => {
        const $list: &[&str] = &[$(stringify!($name)),+];
        $(mod $name {
            #[test]
            fn rseq() {
                crate::run(stringify!($name), uslab_tests::harness::Mode::Rseq, $limit_kib);
            }

            #[test]
            fn locked() {
                crate::run(stringify!($name), uslab_tests::harness::Mode::Locked, $limit_kib);
            }
        })+
    };
}

checks! { ALL, None;
    zero_size, huge_size, multiplication_overflow, realloc_to_zero, free_keeps_errno, usable_size, sized_frees,
    statistics, memory_runs_out, beyond_memory,
    blocks_do_not_overlap, realloc_keeps_content, realloc_step_by_step, calloc_is_zero, calloc_after_moves,
    plain_alignment, alignment_as_asked, alignment_not_a_power_of_two, alignment_absurd, page_functions,
    before_main, after_main, thread_destructors, loaded_libraries,
    handler_allocates, signals_interrupt_allocation, migrations_interrupt_allocation, handler_in_a_first_call,
    forks_in_a_storm, forks_of_forks, forks_from_several_threads, vforks_in_a_storm, clones_in_a_storm,
    fork_handlers_allocate, early_fork_handlers_allocate, forks_during_exit,
    threads_come_and_go, detached_threads, freed_by_others,
    operators_plain, operators_aligned, operators_absurd_sizes, operators_new_handler, operators_in_use,
}

/// The checks under `ulimit -v` of 4 GiB.
mod in_4_gib {
    checks! { SOME, Some(4 << 20);
        memory_runs_out, huge_size, blocks_do_not_overlap, realloc_keeps_content, calloc_is_zero, alignment_as_asked,
        forks_in_a_storm, threads_come_and_go, operators_new_handler,
    }

    #[test]
    fn names_are_known() {
        assert!(SOME.iter().all(|name| crate::ALL.contains(name)));
    }
}

// A C++ program of its own, because operators can be replaced only for a whole program.
uslab_tests::both_modes! {
    operators_replaced => |mode| run_replaced("replaced", mode),
    operators_replaced_apart => |mode| run_replaced("replaced_apart", mode),
    operators_replaced_all => |mode| run_replaced("replaced_all", mode),
    operators_of_a_plugin => run_plugin,
}

fn run_replaced(name: &str, mode: Mode) {
    let scratch = Scratch::new(name);
    let program = program().with_file_name(name);
    let plain = Program::new(&program).run_clean(&scratch, Mode::Plain).stdout();
    let outcome = Program::new(&program).run_clean(&scratch, mode);
    outcome.expect(outcome.stdout() == plain, "other output than without the allocator");
}

/// The C++ library that throws is that of a plug-in, which the host opened for itself.
fn run_plugin(mode: Mode) {
    let scratch = Scratch::new("cxx-plugin");
    let host = Program::new(program().with_file_name("cxx_host"));
    host.arg(program().with_file_name("cxx_plugin.so").display().to_string()).run_clean(&scratch, mode);
}

fn run(name: &str, mode: Mode, limit_kib: Option<u64>) {
    let scratch = Scratch::new(name);
    let mut program = Program::new(program()).arg(name).limit_s(240);
    if let Some(kib) = limit_kib {
        program = program.address_space_kib(kib);
    }
    let outcome = program.run_clean(&scratch, mode);
    outcome.expect(outcome.stdout() == format!("{name} ok\n"), "the check did not print its last line");
    eprintln!("{name} {mode:?}: {:.1} s", outcome.wall_s());
}

/// A check that is missing in the lists above would never run.
#[test]
fn every_check_is_a_test() {
    let scratch = Scratch::new("list");
    let listed = Program::new(program()).arg("--list").run_clean(&scratch, Mode::Plain).stdout();
    assert_eq!(listed.lines().collect::<Vec<_>>(), ALL);
}

/// The compiled program. It lies below the test executable's directory, so that `cargo clean`
/// removes it.
fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance");
    std::fs::create_dir_all(&out).expect("a directory to build in");
    // Two concurrent runs of these tests would overwrite each other's program. So the second run
    // waits for the first: the process holds the lock until it ends.
    static LOCK: OnceLock<std::fs::File> = OnceLock::new();
    let lock = LOCK.get_or_init(|| std::fs::File::create(out.join("lock")).expect("a file to lock"));
    lock.lock().expect("a lock on the directory");

    let other_cc = std::env::var("USLAB_TEST_CC").ok();
    let cc = tool(other_cc.as_deref().unwrap_or("cc"), "gcc");
    let cxx = other_cc.is_none().then(|| tool("c++", "g++"));
    let path = |name: &str| out.join(name).display().to_string();
    let scratch = Scratch::new("cc");
    let compile = |compiler: &Path, args: &[String]| {
        let built =
            Program::new(compiler).args(args).dir(&sources).limit_s(300).run_clean(&scratch, Mode::Plain);
        built.expect(built.stderr().is_empty(), "the compiler wrote to standard error");
    };
    let without = if cxx.is_none() { &["-DWITHOUT_OPERATORS"][..] } else { &[] };
    let flags =
        |extra: &[&str]| FLAGS.iter().chain(without).chain(extra).map(|f| f.to_string()).collect::<Vec<_>>();

    for (library, define) in [("libearly.so", "-DEARLY"), ("libplugin.so", "-DPLUGIN")] {
        let args = ["-shared", "-fPIC", define, "early.c", "-pthread", "-o", &path(library)];
        compile(&cc, &flags(&args));
    }
    let mut objects = Vec::new();
    for name in SOURCES {
        let object = path(&format!("{name}.o"));
        compile(&cc, &flags(&["-std=gnu17", "-pthread", "-c", &format!("{name}.c"), "-o", &object]));
        objects.push(object);
    }
    if let Some(cxx) = &cxx {
        let object = path("operators.o");
        compile(cxx, &flags(&["-std=c++17", "-pthread", "-c", "operators.cpp", "-o", &object]));
        objects.push(object);
        for (name, source, define) in [
            ("replaced", "replaced.cpp", "-DNONE"),
            ("replaced_apart", "replaced_apart.cpp", "-DAPART"),
            ("replaced_all", "replaced_apart.cpp", "-DALL"),
        ] {
            let options = ["-std=c++17", "-Wno-sized-deallocation", "-Wno-mismatched-new-delete", define];
            compile(cxx, &flags(&[&options[..], &[source, "-o", &path(name)]].concat()));
        }
        let plugin =
            ["-std=c++17", "-pthread", "-shared", "-fPIC", "cxx_plugin.cpp", "-o", &path("cxx_plugin.so")];
        compile(cxx, &flags(&plugin));
        compile(&cc, &flags(&["cxx_host.c", "-o", &path("cxx_host"), "-ldl"]));
    }

    let program = out.join("malloc_conformance");
    let mut link: Vec<String> =
        ["-pie", "-rdynamic", "-pthread", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", "-o"]
            .map(String::from)
            .into();
    link.push(program.display().to_string());
    link.extend(objects);
    link.extend([path("libearly.so"), "-ldl".into()]);
    compile(cxx.as_ref().unwrap_or(&cc), &link);
    program
}
