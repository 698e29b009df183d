//! `uslab record`: the figures of a process over time, in a small file.
//!
//! ```text
//!   watch ── frame ──▶ format::Writer ──▶ FILE ──▶ format::Reader ──▶ report
//! ```

pub mod args;
pub mod counts;
pub mod format;
mod watch;

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::failure::{FAILED, Failure, Outcome, complain};
use crate::find::note_copies;
use crate::process;
use crate::text::{bytes, mode_name};
use args::Record;
use format::{FORMAT, Header, Writer};
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
    let signals = signals().map_err(broken)?;
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
        match signals.recv_timeout(left.map_or(wait, |left| left.min(wait))) {
            Err(RecvTimeoutError::Timeout) if left.is_none_or(|left| left > wait) => {}
            // The record reaches to its end: one more sample.
            _ => is_last = true,
        }
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

/// A second Ctrl-C within this time is the first one, passed on by another program.
const SAME: Duration = Duration::from_millis(500);

/// A message for the first signal that ends the command, which from now on does not end it at once.
/// A second Ctrl-C does, while there is a receiver: what the first signal began may hang.
pub fn signals() -> io::Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let (sender, receiver) = channel();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut first = None;
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                break;
            }
            let first: &Instant = first.get_or_insert_with(Instant::now);
            if signal == SIGINT && first.elapsed() > SAME {
                let _ = emulate_default_handler(signal);
            }
        }
    })?;
    Ok(receiver)
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
