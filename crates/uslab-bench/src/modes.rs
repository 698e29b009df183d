//! `--both-modes`: the same run in two processes, one with restartable sequences and one with
//! `USLAB_RSEQ=0`, as one report.
//!
//! uslab chooses its mode once per process, from the environment. So this process measures nothing:
//! it starts itself twice with `--json`, reads both reports, and joins their runs. Standard error,
//! and with it the progress, stays the children's.
//!
//! Must never: run the two at the same time, or leave one running.

use crate::process;
use crate::results::{Report, SCHEMA};
use crate::stop;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::env;
use std::io::{self, Read, Seek, SeekFrom};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

/// The variable that chooses, and its value for the fallback.
const VARIABLE: &str = "USLAB_RSEQ";
const LOCKED: &str = "0";

/// The interval at which this process asks whether to stop, and whether the child has ended. Rounds
/// are measured meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Both reports as one, with the runs of the first mode before those of the second; and whether
/// both are whole.
pub fn run() -> Result<(Report, bool), String> {
    // A child that is asked to stop ends with what it has; this process must live to print it.
    stop::watch()?;
    let (mut report, is_whole) = child(None)?;
    if !is_whole || stop::asked() {
        return Ok((report, false));
    }
    let (second, is_whole) = child(Some(LOCKED))?;
    report.runs.extend(second.runs);
    Ok((report, is_whole))
}

/// The report of one mode, and whether it is whole.
fn child(rseq: Option<&str>) -> Result<(Report, bool), String> {
    let program = env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut command = Command::new(program);
    command.args(env::args_os().skip(1).filter(|arg| arg != "--both-modes" && arg != "--json")).arg("--json");
    match rseq {
        Some(value) => command.env(VARIABLE, value),
        None => command.env_remove(VARIABLE),
    };
    let (said, status) =
        output(command, stop::asked).map_err(|e| format!("cannot start the run of one mode: {e}"))?;
    let report = parse(&said).map_err(|why| format!("the run of one mode ended with {status} and {why}"))?;
    let is_whole = status.success() && report.runs.iter().all(|run| run.complete);
    Ok((report, is_whole))
}

/// What the program prints, and its end. Once `stop` returns true, the program is asked to end.
fn output(mut command: Command, stop: impl Fn() -> bool) -> io::Result<(Vec<u8>, ExitStatus)> {
    let mut said = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(said.try_clone()?);
    process::die_with_parent(&mut command);
    let mut child = command.spawn()?;
    let mut is_asked = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if !is_asked && stop() {
            is_asked = true;
            // It was not waited for, so its number is still its own.
            kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM)?;
        }
        thread::sleep(LOOK_EVERY);
    };
    let mut bytes = Vec::new();
    said.seek(SeekFrom::Start(0))?;
    said.read_to_end(&mut bytes)?;
    Ok((bytes, status))
}

fn parse(json: &[u8]) -> Result<Report, String> {
    let report: Report = serde_json::from_slice(json).map_err(|e| format!("no readable results ({e})"))?;
    if report.schema != SCHEMA {
        return Err(format!("results of schema {}, not {SCHEMA}", report.schema));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::{output, parse};
    use std::process::Command;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_child_is_asked_to_stop_and_what_it_prints_then_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = sh("trap 'echo rows; exit 130' TERM; : > ready; while :; do sleep 0.01; done");
        command.current_dir(&folder);
        let (said, status) = output(command, || folder.path().join("ready").exists()).unwrap();
        assert_eq!((said.as_slice(), status.code()), (&b"rows\n"[..], Some(130)));
    }

    #[test]
    fn a_child_that_is_not_asked_ends_by_itself() {
        let (said, status) = output(sh("echo rows"), || false).unwrap();
        assert_eq!((said.as_slice(), status.success()), (&b"rows\n"[..], true));
    }

    #[test]
    fn what_is_no_report_is_refused_in_one_line() {
        let why = parse(b"").unwrap_err();
        assert!(why.starts_with("no readable results") && !why.contains('\n'));
    }
}
