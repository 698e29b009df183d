//! Runs a program, waits for it, and measures it: elapsed, user and system seconds and the peak of
//! its memory, from wait4(2). Where the program is watched, its mean memory too (resident.rs).
//!
//! The kernel counts a process and all children that it waited for. It adds up times; the peak is
//! that of the largest single process. The peak includes the process before exec, when it is a copy
//! of its parent. So a small process must start the program: suites do this in a child (child.rs).
//!
//! Must never: leave a program running. It dies with the thread that started it, and when
//! [`Running`] is dropped.

use crate::measure::Sample;
use crate::resident::{self, Watch};
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The resources that a program used from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    pub elapsed_s: f64,
    pub user_s: f64,
    pub system_s: f64,
    pub peak_bytes: f64,
    /// Of a program that was watched. One too short to be read has its peak here.
    pub mean_bytes: Option<f64>,
}

impl Usage {
    /// The elapsed seconds as the value, the rest beside it.
    pub fn sample(&self) -> Sample {
        let mut sample = Sample::of(self.elapsed_s);
        for (name, value) in
            [("user_s", self.user_s), ("system_s", self.system_s), ("peak_bytes", self.peak_bytes)]
        {
            sample.extra.insert(name.into(), value);
        }
        sample.extra.extend(self.mean_bytes.map(|bytes| ("mean_bytes".into(), bytes)));
        sample
    }
}

/// A program that runs.
pub struct Running {
    child: Child,
    started: Instant,
    said: File,
    complained: File,
    /// Reaped: its number may be another process's by now.
    ended: bool,
    watch: Option<Watch>,
}

/// The interval at which a parent that waits with a limit polls. The parent shares the machine with
/// the child.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Starts `command` with nothing to read.
pub fn start(mut command: Command) -> Result<Running, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let cannot = |error: io::Error| format!("cannot start {program}: {error}");
    let (said, complained) = (tempfile::tempfile().map_err(cannot)?, tempfile::tempfile().map_err(cannot)?);
    command.stdin(Stdio::null()).stdout(said.try_clone().map_err(cannot)?);
    command.stderr(complained.try_clone().map_err(cannot)?);
    die_with_parent(&mut command);
    let started = Instant::now();
    let child = command.spawn().map_err(cannot)?;
    Ok(Running { child, started, said, complained, ended: false, watch: None })
}

/// Has the program of `command` killed at the end of the thread that starts it.
pub fn die_with_parent(command: &mut Command) {
    let ask = || Ok(set_pdeathsig(Signal::SIGKILL)?);
    // SAFETY: the function keeps to what is allowed between fork and exec: one plain system call.
    unsafe { command.pre_exec(ask) };
}

/// Starts `command` and waits for its end, which must be a success.
pub fn run(command: Command) -> Result<Usage, String> {
    start(command)?.finish()
}

/// The same for the program that is measured: its memory is watched until it ends.
pub fn run_watched(command: Command) -> Result<Usage, String> {
    start(command)?.watched().finish()
}

impl Running {
    /// The same program, with a thread that reads its memory until it ends.
    pub fn watched(mut self) -> Self {
        self.watch = Some(Watch::start(self.child.id()));
        self
    }

    /// Waits for its end, which must be a success. An error is one line, the last that the program
    /// complained.
    pub fn finish(mut self) -> Result<Usage, String> {
        self.end()
    }

    /// Returns its standard output. It must end with success and within `limit`. At the limit, or
    /// when `stop` returns true, its process group is killed.
    pub fn output(mut self, limit: Duration, stop: impl Fn() -> bool) -> Result<Vec<u8>, String> {
        while !self.has_ended() {
            let late = self.started.elapsed() > limit;
            if late || stop() {
                // It was not waited for, so its number and its group's are still its own.
                let _ = killpg(self.pid(), Signal::SIGKILL);
                let _ = self.wait();
                let why = format!("not done after {} s", limit.as_secs_f64());
                return Err(if late { why } else { "interrupted".into() });
            }
            thread::sleep(LOOK_EVERY);
        }
        self.end()?;
        read(&mut self.said).map_err(|error| format!("what a program said cannot be read: {error}"))
    }

    fn end(&mut self) -> Result<Usage, String> {
        let (status, usage) = self.wait().map_err(|error| format!("cannot wait for a program: {error}"))?;
        if status.success() {
            return Ok(usage);
        }
        // An unreadable text counts as empty.
        let text = read(&mut self.complained).unwrap_or_default();
        Err(reason(&String::from_utf8_lossy(&text), status))
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        // Any other error comes from an end that nix cannot describe: by a real-time signal.
        !matches!(waitid(Id::Pid(self.pid()), flags), Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Waits until `ready` returns true; the program must not end before.
    pub fn wait_until(&self, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<(), String> {
        let end = Instant::now() + limit;
        while !ready() {
            if self.has_ended() {
                return Err("a server ended as soon as it was started".into());
            }
            if Instant::now() > end {
                return Err(format!("a server did not answer within {} s", limit.as_secs()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn wait(&mut self) -> io::Result<(ExitStatus, Usage)> {
        let mut status = 0;
        // SAFETY: an all-zero rusage is a valid one.
        let mut usage: libc::rusage = unsafe { MaybeUninit::zeroed().assume_init() };
        loop {
            let id = self.child.id() as libc::pid_t;
            // SAFETY: both are valid for writing; the process is our child, and not reaped yet.
            if unsafe { libc::wait4(id, &raw mut status, 0, &raw mut usage) } == id {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        self.ended = true;
        let elapsed_s = self.started.elapsed().as_secs_f64();
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        // Linux counts KiB.
        let peak_bytes = usage.ru_maxrss as f64 * 1024.0;
        let is_short = elapsed_s < resident::SHORT.as_secs_f64();
        let mean_of = |watch: Watch| watch.mean_bytes().or(is_short.then_some(peak_bytes));
        let usage = Usage {
            elapsed_s,
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
            peak_bytes,
            mean_bytes: self.watch.take().and_then(mean_of),
        };
        Ok((ExitStatus::from_raw(status), usage))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            // It may have ended by itself meanwhile; it is reaped either way.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn read(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The last line with content that a failed program printed. A line of this program itself is not
/// prefixed.
fn reason(text: &str, status: ExitStatus) -> String {
    let substance = |line: &&str| !line.is_empty() && !line.starts_with("note:");
    let last = text.lines().map(str::trim).rfind(substance).unwrap_or("it said nothing");
    if let Some(own) = last.strip_prefix("uslab-bench: ") {
        return own.to_owned();
    }
    let last: String = last.chars().take(160).collect();
    format!("a program ended with {status}: {last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_that_succeeds_took_time_and_memory() {
        let usage = run(sh("exit 0")).unwrap();
        assert!(usage.elapsed_s > 0.0 && usage.peak_bytes > 0.0);
        let sample = usage.sample();
        assert_eq!((sample.value, sample.extra["peak_bytes"]), (usage.elapsed_s, usage.peak_bytes));
    }

    #[test]
    fn only_a_watched_program_has_a_mean_and_a_short_one_has_its_peak() {
        assert_eq!(run(sh("exit 0")).unwrap().mean_bytes, None);
        let short = run_watched(sh("exit 0")).unwrap();
        assert!(short.mean_bytes.is_some_and(|bytes| bytes > 0.0 && bytes <= short.peak_bytes), "{short:?}");
        let long = run_watched(sh("sleep 0.3")).unwrap();
        assert!(long.mean_bytes.is_some_and(|bytes| bytes > 0.0), "{long:?}");
    }

    #[test]
    fn a_program_that_fails_is_its_last_line() {
        let why = run(sh("echo first >&2; echo the reason >&2; exit 3")).unwrap_err();
        assert!(why.contains("the reason") && why.contains('3') && !why.contains("first"), "{why}");
        let absent = run(Command::new("/nonexistent/program")).unwrap_err();
        assert!(absent.contains("/nonexistent/program") && !absent.contains('\n'), "{absent}");
    }

    #[test]
    fn output_is_read_whole_and_what_stays_is_ended() {
        let long = Duration::from_secs(60);
        let out = start(sh("yes | head -c 200000")).unwrap().output(long, || false).unwrap();
        assert_eq!(out.len(), 200_000);
        for (limit, stop, word) in [(Duration::ZERO, false, "not done"), (long, true, "interrupted")] {
            let mut command = sh("sleep 1000 & wait");
            command.process_group(0);
            let why = start(command).unwrap().output(limit, || stop).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn the_reason_is_the_last_line_of_substance() {
        let panic = "thread 'main' panicked at x.rs:1:1:\nout of luck\nnote: run with `RUST_BACKTRACE=1`\n\n";
        assert!(reason(panic, ExitStatus::from_raw(256)).ends_with(": out of luck"));
        assert_eq!(reason("uslab-bench: no such\n", ExitStatus::from_raw(256)), "no such");
        assert!(reason("", ExitStatus::from_raw(9)).contains("signal: 9"));
    }

    #[test]
    fn a_server_that_ends_at_once_is_noticed_and_one_that_is_dropped_ends() {
        let ended = start(sh("exit 1")).unwrap();
        assert!(ended.wait_until(Duration::from_secs(60), || false).unwrap_err().contains("ended"));
        let running = start(sh("exec sleep 1000")).unwrap();
        assert!(running.wait_until(Duration::from_secs(60), || true).is_ok() && !running.has_ended());
        let folder = format!("/proc/{}", running.child.id());
        drop(running);
        assert!(!std::path::Path::new(&folder).exists());
    }
}
