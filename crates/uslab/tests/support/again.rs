//! Runs one test of this binary again in a process of its own: for tests that end a process, and
//! for figures of a whole process.
//!
//! The test calls [`again`] first. In the test run that call starts this binary for that one test
//! and returns its output. In the started process it returns `None`, and the test continues with
//! its body.

use std::process::{Command, Output};

/// Environment variable that names, in the child, the test to run.
const CHILD: &str = "USLAB_TEST_CHILD";

/// Runs the test `name` of this binary in a child with `environment` added, to its end; `None` in
/// that child.
pub fn again(name: &str, environment: &[(&str, &str)]) -> Option<Output> {
    if std::env::var_os(CHILD).is_some_and(|child| child == name) {
        return None;
    }
    let binary = std::env::current_exe().expect("the test binary has a path");
    let mut command = Command::new(binary);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, name);
    // Variables of the developer's shell must not affect a test.
    command.env_remove("USLAB_ON_MISUSE").env_remove("USLAB_CPU_BYTES").env_remove("USLAB_SNAPSHOT");
    command.envs(environment.iter().copied());
    Some(command.output().expect("the test binary starts"))
}
