//! The context of all sources: the user's choice, the service manager's request, and the process's
//! place in the tree of control groups.

use super::choice::Choice;
use super::place::Place;
use super::reason::Reason;
use super::systemd::Watch;
use crate::os::path::Path;

/// Period of looking up the process's place.
const FOLLOW_MS: u64 = 1000;

/// The context of all sources.
pub struct Context {
    pub choice: Choice,
    pub proc: Path,
    /// The process's directory in the tree of control groups.
    pub place: Result<Place, Reason>,
    /// Its path in the hierarchy, which names the same directory; empty where there is none.
    way: Path,
    followed_ms: u64,
    request: Result<Watch, Reason>,
}

impl Context {
    /// A context in which no source is chosen.
    pub const fn none() -> Context {
        Context {
            choice: Choice::none(),
            proc: Path::EMPTY,
            place: Err(Reason::NotChosen),
            way: Path::EMPTY,
            followed_ms: 0,
            request: Err(Reason::NotChosen),
        }
    }

    pub fn new(choice: Choice, proc: Path, request: Result<Watch, Reason>, now_ms: u64) -> Context {
        let mut context = Context { choice, proc, request, ..Context::none() };
        if choice.psi || choice.cgroup {
            let way = Place::way(&context.proc);
            context.way = way.unwrap_or(Path::EMPTY);
            context.place = way.and_then(|way| Place::find(&context.proc, &way));
            context.followed_ms = now_ms;
        }
        context
    }

    /// Whether the user chose any source.
    pub fn has_sources(&self) -> bool {
        self.choice != Choice::none().log(self.choice.log)
    }

    /// Whether the process is in a hierarchy of version 2.
    pub fn has_cgroup(&self) -> bool {
        self.way != Path::EMPTY
    }

    /// The service manager's request, if the choice allows its source.
    pub fn systemd(&self) -> Result<&Watch, Reason> {
        if !self.choice.systemd {
            return Err(Reason::NotChosen);
        }
        self.request.as_ref().map_err(|reason| *reason)
    }

    /// Whether the choice allows the kernel's stall accounting.
    pub fn psi(&self) -> Result<(), Reason> {
        match self.systemd() {
            _ if !self.choice.psi => Err(Reason::NotChosen),
            Err(Reason::SwitchedOff) => Err(Reason::SwitchedOff),
            _ => Ok(()),
        }
    }

    /// The place whose limits the choice allows to watch, if any.
    pub fn limits(&self) -> Result<&Place, Reason> {
        if !self.choice.cgroup {
            return Err(Reason::NotChosen);
        }
        self.place.as_ref().map_err(|reason| *reason)
    }

    /// Looks the process's place up again: a service manager or a container runtime may move it, or
    /// mount its control group late. Returns whether it was moved, or found at last.
    pub fn follow(&mut self, now_ms: u64) -> bool {
        let is_due = now_ms >= self.followed_ms.saturating_add(FOLLOW_MS);
        if !is_due || (!self.choice.psi && !self.choice.cgroup) {
            return false;
        }
        self.followed_ms = now_ms;
        let Ok(way) = Place::way(&self.proc) else { return false };
        let is_moved = way != self.way;
        if !is_moved && self.place.is_ok() {
            return false;
        }
        self.way = way;
        self.place = Place::find(&self.proc, &way);
        is_moved || self.place.is_ok()
    }
}
