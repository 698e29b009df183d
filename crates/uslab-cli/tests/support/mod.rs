//! Support for the tests of the program: a private directory for each test, and a library that
//! stands in for the real one.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The program under test.
pub const USLAB: &str = env!("CARGO_BIN_EXE_uslab");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
const PATIENCE: Duration = Duration::from_secs(20);

/// Undoes what nohup, and a shell that starts in the background, have children inherit: signals
/// ignored from the start, which no shell can trap.
fn usual_signals() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        for which in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
            // SAFETY: the default action is no handler.
            unsafe { signal(which, SigHandler::SigDfl) }.expect("these may be set");
        }
    });
}

/// A directory of one test, removed at its end.
pub struct Sandbox {
    _directory: tempfile::TempDir,
    pub root: PathBuf,
    /// Where its processes publish.
    pub snapshots: PathBuf,
}

impl Sandbox {
    pub fn new() -> Self {
        usual_signals();
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let root = directory.path().to_owned();
        let snapshots = root.join("snapshots");
        fs::DirBuilder::new().mode(0o700).create(&snapshots).expect("a directory");
        Sandbox { _directory: directory, root, snapshots }
    }

    /// `uslab`, with the stand-in library and this sandbox's directory.
    pub fn uslab(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(USLAB);
        command.args(arguments).env("USLAB_LIB", library()).env("USLAB_SNAPSHOT", &self.snapshots);
        command.env_remove("LD_PRELOAD").env_remove("USLAB_RSEQ");
        command
    }

    /// `uslab run` of a shell script.
    pub fn run_script(&self, options: &[&str], script: &str) -> Command {
        let mut arguments = vec!["run"];
        arguments.extend(options);
        arguments.extend(["--", "sh", "-c", script]);
        self.uslab(&arguments)
    }

    /// Files in the snapshot directory.
    pub fn published(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.snapshots).expect("the directory");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
    }

    /// A snapshot that a process left, which is gone, under the name `name`.
    pub fn leave(&self, name: &str) {
        const PID_NAMESPACE: usize = 216;
        let gone = self.sleeper(&[]);
        let file = self.snapshots.join(gone.pid());
        let mut bytes = fs::read(&file).expect("a snapshot");
        drop(gone);
        fs::remove_file(file).expect("removed");
        let namespace = fs::metadata("/proc/self/ns/pid").expect("a namespace").ino();
        bytes[PID_NAMESPACE..][..8].copy_from_slice(&namespace.to_ne_bytes());
        fs::write(self.snapshots.join(name), bytes).expect("written");
    }

    /// A process that publishes, until it is dropped.
    pub fn sleeper(&self, variables: &[(&str, &str)]) -> Running {
        let child = self.uslab(&["run", "--", "sleep", "60"]).envs(variables.iter().copied()).spawn();
        let running = Running(child.expect("started"));
        let file = self.snapshots.join(running.pid());
        wait_until("it publishes", || fs::read(&file).is_ok_and(|bytes| bytes.starts_with(b"uslabsnp")));
        running
    }
}

/// A child that does not outlive its test.
pub struct Running(pub Child);

impl Running {
    /// Starts a command whose first line of output says that it is ready.
    pub fn start_ready(command: &mut Command) -> (Self, BufReader<std::process::ChildStdout>) {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("readable");
        assert_eq!(line, "ready\n");
        (Running(child), output)
    }

    pub fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Sends a line to a script that then executes sleep, and waits until it has.
    pub fn become_sleep(&mut self) {
        self.0.stdin.take().expect("a pipe").write_all(b"\n").expect("written");
        let name = format!("/proc/{}/comm", self.pid());
        wait_until("sleep runs", || fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n"));
    }

    /// Sends a signal by its name.
    pub fn kill(&self, signal: &str) {
        let status = Command::new("kill").args(["-s", signal, &self.pid()]).status().expect("kill");
        assert!(status.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The stand-in library, compiled once for each test file.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-{}.so", std::process::id()));
        let source = format!("{SOURCES}/fake_malloc.c");
        let flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", &source, "-o"];
        compile(&[&flags[..], &[library.to_str().expect("UTF-8")]].concat());
        library
    })
}

/// Runs the C compiler.
pub fn compile(arguments: &[&str]) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler).args(arguments).status().expect("a C compiler");
    assert!(status.success(), "{compiler} {arguments:?}");
}

/// Waits for something that happens in another process.
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Exit status, standard output and standard error of a command.
pub fn outcome(command: &mut Command) -> (i32, String, String) {
    loop {
        match command.output() {
            // A test on another thread forked while this one wrote a copy of the program.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                sleep(Duration::from_millis(5));
            }
            output => return texts(output.expect("started")),
        }
    }
}

pub fn texts(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("an exit status"), text(output.stdout), text(output.stderr))
}

/// Whether the test may change owners and users.
pub fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t0\t"))
}
