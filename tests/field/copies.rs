//! A Rust program with a copy of the library of its own, beside the preloaded one: both are seen.

use super::running::Running;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use uslab_tests::harness::{Mode, Scratch, artifacts};

both_modes! {
    own => each_copy_is_seen,
}

/// Set in the process that has both copies: this test, started again.
const IN_CHILD: &str = "USLAB_TEST_COPIES";

static OWN: uslab::Cache<[u8; 1000]> = uslab::Cache::new("of the program");

/// Holds more in the program's own cache than the preloaded library does, until its input ends.
#[test]
fn program_with_a_copy_of_its_own() {
    if std::env::var_os(IN_CHILD).is_none() {
        return;
    }
    let kept: Vec<_> = (0..40_000).map(|_| OWN.insert([1; 1000]).expect("there is memory")).collect();
    // The harness of tests keeps standard output.
    eprintln!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    drop(kept);
}

fn ask(command: &Path, snapshots: &Path, arguments: &[&str]) -> (String, String) {
    let output = Command::new(command).args(arguments).env("USLAB_SNAPSHOT", snapshots).output();
    let output = output.expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (text(output.stdout), text(output.stderr))
}

fn each_copy_is_seen(mode: Mode) {
    let Some(command) = &artifacts().command else { return };
    let scratch = Scratch::new("copies");
    let snapshots = scratch.private_dir("snapshots");
    let mut run = Command::new(command);
    run.args(["run", "--rseq", if mode == Mode::Locked { "off" } else { "on" }, "--"]);
    run.arg(std::env::current_exe().expect("the path of this test"));
    run.args(["--exact", "copies::program_with_a_copy_of_its_own", "--nocapture", "--test-threads=1"]);
    run.env("USLAB_SNAPSHOT", &snapshots).env("USLAB_LIB", &artifacts().library).env(IN_CHILD, "1");
    let running = Running::start(&mut run);
    let pid = running.pid();
    let names = || {
        let entries = std::fs::read_dir(&snapshots).expect("snapshots").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    };
    assert_eq!(names(), [pid.clone(), format!("{pid}.2")]);

    let (table, note) = ask(command, &snapshots, &["info", &pid, "--table"]);
    assert!(table.contains("of the program") && !table.contains("malloc-"), "{table}");
    assert!(note.contains("contains 2 copies of the library; this is copy 2"), "{note}");
    let (table, note) = ask(command, &snapshots, &["info", &pid, "--table", "--copy", "1"]);
    assert!(table.contains("malloc-") && !table.contains("of the program") && note.is_empty(), "{table}");
    let (top, _) = ask(command, &snapshots, &["top", &pid, "--once", "-i", "0.05"]);
    assert!(top.contains("copy 2 of 2") && top.contains("of the program"), "{top}");
    let (metrics, _) = ask(command, &snapshots, &["metrics", &pid]);
    for copy in ["copy=\"1\",cache=\"malloc-", "copy=\"2\",cache=\"of the program\""] {
        assert!(metrics.contains(copy), "{copy}:\n{metrics}");
    }
    // The word behind the magic is the version of the layout: the preloaded library may be older
    // than this command.
    let layout_version = |version: u32| {
        let file = std::fs::OpenOptions::new().write(true).open(snapshots.join(&pid)).expect("a snapshot");
        file.write_all_at(&version.to_ne_bytes(), 8).expect("written");
    };
    let version = std::fs::read(snapshots.join(&pid)).expect("a snapshot")[8..12].try_into().expect("a word");
    layout_version(1_000_000);
    for arguments in [&["info", &pid, "--table"][..], &["info", &pid, "--table", "--copy", "2"]] {
        let (table, note) = ask(command, &snapshots, arguments);
        assert!(table.contains("of the program"), "{table}");
        assert_eq!(
            note.contains("this is copy 2") && note.contains("all but 1 "),
            arguments.len() == 3,
            "{note}"
        );
    }
    let (metrics, note) = ask(command, &snapshots, &["metrics", &pid]);
    assert!(metrics.contains("cache=\"of the program\"") && note.contains("version 1000000"), "{note}");
    let mut refused = Command::new(command);
    refused.args(["info", &pid, "--copy", "1"]).env("USLAB_SNAPSHOT", &snapshots);
    let refused = refused.output().expect("started");
    let reason = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && reason.contains("it is of version 1000000"), "{reason}");
    layout_version(u32::from_ne_bytes(version));
    // Each copy answers requests in its own file. The preloaded one has no background thread: the
    // program allocates little by it, and nothing now.
    let (valid, _) = ask(command, &snapshots, &["validate", &pid]);
    assert!(valid.starts_with("valid: "), "{valid}");
    running.end();
    assert!(names().is_empty(), "each copy removes its file at exit: {:?}", names());
}
