//! One measurement in a process of its own: `--child JSON`, which only this program gives itself.
//!
//! ```text
//!   child::run(task, limit)              this process: starts itself, waits, at most `limit`
//!        │  --child {"rss": …}                  ▲
//!        ▼                                      │ a Sample as JSON on standard output
//!   child::main(json) ── task::measure ── the work
//! ```
//!
//! What a contestant holds in memory, and what it does when its threads come and go, can only be
//! told in a process where no other contestant worked before. The child has the environment of this
//! process, and with it uslab's mode; and the CPUs that this process had at start, not the one that
//! its rounds are pinned to. What a child can be asked for stands in task.rs.
//!
//! Must never: outlive the thread that waits for it, its limit or Ctrl-C; print anything but the
//! sample; let a child's failure be more than one line.

use crate::cpu;
use crate::measure::Sample;
use crate::process;
use crate::stop;
use serde::Serialize;
use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// What the program does when it is a child.
pub fn main(measured: Result<Sample, String>) -> ExitCode {
    match measured {
        Ok(sample) => {
            let json = serde_json::to_string(&sample);
            println!("{}", json.expect("a sample has nothing that JSON cannot say"));
            ExitCode::SUCCESS
        }
        Err(line) => {
            eprintln!("uslab-bench: {line}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `task` in a child, and ends it after `limit`.
pub fn run(task: &impl Serialize, limit: Duration) -> Result<Sample, String> {
    let program = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    run_program(&program, task, limit)
}

fn run_program(program: &Path, task: &impl Serialize, limit: Duration) -> Result<Sample, String> {
    stop::watch()?;
    let mut command = Command::new(program);
    command.arg("--child").arg(serde_json::to_string(task).expect("a task has nothing that JSON cannot say"));
    // Its own, so that what it starts can be ended with it.
    command.process_group(0);
    let out = cpu::with_cpus_of_start(|| process::start(command))?.output(limit, stop::asked)?;
    serde_json::from_slice(&out).map_err(|error| format!("a child printed no sample ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_fails_is_one_line() {
        for (program, word) in [("/bin/false", "exit status"), ("/bin/true", "no sample"), ("/none", "/none")]
        {
            let why = run_program(Path::new(program), &"task", Duration::from_secs(60)).unwrap_err();
            assert!(why.contains(word) && !why.contains('\n'), "{why}");
        }
    }
}
