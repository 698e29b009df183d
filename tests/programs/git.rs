//! git: a clone through its own transport, a repack with threads, everyday commands, and a check of
//! every object.
//!
//! `git fast-import` makes the same repository at each run, from a stream written here. It has
//! several hundred commits on two branches over some sixty files. Most files change a little from
//! commit to commit, so that the delta search has work. Object ids are hashes of contents, so equal
//! lists of ids mean equal repositories.

use std::fmt::Write as _;
use std::path::Path;

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(clone_and_gc => clones_and_packs);

const COMMITS: usize = 400;
const FILES: usize = 60;

fn clones_and_packs(mode: Mode) {
    let scratch = Scratch::new("git");
    let source = scratch.dir("source.git");
    let copy = scratch.join("copy");
    let stream = scratch.write("stream", history());
    let git = |dir: &Path, mode: Mode, args: &[&str]| {
        // Sets threads and checks, and forbids background work.
        let settings =
            ["pack.threads=4", "gc.autoDetach=false", "transfer.fsckObjects=true", "core.fsync=none"];
        let mut program = Program::new(tool("git", "git")).dir(dir).limit_s(300);
        for setting in settings {
            program = program.args(["-c", setting]);
        }
        program = program.args(args).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
        if args[0] == "fast-import" {
            program = program.stdin(&stream);
        }
        program.run_clean(&scratch, mode).stdout()
    };

    git(&source, Mode::Plain, &["init", "--quiet", "--bare", "."]);
    git(&source, Mode::Plain, &["fast-import", "--quiet"]);
    git(&source, Mode::Plain, &["symbolic-ref", "HEAD", "refs/heads/trunk"]);
    let objects =
        |dir: &Path, mode| sorted(&git(dir, mode, &["rev-list", "--objects", "--no-object-names", "--all"]));
    let wanted = objects(&source, Mode::Plain);
    assert!(wanted.lines().count() > COMMITS * 3, "the generated history is too small");

    let from = format!("file://{}", source.display());
    git(scratch.path(), mode, &["clone", "--quiet", &from, "copy"]);
    git(&copy, mode, &["fetch", "--quiet", "origin", "+refs/heads/*:refs/heads/*", "--update-head-ok"]);
    git(&copy, mode, &["gc", "--quiet", "--aggressive", "--prune=now"]);
    git(&copy, mode, &["repack", "-a", "-d", "-f", "--quiet", "--depth=20", "--window=30"]);
    let complaints = git(&copy, mode, &["fsck", "--full", "--strict", "--no-dangling", "--no-progress"]);
    assert_eq!(complaints, "", "{mode:?}: git fsck complains");
    assert_eq!(objects(&copy, mode), wanted, "{mode:?}: the copy has other objects than the source");

    // Commands that walk, compare and search must print the same as without the allocator.
    let questions: [&[&str]; 5] = [
        &["log", "--stat", "--format=%H %s"],
        &["blame", "--porcelain", "file7.txt"],
        &["grep", "-n", "line 1.*9", "trunk"],
        &["diff", "--minimal", "side", "trunk"],
        &["status", "--porcelain"],
    ];
    for question in questions {
        let (ours, plain) = (git(&copy, mode, question), git(&copy, Mode::Plain, question));
        assert!(ours == plain, "{mode:?}: `git {}` answers differently", question.join(" "));
    }
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// The stream for `git fast-import`.
fn history() -> String {
    let mut stream = String::new();
    for commit in 0..COMMITS {
        let branch = if commit % 5 == 4 { "side" } else { "trunk" };
        let message = format!("change {commit}");
        let _ = writeln!(stream, "commit refs/heads/{branch}\nmark :{}", commit + 1);
        let _ =
            writeln!(stream, "committer A U Thor <author@example.org> {} +0000", 1_600_000_000 + commit * 60);
        let _ = writeln!(stream, "data {}\n{message}", message.len());
        if commit == 4 {
            stream.push_str("from :4\n");
        }
        // The first commit of a branch has every file; the others change three files.
        let changed: Vec<usize> = if commit == 0 {
            (0..FILES).collect()
        } else {
            (0..3).map(|n| (commit * 7 + n * 11) % FILES).collect()
        };
        for file in changed {
            let text = contents(file, commit);
            let _ = writeln!(stream, "M 100644 inline file{file}.txt\ndata {}\n{text}", text.len());
        }
        stream.push('\n');
    }
    stream
}

/// A file of some hundred lines of which a few depend on the commit.
fn contents(file: usize, commit: usize) -> String {
    let mut text = String::new();
    for line in 0..150 + file * 3 {
        let seen = if line % 29 == commit % 29 { commit } else { 0 };
        let _ = writeln!(
            text,
            "line {line} of file {file}: {}",
            (line * 2_654_435_761 + file * 97 + seen * 31) % 1_000_003
        );
    }
    text
}
