//! `uslab validate`, `debug`, `shrink` and `limit`: requests to a process while it runs.

use super::compile;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use uslab_tests::harness::{Mode, Scratch, artifacts};

both_modes! {
    debug => a_running_cache_is_debugged,
    requests => requests_beside_threads,
    small => a_small_process_starts_its_thread,
    no_thread => without_a_background_thread_no_answer_comes,
}

/// A process that runs `live.c`, until it is dropped.
struct Live {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    snapshots: PathBuf,
    reports: PathBuf,
}

impl Live {
    fn start(scratch: &Scratch, mode: Mode, argument: &str, variables: &[(&str, &str)]) -> Option<Live> {
        let command = artifacts().command.as_ref()?;
        let program = compile(scratch, "live", &["-rdynamic"]);
        let (snapshots, reports) = (scratch.private_dir("snapshots"), scratch.join("reports"));
        let mut run = Command::new(command);
        run.args(["run", "--rseq", if mode == Mode::Locked { "off" } else { "on" }, "--"]);
        run.arg(program).arg(argument).env("USLAB_SNAPSHOT", &snapshots).envs(variables.iter().copied());
        run.env("USLAB_LIB", &artifacts().library).env("USLAB_ON_MISUSE", "report");
        run.env("USLAB_DEBUG_REPORT", format!("json:{}", reports.display()));
        let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut live = Live { child, input, output: BufReader::new(output), snapshots, reports };
        live.expect_line("ready\n");
        Some(live)
    }

    fn expect_line(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("readable");
        assert_eq!(line, expected);
    }

    fn command(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("written");
        self.expect_line("done\n");
    }

    /// Exit status, standard output and standard error of a `uslab` command for the process.
    fn ask(&self, command: &str, arguments: &[&str]) -> (i32, String, String) {
        let mut uslab = Command::new(artifacts().command.as_ref().expect("started by it"));
        uslab.arg(command).arg(self.child.id().to_string()).args(arguments);
        let output = uslab.env("USLAB_SNAPSHOT", &self.snapshots).output().expect("started");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code().expect("an exit status"), text(output.stdout), text(output.stderr))
    }

    fn expect_done(&self, command: &str, arguments: &[&str], answer: &str) {
        let (code, out, err) = self.ask(command, arguments);
        assert!(code == 0 && out.contains(answer), "{command} {arguments:?}: {code} {out}{err}");
    }

    fn expect_refused(&self, command: &str, arguments: &[&str], reason: &str) {
        let (code, out, err) = self.ask(command, arguments);
        assert!(code != 0 && out.is_empty() && err.contains(reason), "{command} {arguments:?}: {out}{err}");
    }

    /// The reports so far.
    fn reports(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&self.reports).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn a_running_cache_is_debugged(mode: Mode) {
    let scratch = Scratch::new("live-debug");
    let Some(mut live) = Live::start(&scratch, mode, "", &[]) else { return };
    live.expect_done("debug", &["malloc-64", "FU"], "switched 1 cache");
    // Neither the objects from before nor other calls are a fault.
    live.command("old");
    assert_eq!(live.reports().len(), 0);
    live.command("misuse");
    live.command("fork");
    let reports = live.reports();
    assert_eq!(reports.len(), 2, "{reports:#?}");
    for report in reports {
        assert_eq!(report["fault"], "double-free");
        assert_eq!(report["cache"], "malloc-64");
        assert!(report["allocated"]["stack"].to_string().contains("allocates"), "{report}");
        assert!(report["freed"]["stack"].to_string().contains("frees"), "{report}");
        assert!(report["stack"].to_string().contains("misuses"), "{report}");
    }
    live.expect_refused("debug", &["malloc-64", "FZ"], "refused: letters Z and P need room");
    live.expect_done("debug", &["malloc-64", "-"], "switched 1 cache");
    live.command("old");
    assert_eq!(live.reports().len(), 2);
}

fn requests_beside_threads(mode: Mode) {
    let scratch = Scratch::new("live-requests");
    let Some(mut live) = Live::start(&scratch, mode, "", &[]) else { return };
    live.command("start");
    for letters in ["FU", "-", "F"] {
        live.expect_done("debug", &["malloc-6*,malloc-1k", letters], "switched ");
        live.expect_done("validate", &[], "valid: ");
    }
    live.expect_done("shrink", &[], "bytes released");
    live.expect_done("shrink", &["malloc-64"], "bytes released");
    live.expect_refused("shrink", &["nothing"], "refused: no cache has that name");
    live.expect_done("limit", &["1G", "2G"], "limits set: 1073741824 bytes soft, 2147483648 hard");
    live.expect_refused("limit", &["2G", "1G"], "refused: the soft limit is above the hard one");
    live.command("stop");
    assert_eq!(live.reports().len(), 0);
}

fn a_small_process_starts_its_thread(mode: Mode) {
    let scratch = Scratch::new("live-small");
    let Some(live) = Live::start(&scratch, mode, "small", &[]) else { return };
    live.expect_done("validate", &[], "valid: ");
}

fn without_a_background_thread_no_answer_comes(mode: Mode) {
    let scratch = Scratch::new("live-none");
    let Some(live) = Live::start(&scratch, mode, "small", &[("USLAB_REAPER", "0")]) else { return };
    let (code, _, err) = live.ask("validate", &["--timeout", "0.5"]);
    assert!(code == 3 && err.contains("it has no background thread"), "{code} {err}");
}
