//! Running one test of this binary once more, in a process of its own: for tests of what ends a process, and of
//! figures that belong to a whole process.
//!
//! The test calls [`again`] first. In the test run it starts this binary for that one test and hands back what
//! came out; in the process that it started it answers `None`, and the test goes on with what is to be tested.

use std::process::{Command, Output};

/// Names, in the child, the test that it was started for.
const CHILD: &str = "USLAB_TEST_CHILD";

/// Runs the test `name` of this binary in a child with `environment` added, to its end; `None` in that child.
pub fn again(name: &str, environment: &[(&str, &str)]) -> Option<Output> {
    if std::env::var_os(CHILD).is_some_and(|child| child == name) {
        return None;
    }
    let binary = std::env::current_exe().expect("the test binary has a path");
    let mut command = Command::new(binary);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, name);
    // What a developer's shell may hold must not decide a test.
    command.env_remove("USLAB_ON_MISUSE").env_remove("USLAB_CPU_BYTES").env_remove("USLAB_SNAPSHOT");
    command.envs(environment.iter().copied());
    Some(command.output().expect("the test binary starts"))
}
