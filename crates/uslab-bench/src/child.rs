//! One measurement in a process of its own: `--child JSON`, which only this program gives itself.
//!
//! ```text
//!   child::run(task, limit)              this process: starts itself, waits, at most `limit`
//!        │  --child {"rss": …}                  ▲
//!        ▼                                      │ a Sample as JSON on standard output
//!   child::main(json) ── Task::measure ── find(contestant) ── the work
//! ```
//!
//! What a contestant holds in memory, and what it does when its threads come and go, can only be told in a
//! process where nobody else worked before. The child has the environment of this process, and with it
//! uslab's mode; and the CPUs that this process had at start, not the one that its rounds are pinned to. A
//! new kind of measurement is a variant of [`Task`] and its arm in `Task::measure`.
//!
//! Must never: outlive its parent, its limit or Ctrl-C; print anything but the sample; let a child's failure
//! be more than one line.

use crate::contestants::{self, Entry, PEERS, uslab_cache, uslab_malloc};
use crate::cpu;
use crate::measure::Sample;
use crate::order::oltp::Oltp;
use crate::programs::Job;
use crate::rounds::crowd::{self, Crowd};
use crate::rounds::memory::{self, Load};
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::env;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// What a child can be asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// How much memory a contestant holds under a load and after it.
    Rss { contestant: String, load: Load },
    /// How much memory a contestant holds in many threads.
    Crowd { contestant: String, crowd: Crowd },
    /// What a whole program takes under an allocator.
    Program(Job),
    /// How long a transaction takes on SQLite with a configuration under it.
    Oltp(Oltp),
}

impl Task {
    /// Does it, in this process. An error is one line.
    fn measure(&self) -> Result<Sample, String> {
        match self {
            Task::Rss { contestant, load } => memory::run(&find(contestant, load.largest_bytes)?, load),
            Task::Crowd { contestant, crowd } => crowd::run(&find(contestant, 0)?, *crowd),
            Task::Program(job) => job.run(),
            Task::Oltp(load) => load.run(),
        }
    }
}

/// The contestant of that name; `size_bytes` chooses between the typed caches, which have one name.
pub fn find(name: &str, size_bytes: usize) -> Result<Entry, String> {
    let caches = uslab_cache::entries(size_bytes).into_iter().flatten();
    let called = |entry: &Entry| entry.name == name;
    caches
        .chain([uslab_malloc::CALLED])
        .chain(PEERS.iter().copied())
        .find(called)
        // Only then are those looked for that the system may have: what looking loads would stay in memory.
        .or_else(|| contestants::peers().iter().copied().find(called))
        .ok_or_else(|| format!("no contestant is called '{name}' (of {size_bytes} bytes)"))
}

/// What the program does when it is a child. `json` is a [`Task`].
pub fn main(json: &str) -> ExitCode {
    // SAFETY: no pointers; the parent's end becomes this process's end. If it ended before this line, the
    // child ends a little later by itself.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let sample = serde_json::from_str::<Task>(json)
        .map_err(|error| format!("--child: no such task ({error})"))
        .and_then(|task| task.measure());
    match sample {
        Ok(sample) => {
            println!(
                "{}",
                serde_json::to_string(&sample).expect("a sample has nothing that JSON cannot say")
            );
            ExitCode::SUCCESS
        }
        Err(line) => {
            eprintln!("uslab-bench: {line}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `task` in a child, and ends it after `limit`.
pub fn run(task: &Task, limit: Duration) -> Result<Sample, String> {
    let program = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    run_program(&program, task, limit)
}

fn run_program(program: &Path, task: &Task, limit: Duration) -> Result<Sample, String> {
    let interrupted = interrupted()?;
    let json = serde_json::to_string(task).expect("a task has nothing that JSON cannot say");
    let mut command = Command::new(program);
    command.arg("--child").arg(json).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Its own, so that what it starts can be ended with it.
    command.process_group(0);
    let mut child = cpu::with_cpus_of_start(|| command.spawn())
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    let (outputs, end) = (Outputs::of(&mut child), Instant::now() + limit);
    let finished = outputs.wait(end, interrupted);
    if finished.is_err() {
        // SAFETY: no pointers. The child was not waited for, so its number and its group's are still its own; it
        // may have ended by itself meanwhile, which is as good.
        unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    }
    let status = child.wait().map_err(|error| format!("cannot wait for a child: {error}"))?;
    let (out, err) = finished.map_err(|why| why.said(limit))?;
    if !status.success() {
        return Err(reason(&err, status));
    }
    serde_json::from_slice(&out).map_err(|error| format!("a child printed no sample ({error})"))
}

/// Set by Ctrl-C, which a terminal sends to this process alone: the child is in another group.
fn interrupted() -> Result<&'static AtomicBool, String> {
    static FLAG: OnceLock<Result<Arc<AtomicBool>, String>> = OnceLock::new();
    let registered = FLAG.get_or_init(|| {
        let set = Arc::new(AtomicBool::new(false));
        flag::register(SIGINT, Arc::clone(&set)).map_err(|error| error.to_string())?;
        Ok(set)
    });
    registered.as_deref().map_err(|error| format!("cannot take over Ctrl-C: {error}"))
}

/// Whether Ctrl-C was pressed, for work that takes long between two looks of its caller's.
pub fn stop_asked() -> bool {
    interrupted().is_ok_and(|flag| flag.load(Relaxed))
}

/// Why a child was ended before its time.
enum Ended {
    Limit,
    Interrupt,
}

impl Ended {
    fn said(&self, limit: Duration) -> String {
        match self {
            Ended::Limit => format!("not done after {} s", limit.as_secs_f64()),
            Ended::Interrupt => "interrupted".into(),
        }
    }
}

/// What a child prints, read by threads of their own, so that neither pipe can fill up; they sleep while it
/// works.
struct Outputs {
    out: Receiver<Vec<u8>>,
    err: Receiver<Vec<u8>>,
}

/// How often a waiting parent looks for Ctrl-C. It shares the machine with the child.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Outputs {
    fn of(child: &mut Child) -> Self {
        let out = child.stdout.take().expect("standard output is piped");
        let err = child.stderr.take().expect("standard error is piped");
        Self { out: read(out), err: read(err) }
    }

    /// Until both are closed, which is when the child ends.
    fn wait(&self, end: Instant, interrupted: &AtomicBool) -> Result<(Vec<u8>, Vec<u8>), Ended> {
        let one = |pipe: &Receiver<Vec<u8>>| {
            loop {
                let left = end.saturating_duration_since(Instant::now());
                match pipe.recv_timeout(left.min(LOOK_EVERY)) {
                    Ok(text) => return Ok(text),
                    Err(RecvTimeoutError::Disconnected) => return Ok(Vec::new()),
                    Err(RecvTimeoutError::Timeout) if interrupted.load(Relaxed) => {
                        return Err(Ended::Interrupt);
                    }
                    Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(Ended::Limit),
                    Err(RecvTimeoutError::Timeout) => {}
                }
            }
        };
        Ok((one(&self.out)?, one(&self.err)?))
    }
}

fn read(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let read: io::Result<usize> = pipe.read_to_end(&mut text);
        // What cannot be read shows as a sample that is cut short; who waits may have given up.
        let _ = read.map(|_| sender.send(text));
    });
    receiver
}

/// The last line of substance that a failed child said.
fn reason(err: &[u8], status: ExitStatus) -> String {
    let text = String::from_utf8_lossy(err);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty() && !line.starts_with("note:"));
    match line {
        Some(line) => line.strip_prefix("uslab-bench: ").unwrap_or(line).to_owned(),
        None => format!("the child ended with {status} and said nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn task() -> Task {
        Task::Rss { contestant: "glibc".into(), load: Load::default() }
    }

    #[test]
    fn a_task_survives_the_way_to_the_child() {
        let json = serde_json::to_string(&task()).unwrap();
        assert_eq!(serde_json::from_str::<Task>(&json).unwrap(), task());
    }

    #[test]
    fn every_contestant_is_found_by_its_name() {
        for peer in contestants::peers() {
            assert_eq!(find(peer.name, 256).unwrap().name, peer.name);
        }
        for name in ["uslab cache", "uslab cache, called", "uslab malloc"] {
            assert_eq!(find(name, 64).unwrap().name, name);
        }
        assert!(find("uslab cache", 63).err().is_some_and(|line| line.contains("63")));
    }

    #[test]
    fn a_child_that_fails_or_stays_is_one_line() {
        let fails = run_program(Path::new("/bin/false"), &task(), Duration::from_secs(60)).unwrap_err();
        assert!(fails.contains("said nothing") && !fails.contains('\n'), "{fails}");
        let silent = run_program(Path::new("/bin/true"), &task(), Duration::from_secs(60)).unwrap_err();
        assert!(silent.contains("no sample") && !silent.contains('\n'), "{silent}");
        let absent = run_program(Path::new("/nonexistent"), &task(), Duration::from_secs(60)).unwrap_err();
        assert!(absent.contains("/nonexistent") && !absent.contains('\n'), "{absent}");
    }

    #[test]
    fn a_child_that_does_not_end_is_ended() {
        let mut command = Command::new("sleep");
        let mut child =
            command.arg("1000").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sleep starts");
        let outputs = Outputs::of(&mut child);
        let flag = AtomicBool::new(false);
        assert!(matches!(outputs.wait(Instant::now(), &flag), Err(Ended::Limit)));
        flag.store(true, Relaxed);
        assert!(matches!(outputs.wait(Instant::now() + LOOK_EVERY, &flag), Err(Ended::Interrupt)));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn the_reason_is_the_last_line_of_substance() {
        let panic =
            b"thread 'main' panicked at x.rs:1:1:\nout of luck\nnote: run with `RUST_BACKTRACE=1`\n\n";
        assert_eq!(reason(panic, ExitStatus::from_raw(256)), "out of luck");
        assert_eq!(reason(b"uslab-bench: no such\n", ExitStatus::from_raw(256)), "no such");
        assert!(reason(b"", ExitStatus::from_raw(9)).contains("signal: 9"));
    }
}
