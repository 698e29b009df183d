//! What a program did: its status and its output, and the report when that is not what was asked for.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::program::describe;
use super::{Mode, proof};

/// Bytes of an output's end that a report shows.
const TAIL_BYTES: usize = 6000;

/// A program that has ended.
pub struct Outcome {
    pub(super) mode: Mode,
    pub(super) command_line: String,
    /// `None` if it had to be killed.
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

    /// How it ended: `exit status N`, `signal N` or `killed at its time limit`.
    pub fn ended(&self) -> String {
        describe(self.status)
    }

    /// It ended by itself with exit status 0.
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// Asks for exit status 0 and for the proof that the allocator served it.
    ///
    /// # Panics
    /// With a full report if it is otherwise.
    pub fn expect_clean(self) -> Outcome {
        if !self.succeeded() {
            self.fail("the program did not end cleanly");
        }
        self.expect_served()
    }

    /// Asks only for the proof that the allocator was loaded, ran in the mode asked for and had no complaint.
    ///
    /// # Panics
    /// With a full report if it is otherwise.
    pub fn expect_served(self) -> Outcome {
        match proof::check(self.mode, &self.stderr(), &self.snapshots, self.pid) {
            Ok(()) => self,
            Err(why) => self.fail(&why),
        }
    }

    /// Asks that `ok` holds.
    ///
    /// # Panics
    /// With a full report, `why` at its head, if it does not.
    pub fn expect(&self, ok: bool, why: &str) {
        if !ok {
            self.fail(why);
        }
    }

    /// Panics with everything that is needed to see what happened and to do it again.
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

/// Outputs need not be UTF-8: what is not is replaced, for reading and comparing alike.
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
