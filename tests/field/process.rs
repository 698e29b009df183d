//! Processes: fork beside streams, children of `vfork`, children without fork handlers, modules
//! with a malloc of their own.

use crate::{compile, run};
use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes! {
    fork_beside_streams => streams,
    fork_beside_locks_of_the_c_library => library,
    fork_before_the_constructor => before_constructor,
    vfork_shares_memory => shares,
    vfork_by_its_second_name => |mode| vfork("second_name", mode),
    vfork_keeps_errno_and_signals => |mode| vfork("keeps", mode),
    vfork_parent_knows_its_cpu => |mode| vfork("knows_its_cpu", mode),
    vfork_storm => |mode| vfork("storms", mode),
    vfork_in_vfork => |mode| vfork("nests", mode),
    spawn_system_and_popen => |mode| vfork("spawns", mode),
    vfork_child_starts_no_thread => |mode| vfork("starts_no_thread", mode),
    vfork_where_rseq_is_refused => falls_back,
    // The library's thread does not keep a process that has no other one left.
    ends_with_its_last_thread => |mode| {
        for when in ["before", "after", "child", "raw", "alone"] {
            run("first_thread", &[when], mode);
        }
    },
    // A small program, and one with a background thread.
    forks_in_handlers => |mode| {
        run("handler_forks", &["300", "0"], mode);
        run("handler_forks", &["20", "40"], mode);
    },
    raw_clone_has_its_own_thread => |mode| run("raw_clone", &["thread"], mode),
    clone_ends_with_its_function => |mode| run("raw_clone", &["returns"], mode),
    clone_exits_beside_locks => |mode| run("raw_clone", &["exits"], mode),
    fork_child_has_no_descriptors => has_no_descriptors,
    deepbind_is_taken_off => |mode| run_deepbind(mode, false, "same malloc"),
    deepbind_on_demand => |mode| run_deepbind(mode, true, "other malloc"),
    php_with_modules => php,
}

fn streams(mode: Mode) {
    run("fork_streams", &[], mode);
}

/// Runs one check of a program in its directory. The output must start with `start` and end with
/// the line `ok`.
fn check(scratch: &Scratch, program: Program, mode: Mode, start: &str) {
    let outcome = program.run_clean(scratch, mode);
    outcome.expect(outcome.stdout().ends_with("ok\n"), "the program did not print its last line");
    outcome.expect(outcome.stdout().starts_with(start), &format!("the output does not start with {start}"));
}

fn library(mode: Mode) {
    run("fork_library", &[], mode);
}

/// The program again and again: each has one first call.
fn before_constructor(mode: Mode) {
    let scratch = Scratch::new("fork-constructor");
    let built = compile(&scratch, "fork_constructor", &["-shared", "-fPIC", "-DLIBRARY"]);
    let library = scratch.join("libearly.so");
    std::fs::rename(built, &library).expect("a library in its place");
    let library = library.to_str().expect("a path in UTF-8");
    let program = compile(&scratch, "fork_constructor", &["-Wl,--no-as-needed", library]);
    for _ in 0..20 {
        check(&scratch, Program::new(&program), mode, "ok");
    }
}

fn vfork(check: &str, mode: Mode) {
    run("vfork", &[check], mode);
}

fn shares(mode: Mode) {
    vfork("shares", mode);
}

/// A child that cannot be registered gets a copy of the memory. A child that needs no registration
/// shares it as usual.
fn falls_back(mode: Mode) {
    let scratch = Scratch::new("vfork");
    let program = Program::new(compile(&scratch, "vfork", &[])).arg("falls_back");
    check(&scratch, program, mode, if mode == Mode::Rseq { "copied" } else { "shared" });
}

/// The source is the test's own pipe, because some machines have neither pressure files nor
/// cgroups.
fn has_no_descriptors(mode: Mode) {
    let scratch = Scratch::new("raw-clone");
    let program = compile(&scratch, "raw_clone", &[]);
    let pipe = scratch.join("pressure");
    let made = Program::new(tool("mkfifo", "coreutils")).arg(&pipe).run_clean(&scratch, Mode::Plain);
    made.expect(made.succeeded(), "no pipe");
    let program = Program::new(program).arg("descriptors");
    let program = program.env("USLAB_PRESSURE", "systemd").env("MEMORY_PRESSURE_WATCH", &pipe);
    check(&scratch, program, mode, "");
}

/// The program, its module in a directory that only the program's RUNPATH names, and another module
/// that only the first module's RUNPATH names.
fn run_deepbind(mode: Mode, left: bool, start: &str) {
    let scratch = Scratch::new("deepbind");
    let module = ["-shared", "-fPIC", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/inner"];
    for (directory, name) in [("outer", "deepbind_module"), ("outer/inner", "deepbind_inner")] {
        let built = compile(&scratch, "deepbind_module", &module);
        std::fs::create_dir_all(scratch.join(directory)).expect("a directory");
        std::fs::rename(built, scratch.join(directory).join(name)).expect("a module in its place");
    }
    let program = compile(&scratch, "deepbind", &["-Wl,--enable-new-dtags,-rpath,$ORIGIN/outer"]);
    let program = Program::new(program).arg("deepbind_module");
    let program = if left { program.env("USLAB_DEEPBIND", "1") } else { program };
    check(&scratch, program, mode, start);
}

/// Debian's PHP opens its modules with `RTLD_DEEPBIND`.
fn php(mode: Mode) {
    let scratch = Scratch::new("php");
    let script = scratch.write(
        "rows.php",
        "<?php $db = new PDO('sqlite::memory:'); $db->exec('create table t(a, b)');\n\
         for ($i = 0; $i < 2000; $i++) $db->exec(\"insert into t values($i, 'row $i')\");\n\
         $rows = $db->query('select * from t order by a desc')->fetchAll();\n\
         echo count($rows), ' ', md5(json_encode($rows)), \"\\n\", \"ok\\n\";\n",
    );
    let program = Program::new(tool("php", "php-cli php-sqlite3")).arg(script);
    let plain = program.run_clean(&scratch, Mode::Plain).stdout();
    let outcome = program.run_clean(&scratch, mode);
    outcome.expect(plain.ends_with("ok\n") && outcome.stdout() == plain, "other output than without");
}
