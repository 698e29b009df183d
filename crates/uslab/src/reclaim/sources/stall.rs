//! The one descriptor that tells of stalls, and what takes its place when it is lost.
//!
//! ```text
//!   what the service manager names ─▶ memory.pressure of the own cgroup ─▶ of each one above it ─▶ /proc/pressure/memory ─▶ none
//! ```
//!
//! The kernel's files take a threshold of stalled time in a window, and are ready (POLLPRI) when it is passed, at most once a
//! window. A source that ends is given up for the next in the row. Two things are no end: a pipe whose last writer has left
//! is opened again, and so is a descriptor that the program has closed, as daemons do that close all they find.
//!
//! Must never: report, or be opened, more than ten times a second.

use super::cgroup::Place;
use super::choice::Choice;
use super::path::Path;
use super::systemd::{Request, Watch};
use super::why::Why;
use crate::os::pressure::{Awaited, Descriptor, Drained, Form, Ready, State};

/// 150 ms of stall in 2 s: below systemd's default of 200 ms, so that caches go first; 2 s windows need no privilege.
const TRIGGER: &[u8] = b"some 150000 2000000\0";
/// After a report, and after a pipe's end, nothing is looked at for so long.
pub const APART_MS: u64 = 100;
/// A lost descriptor is opened again no sooner than this after it was opened.
const REOPEN_MS: u64 = 1000;

/// Places in the row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Candidate {
    Systemd,
    Cgroup { level: usize },
    System,
}

/// All that opening a candidate needs.
pub struct Row<'a> {
    pub choice: &'a Choice,
    pub request: &'a Request,
    pub place: &'a Result<Place, Why>,
    pub proc: &'a Path,
}

impl Row<'_> {
    fn after(&self, candidate: Candidate) -> Option<Candidate> {
        let levels = self.place.as_ref().map_or(0, Place::levels);
        let kernels = |level| if level < levels { Candidate::Cgroup { level } } else { Candidate::System };
        match candidate {
            Candidate::Systemd => self.psi().is_ok().then(|| kernels(0)),
            Candidate::Cgroup { level } => Some(kernels(level + 1)),
            Candidate::System => None,
        }
    }

    /// Whether the service manager's source may be watched.
    pub fn systemd(&self) -> Result<&Watch, Why> {
        if !self.choice.systemd {
            return Err(Why::NotChosen);
        }
        self.request.as_ref().map_err(|why| *why)
    }

    /// Whether the kernel's may be.
    pub fn psi(&self) -> Result<(), Why> {
        match self.systemd() {
            _ if !self.choice.psi => Err(Why::NotChosen),
            Err(Why::SwitchedOff) => Err(Why::SwitchedOff),
            _ => Ok(()),
        }
    }

    fn open(&self, candidate: Candidate) -> Result<(Descriptor, Form, Path), Why> {
        let path = match candidate {
            Candidate::Systemd => {
                let watch = self.systemd()?;
                let (descriptor, form) = watch.open()?;
                return Ok((descriptor, form, watch.path));
            }
            Candidate::Cgroup { level } => {
                let directory = self.place.as_ref().map_err(|why| *why)?.level(level).ok_or(Why::NoCgroup)?;
                directory.with(b"/memory.pressure")
            }
            Candidate::System => self.proc.with(b"/pressure/memory"),
        };
        let path = path.ok_or(Why::TooLong)?;
        let descriptor = Descriptor::open(path.as_c(), Form::File).map_err(Why::Error)?;
        descriptor.write(TRIGGER).map_err(Why::Error)?;
        Ok((descriptor, Form::File, path))
    }
}

/// What is watched.
pub struct Stall {
    pub candidate: Candidate,
    pub path: Path,
    form: Form,
    /// None between its loss and its being opened again.
    descriptor: Option<Descriptor>,
    opened_ms: u64,
    quiet_until_ms: u64,
    /// A pipe without a writer: to be opened again.
    hung_up: bool,
}

impl Stall {
    /// The first of the row that can be opened; what is said of those that cannot goes to `refused`.
    pub fn first(row: &Row, now_ms: u64, refused: &mut dyn FnMut(Candidate, Why)) -> Option<Stall> {
        Self::from(row, Some(Candidate::Systemd), now_ms, refused)
    }

    /// The first behind this one that can be opened.
    pub fn next(&self, row: &Row, now_ms: u64, refused: &mut dyn FnMut(Candidate, Why)) -> Option<Stall> {
        Self::from(row, row.after(self.candidate), now_ms, refused)
    }

    fn from(
        row: &Row,
        mut next: Option<Candidate>,
        now_ms: u64,
        refused: &mut dyn FnMut(Candidate, Why),
    ) -> Option<Stall> {
        while let Some(candidate) = next {
            match row.open(candidate) {
                Ok((descriptor, form, path)) => {
                    return Some(Stall {
                        candidate,
                        path,
                        form,
                        descriptor: Some(descriptor),
                        opened_ms: now_ms,
                        quiet_until_ms: 0,
                        hung_up: false,
                    });
                }
                Err(why) => refused(candidate, why),
            }
            next = row.after(candidate);
        }
        None
    }

    /// Sees to it that the descriptor is the one that was opened. An error is the source's end.
    pub fn refresh(&mut self, row: &Row, now_ms: u64) -> Result<(), Why> {
        match self.descriptor.as_ref().map(Descriptor::state) {
            Some(State::Unlinked) if self.form == Form::File => return Err(Why::Removed),
            Some(State::Ours | State::Unlinked) if self.hung_up && now_ms >= self.quiet_until_ms => {}
            Some(State::Ours | State::Unlinked) => return Ok(()),
            Some(State::Lost) | None => {
                self.descriptor = None;
                if now_ms < self.opened_ms.saturating_add(REOPEN_MS) {
                    return Ok(());
                }
            }
        }
        // A pipe's old end goes only when the new one is there, so that no writer comes to a pipe without a reader.
        let (descriptor, form, _) = row.open(self.candidate)?;
        self.descriptor = Some(descriptor);
        (self.form, self.opened_ms, self.hung_up) = (form, now_ms, false);
        Ok(())
    }

    /// What to wait for, unless it is to be left alone for now.
    pub fn watched(&self, now_ms: u64) -> Option<(&Descriptor, Awaited)> {
        if now_ms < self.quiet_until_ms {
            return None;
        }
        let awaited = if self.form == Form::File { Awaited::Event } else { Awaited::Bytes };
        self.descriptor.as_ref().map(|descriptor| (descriptor, awaited))
    }

    /// When it wants to be looked at again, if it is left alone for now.
    pub fn again_ms(&self, now_ms: u64) -> Option<u64> {
        let reopen_ms = self.opened_ms.saturating_add(REOPEN_MS);
        match &self.descriptor {
            None => Some(reopen_ms),
            Some(_) => (now_ms < self.quiet_until_ms).then_some(self.quiet_until_ms),
        }
    }

    /// Who tells of a stall, seeing what it is `ready` for. An error is the source's end.
    pub fn heard(&mut self, ready: Ready, now_ms: u64) -> Result<Option<Candidate>, Why> {
        let Some(descriptor) = self.descriptor.as_ref() else { return Ok(None) };
        if ready == Ready::default() || descriptor.state() == State::Lost {
            return Ok(None);
        }
        self.quiet_until_ms = now_ms.saturating_add(APART_MS);
        if self.form == Form::File {
            return if ready.failed || ready.hung_up { Err(Why::Ended) } else { Ok(Some(self.candidate)) };
        }
        match descriptor.drain() {
            Drained::Bytes => Ok(Some(self.candidate)),
            // Whoever wrote to the pipe has left; others may come.
            Drained::End | Drained::Nothing if self.form == Form::Fifo => {
                self.hung_up = true;
                Ok(None)
            }
            Drained::Nothing if !ready.failed && !ready.hung_up => Ok(None),
            _ => Err(Why::Ended),
        }
    }
}
