//! Starts one guest, reads its console, and ends it in time.
//!
//! The guest's first process writes a line `@vm JSON` for each program that has ended, and `@vm
//! off` at last. Programs' lines that are JSON objects are kept as results. QEMU always ends before
//! [`run`] returns: by itself, at its time limit, or when the user interrupts the command.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The start of each line of the first process.
const MARK: &str = "@vm ";
/// The interval at which interrupts are checked.
const LOOK: Duration = Duration::from_millis(200);

/// The outcome of a guest.
#[derive(Default, Debug)]
pub struct Outcome {
    /// The first process's report on each program.
    pub steps: Vec<Value>,
    /// JSON objects that programs wrote.
    pub results: Vec<Value>,
    /// It ended by itself.
    pub off: bool,
}

impl Outcome {
    /// Takes a line of the console in; true if a person should see it.
    fn take(&mut self, line: &str) -> bool {
        if let Some((_, told)) = line.split_once(MARK) {
            match serde_json::from_str(told) {
                Ok(step) => self.steps.push(step),
                Err(_) => self.off |= told == "off",
            }
            return false;
        }
        if line.starts_with('{')
            && let Ok(result) = serde_json::from_str(line)
        {
            self.results.push(result);
        }
        !line.is_empty()
    }
}

/// Catches the user's interrupts from the first call on: they end guests, and not this program.
pub fn interrupts() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Ends QEMU when it goes out of scope.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It fails if QEMU has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a guest to its end, for `limit` at most, showing what it writes.
pub fn run(command: &mut Command, limit: Duration, interrupted: &AtomicBool) -> Result<Outcome> {
    let begin = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut qemu = Running(command.spawn().context("cannot start QEMU")?);
    let console = qemu.0.stdout.take().context("QEMU has no output")?;
    let (sender, lines) = channel();
    // It ends with QEMU's output, which ends with QEMU.
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_string()).is_err() {
                break;
            }
        }
    });
    let mut outcome = Outcome::default();
    loop {
        match lines.recv_timeout(LOOK) {
            Ok(line) => {
                if outcome.take(&line) {
                    println!("  | {line}");
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if interrupted.load(Relaxed) {
            bail!("interrupted");
        }
        if begin.elapsed() > limit {
            bail!("the guest was still running after {} s", limit.as_secs());
        }
    }
    drop(qemu);
    if reader.join().is_err() {
        bail!("reading the guest's console failed");
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration, interrupted: bool) -> Result<Outcome> {
        run(Command::new("sh").args(["-c", script]), limit, &AtomicBool::new(interrupted))
    }

    #[test]
    fn what_programs_write_and_what_the_first_process_says_are_told_apart() {
        let script = r#"printf 'x@vm {"exit":0}\r\n{"hits":3}\n@vm off\n'"#;
        let outcome = shell(script, Duration::from_secs(60), false).unwrap();
        assert_eq!(outcome.steps[0]["exit"], 0);
        assert_eq!(outcome.results[0]["hits"], 3);
        assert!(outcome.off);
    }

    #[test]
    fn a_guest_ends_at_its_limit_and_when_interrupted() {
        let late = shell("exec sleep 1000", Duration::from_millis(100), false).unwrap_err();
        assert!(late.to_string().contains("still running"), "{late}");
        let interrupted = shell("exec sleep 1000", Duration::from_secs(900), true).unwrap_err();
        assert_eq!(interrupted.to_string(), "interrupted");
    }

    #[test]
    fn a_guest_that_dies_says_no_off() {
        assert!(!shell("echo panic", Duration::from_secs(60), false).unwrap().off);
    }
}
