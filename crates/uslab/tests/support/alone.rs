//! Tests that need a process to themselves and must succeed in it.

use super::again::again;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One child at a time: each may take a gigabyte, and none may disturb another's figures.
static TURN: Mutex<()> = Mutex::new(());

/// The turn of a test that starts children itself.
#[allow(dead_code, reason = "not every test binary that has this module starts children itself")]
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` as the whole of the test `name` in a child process; shows what it printed, and fails if it failed.
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
