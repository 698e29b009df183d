//! Asks a running process for something, by its snapshot's file, and waits for the answer.
//!
//! ```text
//!   lock the file ─▶ write 0, text and deadline, and the number ─▶ read until it is answered
//! ```
//!
//! The process looks for a request on its background thread, about twice a second. It takes up none
//! whose deadline has passed, so an interrupted command leaves nothing behind that happens later.
//!
//! As for snapshots, the file is never mapped, and nothing in it is trusted: answers are text, made
//! safe to print.

pub mod args;
pub mod profile;

use std::fs::{File, TryLockError};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::failure::{FAILED, Failure, NOT_VALIDATED, Outcome, print};
use crate::find::{Found, find_open};
use crate::layout::{
    self, ANSWER_OFFSET, ANSWER_TEXT_BYTES, Answer, REQUEST_OFFSET, REQUEST_TEXT_BYTES, Request,
};
use crate::process::{self, printable};
use crate::snapshot::Snapshot;

use args::{Asked, Debug, Limit, Shrink, Validate};

/// Time for the work itself.
const WORK: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(10);

/// The answer of a process.
struct Answered {
    outcome: u32,
    text: String,
    /// Holds the lock: no other command asks before this is dropped.
    _locked: File,
}

/// `uslab validate`.
pub fn validate(options: &Validate) -> Outcome {
    let answered = ask(&options.asked, layout::VERB_VALIDATE, [0; 2], "");
    // Status 1 means that the structures are not valid.
    let answered = answered.and_then(Answered::allowed);
    let answered = answered.map_err(|failure| Failure { code: NOT_VALIDATED, ..failure })?;
    if answered.outcome == layout::OUTCOME_FAULTY {
        return Err(Failure::new(FAILED, format_args!("not valid: {}", answered.text)));
    }
    let printed = print(format!("valid: {}\n", answered.text));
    printed.map_err(|failure| Failure { code: NOT_VALIDATED, ..failure })
}

/// `uslab debug`.
pub fn debug(options: &Debug) -> Outcome {
    let text = format!("{},{}", options.letters, options.cache);
    let answered = ask(&options.asked, layout::VERB_DEBUG, [0; 2], &text)?;
    show(answered)
}

/// `uslab shrink`.
pub fn shrink(options: &Shrink) -> Outcome {
    show(ask(&options.asked, layout::VERB_SHRINK, [0; 2], options.cache.as_deref().unwrap_or(""))?)
}

/// `uslab limit`.
pub fn limit(options: &Limit) -> Outcome {
    show(ask(&options.asked, layout::VERB_LIMIT, [options.soft, options.hard], "")?)
}

fn show(answered: Answered) -> Outcome {
    print(format!("{}\n", answered.allowed()?.text))
}

impl Answered {
    /// The answer, unless it is a refusal.
    fn allowed(self) -> Result<Answered, Failure> {
        match self.outcome {
            layout::OUTCOME_DONE | layout::OUTCOME_FAULTY => Ok(self),
            _ => Err(Failure::new(FAILED, format_args!("refused: {}", self.text))),
        }
    }
}

/// Asks a process, and returns its answer.
fn ask(asked: &Asked, verb: u32, values: [u64; 2], text: &str) -> Result<Answered, Failure> {
    let &Asked { pid, timeout, copy } = asked;
    let fail = |line: String| Failure::new(FAILED, line);
    if text.len() >= REQUEST_TEXT_BYTES || text.contains('\0') {
        return Err(fail(format!("the names are longer than {} bytes", REQUEST_TEXT_BYTES - 1)));
    }
    let Found { file, snapshot, path, .. } = find_open(pid, copy, true)?;
    if snapshot.finished {
        return Err(fail(format!("{} has ended", process::described(pid))));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if process::has_mapped(pid, &file, &name) == Some(false) {
        let who = process::described(pid);
        return Err(fail(format!("{who} has executed another program, which does not run under uslab")));
    }
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if start.elapsed() < timeout => sleep(PAUSE),
            Err(TryLockError::WouldBlock) => {
                return Err(fail(format!("another command asks {} at the moment", process::described(pid))));
            }
            Err(TryLockError::Error(error)) => {
                return Err(fail(format!("cannot lock the snapshot: {error}")));
            }
        }
    }
    let broken = |error: io::Error| fail(format!("cannot use the snapshot of process {pid}: {error}"));
    let number = send(&file, timeout, verb, values, text).map_err(broken)?;
    let start = Instant::now();
    loop {
        if answer_word(&file, offset_of!(Answer, answered)).map_err(broken)? == number {
            return answer(file).map_err(broken);
        }
        if !process::runs(pid) {
            return Err(fail(format!("process {pid} ended before it answered")));
        }
        let is_at_work = answer_word(&file, offset_of!(Answer, accepted)).map_err(broken)? == number;
        // Perhaps the process took the request up just before the deadline, and answers after this
        // test.
        let patience = timeout + if is_at_work { WORK } else { 10 * PAUSE };
        if start.elapsed() > patience {
            return Err(fail(if is_at_work {
                format!("{} is still at work after {} s", process::described(pid), patience.as_secs())
            } else {
                unanswered(&snapshot, timeout)
            }));
        }
        sleep(PAUSE);
    }
}

/// The reason for which no answer came, as far as it can be known.
fn unanswered(snapshot: &Snapshot, timeout: Duration) -> String {
    let pid = i32::try_from(snapshot.pid).unwrap_or(0);
    let who = process::described(pid);
    let seconds = timeout.as_secs_f64();
    if snapshot.copies > 1 {
        // The thread may be another copy's.
        return format!(
            "{who} did not answer within {seconds} s: copy {} of the library has no background thread (it \
             allocated nothing meanwhile), or the process is stopped or busy",
            snapshot.copy
        );
    }
    match process::has_thread(pid, "uslab-reaper") {
        Some(false) => format!(
            "{who} did not answer within {seconds} s: it has no background thread (it allocated nothing \
             meanwhile, or runs with USLAB_REAPER=0)"
        ),
        _ => format!("{who} did not answer within {seconds} s: it is stopped, or busy with another request"),
    }
}

/// Writes the request; returns its number.
fn send(file: &File, timeout: Duration, verb: u32, values: [u64; 2], text: &str) -> io::Result<u32> {
    let write = |place: usize, bytes: &[u8]| file.write_all_at(bytes, (REQUEST_OFFSET + place) as u64);
    let mut number = [0; size_of::<u32>()];
    file.read_exact_at(&mut number, (REQUEST_OFFSET + offset_of!(Request, number)) as u64)?;
    let accepted = answer_word(file, offset_of!(Answer, accepted))?;
    // Neither that of the request before, which may have gone unanswered, nor 0, which is none.
    let number =
        [u32::from_ne_bytes(number), accepted].iter().max().map_or(1, |last| last.wrapping_add(1)).max(1);
    let deadline_ns = process::boot_ns().saturating_add(timeout.as_nanos() as u64);
    let mut padded = [0; REQUEST_TEXT_BYTES];
    padded[..text.len()].copy_from_slice(text.as_bytes());
    // No request, while its parts change.
    write(offset_of!(Request, number), &[0; size_of::<u32>()])?;
    write(offset_of!(Request, verb), &verb.to_ne_bytes())?;
    write(offset_of!(Request, deadline_ns), &deadline_ns.to_ne_bytes())?;
    for (n, value) in values.into_iter().enumerate() {
        write(offset_of!(Request, values) + n * size_of::<u64>(), &value.to_ne_bytes())?;
    }
    write(offset_of!(Request, text), &padded)?;
    write(offset_of!(Request, number), &number.to_ne_bytes())?;
    Ok(number)
}

/// A word of the answer.
fn answer_word(file: &File, place: usize) -> io::Result<u32> {
    let mut word = [0; size_of::<u32>()];
    file.read_exact_at(&mut word, (ANSWER_OFFSET + place) as u64)?;
    Ok(u32::from_ne_bytes(word))
}

fn answer(file: File) -> io::Result<Answered> {
    let mut text = [0; ANSWER_TEXT_BYTES];
    file.read_exact_at(&mut text, (ANSWER_OFFSET + offset_of!(Answer, text)) as u64)?;
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let outcome = answer_word(&file, offset_of!(Answer, outcome))?;
    Ok(Answered { outcome, text: printable(&String::from_utf8_lossy(text)), _locked: file })
}
