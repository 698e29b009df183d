//! `uslab record` and `uslab report`: a record ends whole in every way, and becomes a page.

mod support;

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use support::{Running, Sandbox, USLAB, outcome, texts, wait_until};

/// Starts a record of a process, with samples every 20 ms, and waits for its first sample.
fn record(sandbox: &Sandbox, pid: &str, file: &str) -> Child {
    let path = sandbox.root.join(file);
    let mut command = sandbox.uslab(&["record", pid, "--every", "20ms", "-o"]);
    let child = command.arg(&path).stderr(Stdio::piped()).spawn().expect("started");
    wait_until("a sample is recorded", || fs::metadata(&path).is_ok_and(|data| data.len() > 150));
    child
}

/// What a record said when it ended.
fn ended(child: Child) -> String {
    let (code, out, err) = texts(child.wait_with_output().expect("ended"));
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    err
}

fn page(sandbox: &Sandbox, record: &str) -> String {
    let path = sandbox.root.join(record);
    let (code, out, err) = outcome(sandbox.uslab(&["report"]).arg(&path));
    assert_eq!((code, err.as_str()), (0, ""));
    let page = path.with_extension("record.html");
    assert_eq!(out, format!("{}\n", page.display()));
    fs::read_to_string(page).expect("a page")
}

#[test]
fn a_record_ends_by_its_time_or_a_signal_and_becomes_a_page() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let file = sandbox.root.join("timed.record");
    let arguments = ["record", &running.pid(), "--every", "20ms", "--for", "300ms", "-o"];
    let (code, out, err) = outcome(sandbox.uslab(&arguments).arg(&file));
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    assert!(err.contains(" samples in 0.") && err.contains("timed.record"), "{err}");
    // The usual second between two samples is longer than the record: it has its start and its end.
    let short = sandbox.root.join("short.record");
    let arguments = ["record", &running.pid(), "--for", "200ms", "-o"];
    let (code, _, err) = outcome(sandbox.uslab(&arguments).arg(&short));
    assert!(code == 0 && err.contains("uslab: 2 samples in 0."), "{err}");

    let recording = Running(record(&sandbox, &running.pid(), "stopped.record"));
    recording.kill("INT");
    let mut recording = recording;
    wait_until("it ends", || recording.0.try_wait().expect("waited").is_some());

    for name in ["timed.record", "stopped.record"] {
        let page = page(&sandbox, name);
        let path = sandbox.root.join(name);
        assert_eq!(outcome(sandbox.uslab(&["report", "-o", "-"]).arg(path)).1, page);
        for part in ["sleep (pid ", "fake-64", "fake 128 (128 B)", "Slabs without live objects"] {
            assert!(page.contains(part), "{part} is missing: {page}");
        }
        assert!(!page.contains("cut short") && !page.contains("Events"), "{page}");
    }
}

#[test]
fn the_end_of_the_process_is_in_the_record() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let pid = running.pid();
    let recording = record(&sandbox, &pid, "died.record");
    drop(running);
    assert!(ended(recording).contains(&format!("process {pid} has ended\n")));
    assert!(page(&sandbox, "died.record").contains(&format!("process {pid} has ended")));
}

#[test]
fn an_exec_is_in_the_record() {
    let sandbox = Sandbox::new();
    let script = "echo ready; read line; exec sleep 61";
    let mut command = sandbox.run_script(&[], script);
    let (mut running, _output) = Running::start_ready(command.stdin(Stdio::piped()));
    let pid = running.pid();
    let recording = record(&sandbox, &pid, "exec.record");
    running.become_sleep();
    let path = sandbox.root.join("exec.record");
    let size = || fs::metadata(&path).map_or(0, |data| data.len());
    let before = size();
    wait_until("it is looked at again", || size() > before + 60);
    drop(running);
    let said = ended(recording);
    assert!(said.contains(&format!("process {pid} became sleep: its figures begin anew")), "{said}");
    assert!(page(&sandbox, "exec.record").contains("became sleep"));
}

#[test]
fn a_program_that_takes_its_time_to_publish_is_recorded() {
    let sandbox = Sandbox::new();
    let script = "echo ready; read line; lib=$LD_PRELOAD; unset LD_PRELOAD; export lib
        exec sh -c 'sleep 2; export LD_PRELOAD=$lib; exec sleep 61'";
    let mut command = sandbox.run_script(&[], script);
    let (mut running, _output) = Running::start_ready(command.stdin(Stdio::piped()));
    let pid = running.pid();
    let recording = record(&sandbox, &pid, "late.record");
    running.0.stdin.take().expect("a pipe").write_all(b"\n").expect("written");
    let name = format!("/proc/{pid}/comm");
    wait_until("it sleeps", || fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n"));
    std::thread::sleep(std::time::Duration::from_millis(700));
    drop(running);
    let said = ended(recording);
    assert!(said.contains(&format!("process {pid} became sleep: its figures begin anew")), "{said}");
}

#[test]
fn a_fork_is_in_the_record_and_on_the_screen() {
    let sandbox = Sandbox::new();
    let place = sandbox.root.join("pipe");
    nix::unistd::mkfifo(&place, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    // The first child executes a program, the second one does not.
    let script = format!("sleep 61 & (read line <{0}; :) & echo ready; wait $!; kill %1", place.display());
    let mut command = sandbox.run_script(&[], &script);
    let (running, _output) = Running::start_ready(&mut command);
    let pid = running.pid();
    let recording = record(&sandbox, &pid, "fork.record");
    let (code, out, err) = outcome(&mut sandbox.uslab(&["top", &pid, "--once", "-i", "0.1"]));
    assert_eq!(code, 0, "{err}");
    let child = out.lines().next().and_then(|line| line.split_once(", forked: ")).expect(&out).1;
    let parent = fs::read_to_string(format!("/proc/{child}/status")).expect("a child");
    assert!(parent.contains(&format!("PPid:\t{pid}\n")), "{parent}");
    let (_, out, _) = outcome(&mut sandbox.uslab(&["top", &pid, "--json", "-i", "0.1"]));
    assert!(out.contains("\"fork_children\": [\n") && out.contains(child), "{out}");
    std::thread::sleep(std::time::Duration::from_millis(200));
    fs::write(&place, "\n").expect("written");
    let said = ended(recording);
    let event = format!("process {pid} has forked: its children are not recorded: {child}");
    assert_eq!(said.matches(&event).count(), 1, "{said}");
    assert!(page(&sandbox, "fork.record").contains(&event));
}

#[test]
fn a_program_that_publishes_nothing_ends_the_record() {
    let sandbox = Sandbox::new();
    let script = "echo ready; read line; unset LD_PRELOAD; exec sleep 61";
    let mut command = sandbox.run_script(&[], script);
    let (mut running, _output) = Running::start_ready(command.stdin(Stdio::piped()));
    let recording = record(&sandbox, &running.pid(), "silent.record");
    running.0.stdin.take().expect("a pipe").write_all(b"\n").expect("written");
    let said = ended(recording);
    assert!(said.contains("now runs sleep, which publishes nothing"), "{said}");
}

#[test]
fn what_cannot_be_recorded_or_drawn_is_explained() {
    let sandbox = Sandbox::new();
    let file = sandbox.root.join("x");
    fs::write(&file, "no record").expect("written");
    let path = file.to_str().expect("UTF-8");
    let running = sandbox.sleeper(&[]);
    for (arguments, part) in [
        (&["record", "2147483647", "-o", "/dev/null"][..], "no such process"),
        (&["record", &running.pid(), "-o", "/nowhere/x"], "cannot write /nowhere/x"),
        (&["report", "/nowhere/x"], "cannot use /nowhere/x"),
        (&["report", path], "it is not a record of `uslab record`"),
    ] {
        let (code, out, err) = outcome(&mut sandbox.uslab(arguments));
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains(part) && err.lines().count() == 1, "{err}");
    }
    assert_eq!(outcome(&mut sandbox.uslab(&["record", &running.pid(), "-o", "x", "--every", "1y"])).0, 2);
    let (code, _, err) = outcome(&mut sandbox.uslab(&["record", &running.pid(), "-o", "-"]));
    assert!(code == 2 && err.contains("a file of that name is ./-"), "{err}");
    let (code, _, err) = outcome(&mut sandbox.uslab(&["record", &running.pid(), "-o", "/dev/full"]));
    assert!(code == 1 && err.contains("cannot write /dev/full: No space left"), "{err}");
    assert!(!fs::metadata("/dev/full").expect("there").is_file());
}

#[test]
fn a_file_system_without_room_leaves_no_part_of_a_file() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let full = sandbox.root.join("full");
    fs::create_dir(&full).expect("a folder");
    // A file system of one page, in namespaces of its own; it holds a page of a file and no more.
    let script = format!(
        "mount -t tmpfs -o size=4k none {0} && echo old >{0}/page && echo mounted && \
         {USLAB} report good.record -o {0}/page; cat {0}/page; \
         {USLAB} record {1} -o {0}/new --for 1s; ls {0}",
        full.display(),
        running.pid()
    );
    let path = sandbox.root.join("good.record");
    let good = ["record", &running.pid(), "-o", path.to_str().expect("UTF-8"), "--for", "100ms"];
    assert_eq!(outcome(&mut sandbox.uslab(&good)).0, 0);
    let mut command = Command::new("unshare");
    command.args(["-m", "--", "sh", "-c", &script]).env("USLAB_SNAPSHOT", &sandbox.snapshots);
    let (_, out, err) = outcome(command.current_dir(&sandbox.root));
    if !out.contains("mounted") {
        eprintln!("skipped: this user may not mount: {err}");
        return;
    }
    assert_eq!(err.matches("No space left on device").count(), 2, "{err}");
    assert_eq!(out, "mounted\nold\npage\n", "{err}");
}
