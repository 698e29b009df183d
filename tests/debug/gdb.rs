//! The script for gdb: on a process under the preloaded library, and on its core.

use super::*;
use uslab_tests::harness::{Gdb, artifacts};

/// The program of `gdb.c`, compiled at the first call.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let scratch = Scratch::new("gdb-compile");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debug-gdb");
        let built = Program::new(tool("cc", "gcc"))
            .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-o"])
            .arg(&program)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("debug/gdb.c"))
            .limit_s(120)
            .run_clean(&scratch, Mode::Plain);
        built.expect(built.stderr().is_empty(), "the compiler wrote to standard error");
        program
    })
}

/// The commands, and texts that the answer of each must have.
const CASES: &[(&str, &[&str])] = &[
    ("uslab find small", &["is the start of object 0x", " of cache malloc-1k\n  live, 1024 bytes; object"]),
    ("uslab find inner", &["is 10 bytes inside object 0x", " of cache malloc-1k\n  live"]),
    (
        "uslab find gone",
        &["is the start of object 0x", " of cache malloc-1k\n  free in the main sheaf of CPU "],
    ),
    ("uslab find medium", &["is the start of object 0x", " of cache malloc-112k\n  live, 114688 bytes"]),
    ("uslab find medium + 90000", &["is 90000 bytes inside object 0x", " of cache malloc-112k\n  live"]),
    ("uslab find gone_medium", &[" of cache malloc-112k\n  free in the main sheaf of CPU "]),
    ("uslab find gone_medium + 9000", &[" of cache malloc-112k\n  free in the main sheaf of CPU "]),
    ("uslab find large", &["is the start of large object 0x", "\n  live, 1280 pages"]),
    ("uslab find large + 4194304", &["is 4194304 bytes inside large object 0x", "\n  live, 1280 pages"]),
    ("uslab find outside", &["is not memory of uslab"]),
    (
        "uslab find tracked + 3",
        &[
            "is 3 bytes inside object 0x",
            " of cache malloc-64\n  live, 61 bytes requested, of malloc; object",
            "\n  allocated by thread ",
            " make_here + ",
            "gdb.c:15)",
            " main + ",
        ],
    ),
    (
        "uslab find gone_tracked",
        &[
            " of cache malloc-64\n  free in the main sheaf of CPU ",
            ", 61 bytes requested",
            "\n  allocated by thread ",
            " make_here + ",
            "\n  freed by thread ",
            " give_here + ",
        ],
    ),
    (
        "uslab objects malloc-1k 2",
        &["live objects of cache malloc-1k, 1024 bytes each\n  0x", "101 live objects, 2 of them listed"],
    ),
    (
        "uslab objects malloc-64",
        &["  61 bytes requested  allocated at 0x", " make_here + ", "\n1 live objects\n"],
    ),
    ("uslab objects malloc-112k", &["\n1 live objects\n"]),
    ("uslab help", &["uslab find ADDRESS"]),
];

/// The answers in the output of one gdb, after a line with each command.
fn check(output: &str) {
    for (command, texts) in CASES {
        let (_, answer) =
            output.split_once(&format!("> {command}\n")).unwrap_or_else(|| panic!("{command}:\n{output}"));
        let answer = answer.split_once("\n> ").map_or(answer, |(answer, _)| answer);
        for text in *texts {
            assert!(format!("{answer}\n").contains(text), "`{command}` has no {text:?}:\n{output}");
        }
    }
    let (_, caches) = output.split_once("> uslab caches\n").expect("the caches");
    let row = caches.lines().find(|line| line.ends_with(" malloc-1k")).expect("the cache of 1000 bytes");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!((cells[1], cells[2], cells[4]), ("1024", "101", "1"), "{row}");
}

fn with_commands(mut gdb: Gdb) -> Gdb {
    for command in CASES.iter().map(|(command, _)| *command).chain(["uslab caches"]) {
        gdb = gdb.command(&format!("echo > {command}\\n")).command(command);
    }
    gdb
}

both_modes! {
    // In locked mode on a stripped copy of the library, which keeps the section alone.
    a_process_and_its_core => |mode| {
        let scratch = Scratch::new("debug-gdb");
        let mut library = artifacts().library.clone();
        if mode == Mode::Locked {
            let stripped = scratch.join("libuslab_malloc.so");
            let strip = Program::new(tool("strip", "binutils")).arg(&library).arg("-o").arg(&stripped);
            strip.run_clean(&scratch, Mode::Plain);
            library = stripped;
        }
        let environment = [
            ("LD_PRELOAD", &*library.to_string_lossy()),
            ("USLAB_RSEQ", if mode == Mode::Locked { "0" } else { "1" }),
            ("USLAB_DEBUG", "U,malloc-64"),
        ];
        let core = scratch.join("core");
        let live = with_commands(Gdb::new(program(), None).run_to("gdb.c:look", &environment));
        let live = live.command(&format!("gcore {}", core.display())).command("kill");
        check(&live.output(&scratch));
        check(&with_commands(Gdb::new(program(), Some(&core))).output(&scratch));
    },
}

both_modes! {
    // In rseq mode, allocations pop from counted sheaves: what lies there is not live. The period
    // is so long that nothing is sampled.
    a_profiled_process => |mode| {
        let scratch = Scratch::new("debug-gdb-profiled");
        let environment = [
            ("LD_PRELOAD", &*artifacts().library.to_string_lossy()),
            ("USLAB_RSEQ", if mode == Mode::Locked { "0" } else { "1" }),
            ("USLAB_DEBUG", "U,malloc-64"),
            ("USLAB_PROFILE", "1000000000000000"),
        ];
        check(&with_commands(Gdb::new(program(), None).run_to("gdb.c:look", &environment)).output(&scratch));
    },
}

#[test]
fn a_process_without_the_library_is_told_so() {
    let scratch = Scratch::new("debug-gdb-without");
    let caught =
        r#"python exec("try:\n gdb.execute('uslab caches')\nexcept gdb.error as error:\n print(error)")"#;
    let output = Gdb::new(program(), None).run_to("gdb.c:look", &[]).command(caught).output(&scratch);
    assert!(output.contains("the process does not run on uslab"), "{output}");
}
