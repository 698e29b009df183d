//! Runs tests that need a process of their own and must succeed in it.

use super::again::again;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One child runs at a time: each may take a gigabyte, and must not disturb another's figures.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for the turn of a test that starts children itself.
#[allow(dead_code, reason = "some test binaries with this module start no children themselves")]
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` as the test `name` in a child process. Prints its output, and fails if it failed.
pub fn alone(name: &str, body: impl FnOnce()) {
    let turn = turn();
    let Some(output) = again(name, &[]) else { return body() };
    drop(turn);
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (shown(&output.stdout), shown(&output.stderr));
    for line in stdout.lines().filter(|line| line.contains(": ")) {
        println!("{line}");
    }
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
}
