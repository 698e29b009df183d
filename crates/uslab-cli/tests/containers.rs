//! Processes in containers, made here of namespaces: found by their ids outside, and asked.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Running, Sandbox, USLAB, outcome};

/// A profile, as the process would write it.
const PROFILE: &str = "uslab-profile 1\npid 1\ncommand sleep\nperiod_bytes 524288\nstarted_ms 1000\n\
written_ms 31000\nsamples_dropped 0\nsite fake-64 64 9 576 9 576 9 9 10 15000 29900 401001\nmaps\n";

/// `sleep` under `uslab run`, with pids and mounts of its own: its snapshots lie on a file system
/// that nothing outside has. `None`, with the reason printed, where the kernel forbids namespaces.
fn container(sandbox: &Sandbox) -> Option<Running> {
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let possible = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true"])
        .output();
    match possible {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            eprintln!("skipped: no namespaces: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Err(error) => {
            eprintln!("skipped: unshare: {error}");
            return None;
        }
    }
    let script = "mount -t tmpfs none \"$1\" && mkdir -m 700 \"$1/s\" && \
                  printf '%s' \"$2\" >\"$1/s/$$.profile\" && \
                  exec env USLAB_SNAPSHOT=\"$1/s\" \"$0\" run -- sleep 60";
    let command = unshare.args(["sh", "-c", script, USLAB]).arg(&sandbox.snapshots).arg(PROFILE);
    let command = command.env("USLAB_LIB", support::library()).env_remove("LD_PRELOAD");
    Some(Running(command.env("FAKE_ANSWER", "1").stdin(Stdio::null()).spawn().expect("started")))
}

/// The pid outside of the container's first process, once it publishes.
fn publishing(container: &Running) -> String {
    let start = Instant::now();
    let pid = container.pid();
    loop {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        if let Some(child) = children.split_ascii_whitespace().next() {
            let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            let maps = fs::read_to_string(format!("/proc/{child}/maps")).unwrap_or_default();
            if name == "sleep\n" && maps.contains(" rw-s ") {
                return child.to_owned();
            }
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the container did not start");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_process_in_a_container_is_found_shown_and_asked() {
    let sandbox = Sandbox::new();
    let Some(container) = container(&sandbox) else { return };
    let pid = publishing(&container);
    assert!(!Path::new(&sandbox.snapshots.join("s")).exists(), "the snapshots are the container's alone");
    // The magic number comes last.
    let start = Instant::now();
    while outcome(&mut sandbox.uslab(&["info", &pid])).0 != 0 && start.elapsed() < Duration::from_secs(20) {
        sleep(Duration::from_millis(5));
    }
    let (code, out, err) = outcome(&mut sandbox.uslab(&["info", &pid, "--json"]));
    assert_eq!((code, err.as_str()), (0, ""));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((value["pid"].to_string(), &value["command"]), (pid.clone(), &"sleep".into()));
    assert_eq!(value["caches"][0]["name"], "fake-64");

    // Its figures, and its mappings as the kernel has them.
    let (code, out, err) = outcome(&mut sandbox.uslab(&["top", &pid, "--once", "-i", "0.05"]));
    assert_eq!((code, err.as_str()), (0, ""));
    let head = format!("uslab top: sleep (pid {pid}), ");
    assert!(["rseq", "locked"].iter().any(|mode| out.starts_with(&format!("{head}{mode},"))), "{out}");
    for part in ["\nRSS ", "\nverdict: ", "\nfake-64  "] {
        assert!(out.contains(part), "{part} is missing:\n{out}");
    }
    let (code, out, _) = outcome(&mut sandbox.uslab(&["top", &pid, "--json", "-i", "0.05", "-n", "2"]));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, value["pid"].to_string()), (0, pid.clone()));
    assert!(value["parts"]["rss_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{out}");
    assert!(value["event"].is_null(), "{out}");
    let (code, out, err) = outcome(&mut sandbox.uslab(&["info", &pid, "--numa"]));
    assert!(code == 0 && out.contains("node "), "{out}{err}");

    let (_, out, _) = outcome(&mut sandbox.uslab(&["info"]));
    assert!(out.lines().any(|line| line.trim_start().starts_with(&pid)), "{out}");
    let (_, out, _) = outcome(&mut sandbox.uslab(&["metrics"]));
    assert!(out.contains(&format!("pid=\"{pid}\"")), "{out}");

    let (code, out, err) = outcome(&mut sandbox.uslab(&["validate", &pid]));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("verb 1"), "{out}");

    // The process writes the file to a directory that this program reaches through /proc alone.
    let (code, out, err) = outcome(&mut sandbox.uslab(&["profile", &pid]));
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with(&format!("sleep (pid {pid}): 576 B in use")), "{out}");
    let (code, _, err) = outcome(&mut sandbox.uslab(&["profile", &pid]));
    assert!(code == 1 && err.contains("cannot read the profile"), "the file was removed: {err}");
}
