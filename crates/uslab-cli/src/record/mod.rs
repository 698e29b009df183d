//! `uslab record`: the figures of a process over time, in a small file.
//!
//! ```text
//!   watch ── frame ──▶ format::Writer ──▶ FILE ──▶ format::Reader ──▶ report
//! ```

pub mod args;
pub mod counts;
pub mod format;
pub mod signals;
mod watch;

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

use crate::failure::{FAILED, Failure, Outcome, complain};
use crate::find::note_copies;
use crate::process;
use crate::text::{bytes, mode_name};
use args::Record;
use format::{FORMAT, Header, Writer};
use signals::Signals;
use watch::{Seen, Watch};

/// Time between two samples unless given.
const USUAL: Duration = Duration::from_secs(1);
/// The recorder may use one of so many parts of a CPU.
const CPU_DIVISOR: u32 = 1000;
/// A wait for the snapshot of a program that was just executed.
const SOON: Duration = Duration::from_millis(300);

/// Records a process until a signal, its end, or the time that was given.
pub fn record(options: &Record) -> Outcome {
    let (mut watch, snapshot) = Watch::start(options.pid, options.copy)?;
    note_copies(&snapshot, options.copy);
    let header = Header {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: snapshot.pid,
        command: process::command_name(options.pid).unwrap_or_else(|| "?".to_owned()),
        mode: mode_name(snapshot.mode).to_owned(),
        began_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64),
    };
    let path = &options.output;
    let broken =
        |error: io::Error| Failure::new(FAILED, format_args!("cannot write {}: {error}", path.display()));
    let signals = Signals::watch().map_err(broken)?;
    let is_new = !path.try_exists().unwrap_or(true);
    // A record with a sample is of use; a file without one is not.
    let broken_at_first = |error: io::Error| {
        if is_new {
            let _ = fs::remove_file(path);
        }
        broken(error)
    };
    let file = File::create(path).map_err(broken)?;
    let mut writer = Writer::new(file, &header).map_err(broken_at_first)?;
    let began = Instant::now();
    let mut samples: u64 = 0;
    let mut is_last = false;
    let reason = loop {
        let (turn, cpu) = (Instant::now(), cpu_time());
        let mut wait = options.every.unwrap_or(USUAL);
        match watch.sample() {
            Seen::Figures(frame) => {
                let event = frame.event.clone();
                let added = writer.add(frame);
                added.map_err(|error| if samples == 0 { broken_at_first(error) } else { broken(error) })?;
                samples += 1;
                if let Some(event) = event {
                    complain(&event);
                }
            }
            Seen::Nothing => wait = wait.min(SOON),
            Seen::End(frame) => {
                let reason = frame.event.clone();
                writer.add(frame).map_err(broken)?;
                break reason;
            }
        }
        if is_last {
            break None;
        }
        if options.every.is_none() {
            wait = wait.max((cpu_time().saturating_sub(cpu)).saturating_mul(CPU_DIVISOR));
        }
        let wait = wait.saturating_sub(turn.elapsed());
        let left = options.duration.map(|duration| duration.saturating_sub(began.elapsed()));
        let has_signal = signals.wait(left.map_or(wait, |left| left.min(wait)));
        // The record reaches to its end: one more sample.
        is_last = has_signal || left.is_some_and(|left| left <= wait);
    };
    let file = writer.finish().map_err(broken)?;
    if let Some(reason) = reason {
        complain(&reason);
    }
    complain(&summary(samples, began.elapsed(), path, &file));
    Ok(0)
}

fn summary(samples: u64, time: Duration, path: &Path, file: &File) -> String {
    let size = file.metadata().map_or(0, |data| data.len());
    let s = if samples == 1 { "" } else { "s" };
    format!("{samples} sample{s} in {:.1} s: {} in {}", time.as_secs_f64(), bytes(size), path.display())
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
