//! A test of this binary, started again as a process of its own that others watch.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};

/// The process. It ends with the test that started it.
pub struct Running {
    child: Child,
    /// What the process writes after `ready`, which no one reads.
    _errors: BufReader<ChildStderr>,
}

impl Running {
    /// Starts `run`, and waits for the line `ready` on its standard error: the harness of tests
    /// keeps standard output.
    pub fn start(run: &mut Command) -> Running {
        run.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = run.spawn().expect("started");
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        while !line.ends_with("ready\n") {
            line.clear();
            assert!(errors.read_line(&mut line).expect("readable") > 0, "the program ended");
        }
        Running { child, _errors: errors }
    }

    /// Ends the process's input, and waits for its end.
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("ended").success());
    }

    /// The process's number, as a command takes it.
    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
