//! `uslab profile`: asks a process, and writes its profile in the formats of other tools.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Running, Sandbox, outcome};

const DONE: (&str, &str) = ("FAKE_ANSWER", "1");

/// A profile as the process `pid` would write it, of a mapping that no file is behind.
fn dump(pid: &str, in_use: u64) -> String {
    format!(
        "uslab-profile 1\npid {pid}\ncommand sleep\nperiod_bytes 524288\nstarted_ms 1000\nwritten_ms 31000\n\
         samples_dropped 0\nsite fake\\x20128 128 100 12800 {in_use} {} 20 20 10 15000 29900 401001 402001\n\
         maps\n00400000-00500000 r-xp 00000000 08:01 77 /srv/program\n",
        in_use * 128
    )
}

/// A process whose profile is written already.
fn profiled(sandbox: &Sandbox) -> Running {
    let running = sandbox.sleeper(&[DONE]);
    let file = sandbox.snapshots.join(format!("{}.profile", running.pid()));
    fs::write(file, dump(&running.pid(), 100)).expect("written");
    running
}

#[test]
fn a_profile_is_started_read_and_stopped() {
    let sandbox = Sandbox::new();
    let running = profiled(&sandbox);
    let pid = running.pid();
    let ask = |arguments: &[&str]| outcome(&mut sandbox.uslab(&[&["profile", &pid], arguments].concat()));
    let (code, out, _) = ask(&["--start", "--period", "1M"]);
    assert_eq!(code, 0);
    assert!(out.contains("text start 1048576, in time"), "{out}");
    let (code, out, err) = ask(&["--for", "10ms"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("12.5 KiB 100.0% in 100 objects of fake 128 (128 B)"), "{out}");
    assert!(
        out.contains("ages 0.0 s / 15 s / 29 s: grows\n    program+0x1000\n    program+0x2000\n"),
        "{out}"
    );
    assert!(!sandbox.published().contains(&format!("{pid}.profile")), "the file is removed");
    let (code, _, err) = ask(&[]);
    assert!(code == 1 && err.contains("cannot read the profile of process"), "{err}");
    assert!(ask(&["--stop"]).1.contains("text stop"));
}

#[test]
fn ctrl_c_leaves_the_old_file_or_the_new_one_and_nothing_else() {
    let sandbox = Sandbox::new();
    let place = |name: &str| sandbox.root.join(name);
    fs::create_dir(place("out")).expect("a folder");
    let text = dump("1", 100) + &"00400000-00500000 r-xp 00000000 08:01 77 /srv/program\n".repeat(400_000);
    fs::write(place("dump"), &text).expect("written");
    let (from, out) = (place("dump"), place("out/file"));
    let arguments =
        ["profile", "--from", &from.to_string_lossy(), "--format", "dump", "-o", &out.to_string_lossy()];
    let mut was_there = 0;
    for _ in 0..20 {
        fs::write(&out, "old").expect("written");
        let mut writing = sandbox.uslab(&arguments).spawn().expect("started");
        let is_there = || fs::read_dir(place("out")).expect("a folder").count() > 1;
        while !is_there() && writing.try_wait().expect("watched").is_none() {}
        was_there += usize::from(is_there());
        if writing.try_wait().expect("watched").is_none() {
            kill(Pid::from_raw(writing.id() as i32), Signal::SIGINT).expect("sent");
        }
        writing.wait().expect("ended");
        assert!(!is_there(), "a temporary file is left");
        let now = fs::read_to_string(&out).expect("there");
        assert!(now == "old" || now == text);
    }
    assert!(was_there > 0, "no signal came while a file was written");
}

#[test]
fn a_signal_ends_sampling_in_the_process_too() {
    let sandbox = Sandbox::new();
    let running = profiled(&sandbox);
    let arguments = ["profile", &running.pid(), "--for", "1h"];
    let mut command = sandbox.uslab(&arguments);
    let mut asking = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut line = String::new();
    let mut errors = BufReader::new(asking.stderr.take().expect("a pipe"));
    errors.read_line(&mut line).expect("readable");
    assert_eq!(line, "uslab: sampling for 3600 s, or until Ctrl-C\n");
    let asking = Running(asking);
    asking.kill("INT");
    let mut asking = asking;
    let mut out = String::new();
    asking.0.stdout.take().expect("a pipe").read_to_string(&mut out).expect("readable");
    assert!(asking.0.wait().expect("waited for").success());
    assert!(out.contains("in 100 objects of fake 128"), "{out}");
    // The file keeps the text of the last request.
    let bytes = fs::read(sandbox.snapshots.join(running.pid())).expect("a snapshot");
    assert!(bytes[1024..2048].windows(5).any(|part| part == b"stop\0"), "the process was not asked to stop");
}

#[test]
fn a_second_signal_ends_the_command_though_the_process_hangs() {
    use std::os::unix::process::ExitStatusExt;
    let sandbox = Sandbox::new();
    let running = profiled(&sandbox);
    let mut command = sandbox.uslab(&["profile", &running.pid(), "--for", "1h", "--timeout", "60"]);
    let mut asking = command.stderr(Stdio::piped()).spawn().expect("started");
    let mut line = String::new();
    BufReader::new(asking.stderr.take().expect("a pipe")).read_line(&mut line).expect("readable");
    assert!(line.starts_with("uslab: sampling"), "{line}");
    let mut asking = Running(asking);
    running.kill("STOP");
    asking.kill("INT");
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(asking.0.try_wait().expect("watched").is_none(), "it waits for the profile");
    asking.kill("INT");
    support::wait_until("it ends", || asking.0.try_wait().expect("watched").is_some());
    assert_eq!(asking.0.wait().expect("ended").signal(), Some(2));
}

#[test]
fn commands_that_ask_at_the_same_time_get_a_profile_each() {
    let sandbox = Sandbox::new();
    let file = sandbox.root.join("written");
    fs::write(&file, dump("7", 100)).expect("written");
    let running = sandbox.sleeper(&[DONE, ("FAKE_PROFILE", file.to_str().expect("UTF-8"))]);
    let ask = |_| sandbox.uslab(&["profile", &running.pid()]).stdout(Stdio::null()).spawn().expect("started");
    let asking: Vec<_> = (0..8).map(ask).collect();
    for mut command in asking {
        assert!(command.wait().expect("ended").success());
    }
}

#[test]
fn signals_act_as_usual_once_sampling_has_ended() {
    use std::os::unix::process::ExitStatusExt;
    let sandbox = Sandbox::new();
    let running = profiled(&sandbox);
    let pipe = sandbox.root.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let file = sandbox.snapshots.join(format!("{}.profile", running.pid()));
        fs::write(file, dump(&running.pid(), 100)).expect("written");
        let mut command = sandbox.uslab(&["profile", &running.pid(), "--for", "10ms", "-o"]);
        let mut asking = command.arg(&pipe).stderr(Stdio::piped()).spawn().expect("started");
        let mut errors = BufReader::new(asking.stderr.take().expect("a pipe"));
        errors.read_line(&mut String::new()).expect("readable");
        let asking = &mut Running(asking).0;
        // It waits for a reader of the pipe; signals that come before have ended the sampling.
        support::wait_until("it ends", || {
            kill(Pid::from_raw(asking.id() as i32), signal).expect("sent");
            asking.try_wait().expect("watched").is_some()
        });
        assert_eq!(asking.wait().expect("ended").signal(), Some(signal as i32));
    }
}

#[test]
fn profiles_are_compared_and_converted() {
    let sandbox = Sandbox::new();
    let file = |name: &str| sandbox.root.join(name).to_str().expect("UTF-8").to_owned();
    let (before, after, pprof) = (file("before"), file("after"), file("after.pb.gz"));
    fs::write(&before, dump("7", 100)).expect("written");
    fs::write(&after, dump("7", 300)).expect("written");
    let shown = |arguments: &[&str]| {
        let (code, out, err) = outcome(&mut sandbox.uslab(&[&["profile"], arguments].concat()));
        assert_eq!((code, err.as_str()), (0, ""));
        out
    };
    assert_eq!(shown(&["--from", &after, "-o", &pprof]), "");
    // One is a process's own text, the other pprof's.
    let change = shown(&["--diff", &before, &pprof]);
    assert!(change.contains("\n+25 KiB in 200 objects of fake 128"), "{change}");
    let folded = shown(&["--from", &pprof, "--format", "folded"]);
    assert_eq!(folded, "program+0x2000;program+0x1000;[fake_128] 38400\n");
    assert!(shown(&["--from", &after, "--format", "jeprof"]).starts_with("heap_v2/1\n"));
    assert_eq!(shown(&["--from", &after, "--format", "dump"]), dump("7", 300));
    assert_eq!(shown(&["--from", &after, "--format", "dump", "-o", "-"]), dump("7", 300));
}

#[test]
fn what_is_no_profile_is_explained() {
    let sandbox = Sandbox::new();
    let file = sandbox.root.join("x");
    fs::write(&file, "uslab-profile 1\nsite\n").expect("written");
    let path = file.to_str().expect("UTF-8");
    for (arguments, part) in [
        (&["profile", "2147483647"][..], "no such process"),
        (&["profile", "--from", path], "line 2: not a site"),
        (&["profile", "--from", "/nowhere/x"], "cannot use /nowhere/x"),
        (&["report", path, "--profile", path], "it is not a record"),
    ] {
        let (code, out, err) = outcome(&mut sandbox.uslab(arguments));
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains(part) && err.lines().count() == 1, "{err}");
    }
    let (code, _, err) = outcome(&mut sandbox.uslab(&["profile", "x"]));
    assert!(code == 2 && err.contains("not the number of a process"), "{err}");
    assert_eq!(outcome(&mut sandbox.uslab(&["profile"])).0, 2);
    assert_eq!(outcome(&mut sandbox.uslab(&["profile", "7", "--start", "--stop"])).0, 2);
}

#[test]
fn sampling_does_not_begin_for_a_file_that_cannot_be_written() {
    let sandbox = Sandbox::new();
    let running = profiled(&sandbox);
    let folder = sandbox.root.to_str().expect("UTF-8");
    for output in ["/nowhere/x", folder] {
        let arguments = ["profile", &running.pid(), "--for", "1h", "-o", output];
        let (code, out, err) = outcome(&mut sandbox.uslab(&arguments));
        assert!(code == 1 && out.is_empty() && err.starts_with("uslab: cannot write"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    let bytes = fs::read(sandbox.snapshots.join(running.pid())).expect("a snapshot");
    assert!(!bytes[1024..2048].windows(5).any(|part| part == b"start"), "the process was asked");
}

#[test]
fn a_reader_of_a_binary_profile_may_have_seen_enough() {
    let sandbox = Sandbox::new();
    let file = sandbox.root.join("x");
    fs::write(&file, dump("7", 100)).expect("written");
    let path = file.to_str().expect("UTF-8");
    let mut command = sandbox.uslab(&["profile", "--from", path, "--format", "pprof"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().expect("started");
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
