//! A program started, waited for, and what it took: elapsed, user and system seconds and the peak of its memory,
//! as wait4(2) tells them.
//!
//! The kernel counts for a process and all of its children that were waited for: times are added up, the peak is
//! that of the largest single process. It also counts what the process was before it became the program: a copy
//! of whoever started it. So peaks are right only when a small process starts the program, which is why suites do
//! this in a child (child.rs).
//!
//! Must never: leave a program running. It dies with the thread that started it, and when [`Running`] is dropped.

use crate::measure::Sample;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What a program took from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    pub elapsed_s: f64,
    pub user_s: f64,
    pub system_s: f64,
    pub peak_bytes: f64,
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
        sample
    }
}

/// A program that runs.
pub struct Running {
    child: Child,
    started: Instant,
    said: File,
    /// Reaped: its number may be somebody else's by now.
    ended: bool,
}

/// Starts `command` with nothing to read, and nothing of what it prints kept but its complaints.
pub fn start(mut command: Command) -> Result<Running, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let cannot = |error: io::Error| format!("cannot start {program}: {error}");
    let said = tempfile::tempfile().map_err(cannot)?;
    let stderr = said.try_clone().map_err(cannot)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let die_with_parent = || {
        // SAFETY: no pointers. Called in the new process, where only calls that a signal handler may make are
        // allowed: a plain system call is one.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: the function keeps to what is allowed between fork and exec: it takes no lock and allocates nothing.
    unsafe { command.pre_exec(die_with_parent) };
    let started = Instant::now();
    let child = command.spawn().map_err(cannot)?;
    Ok(Running { child, started, said, ended: false })
}

/// Starts `command` and waits for its end, which must be a success.
pub fn run(command: Command) -> Result<Usage, String> {
    start(command)?.finish()
}

impl Running {
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Waits for its end, which must be a success. An error is one line, the last that the program said.
    pub fn finish(mut self) -> Result<Usage, String> {
        let (status, usage) = self.wait().map_err(|error| format!("cannot wait for a program: {error}"))?;
        if status.success() {
            return Ok(usage);
        }
        let mut text = Vec::new();
        // What cannot be read was not said.
        let _ = self.said.seek(SeekFrom::Start(0)).and_then(|_| self.said.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing");
        let last: String = last.chars().take(160).collect();
        Err(format!("a program ended with {status}: {last}"))
    }

    /// Whether it has ended already, which a server should not by itself.
    pub fn gone(&self) -> bool {
        // SAFETY: an all-zero siginfo_t is a valid one.
        let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is valid for writing; the process is our child and, by WNOWAIT, stays to be waited for.
        let looked = unsafe { libc::waitid(libc::P_PID, self.child.id(), &raw mut info, options) };
        // SAFETY: filled in by waitid, or zero still, which says that nothing happened.
        looked == 0 && unsafe { info.si_pid() } != 0
    }

    /// Waits until `ready` says so; the program must not end before.
    pub fn wait_until(&self, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<(), String> {
        let end = Instant::now() + limit;
        while !ready() {
            if self.gone() {
                return Err("a server ended as soon as it was started".into());
            }
            if Instant::now() > end {
                return Err(format!("a server did not answer within {} s", limit.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(5));
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
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        let usage = Usage {
            elapsed_s: self.started.elapsed().as_secs_f64(),
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
            // Linux counts KiB.
            peak_bytes: usage.ru_maxrss as f64 * 1024.0,
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
    fn a_program_that_fails_is_its_last_line() {
        let why = run(sh("echo first >&2; echo the reason >&2; exit 3")).unwrap_err();
        assert!(why.contains("the reason") && why.contains('3') && !why.contains("first"), "{why}");
        let absent = run(Command::new("/nonexistent/program")).unwrap_err();
        assert!(absent.contains("/nonexistent/program") && !absent.contains('\n'), "{absent}");
    }

    #[test]
    fn a_server_that_ends_at_once_is_noticed_and_one_that_is_dropped_ends() {
        let ended = start(sh("exit 1")).unwrap();
        assert!(ended.wait_until(Duration::from_secs(60), || false).unwrap_err().contains("ended"));
        let running = start(sh("exec sleep 1000")).unwrap();
        assert!(running.wait_until(Duration::from_secs(60), || true).is_ok() && !running.gone());
        let folder = format!("/proc/{}", running.child.id());
        drop(running);
        assert!(!std::path::Path::new(&folder).exists());
    }
}
