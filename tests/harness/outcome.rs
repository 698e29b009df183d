//! The outcome of a program: its status, its output, and the report of a failure.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::program::describe;
use super::{Mode, proof};

/// Bytes at the end of an output that a report shows.
const TAIL_BYTES: usize = 6000;

/// A program that has ended.
pub struct Outcome {
    pub(super) mode: Mode,
    pub(super) command_line: String,
    /// `None` if the harness killed the program.
    pub(super) status: Option<ExitStatus>,
    pub(super) wall: Duration,
    pub(super) stdout: PathBuf,
    pub(super) stderr: PathBuf,
    pub(super) snapshots: PathBuf,
    pub(super) pid: u32,
}

impl Outcome {
    /// Standard output as text.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// Standard error as text.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Seconds from start to end.
    pub fn wall_s(&self) -> f64 {
        self.wall.as_secs_f64()
    }

    /// The end in words: `exit status N`, `signal N` or `killed at its time limit`.
    pub fn ended(&self) -> String {
        describe(self.status)
    }

    /// Whether the program ended by itself with exit status 0.
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// Requires exit status 0 and the proof that the allocator served the program.
    ///
    /// # Panics
    /// With a full report otherwise.
    pub fn expect_clean(self) -> Outcome {
        if !self.succeeded() {
            self.fail("the program did not end cleanly");
        }
        self.expect_served()
    }

    /// Requires only the proof that the allocator was loaded, ran in the requested mode and
    /// reported no error.
    ///
    /// # Panics
    /// With a full report otherwise.
    pub fn expect_served(self) -> Outcome {
        match proof::check(self.mode, &self.stderr(), &self.snapshots, self.pid) {
            Ok(()) => self,
            Err(why) => self.fail(&why),
        }
    }

    /// Requires that `ok` is true.
    ///
    /// # Panics
    /// With a full report that starts with `why`, otherwise.
    pub fn expect(&self, ok: bool, why: &str) {
        if !ok {
            self.fail(why);
        }
    }

    /// Panics with a full report: status, outputs, and a command line that repeats the run.
    pub fn fail(&self, why: &str) -> ! {
        let mut report = format!("{why}\n");
        let _ = writeln!(report, "  mode      {:?}", self.mode);
        let _ = writeln!(report, "  ended     {} after {:.1} s", describe(self.status), self.wall_s());
        let _ = writeln!(report, "  again     {}", self.command_line);
        for (name, path) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let text = read(path);
            let _ = writeln!(report, "  {name}    {} ({} bytes)", path.display(), text.len());
            for line in tail(&text).lines() {
                let _ = writeln!(report, "    | {line}");
            }
        }
        panic!("{report}");
    }
}

/// Outputs need not be UTF-8: invalid bytes are replaced.
fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn tail(text: &str) -> &str {
    let mut from = text.len().saturating_sub(TAIL_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}
