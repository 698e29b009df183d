//! Stalls: one descriptor that becomes ready when threads wait for memory, and its successors.
//!
//! ```text
//!   the service manager's source ─▶ memory.pressure of the own cgroup ─▶ of each one above it
//!                                ─▶ /proc/pressure/memory             ─▶ none
//! ```
//!
//! The kernel's files take a threshold of stalled time in a window. They are ready (POLLPRI) when
//! it is passed, at most once a window. When a source ends, the next one in the row is opened. Two
//! losses are no end: a pipe whose last writer has left is opened again, and so is a descriptor
//! that the program has closed (daemons close all descriptors).
//!
//! A source reports at most ten times a second, and opens a descriptor at most ten times a second.

use super::context::Context;
use super::pressure::Kind;
use super::reason::Reason;
use crate::os::path::Path;
use crate::os::pressure::{Descriptor, Event, Form, State, is_without_descriptors};
use crate::os::report;
use core::fmt;

/// 150 ms of stall in 2 s: below systemd's default of 200 ms, so that caches are asked first.
/// Windows of 2 s need no privilege.
const TRIGGER: &[u8] = b"some 150000 2000000\0";
/// A descriptor is left alone for this long after an event.
pub const APART_MS: u64 = 100;
/// A lost descriptor is opened again no sooner than this after it was opened.
const REOPEN_MS: u64 = 1000;

/// The source of stalls that is watched, if any.
pub struct Stall {
    watched: Option<Watched>,
    /// The reason why the service manager's source is not watched, if it is not.
    systemd: Reason,
    /// The reason why the kernel's source is not watched, if it is not.
    psi: Reason,
}

/// A place in the row: the level of the cgroup, from the process's own upwards, with the system's
/// file above the last; `None` is the service manager's source.
type Level = Option<usize>;

struct Watched {
    level: Level,
    path: Path,
    /// The open descriptor; `None` between its loss and the next opening.
    descriptor: Option<Descriptor>,
    opened_ms: u64,
    quiet_until_ms: u64,
    /// The pipe's last writer has left: the pipe is to be opened again.
    has_hung_up: bool,
}

impl Stall {
    pub const fn none() -> Stall {
        Stall { watched: None, systemd: Reason::NotChosen, psi: Reason::NotChosen }
    }

    /// Opens the first of the row that can be opened.
    pub fn open(context: &Context, now_ms: u64) -> Stall {
        let psi = context.psi().err().unwrap_or(Reason::NotNeeded);
        let mut stall = Stall { watched: None, systemd: Reason::Ended, psi };
        stall.open_first(context, Some(None), now_ms);
        stall
    }

    pub fn is_watched(&self) -> bool {
        self.watched.is_some()
    }

    /// The source that is watched.
    pub fn kind(&self) -> Option<Kind> {
        self.watched.as_ref().map(|watched| if watched.level.is_none() { Kind::Systemd } else { Kind::Psi })
    }

    /// The process was moved: its new cgroup's source is opened, unless the manager's is watched.
    pub fn follow(&mut self, context: &Context, now_ms: u64) {
        if self.watched.as_ref().is_none_or(|watched| watched.level.is_some()) {
            *self = Stall::open(context, now_ms);
        }
    }

    /// Keeps the descriptor open: opens it again, or the next one in the row.
    pub fn refresh(&mut self, context: &Context, now_ms: u64) {
        if let Some(watched) = &mut self.watched
            && let Err(reason) = watched.refresh(context, now_ms)
        {
            self.replace(context, reason, now_ms);
        }
    }

    /// The descriptor to wait for, unless it is to be left alone for now.
    pub fn descriptor(&self, now_ms: u64) -> Option<&Descriptor> {
        let watched = self.watched.as_ref().filter(|watched| now_ms >= watched.quiet_until_ms)?;
        watched.descriptor.as_ref()
    }

    /// When a descriptor that is left alone or lost needs [`refresh`](Self::refresh).
    pub fn due_ms(&self, now_ms: u64) -> Option<u64> {
        let watched = self.watched.as_ref()?;
        match &watched.descriptor {
            None => Some(watched.opened_ms.saturating_add(REOPEN_MS)),
            Some(_) => (now_ms < watched.quiet_until_ms).then_some(watched.quiet_until_ms),
        }
    }

    /// The source that reports a stall by an event of its descriptor.
    pub fn hear(&mut self, event: Event, context: &Context, now_ms: u64) -> Option<Kind> {
        let watched = self.watched.as_mut().filter(|_| event != Event::Nothing)?;
        watched.quiet_until_ms = now_ms.saturating_add(APART_MS);
        match event {
            Event::Fired => {
                return Some(if watched.level.is_none() { Kind::Systemd } else { Kind::Psi });
            }
            Event::HungUp => watched.has_hung_up = true,
            Event::Ended => self.replace(context, Reason::Ended, now_ms),
            Event::Nothing => {}
        }
        None
    }

    /// Prints a line for the service manager's source and one for the kernel's.
    pub fn describe(&self, print: &mut dyn FnMut(fmt::Arguments)) {
        for (name, is_systemd, reason) in [("systemd", true, self.systemd), ("psi", false, self.psi)] {
            match self.watched.as_ref().filter(|watched| watched.level.is_none() == is_systemd) {
                Some(watched) => print(format_args!("pressure: {name}: watching {}", watched.path)),
                None => print(format_args!("pressure: {name}: not watched: {reason}")),
            }
        }
    }

    /// The watched source has ended for `reason`: opens the next one in the row.
    fn replace(&mut self, context: &Context, reason: Reason, now_ms: u64) {
        let Some(ended) = self.watched.take() else { return };
        if ended.level.is_none() {
            self.psi = context.psi().err().unwrap_or(reason);
        }
        self.note(ended.level, reason);
        self.open_first(context, after(context, ended.level), now_ms);
        if context.choice.log {
            let path = &ended.path;
            match &self.watched {
                Some(next) => {
                    report::print(format_args!("pressure: {path} lost: {reason}; watching {}", next.path));
                }
                None => report::print(format_args!("pressure: {path} lost: {reason}; no stalls are watched")),
            }
        }
    }

    /// Opens the first source from `next` on, and notes why those before it cannot be opened.
    fn open_first(&mut self, context: &Context, mut next: Option<Level>, now_ms: u64) {
        while let Some(level) = next {
            match open(context, level) {
                Ok((descriptor, path)) => {
                    self.watched = Some(Watched {
                        level,
                        path,
                        descriptor: Some(descriptor),
                        opened_ms: now_ms,
                        quiet_until_ms: 0,
                        has_hung_up: false,
                    });
                    return;
                }
                Err(reason) => self.note(level, reason),
            }
            next = after(context, level);
        }
    }

    fn note(&mut self, level: Level, reason: Reason) {
        *if level.is_none() { &mut self.systemd } else { &mut self.psi } = reason;
    }
}

impl Watched {
    /// Opens a descriptor that was lost, or whose pipe was hung up, again.
    ///
    /// # Errors
    /// The source has ended.
    fn refresh(&mut self, context: &Context, now_ms: u64) -> Result<(), Reason> {
        let descriptor = self.descriptor.as_ref();
        match descriptor.map_or(State::Lost, Descriptor::state) {
            State::Unlinked if descriptor.is_some_and(|it| it.form() == Form::File) => {
                return Err(Reason::Removed);
            }
            State::Ours | State::Unlinked if self.has_hung_up && now_ms >= self.quiet_until_ms => {}
            State::Ours | State::Unlinked => return Ok(()),
            State::Lost => {
                self.descriptor = None;
                if now_ms < self.opened_ms.saturating_add(REOPEN_MS) {
                    return Ok(());
                }
            }
        }
        // The old end of a pipe is closed after the new one is open: no writer finds a pipe without
        // a reader. While there are no descriptors, the next attempt follows in REOPEN_MS.
        self.descriptor = match open(context, self.level) {
            Ok((descriptor, _)) => Some(descriptor),
            Err(Reason::Error(number)) if is_without_descriptors(number) => None,
            Err(reason) => return Err(reason),
        };
        (self.opened_ms, self.has_hung_up) = (now_ms, false);
        Ok(())
    }
}

/// The next place in the row.
fn after(context: &Context, level: Level) -> Option<Level> {
    let levels = context.place.as_ref().map_or(0, |place| place.levels());
    match level {
        None => context.psi().is_ok().then_some(Some(0)),
        Some(level) => (level < levels).then_some(Some(level + 1)),
    }
}

fn open(context: &Context, level: Level) -> Result<(Descriptor, Path), Reason> {
    let Some(level) = level else {
        let watch = context.systemd()?;
        return Ok((watch.open()?, watch.path));
    };
    let path = match context.place.as_ref().ok().and_then(|place| place.level(level)) {
        Some(directory) => directory.with(b"/memory.pressure"),
        None => context.proc.with(b"/pressure/memory"),
    };
    let path = path.ok_or(Reason::TooLong)?;
    let descriptor = Descriptor::open(path.as_c(), Form::File).map_err(Reason::Error)?;
    descriptor.write(TRIGGER).map_err(Reason::Error)?;
    Ok((descriptor, path))
}
