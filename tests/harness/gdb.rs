//! gdb with the script for uslab, in batch mode: on a process that it starts, or on a core.

use super::{Mode, Program, Scratch, tool};
use std::path::Path;

/// A gdb with commands for it.
pub struct Gdb {
    program: Program,
}

impl Gdb {
    /// On `file`, and on `core` if there is one.
    pub fn new(file: &Path, core: Option<&Path>) -> Gdb {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/uslab/gdb/uslab.py");
        // As little as possible of the machine's: no settings, no servers of debug information.
        let program = Program::new(tool("gdb", "gdb"))
            .args(["-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off"])
            .args(["-iex", "set disable-randomization off", "-iex", "set confirm off"])
            .arg(file)
            .args(core);
        let gdb = Gdb { program };
        gdb.command("set width 0").command(&format!("source {}", script.display()))
    }

    /// Adds a command.
    pub fn command(mut self, command: &str) -> Gdb {
        self.program = self.program.args(["-ex", command]);
        self
    }

    /// Adds commands that start the program, with this environment, and stop it in `function`.
    pub fn run_to(mut self, function: &str, environment: &[(&str, &str)]) -> Gdb {
        for (name, value) in environment {
            self = self.command(&format!("set environment {name} {value}"));
        }
        self.command("set breakpoint pending on").command(&format!("break {function}")).command("run")
    }

    /// Runs the commands; returns what they wrote. gdb's warnings are left out.
    ///
    /// # Panics
    /// If gdb ends with an error: if a command fails.
    pub fn output(self, scratch: &Scratch) -> String {
        let outcome = self.program.run_clean(scratch, Mode::Plain);
        outcome.expect(!outcome.stderr().contains("Python Exception"), "the script failed");
        outcome.stdout()
    }
}
