//! `uslab info`: what is shown of a process that runs under uslab, and what is said of one that
//! does not.

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Running, Sandbox, USLAB, is_root, outcome};

#[test]
fn a_process_is_shown_as_slabinfo_table_and_json() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let pid = running.pid();
    let (code, out, err) = outcome(&mut sandbox.uslab(&["info", &pid]));
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "slabinfo - version: 2.1");
    assert!(lines[1].starts_with("# name            <active_objs> <num_objs> <objsize> "));
    let row = "fake-64             6300   6400     64   64    1 : tunables   60   60    0 : slabdata    100    100      0";
    assert_eq!(lines[2], row);
    assert!(lines[3].starts_with("fake_128 "));

    let (_, out, _) = outcome(&mut sandbox.uslab(&["info", &pid, "--table"]));
    assert!(out.starts_with(&format!("uslab: sleep (pid {pid}), rseq\nheap:  5 MiB used")), "{out}");

    let (code, out, _) = outcome(&mut sandbox.uslab(&["info", &pid, "--settings"]));
    assert_eq!(code, 0);
    for line in [
        "decay_ms       250                          environment",
        "limit          6291456,0                    request",
        "limits: soft 6 MiB, hard none; 5 MiB held",
    ] {
        assert!(out.lines().any(|found| found == line), "{line}: {out}");
    }
    assert!(out.contains("\nfake entries            70     2     0    50    41  "), "{out}");
    assert!(out.ends_with("used up its time\n"), "{out}");

    let (code, out, err) = outcome(&mut sandbox.uslab(&["info", &pid, "--numa"]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("node       resident       tables        slabs\n"), "{out}");
    let (_, out, _) = outcome(&mut sandbox.uslab(&["info", &pid, "--numa", "--json"]));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert!(value.as_object().is_some_and(|value| value.contains_key("resident_by_node")), "{out}");
    assert_eq!(value["caches"][0]["node_slabs"], serde_json::json!([]));

    let (_, out, _) = outcome(&mut sandbox.uslab(&["info", "--json", &pid]));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    let shrinker = &value["shrinkers"][0];
    assert_eq!((&shrinker["name"], &shrinker["seeks"]), (&"fake entries".into(), &2.0.into()));
    assert_eq!((&shrinker["freed"], &value["passes"]["allocation"]), (&41.into(), &3.into()));
    assert_eq!((&value["command"], &value["mode"]), (&"sleep".into(), &"rseq".into()));
    assert_eq!(value["caches"][1]["name"], "fake 128");
}

#[test]
fn the_directory_that_the_process_was_told_is_found() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let mut command = sandbox.uslab(&["info", &running.pid()]);
    assert_eq!(outcome(command.env_remove("USLAB_SNAPSHOT")).0, 0);
}

#[test]
fn without_a_pid_the_processes_are_listed() {
    let sandbox = Sandbox::new();
    let (code, out, err) = outcome(&mut sandbox.uslab(&["info"]));
    assert_eq!((code, out.as_str()), (0, ""));
    assert!(err.contains("no process publishes"), "{err}");
    assert_eq!(outcome(&mut sandbox.uslab(&["info", "--json"])).1, "[]\n");

    let (one, two) = (sandbox.sleeper(&[]), sandbox.sleeper(&[("USLAB_RSEQ", "0")]));
    sandbox.leave(&i32::MAX.to_string());
    let (_, out, err) = outcome(&mut sandbox.uslab(&["info"]));
    assert_eq!(err, "");
    assert_eq!(out.lines().count(), 3, "{out}");
    for (running, mode) in [(&one, "rseq"), (&two, "locked")] {
        let line = out.lines().find(|line| line.trim_start().starts_with(&running.pid())).expect("listed");
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        assert_eq!(words[1..5], ["sleep", mode, "5", "MiB"]);
    }
    assert_eq!(sandbox.published().len(), 2, "the file of the dead is gone");
    let (_, out, _) = outcome(&mut sandbox.uslab(&["info", "--json", "--all"]));
    let list: Value = serde_json::from_str(&out).expect("JSON");
    let pids: Vec<String> = list.as_array().expect("a list").iter().map(|p| p["pid"].to_string()).collect();
    assert!(pids.contains(&one.pid()) && pids.contains(&two.pid()));
}

#[test]
fn what_cannot_be_shown_is_explained() {
    let sandbox = Sandbox::new();
    let fails = |arguments: &[&str], part: &str| {
        let (code, out, err) = outcome(&mut sandbox.uslab(arguments));
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains(part) && err.lines().count() == 1, "{err}");
    };
    fails(&["info", "2147483647"], "uslab: no such process: 2147483647");
    let me = std::process::id().to_string();
    fails(&["info", &me], "does not run under uslab: there is no snapshot in ");
    let other = sandbox.sleeper(&[("FAKE_VERSION", "9")]);
    fails(&["info", &other.pid()], "it is of version 9, and this program reads version 5");
    let short = sandbox.sleeper(&[("FAKE_TRUNCATED", "1")]);
    fails(&["info", &short.pid()], "it is shorter than it says");
    let (_, _, err) = outcome(&mut sandbox.uslab(&["info"]));
    assert_eq!(err.lines().filter(|line| line.contains("cannot read")).count(), 2, "{err}");
}

#[test]
fn a_snapshot_from_before_the_process_is_another_ones() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[("FAKE_OLD", "1")]);
    let (code, _, err) = outcome(&mut sandbox.uslab(&["info", &running.pid()]));
    assert_eq!(code, 1);
    assert!(err.contains("does not run under uslab"), "{err}");
    assert!(outcome(&mut sandbox.uslab(&["info"])).2.contains("no process publishes"));
}

#[test]
fn links_and_pipes_are_not_followed() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let file = sandbox.snapshots.join(running.pid());
    let aside = sandbox.root.join("aside");
    fs::rename(&file, &aside).expect("renamed");
    std::os::unix::fs::symlink(&aside, &file).expect("linked");
    let shown = || outcome(&mut sandbox.uslab(&["info", &running.pid()]));
    assert!(shown().2.contains("it is not a regular file"));
    fs::remove_file(&file).expect("removed");
    assert!(Command::new("mkfifo").arg(&file).status().expect("mkfifo").success());
    assert!(shown().2.contains("it is not a regular file"));
}

#[test]
fn a_file_of_a_stranger_is_not_believed() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let file = sandbox.snapshots.join(running.pid());
    std::os::unix::fs::chown(&file, Some(7), None).expect("root gives a file away");
    let (code, _, err) = outcome(&mut sandbox.uslab(&["info", &running.pid()]));
    assert!(code == 1 && err.contains("it belongs to user 7"), "{err}");
}

#[test]
fn another_users_process_is_refused_clearly() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let mut command = Command::new(USLAB);
    command.args(["info", &running.pid()]).uid(65534).gid(65534).env_remove("USLAB_SNAPSHOT");
    // The build directory may be closed to others: then that user cannot run the program.
    if let Ok(output) = command.output() {
        let (code, _, err) = support::texts(output);
        assert_eq!(code, 1);
        assert!(err.contains("belongs to user 0; ask as that user or as root"), "{err}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let mut command = sandbox.uslab(&["info", &running.pid()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ended");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn help_teaches() {
    let sandbox = Sandbox::new();
    for (arguments, part) in [
        (&["help"][..], "uslab run --stats -- python3 job.py"),
        (&["help", "run"], "128+N when signal N ended it"),
        (&["run", "--help"], "uslab run --rseq off -- ./a.out"),
        (&["help", "bench"], "uslab bench pair"),
        (&["info", "-h"], "--table"),
        (&["--version"], "uslab 0."),
        (&["generate", "man"], ".TH uslab 1"),
        (&["generate", "bash"], "_uslab()"),
    ] {
        let (code, out, err) = outcome(&mut sandbox.uslab(arguments));
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        assert!(out.contains(part), "{arguments:?}: {out}");
    }
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("opened");
    let mut lost = sandbox.uslab(&["help"]);
    let output = lost.stdout(full()).stderr(Stdio::piped()).output().expect("ran");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(outcome(&mut sandbox.uslab(&["frobnicate"])).0, 2);
    assert_eq!(outcome(&mut sandbox.uslab(&[])).0, 2);
}

#[test]
fn a_process_whose_first_thread_ended_runs() {
    let sandbox = Sandbox::new();
    let program = sandbox.root.join("program");
    let source = program.with_extension("c");
    let text = "#include <pthread.h>\n#include <unistd.h>\n\
                static void *work(void *unused) { sleep(60); return unused; }\n\
                int main(void) { pthread_t t; pthread_create(&t, 0, work, 0); pthread_exit(0); }\n";
    fs::write(&source, text).expect("written");
    let path = |of: &std::path::Path| of.to_str().expect("UTF-8").to_owned();
    support::compile(&["-pthread", &path(&source), "-o", &path(&program)]);
    let mut command = sandbox.uslab(&["run", "--", &path(&program)]);
    let running = Running(command.env("FAKE_ANSWER", "1").spawn().expect("started"));
    let pid = running.pid();
    let stat = format!("/proc/{pid}/stat");
    support::wait_until("its first thread ends", || {
        fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(" (program) Z "))
    });
    // The directory that it was told stands in its environment.
    let (code, _, err) = outcome(sandbox.uslab(&["info", &pid]).env_remove("USLAB_SNAPSHOT"));
    assert_eq!((code, err.as_str()), (0, ""));
    let (code, out, err) = outcome(&mut sandbox.uslab(&["top", &pid, "--json", "-i", "0.05"]));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(value["event"].is_null() && value["parts"]["rss_bytes"].as_u64() > Some(0));
    let (code, out, err) = outcome(&mut sandbox.uslab(&["validate", &pid]));
    assert!(code == 0 && out.contains("in time"), "{out}{err}");
    drop(running);
    assert!(outcome(&mut sandbox.uslab(&["info", &pid])).2.contains("no such process"));
}
