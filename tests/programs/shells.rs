//! bash and dash: both shells run the test scripts of bash's source, and a script of this project
//! that needs no network. Output and status must equal those of a plain run.
//!
//! apt's helper fetches the source and checks its hash. Where no mirror answers, the test prints
//! that and ends. Debian's bash is built without its own malloc, so it allocates from uslab. dash
//! has no test scripts; it runs bash's, mostly through its error paths.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(
    features => both_shells,
    bash_tests => bashs_own_under_bash,
    dash_tests => bashs_own_under_dash
);

const URL: &str = "http://deb.debian.org/debian/pool/main/b/bash/bash_5.2.15.orig.tar.gz";
const SHA256: &str = "SHA256:7a315bc0e9d90713159e4390ec1096a41e4f33cd8cc3d1a749a8e5ad56600f51";
const FOLDER: &str = "bash-5.2.15";

/// Left out: scripts that sleep for most of their time (jobs, read, trap, coproc, dynvar), and one
/// that counts for ten seconds (ifs-posix).
const LEFT_OUT: [&str; 6] = ["jobs", "read", "trap", "coproc", "dynvar", "ifs-posix"];
/// Left out under dash, which does not end (func, set-e) or prints a process id (glob).
const LEFT_OUT_DASH: [&str; 3] = ["func", "set-e", "glob"];

/// Lines whose output depends on the clock or on the scheduler, as substitutions of `sed` that take
/// them out. A plain shell answers them one way or the other, too.
///
/// * `printf3.sub` compares the shell's start and `date` by the second: the boundary may lie
///   between.
/// * `nameref11.sub` asks for the process id of a coprocess, which may have ended by then.
const RACES: [(&str, &str); 2] =
    [("printf3.sub", "/ mismatch/s/echo .*;;/;;/"), ("nameref11.sub", "/declare -p RO_PID; wait/d")];

/// Programs that the scripts call, from the same source.
const HELPERS: [&str; 4] = ["recho", "zecho", "printenv", "xcase"];

fn both_shells(mode: Mode) {
    for (shell, package) in [("bash", "bash"), ("dash", "dash")] {
        let run = |mode: Mode| {
            let scratch = Scratch::new(shell);
            let script = scratch.write("features.sh", include_str!("features.sh"));
            let outcome = Program::new(tool(shell, package)).arg(script).run_clean(&scratch, mode);
            outcome.expect(outcome.stderr().is_empty(), "the shell wrote to standard error");
            outcome.expect(outcome.stdout().ends_with("end\n"), "the script did not come to its end");
            outcome.stdout()
        };
        assert_eq!(run(Mode::Plain), run(mode), "{mode:?} {shell}: other output than without the allocator");
    }
}

fn bashs_own_under_bash(mode: Mode) {
    static PLAIN: OnceLock<Option<BTreeMap<String, String>>> = OnceLock::new();
    same_answers(mode, "bash", &PLAIN);
}

fn bashs_own_under_dash(mode: Mode) {
    static PLAIN: OnceLock<Option<BTreeMap<String, String>>> = OnceLock::new();
    same_answers(mode, "dash", &PLAIN);
}

fn same_answers(mode: Mode, shell: &str, plain: &OnceLock<Option<BTreeMap<String, String>>>) {
    let Some(wanted) = plain.get_or_init(|| answers(Mode::Plain, shell)) else {
        eprintln!("skipped: no mirror gives {URL}");
        return;
    };
    assert!(wanted.len() > 60, "only {} scripts ran", wanted.len());
    let got = answers(mode, shell).expect("the source, which the plain run found");
    let other: Vec<&String> = wanted.keys().filter(|&name| wanted.get(name) != got.get(name)).collect();
    for name in &other {
        let (wanted, got) = (&wanted[*name], got.get(*name).map_or("", |text| text));
        eprintln!("== {name}, plain (-) and {mode:?} (+):\n{}", differences(wanted, got));
    }
    assert!(other.is_empty(), "{mode:?}: scripts that {shell} answers differently: {other:?}");
}

/// The lines in which the outputs differ, as `diff` prints them.
fn differences(wanted: &str, got: &str) -> String {
    let scratch = Scratch::new("diff");
    let files = [scratch.write("plain", wanted), scratch.write("other", got)];
    Program::new(tool("diff", "diffutils"))
        .args(["-a", "-U2"])
        .args(files)
        .run(&scratch, Mode::Plain)
        .stdout()
}

/// Output and status of each script; `None` if the source cannot be fetched.
fn answers(mode: Mode, shell: &str) -> Option<BTreeMap<String, String>> {
    let archive = archive().as_ref()?;
    let scratch = Scratch::new("sh");
    let tar = Program::new(tool("tar", "tar")).args(["xf"]).arg(archive);
    let parts = [format!("{FOLDER}/tests"), format!("{FOLDER}/support")];
    tar.args(parts).run_clean(&scratch, Mode::Plain);
    let folder = scratch.join(FOLDER);
    let bin = scratch.dir("bin");
    for helper in HELPERS {
        let cc = Program::new(tool("cc", "gcc")).args(["-w", "-O1", "-I.", "-o"]).arg(bin.join(helper));
        let source = folder.join("support").join(format!("{helper}.c"));
        scratch
            .write("config.h", "#define HAVE_STDLIB_H 1\n#define HAVE_STRING_H 1\n#define HAVE_UNISTD_H 1\n");
        scratch.write("bashansi.h", "#include <stdlib.h>\n#include <string.h>\n");
        cc.arg(source).run_clean(&scratch, Mode::Plain);
    }
    let out = scratch.dir("out");
    let left_out: Vec<String> = LEFT_OUT
        .iter()
        .chain(LEFT_OUT_DASH.iter().filter(|_| shell == "dash"))
        .map(|name| format!("{name}.tests"))
        .collect();
    let without_races: Vec<String> =
        RACES.iter().map(|(file, script)| format!("sed -i '{script}' {file}")).collect();
    // The scripts use fixed files in /tmp; each run gets a directory of its own in its place. The
    // driver is a shell on the allocator too. Outputs contain no times and no process ids.
    let driver = format!(
        "export PATH=\"{bin}:$PATH\" THIS_SH={shell} BASH_TSTOUT={out}/tst LC_ALL=C
        sed -i \"s,/tmp,{tmp},g\" *.tests *.sub
        {without_races}
        for test in *.tests; do
            case ' {left_out} ' in *\" $test \"*) continue;; esac
            timeout 100 {shell} ./$test </dev/null >{out}/$test 2>&1
            echo \"status $?\" >>{out}/$test
        done",
        bin = bin.display(),
        out = out.display(),
        tmp = scratch.dir("tmp").display(),
        shell = tool(shell, shell).display(),
        left_out = left_out.join(" "),
        without_races = without_races.join("\n"),
    );
    let program = Program::new(tool(shell, shell)).args(["-c", &driver]).dir(folder.join("tests"));
    program.limit_s(600).run_clean(&scratch, mode);
    let files = std::fs::read_dir(&out).expect("the outputs").flatten();
    let text = |path: PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    // Each run has a directory of its own, and the outputs name it.
    let here = scratch.path().display().to_string();
    Some(
        files
            .filter(|f| f.file_name() != "tst")
            .map(|f| (f.file_name().to_string_lossy().into_owned(), text(f.path()).replace(&here, "HERE")))
            .collect(),
    )
}

/// The source, fetched once for all runs of the tests.
fn archive() -> &'static Option<PathBuf> {
    static FETCHED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let fetch = || {
        let name = format!("bash-{}.tar.gz", SHA256.trim_start_matches("SHA256:"));
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        if kept.is_file() {
            return Some(kept);
        }
        let scratch = Scratch::new("bash-source");
        let helper =
            Program::new("/usr/lib/apt/apt-helper").args(["-o", "Acquire::Retries=1", "download-file"]);
        let outcome = helper.args([URL, "bash.tar.gz", SHA256]).limit_s(60).run(&scratch, Mode::Plain);
        let file = scratch.join("bash.tar.gz");
        if !outcome.succeeded() || !file.is_file() {
            return None;
        }
        // The copy may cross file systems: the name appears only once the file is whole.
        let part = kept.with_extension("part");
        std::fs::copy(&file, &part).and_then(|_| std::fs::rename(&part, &kept)).expect("a file is kept");
        Some(kept)
    };
    FETCHED.get_or_init(fetch)
}
