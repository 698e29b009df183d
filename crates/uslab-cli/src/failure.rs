//! How commands fail: one line for the user and an exit status for the shell.
//!
//! `uslab run` stands between a shell and a program, so its statuses follow env(1), nice(1) and
//! timeout(1): what the program returns is passed on, and what `uslab` itself could not do has
//! numbers of its own.

use std::fmt;
use std::io::{self, Write};

use crate::process::printable;

/// A command did not do what was asked.
pub const FAILED: u8 = 1;
/// `uslab validate` could not have the process checked.
pub const NOT_VALIDATED: u8 = 3;
/// `uslab run` could not do its own part: before the program was started, or write `--stats-json`.
pub const RUN_FAILED: u8 = 125;
/// The program was found and could not be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;

/// Why a command ends early.
#[derive(Debug)]
pub struct Failure {
    /// Exit status.
    pub code: u8,
    /// One line, without the program's name and without a full stop.
    pub message: String,
}

/// The result of a command: its exit status, or a failure.
pub type Outcome = Result<u8, Failure>;

impl Failure {
    /// A failure with this exit status and line.
    pub fn new(code: u8, message: impl fmt::Display) -> Self {
        Failure { code, message: message.to_string() }
    }
}

/// Writes one line to standard error, safe to print: it may contain paths that another process
/// chose. A closed standard error is no reason to fail, or to panic as `eprintln!` does.
pub fn complain(line: &str) {
    note(&format!("uslab: {}\n", printable(line)));
}

/// Writes text to standard error in one piece, so that it does not mix with what other processes
/// write there.
pub fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Writes text, or bytes, to standard output. A reader that has seen enough (`uslab info 7 | head
/// -1`) is not an error.
pub fn print(text: impl AsRef<[u8]>) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(FAILED, format_args!("cannot write to standard output: {error}")))
        }
        _ => Ok(0),
    }
}
