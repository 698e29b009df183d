//! `uslab profile`: which call stacks allocated the memory of a process, in the formats that tools
//! read.
//!
//! ```text
//!   ask::profile ──▶ dump ──▶ symbols ──▶ heap ──▶ text, pprof, jeprof, folded
//!                                pprof ──▶
//! ```
//!
//! The process counts, and writes addresses. Everything else happens here: names, source lines and
//! build ids come from the files that it has mapped.

pub mod args;
mod damage;
pub mod dump;
pub mod heap;
mod pprof;
mod symbols;
pub mod text;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use crate::ask;
use crate::ask::args::Asked;
use crate::failure::{FAILED, Failure, Outcome, complain, print};
use crate::record::signals::Signals;
use crate::{input, output, process};
use args::{Format, Profile};
use heap::Heap;

/// The first bytes of gzip (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A profile, and the text of the process if it came from there.
struct Loaded {
    heap: Heap,
    dump: Option<String>,
}

/// Starts, stops or shows a profile.
pub fn profile(options: &Profile) -> Outcome {
    if options.start || options.stop {
        let text = if options.stop { "stop".to_owned() } else { start(options) };
        return print(format!("{}\n", ask::profile::request(&asked(options)?, &text)?));
    }
    let is_pprof = options.output.is_some();
    let format = options.format.unwrap_or(if is_pprof { Format::Pprof } else { Format::Text });
    let output = options.output.as_deref().filter(|file| !output::is_standard_output(file));
    // Dumps have bytes that the process chose.
    let is_raw = matches!(format, Format::Pprof | Format::Jeprof | Format::Dump);
    if is_raw && output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::new(FAILED, "this format is not for a terminal: name a file with -o"));
    }
    // Sampling may take minutes.
    if let Some(file) = output {
        output::check(file).map_err(|error| cannot_write(file, &error))?;
    }
    let loaded = match (&options.diff, &options.from) {
        (Some(files), _) => {
            let (before, after) = (load(&files[0])?, load(&files[1])?);
            Loaded { heap: after.since(&before), dump: None }
        }
        (None, Some(file)) => open(file)?,
        (None, None) => from_process(options)?,
    };
    let bytes = written(&loaded, format)?;
    match output {
        None => print(bytes),
        Some(file) => output::write(file, &bytes).map(|()| 0).map_err(|error| cannot_write(file, &error)),
    }
}

fn cannot_write(file: &Path, error: &io::Error) -> Failure {
    Failure::new(FAILED, format_args!("cannot write {}: {error}", file.display()))
}

fn written(loaded: &Loaded, format: Format) -> Result<Vec<u8>, Failure> {
    let heap = &loaded.heap;
    let maps = || {
        let dump = loaded.dump.as_deref().ok_or_else(|| {
            Failure::new(FAILED, "this format needs the process's own text: use a process, or a dump of one")
        })?;
        Ok((dump, dump.split_once("\nmaps\n").map_or("", |(_, maps)| maps)))
    };
    Ok(match format {
        Format::Text => text::text(heap).into_bytes(),
        Format::Pprof => pprof::encode(heap),
        Format::Folded => text::folded(heap).into_bytes(),
        Format::Jeprof => text::jeprof(heap, maps()?.1).into_bytes(),
        Format::Dump => maps()?.0.as_bytes().to_vec(),
    })
}

fn start(options: &Profile) -> String {
    format!("start {}", options.period)
}

fn asked(options: &Profile) -> Result<Asked, Failure> {
    let pid = options.pid.ok_or_else(|| Failure::new(FAILED, "name a process"))?;
    Ok(Asked { pid, copy: options.copy, timeout: options.timeout })
}

/// The profile of a running process; with a duration, sampling is on for that time, or until a
/// signal ends it.
fn from_process(options: &Profile) -> Result<Loaded, Failure> {
    let asked = asked(options)?;
    let fail = |reason| Failure::new(FAILED, format_args!("cannot use the profile: {reason}"));
    let Some(duration) = options.duration else {
        return parsed(ask::profile::dump(&asked)?, options.pid).map_err(fail);
    };
    // A signal that came earlier, or is not caught, would leave sampling on.
    let signals = Signals::watch()
        .map_err(|error| Failure::new(FAILED, format_args!("cannot watch for signals: {error}")))?;
    ask::profile::request(&asked, &start(options))?;
    complain(&format!("sampling for {:.0} s, or until Ctrl-C", duration.as_secs_f64().max(1.0)));
    signals.wait(duration.max(Duration::from_millis(1)));
    let text = ask::profile::dump(&asked);
    let stopped = ask::profile::request(&asked, "stop");
    // To name functions may take seconds, in which a signal ends the command.
    drop(signals);
    if let Err(failure) = &stopped
        && process::runs(asked.pid)
    {
        let reason = &failure.message;
        complain(&format!("sampling may be on; `uslab profile {} --stop` ends it: {reason}", asked.pid));
    }
    parsed(text?, options.pid).map_err(fail)
}

/// The profile of a text. In a container the process has another id than the one that it writes.
fn parsed(text: String, pid: Option<i32>) -> Result<Loaded, String> {
    let mut heap = dump::parse(&text)?;
    heap.pid = pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(heap.pid);
    symbols::resolve(&mut heap);
    heap.check_size()?;
    Ok(Loaded { heap, dump: Some(text) })
}

/// Reads a profile from a file, in the format of pprof or of a process.
pub fn load(file: &Path) -> Result<Heap, Failure> {
    Ok(open(file)?.heap)
}

fn open(file: &Path) -> Result<Loaded, Failure> {
    let fail = |reason: String| Failure::new(FAILED, format_args!("cannot use {}: {reason}", file.display()));
    let bytes = input::read(file, input::MAX_BYTES).map_err(|error| fail(error.to_string()))?;
    if bytes.starts_with(&GZIP) {
        let heap = pprof::decode(&bytes[..]).map_err(|error| fail(error.to_string()))?;
        heap.check_size().map_err(fail)?;
        return Ok(Loaded { heap, dump: None });
    }
    parsed(String::from_utf8_lossy(&bytes).into_owned(), None).map_err(fail)
}
