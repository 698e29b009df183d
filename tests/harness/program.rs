//! One program with its arguments, environment and time limit: its start in each mode, and its end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{Outcome, Scratch, artifacts};

/// The allocator of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The system's allocator: the run with which other runs are compared.
    Plain,
    /// uslab with restartable sequences, its default. Where the tests run under `USLAB_RSEQ=own`,
    /// the library registers threads itself.
    Rseq,
    /// uslab with the locked fallback, forced by `USLAB_RSEQ=0`.
    Locked,
}

/// A program to run. Built like [`std::process::Command`], but it can run several times.
#[derive(Clone)]
pub struct Program {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    stdin: Option<PathBuf>,
    limit: Duration,
    address_space_kib: Option<u64>,
    is_unprivileged: bool,
}

/// The user and group `nobody`, with the number that every distribution uses.
pub const NOBODY: u32 = 65534;

impl Program {
    /// The program at `path`, without arguments, with a time limit of two minutes.
    pub fn new(path: impl AsRef<OsStr>) -> Program {
        Program {
            argv: vec![path.as_ref().to_os_string()],
            env: Vec::new(),
            dir: None,
            stdin: None,
            limit: Duration::from_secs(120),
            address_space_kib: None,
            is_unprivileged: false,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Program {
        self.argv.push(arg.as_ref().to_os_string());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Program {
        self.argv.extend(args.into_iter().map(|a| a.as_ref().to_os_string()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Program {
        self.env.push((key.into(), value.as_ref().to_os_string()));
        self
    }

    /// Runs it in `dir` instead of the scratch directory.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Program {
        self.dir = Some(dir.as_ref().to_path_buf());
        self
    }

    /// Reads standard input from a file; otherwise it is empty.
    pub fn stdin(mut self, file: impl AsRef<Path>) -> Program {
        self.stdin = Some(file.as_ref().to_path_buf());
        self
    }

    /// The time after which its process group is killed. It should be generous, because it only
    /// ends a hang, and the machine may be busy with other tests.
    pub fn limit_s(mut self, seconds: u64) -> Program {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Runs it under `ulimit -v KIB`.
    pub fn address_space_kib(mut self, kib: u64) -> Program {
        self.address_space_kib = Some(kib);
        self
    }

    /// Runs it as `nobody` if the caller is root, because some servers refuse to run as root. Other
    /// callers run it under their own user.
    pub fn unprivileged(mut self) -> Program {
        self.is_unprivileged = true;
        self
    }

    /// Starts it and waits for its end.
    pub fn run(&self, scratch: &Scratch, mode: Mode) -> Outcome {
        self.start(scratch, mode).wait()
    }

    /// Runs it, and requires exit status 0 and, except in [`Mode::Plain`], the proof that the
    /// allocator served it.
    ///
    /// # Panics
    /// With a full report otherwise.
    pub fn run_clean(&self, scratch: &Scratch, mode: Mode) -> Outcome {
        self.run(scratch, mode).expect_clean()
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(&self, scratch: &Scratch, mode: Mode) -> Running {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let snapshots = scratch.private_dir(format!("snapshots-{number}"));
        let (stdout, stderr) =
            (scratch.join(format!("stdout-{number}")), scratch.join(format!("stderr-{number}")));
        let argv = self.full_argv(mode);
        let env = self.full_env(scratch, mode, &snapshots);
        let dir = self.dir.clone().unwrap_or_else(|| scratch.path().to_path_buf());

        let open = |path: &Path| File::create(path).expect("a file for the program's output");
        let stdin = match &self.stdin {
            Some(file) => Stdio::from(File::open(file).expect("the program's input")),
            None => Stdio::null(),
        };
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).env_clear().envs(env.iter().map(|(k, v)| (k, v))).current_dir(&dir);
        command.stdin(stdin).stdout(open(&stdout)).stderr(open(&stderr)).process_group(0);
        if self.is_unprivileged && is_root() {
            // The snapshots belong to the process that writes them; root can read them.
            std::os::unix::fs::chown(&snapshots, Some(NOBODY), Some(NOBODY))
                .expect("a directory that `nobody` owns");
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut outcome = Outcome {
            mode,
            command_line: command_line(&dir, &env, &argv, self.stdin.as_deref()),
            status: None,
            wall: Duration::ZERO,
            stdout,
            stderr,
            snapshots,
            pid: 0,
        };
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {}: {e}", outcome.command_line));
        outcome.pid = child.id();
        Running { child, started: Instant::now(), limit: self.limit, outcome: Some(outcome) }
    }

    fn full_argv(&self, mode: Mode) -> Vec<OsString> {
        let mut argv: Vec<OsString> = Vec::new();
        if mode != Mode::Plain
            && let Some(command) = &artifacts().command
        {
            argv.extend([command.clone().into(), "run".into(), "--".into()]);
        }
        if let Some(kib) = self.address_space_kib {
            let script = format!("ulimit -v {kib} && exec \"$0\" \"$@\"");
            argv.extend(["/bin/sh".into(), "-c".into(), script.into()]);
        }
        argv.extend_from_slice(&self.argv);
        argv
    }

    fn full_env(&self, scratch: &Scratch, mode: Mode, snapshots: &Path) -> Vec<(OsString, OsString)> {
        let mut env: Vec<(OsString, OsString)> = vec![
            ("PATH".into(), std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into())),
            ("HOME".into(), scratch.path().into()),
            ("TMPDIR".into(), scratch.path().into()),
            ("LANG".into(), "C.UTF-8".into()),
            ("TZ".into(), "UTC".into()),
        ];
        if mode != Mode::Plain {
            let ours = ["USLAB_LIB", "USLAB_BIN", "USLAB_RSEQ", "USLAB_TEST_KEEP"];
            env.extend(std::env::vars_os().filter(|(k, _)| {
                let name = k.to_string_lossy();
                name.starts_with("USLAB_")
                    && !name.starts_with("USLAB_SNAPSHOT")
                    && !ours.iter().any(|o| k == o)
            }));
            env.push(("USLAB_SNAPSHOT".into(), snapshots.into()));
            // A child of this process leaves its snapshot for the harness; every other process
            // removes its own.
            env.push(("USLAB_SNAPSHOT_READER".into(), std::process::id().to_string().into()));
            if mode == Mode::Locked {
                env.push(("USLAB_RSEQ".into(), "0".into()));
            } else if std::env::var_os("USLAB_RSEQ").is_some_and(|value| value == "own") {
                env.push(("USLAB_RSEQ".into(), "own".into()));
                env.push(("GLIBC_TUNABLES".into(), "glibc.pthread.rseq=0".into()));
            }
            let by = if artifacts().command.is_some() { "USLAB_LIB" } else { "LD_PRELOAD" };
            env.push((by.into(), artifacts().library.clone().into()));
        }
        env.extend_from_slice(&self.env);
        env
    }
}

/// A program that has been started. Dropping it kills its process group.
pub struct Running {
    child: Child,
    started: Instant,
    limit: Duration,
    outcome: Option<Outcome>,
}

impl Running {
    /// The id of the process. It is the program's own, because `uslab run` executes the program in
    /// its place.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The directory of its snapshot.
    pub fn snapshots(&self) -> &Path {
        &self.outcome().snapshots
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        self.outcome().stdout()
    }

    fn outcome(&self) -> &Outcome {
        self.outcome.as_ref().expect("an outcome that has not been taken")
    }

    /// Sends a signal to the process alone, not to its group.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: a system call without pointers. The child has not been reaped, so the id is its
        // own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// Calls `is_ready` every 20 ms until it returns true, at most until the time limit.
    ///
    /// # Panics
    /// With a full report if the program ends first, or reaches its time limit.
    pub fn wait_until(mut self, what: &str, mut is_ready: impl FnMut(&Running) -> bool) -> Running {
        while !is_ready(&self) {
            if self.ended().is_some() || self.started.elapsed() > self.limit {
                self.fail(&format!("the program did not get ready: {what}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self
    }

    /// Waits for the end, at most until the time limit.
    pub fn wait(mut self) -> Outcome {
        let status = loop {
            if let Some(status) = self.ended() {
                break Some(status);
            }
            if self.started.elapsed() > self.limit {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        self.kill_group();
        let mut outcome = self.outcome.take().expect("an outcome that has not been taken");
        outcome.status = status;
        outcome.wall = self.started.elapsed();
        outcome
    }

    /// The status, once it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("waiting for a child")
    }

    /// Ends it and panics with the report of a failure.
    pub fn fail(mut self, why: &str) -> ! {
        self.kill_group();
        let mut outcome = self.outcome.take().expect("an outcome that has not been taken");
        outcome.wall = self.started.elapsed();
        outcome.status = self.ended();
        outcome.fail(why)
    }

    /// Kills the rest of the process group, and reaps the leader.
    fn kill_group(&mut self) {
        let group = self.child.id() as libc::pid_t;
        // SAFETY: a system call without pointers. The group was made for this child, and the kernel
        // does not reuse its id while the group has members.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// Whether this process may start programs as another user.
pub fn is_root() -> bool {
    // SAFETY: a system call without arguments.
    unsafe { libc::geteuid() == 0 }
}

/// The end of a program, in words.
pub(super) fn describe(status: Option<ExitStatus>) -> String {
    match status {
        None => "killed at its time limit".into(),
        Some(s) => match (s.code(), s.signal()) {
            (Some(code), _) if code > 128 => format!("exit status {code} (signal {}?)", code - 128),
            (Some(code), _) => format!("exit status {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or(0)),
        },
    }
}

/// A shell command line that starts the same program in the same way.
fn command_line(dir: &Path, env: &[(OsString, OsString)], argv: &[OsString], stdin: Option<&Path>) -> String {
    let mut line = format!("cd {} && env -i", quote(dir.as_os_str()));
    for (key, value) in env {
        line.push_str(&format!(" {}={}", key.to_string_lossy(), quote(value)));
    }
    for word in argv {
        line.push(' ');
        line.push_str(&quote(word));
    }
    if let Some(file) = stdin {
        line.push_str(&format!(" <{}", quote(file.as_os_str())));
    }
    line
}

fn quote(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Program {
        Program::new("/bin/sh").args(["-c", script])
    }

    #[test]
    fn output_status_and_signals_are_seen() {
        let scratch = Scratch::new("sh");
        let outcome = sh("echo out; echo err >&2; exit 3").run(&scratch, Mode::Plain);
        assert_eq!((outcome.stdout(), outcome.stderr()), ("out\n".into(), "err\n".into()));
        assert_eq!(outcome.ended(), "exit status 3");
        assert_eq!(sh("kill -ABRT $$").run(&scratch, Mode::Plain).ended(), "signal 6");
    }

    #[test]
    fn the_whole_group_is_killed_when_time_is_up() {
        let scratch = Scratch::new("limit");
        let outcome = sh("sleep 1000 & echo $!; wait").limit_s(1).run(&scratch, Mode::Plain);
        assert_eq!(outcome.ended(), "killed at its time limit");
        let sleeper = format!("/proc/{}/stat", outcome.stdout().trim());
        let gone = || std::fs::read_to_string(&sleeper).map_or(true, |s| s.contains(") Z "));
        let deadline = Instant::now() + Duration::from_secs(10);
        while !gone() {
            assert!(Instant::now() < deadline, "a process of the group outlived it");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn the_limit_of_the_address_space_reaches_the_program() {
        let scratch = Scratch::new("ulimit");
        let program = sh("ulimit -v").address_space_kib(123_456);
        assert_eq!(program.run(&scratch, Mode::Plain).stdout(), "123456\n");
    }

    #[test]
    fn a_report_has_what_it_takes_to_do_it_again() {
        let scratch = Scratch::new("report");
        let outcome = sh("echo 'last words' >&2; exit 1").env("KEY", "a value").run(&scratch, Mode::Plain);
        let report = std::panic::catch_unwind(|| outcome.fail("why")).expect_err("a panic");
        let report = report.downcast_ref::<String>().expect("a text");
        for part in ["why\n", "Plain", "exit status 1", "KEY='a value' /bin/sh -c", "    | last words"] {
            assert!(report.contains(part), "{part:?} is not in:\n{report}");
        }
    }
}
