//! Runs one measurement in a process of its own, which this program starts with `--child JSON`.
//!
//! ```text
//!   child::run(task, limit)              this process: starts itself, waits, at most `limit`
//!        │  --child {"rss": …}                  ▲
//!        ▼                                      │ a Sample as JSON on standard output
//!   child::main(json) ── task::measure ── the work
//! ```
//!
//! The memory of a contestant can only be measured in a process where no other contestant worked
//! before. The child inherits the environment of this process, and with it uslab's mode. It may use
//! the CPUs that this process had at start, not only the one that rounds are pinned to. task.rs
//! lists the tasks of a child.
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

/// The program's main function when it is a child.
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
    // A group of its own, so that its descendants can be killed with it.
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
