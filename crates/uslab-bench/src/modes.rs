//! `--both-modes`: the same run in two processes, one with restartable sequences and one with
//! `USLAB_RSEQ=0`, as one report.
//!
//! uslab chooses its mode once per process, from the environment. So this process measures nothing:
//! it starts itself twice with `--json`, reads both reports, and joins their runs. Standard error,
//! and with it the progress, stays the children's.
//!
//! Must never: run the two at the same time.

use crate::results::{Report, SCHEMA};
use crate::stop;
use std::env;
use std::process::{Command, Stdio};

/// The variable that chooses, and its value for the fallback.
const VARIABLE: &str = "USLAB_RSEQ";
const LOCKED: &str = "0";

/// Both reports as one, with the runs of the first mode before those of the second.
pub fn run() -> Result<Report, String> {
    // Ctrl-C reaches the children, which end with what they have; this process must live to print
    // it.
    stop::watch()?;
    let mut report = child(None)?;
    if report.runs.iter().all(|run| run.complete) {
        report.runs.extend(child(Some(LOCKED))?.runs);
    }
    Ok(report)
}

fn child(rseq: Option<&str>) -> Result<Report, String> {
    let program = env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut command = Command::new(program);
    command.args(env::args_os().skip(1).filter(|arg| arg != "--both-modes" && arg != "--json")).arg("--json");
    match rseq {
        Some(value) => command.env(VARIABLE, value),
        None => command.env_remove(VARIABLE),
    };
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot start the run of one mode: {e}"))?;
    parse(&output.stdout).map_err(|why| format!("the run of one mode ended with {} and {why}", output.status))
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
    use super::parse;

    #[test]
    fn what_is_no_report_is_refused_in_one_line() {
        let why = parse(b"").unwrap_err();
        assert!(why.starts_with("no readable results") && !why.contains('\n'));
    }
}
