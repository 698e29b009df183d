//! A module in kernel style on `uslab/kmem.h`: the B+ tree and the page cache of
//! `crates/uslab-capi/examples/kernel`, with their own tests.
//!
//! Each installed compiler builds them as C11 and GNU C11. They run in both modes, under the
//! sanitizers where the compiler has them, and under valgrind where it is installed. Their sources
//! may use only that header of uslab; the test programs also check figures.

use crate::library::{compile, prefix, root};
use crate::run_in_both;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uslab_tests::harness::{Mode, Program, Scratch};

const SOURCES: &str = "crates/uslab-capi/examples/kernel";
const TREE: [&str; 3] = ["test_bptree.c", "bptree.c", "bptree_check.c"];
const PAGES: [&str; 4] = ["test_pcache.c", "pcache.c", "bptree.c", "bptree_check.c"];

/// Whether a program is installed.
fn is_there(program: &str, argument: &str) -> bool {
    let found = Command::new(program).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = found.is_ok_and(|status| status.success());
    if !there {
        eprintln!("{program} is not installed: left out");
    }
    there
}

fn compilers() -> Vec<&'static str> {
    let mut compilers = vec!["gcc"];
    compilers.extend(Some("clang").filter(|clang| is_there(clang, "--version")));
    compilers
}

/// Builds a program from the files in `scratch`, linked with the archive.
fn build(scratch: &Scratch, compiler: &str, files: &[&str], std: &str, more: &[&str]) -> PathBuf {
    let program = scratch.join(format!("{}-{compiler}-{std}-{}", files[0], more.len()));
    let mut args =
        ["-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Wpedantic", "-Werror"].map(String::from).to_vec();
    args.push(format!("-std={std}"));
    args.push(format!("-I{}", prefix().join("include").display()));
    args.extend(more.iter().map(|&flag| flag.to_owned()));
    args.extend(files.iter().map(|file| format!("{SOURCES}/{file}")));
    args.extend(["-o".into(), program.display().to_string()]);
    args.push(prefix().join("lib/libuslab.a").display().to_string());
    compile(compiler, compiler, &args);
    program
}

fn run(name: &str, program: &Path) {
    for outcome in run_in_both(name, &Program::new(program).env("USLAB_REAPER", "0")) {
        // The destruction of a cache with live objects is reported there.
        outcome.expect(outcome.stderr().is_empty(), "something was reported");
    }
}

fn with_every_compiler(name: &str, files: &[&str]) {
    let scratch = Scratch::new(name);
    for compiler in compilers() {
        for std in ["c11", "gnu11"] {
            run(name, &build(&scratch, compiler, files, std, &[]));
        }
    }
}

#[test]
fn a_tree() {
    with_every_compiler("kernel-tree", &TREE);
}

#[test]
fn a_page_cache() {
    with_every_compiler("kernel-pages", &PAGES);
}

/// The module uses only the kernel's names and the C library, and no function of uslab by its own
/// name.
#[test]
fn the_module_knows_the_kernels_names_only() {
    for file in ["shim.h", "bptree.h", "bptree.c", "bptree_check.c", "pcache.h", "pcache.c"] {
        let text = std::fs::read_to_string(root().join(SOURCES).join(file)).expect("a source file");
        assert!(!text.contains("uslab_"), "{file} calls uslab by its own names");
        assert!(!text.contains("malloc.h") && !text.contains("stdlib.h"), "{file} has memory from elsewhere");
    }
}

/// Whether a compiler can link with its sanitizers: some installations lack the libraries.
fn has_sanitizers(scratch: &Scratch, compiler: &str, flags: &[&str]) -> bool {
    let source = scratch.write("probe.c", "int main(void) { return 0; }\n");
    let program = scratch.join("probe");
    let built = Command::new(compiler).args(flags).arg(source).arg("-o").arg(&program).output();
    let works = built.is_ok_and(|built| built.status.success())
        && Command::new(program).output().is_ok_and(|run| run.status.success());
    if !works {
        eprintln!("{compiler} has no sanitizers: left out");
    }
    works
}

#[test]
fn under_sanitizers() {
    let scratch = Scratch::new("kernel-sanitizers");
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for compiler in compilers() {
        if has_sanitizers(&scratch, compiler, &flags) {
            for files in [&TREE[..], &PAGES] {
                run("kernel-sanitizers", &build(&scratch, compiler, files, "gnu11", &flags));
            }
        }
    }
}

/// Valgrind has no restartable sequences: the library falls back by itself.
#[test]
fn under_valgrind() {
    if !is_there("valgrind", "--version") {
        return;
    }
    let scratch = Scratch::new("kernel-valgrind");
    for files in [&TREE[..], &PAGES] {
        let program = build(&scratch, "gcc", files, "gnu11", &[]);
        let valgrind = Program::new("valgrind")
            .args(["--quiet", "--error-exitcode=9"])
            .arg(program)
            // Runs a twentieth of the rounds.
            .arg("20")
            .env("USLAB_REAPER", "0")
            .limit_s(300);
        let outcome = valgrind.run_clean(&scratch, Mode::Plain);
        outcome.expect(outcome.stdout().ends_with("ok\n"), "the program did not print its last line");
        outcome.expect(outcome.stderr().is_empty(), "something was reported");
    }
}
