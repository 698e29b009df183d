//! Requests of other processes, which the background thread serves.
//!
//! ```text
//!   uslab validate PID ─ text, then number ─▶ Request ─ polled ─▶ serve
//!                      ◀─ text ────────────── Answer  ◀─ number, last
//! ```
//!
//! Both structures lie in the file of the snapshot ([`counters::layout`]). It can be written by the
//! user whom it belongs to and by root alone, and these can do more by other means (ptrace). All
//! the same, the process trusts nothing in it: it copies the text once, and checks it like a
//! variable of the environment.
//!
//! A process that publishes nothing has no file, and so gets no requests. That is so for a program
//! with gained privileges, too. A process without a background thread starts one for a request, in
//! the slow path of the program's next allocation, unless `USLAB_REAPER=0` forbids that.
//!
//! A request never blocks the program, except at the locks that the same call inside it would take.

use super::validate::validate;
use super::{hooks, registry, switch, trim};
use crate::counters::{self, Changer, Places as Text, layout};
use crate::os;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};
use layout::{OUTCOME_DONE, OUTCOME_FAULTY, OUTCOME_REFUSED, REQUEST_TEXT_BYTES};

/// Whether another process asked for something, and waits.
#[inline]
pub(crate) fn is_pending() -> bool {
    let (request, answer) = counters::request();
    let number = request.number.load(Relaxed);
    number != 0 && number != answer.accepted.load(Relaxed) && is_own_file()
}

/// Whether the file is this process's. The child of a raw `clone` or `fork` still has the file of
/// its parent, whose requests are none of its own.
#[cold]
fn is_own_file() -> bool {
    counters::header().pid.load(Relaxed) == os::file::process_id()
}

/// The function that the idle background thread calls from time to time; `None` where no request
/// can come.
pub(crate) fn pending_check() -> Option<fn() -> bool> {
    counters::is_published().then_some(is_pending)
}

/// Moves what other threads counted while the figures moved to the file.
fn settle() {
    if counters::is_moving() {
        let _registry = registry::lock();
        counters::settle();
    }
}

/// Serves a request, if there is one. The background thread calls it, with no lock held.
pub(crate) fn serve() {
    settle();
    if is_pending() {
        // Checks read memory of the program, which may hide it behind a handler of faults.
        os::signal::with_faults(serve_pending);
    }
}

fn serve_pending() {
    let (request, answer) = counters::request();
    let number = request.number.load(Acquire);
    let mut text = [0; REQUEST_TEXT_BYTES];
    text.iter_mut().zip(&request.text).for_each(|(to, from)| *to = from.load(Relaxed));
    let text = text.split(|&byte| byte == 0).next().unwrap_or(&[]);
    let values = request.values.each_ref().map(|value| value.load(Relaxed));
    let verb = request.verb.load(Relaxed);
    let is_late = os::clock::boot_ns() >= request.deadline_ns.load(Relaxed);
    fence(Acquire);
    if request.number.load(Relaxed) != number {
        // Another request took its place meanwhile, and is served at the next tick.
        return;
    }
    answer.accepted.store(number, Release);
    let mut out = Text::new(&answer.text);
    let outcome = if is_late {
        refuse(&mut out, &"its time is over")
    } else {
        match verb {
            layout::VERB_VALIDATE => check(&mut out),
            layout::VERB_DEBUG => debug(text, &mut out),
            layout::VERB_SHRINK => shrink(text, &mut out),
            layout::VERB_LIMIT => limit(values, &mut out),
            layout::VERB_PROFILE => profile(text, &mut out),
            _ => refuse(&mut out, &"this version of the library does not know the request"),
        }
    };
    out.end();
    answer.outcome.store(outcome, Relaxed);
    answer.answered.store(number, Release);
}

fn say(out: &mut Text<'_>, outcome: u32, text: fmt::Arguments<'_>) -> u32 {
    // A text that is too long is cut.
    let _ = out.write_fmt(text);
    outcome
}

fn refuse(out: &mut Text<'_>, why: &dyn fmt::Display) -> u32 {
    say(out, OUTCOME_REFUSED, format_args!("{why}"))
}

fn check(out: &mut Text<'_>) -> u32 {
    match validate() {
        Err(invalid) => say(out, OUTCOME_FAULTY, format_args!("{invalid}")),
        Ok(summary) if summary.faulty_objects > 0 => {
            let objects = summary.faulty_objects;
            say(out, OUTCOME_FAULTY, format_args!("the program overwrote {objects} objects: see its reports"))
        }
        Ok(summary) => say(out, OUTCOME_DONE, format_args!("{summary}")),
    }
}

fn debug(text: &[u8], out: &mut Text<'_>) -> u32 {
    let switched = match switch::switch(text) {
        Ok(switched) => switched,
        Err(refusal) => return refuse(out, &refusal),
    };
    counters::note_change("debug", Changer::Request, format_args!("{}", text.escape_ascii()));
    let plural = if switched == 1 { "" } else { "s" };
    match switch::first_unknown(text) {
        None => say(out, OUTCOME_DONE, format_args!("switched {switched} cache{plural}")),
        Some(name) => {
            let name = name.escape_ascii();
            say(out, OUTCOME_DONE, format_args!("switched {switched} cache{plural}; none is called {name}"))
        }
    }
}

fn shrink(name: &[u8], out: &mut Text<'_>) -> u32 {
    if name.is_empty() {
        return say(out, OUTCOME_DONE, format_args!("{} bytes released", trim::trim(0)));
    }
    match trim::trim_named(name) {
        Some(bytes) => say(out, OUTCOME_DONE, format_args!("{bytes} bytes released")),
        None => refuse(out, &"no cache has that name"),
    }
}

fn limit([soft_bytes, hard_bytes]: [u64; 2], out: &mut Text<'_>) -> u32 {
    match (hooks::get().set_limit)(soft_bytes as usize, hard_bytes as usize) {
        Ok(()) => {
            say(out, OUTCOME_DONE, format_args!("limits set: {soft_bytes} bytes soft, {hard_bytes} hard"))
        }
        Err(reason) => refuse(out, &reason),
    }
}

/// The functions of the heap profile, which lies above this layer. An error is the reason for a
/// refusal.
pub(crate) struct Profiler {
    /// Starts to sample, with so many bytes from one sample to the next; 0 is the default.
    pub start: fn(usize) -> Result<&'static str, &'static str>,
    /// Takes no more samples.
    pub stop: fn() -> Result<&'static str, &'static str>,
    /// Writes the profile to a descriptor; the error is `errno`, or -1 if none was started.
    pub write: fn(i32) -> Result<(), i32>,
}

static PROFILER: AtomicPtr<Profiler> = AtomicPtr::new(core::ptr::null_mut());

/// Lets requests reach the heap profile, from the first allocation of a size class on.
pub(crate) fn install_profiler(profiler: &'static Profiler) {
    PROFILER.store(core::ptr::from_ref(profiler).cast_mut(), Release);
}

fn profile(text: &[u8], out: &mut Text<'_>) -> u32 {
    // SAFETY: null, or a table that lives for ever.
    let profiler = unsafe { PROFILER.load(Acquire).as_ref() };
    let result = match (profiler, core::str::from_utf8(text)) {
        (None, _) => Err("the process has not allocated by malloc yet"),
        (Some(profiler), Ok("stop")) => (profiler.stop)()
            .inspect(|_| counters::note_change("profile", Changer::Request, format_args!("off"))),
        (Some(profiler), Ok("dump")) => write_profile(profiler),
        (Some(profiler), Ok(text)) => match text.strip_prefix("start ").map(str::parse) {
            Some(Ok(period_bytes)) => (profiler.start)(period_bytes).inspect(|_| {
                counters::note_change("profile", Changer::Request, format_args!("{period_bytes}"));
            }),
            _ => Err("it is neither start and a number of bytes, nor stop, nor dump"),
        },
        (Some(_), Err(_)) => Err("it is not text"),
    };
    match result {
        Ok(text) => say(out, OUTCOME_DONE, format_args!("{text}")),
        Err(reason) => refuse(out, &reason),
    }
}

fn write_profile(profiler: &'static Profiler) -> Result<&'static str, &'static str> {
    match counters::write_beside(".profile", profiler.write) {
        Ok(()) => Ok("the profile is written"),
        Err(-1) => Err("no heap profile was started"),
        Err(_) => Err("the profile cannot be written to the snapshot's directory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheBuilder;
    use core::sync::atomic::AtomicU32;
    use std::string::String;
    use std::sync::{Mutex, PoisonError};

    /// One test at a time asks.
    static TURN: Mutex<()> = Mutex::new(());

    /// Asks as the command does, and returns the answer.
    fn ask(verb: u32, values: [u64; 2], asked: &str) -> (u32, String) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (request, answer) = counters::request();
        request.verb.store(verb, Relaxed);
        request.deadline_ns.store(os::clock::boot_ns() + 1_000_000_000, Relaxed);
        request.values.iter().zip(values).for_each(|(place, value)| place.store(value, Relaxed));
        let bytes = asked.bytes().chain(core::iter::repeat(0));
        request.text.iter().zip(bytes).for_each(|(place, byte)| place.store(byte, Relaxed));
        let number = NUMBER.fetch_add(1, Relaxed) + 1;
        request.number.store(number, Release);
        // The background thread of this process may be faster.
        serve();
        while answer.answered.load(Acquire) != number {
            std::thread::yield_now();
        }
        let text: std::vec::Vec<u8> =
            answer.text.iter().map(|byte| byte.load(Relaxed)).take_while(|&byte| byte != 0).collect();
        (answer.outcome.load(Relaxed), String::from_utf8(text).expect("UTF-8"))
    }

    #[test]
    fn each_request_gets_one_answer() {
        let cache = CacheBuilder::new("asked").build_raw(72).expect("there is memory");
        let object = cache.alloc().expect("there is memory");
        assert_eq!(ask(layout::VERB_DEBUG, [0; 2], "F,asked"), (OUTCOME_DONE, "switched 1 cache".into()));
        assert!(cache.core().late.is_on());
        let told = (OUTCOME_DONE, "switched 1 cache; none is called no*".into());
        assert_eq!(ask(layout::VERB_DEBUG, [0; 2], "-,ask*,no*,asked"), told);
        // SAFETY: just allocated.
        unsafe { cache.free(object) };
        let (outcome, text) = ask(layout::VERB_SHRINK, [0; 2], "asked");
        assert!(outcome == OUTCOME_DONE && text.ends_with(" bytes released"), "{text}");
        let (outcome, text) = ask(layout::VERB_DEBUG, [0; 2], "Q,asked");
        assert!(outcome == OUTCOME_REFUSED && text.starts_with("column 1: "), "{text}");
        assert_eq!(ask(layout::VERB_SHRINK, [0; 2], "nowhere").0, OUTCOME_REFUSED);
        assert_eq!(ask(99, [0; 2], "").0, OUTCOME_REFUSED);
        assert_eq!(ask(layout::VERB_LIMIT, [2, 1], "").0, OUTCOME_REFUSED);
        // As long as the place, without an end.
        assert_eq!(ask(layout::VERB_SHRINK, [0; 2], &"x".repeat(300)).0, OUTCOME_REFUSED);
    }

    #[test]
    fn a_request_that_is_too_late_is_not_served() {
        set_up!();
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (request, answer) = counters::request();
        request.verb.store(layout::VERB_SHRINK, Relaxed);
        request.deadline_ns.store(os::clock::boot_ns(), Relaxed);
        let number = request.number.load(Relaxed) ^ 1 << 31;
        request.number.store(number, Relaxed);
        serve();
        while answer.answered.load(Acquire) != number {
            std::thread::yield_now();
        }
        assert_eq!(answer.outcome.load(Relaxed), OUTCOME_REFUSED);
    }
}
