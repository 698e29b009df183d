//! Who says that memory is short: the service manager, the kernel's stall accounting, and the
//! limits of the control group.
//!
//! ```text
//!   stalls     at most one descriptor, the first of: what MEMORY_PRESSURE_WATCH names, the own cgroup's PSI, that of those above,
//!              the system's                                                                             → "some": Share
//!   headroom   memory.current against memory.high and memory.max of the own cgroup and those above    → Bytes, or Share
//!   swap       whether memory of the process or its cgroup was swapped out since the last look        → either counts twice
//! ```
//!
//! [`Sources::wait`] is the reaper's sleep: it waits for the descriptors, and looks at the headroom
//! once a second, whenever the kernel signals that a limit was hit, and in every wait while more
//! than half of a limit is used. Everything is in fixed memory.
//!
//! All of it can be lacking, and any of it can go away while the program runs: the program closes
//! all descriptors, is moved to another cgroup, its manager leaves. A fork child shares its
//! parent's descriptors, and with them what they tell: its handler closes them (`os::descriptors`), and
//! its own thread detects its own. Must never: spin, block without an end, or touch a descriptor
//! that has become the program's.

mod cgroup;
mod choice;
mod path;
mod stall;
mod swap;
mod systemd;
mod why;

pub use choice::Choice;
pub use systemd::Variable;

use crate::os::errno::Preserved;
use crate::os::pressure::{self, Awaited};
use crate::os::{clock, report};
use cgroup::{Headroom, Place};
use path::Path;
use stall::{APART_MS, Candidate, Row, Stall};
use swap::Swap;
use systemd::{Request, Watch};
use why::Why;

/// Limits, and where the process stands, are looked at so often where nothing signals a change.
const TICK_MS: u64 = 1000;

/// Whose word it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What a service manager named.
    Systemd,
    /// Stalls in the process's cgroup or one above.
    CgroupPsi,
    /// Stalls in the system.
    SystemPsi,
    /// A limit of the cgroup, or of one above, is near or was hit.
    CgroupHeadroom,
}

/// How much is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// So many bytes.
    Bytes(usize),
    /// Nobody knows; a part.
    Share,
}

/// Somebody says that memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Who.
    pub kind: Kind,
    /// How much is to go.
    pub wanted: Wanted,
    /// Memory of the process or of its cgroup was swapped out lately: the pressure counts twice.
    pub swapped: bool,
}

/// What [`Sources`] look at, for tests that make their own.
#[doc(hidden)]
pub struct Environment<'a> {
    /// The proc file system, with no slash at its end.
    pub proc: &'a [u8],
    /// The value of `MEMORY_PRESSURE_WATCH`.
    pub watch: Variable<'a>,
    /// The value of `MEMORY_PRESSURE_WRITE`.
    pub write: Variable<'a>,
    /// Whether the process gained privileges when it started.
    pub privileged: bool,
}

/// What is watched. Dropping it closes its descriptors.
pub struct Sources {
    choice: Choice,
    proc: Path,
    request: Request,
    /// The process's path in the hierarchy, and the directory that it comes to.
    way: Path,
    place: Result<Place, Why>,
    stall: Option<Stall>,
    /// Why the two kinds of stalls are not watched, where they are not.
    systemd_why: Why,
    psi_why: Why,
    headroom: Headroom,
    swap: Swap,
    looked_ms: u64,
    /// A limit's event was signalled since.
    signalled: bool,
    /// When the process's place was looked up.
    followed_ms: u64,
}

impl Sources {
    /// Nothing.
    pub const fn none() -> Sources {
        Sources {
            choice: Choice::none(),
            proc: Path::EMPTY,
            request: Err(Why::NotChosen),
            way: Path::EMPTY,
            place: Err(Why::NotChosen),
            stall: None,
            systemd_why: Why::NotChosen,
            psi_why: Why::NotChosen,
            headroom: Headroom::new(),
            swap: Swap::new(),
            looked_ms: 0,
            signalled: false,
            followed_ms: 0,
        }
    }

    /// Looks at what there is and opens it. Neither waits nor allocates. Says what was found where
    /// the user asked for that.
    pub fn detect(choice: &Choice) -> Sources {
        let _errno = Preserved::new();
        Self::open(choice, Path::of(b"/proc").unwrap_or(Path::EMPTY), Watch::from_environment())
    }

    /// The same, in the given environment.
    #[doc(hidden)]
    pub fn detect_in(choice: &Choice, environment: &Environment) -> Sources {
        let request = Watch::of(environment.watch, environment.write, environment.privileged);
        Self::open(choice, Path::of(environment.proc).unwrap_or(Path::EMPTY), request)
    }

    fn open(choice: &Choice, proc: Path, request: Request) -> Sources {
        let mut sources = Sources { choice: *choice, proc, request, ..Sources::none() };
        if choice.psi || choice.cgroup {
            let way = Place::way(&sources.proc);
            sources.way = way.unwrap_or(Path::EMPTY);
            sources.place = way.and_then(|way| Place::find(&sources.proc, &way));
        }
        let now_ms = clock::coarse_ms();
        sources.followed_ms = now_ms;
        sources.find_stall(now_ms);
        // What was hit before is not news.
        sources.check(now_ms);
        if choice.log {
            sources.describe(&mut |line| report::print(line));
        }
        sources
    }

    /// Waits until memory is short; `None` when `timeout_ms` are over without. Reports of one
    /// source are at least 100 ms apart. Signals do not end it.
    pub fn wait(&mut self, timeout_ms: u64) -> Option<Pressure> {
        let _errno = Preserved::new();
        let mut now = clock::coarse_ms();
        let end = now.saturating_add(timeout_ms);
        // A limit's event that was signalled waits for the look that reads it.
        let mut apart_ms = if self.headroom.is_near() || self.signalled { APART_MS } else { TICK_MS };
        loop {
            self.refresh_stall(now);
            if now >= self.looked_ms.saturating_add(apart_ms) {
                (self.looked_ms, self.signalled) = (now, false);
                apart_ms = TICK_MS;
                if let Some(pressure) = self.check(now) {
                    // The limits' word is the stronger one. What else there is must not pile up in pipes
                    // meanwhile.
                    self.listen(now, 0, false);
                    return Some(pressure);
                }
            }
            let mut until = end;
            // Without a cgroup and a source of stalls there is nothing that a look could find.
            if self.stall.is_some() || self.way != Path::EMPTY {
                until = until.min(self.looked_ms.saturating_add(apart_ms));
            }
            if let Some(again_ms) = self.stall.as_ref().and_then(|stall| stall.again_ms(now)) {
                until = until.min(again_ms);
            }
            let (stalled, event) = self.listen(now, until.saturating_sub(now), apart_ms == TICK_MS);
            if event {
                self.signalled = true;
                apart_ms = APART_MS;
            }
            if let Some(candidate) = stalled {
                return Some(self.pressure(kind(candidate), Wanted::Share));
            }
            now = clock::coarse_ms();
            if now >= end {
                return None;
            }
        }
    }

    /// Waits for the descriptors: who tells of a stall, and whether a limit was hit, if `events`
    /// are waited for.
    fn listen(&mut self, now_ms: u64, timeout_ms: u64, events: bool) -> (Option<Candidate>, bool) {
        let stall = self.stall.as_ref().and_then(|stall| stall.watched(now_ms));
        let events = self.headroom.events().filter(|_| events).map(|events| (events, Awaited::Event));
        let [stall, events] = pressure::wait([stall, events], timeout_ms);
        let now_ms = clock::coarse_ms();
        let heard = self.stall.as_mut().map_or(Ok(None), |watched| watched.heard(stall, now_ms));
        let stalled = heard.unwrap_or_else(|why| {
            self.replace_stall(why, now_ms);
            None
        });
        (stalled, events.fired || events.failed)
    }

    /// Looks at the limits, without waiting. Limits may have been changed since the last time.
    pub fn headroom(&mut self) -> Option<Pressure> {
        let _errno = Preserved::new();
        self.check(clock::coarse_ms())
    }

    fn check(&mut self, now_ms: u64) -> Option<Pressure> {
        self.follow(now_ms);
        self.look_at_swap(now_ms);
        let place = self.place.as_ref().ok().filter(|_| self.choice.cgroup)?;
        let reading = self.headroom.read(place);
        let wanted = match reading.excess_bytes {
            0 if reading.hit => Wanted::Share,
            0 => return None,
            bytes => Wanted::Bytes(usize::try_from(bytes).unwrap_or(usize::MAX)),
        };
        Some(self.pressure(Kind::CgroupHeadroom, wanted))
    }

    fn look_at_swap(&mut self, now_ms: u64) {
        if self.choice != Choice::none().log(self.choice.log) {
            self.swap.read(&self.proc, self.place.as_ref().ok(), now_ms);
        }
    }

    fn pressure(&mut self, kind: Kind, wanted: Wanted) -> Pressure {
        self.look_at_swap(clock::coarse_ms());
        Pressure { kind, wanted, swapped: self.swap.has_grown() }
    }

    /// Whether descriptors are held, so that [`wait`](Self::wait) ends when something happens and
    /// not only at the next look. A source whose descriptor the program has closed counts: it
    /// is opened again in `wait`.
    pub fn watches_descriptors(&self) -> bool {
        self.stall.is_some() || self.headroom.events().is_some()
    }

    /// One line for each source: what was found, or why it is not watched.
    pub fn describe(&self, print: &mut dyn FnMut(core::fmt::Arguments)) {
        let stall = self.stall.as_ref();
        match stall.filter(|stall| stall.candidate == Candidate::Systemd) {
            Some(stall) => print(format_args!("pressure: systemd: watching {}", stall.path)),
            None => print(format_args!("pressure: systemd: not watched: {}", self.systemd_why)),
        }
        match stall.filter(|stall| stall.candidate != Candidate::Systemd) {
            Some(stall) => print(format_args!("pressure: psi: watching {}", stall.path)),
            None => print(format_args!("pressure: psi: not watched: {}", self.psi_why)),
        }
        let place = if self.choice.cgroup { self.place } else { Err(Why::NotChosen) };
        match (place, self.headroom.limit_bytes()) {
            (Err(why), _) => print(format_args!("pressure: cgroup: not watched: {why}")),
            (Ok(place), Some(bytes)) => {
                print(format_args!("pressure: cgroup: watching {place}, lowest limit {bytes} bytes"));
            }
            (Ok(place), None) => print(format_args!("pressure: cgroup: watching {place}, no limit so far")),
        }
    }

    fn row(&self) -> Row<'_> {
        Row { choice: &self.choice, request: &self.request, place: &self.place, proc: &self.proc }
    }

    /// Where the process stands may change: a manager moves it, or it is moved to a container.
    fn follow(&mut self, now_ms: u64) {
        let due = now_ms >= self.followed_ms.saturating_add(TICK_MS);
        if !due || (!self.choice.psi && !self.choice.cgroup) {
            return;
        }
        self.followed_ms = now_ms;
        let Ok(way) = Place::way(&self.proc) else { return };
        if way == self.way {
            return;
        }
        self.way = way;
        self.place = Place::find(&self.proc, &way);
        (self.headroom, self.swap) = (Headroom::new(), Swap::new());
        if self.stall.as_ref().is_none_or(|stall| stall.candidate != Candidate::Systemd) {
            self.find_stall(now_ms);
        }
        if self.choice.log {
            report::print(format_args!("pressure: the process is in another cgroup"));
            self.describe(&mut |line| report::print(line));
        }
    }

    /// Opens the first source of stalls that there is.
    fn find_stall(&mut self, now_ms: u64) {
        let row = self.row();
        let (systemd, psi) = (row.systemd(), row.psi());
        let (mut systemd_why, mut psi_why) = (systemd.err(), psi.err());
        let found = Stall::first(&row, now_ms, &mut |candidate, why| {
            let place = if candidate == Candidate::Systemd { &mut systemd_why } else { &mut psi_why };
            *place = Some(why);
        });
        let by_systemd = found.as_ref().is_some_and(|stall| stall.candidate == Candidate::Systemd);
        self.systemd_why = systemd_why.unwrap_or(Why::Ended);
        self.psi_why = psi_why.filter(|_| !by_systemd || psi.is_err()).unwrap_or(Why::NotNeeded);
        self.stall = found;
    }

    fn refresh_stall(&mut self, now_ms: u64) {
        let Some(mut stall) = self.stall.take() else { return };
        let refreshed = stall.refresh(&self.row(), now_ms);
        self.stall = Some(stall);
        if let Err(why) = refreshed {
            self.replace_stall(why, now_ms);
        }
    }

    /// The source that is watched has come to its end: the next in the row takes its place.
    fn replace_stall(&mut self, why: Why, now_ms: u64) {
        let Some(ended) = self.stall.take() else { return };
        let mut last = why;
        let next = ended.next(&self.row(), now_ms, &mut |_, why| last = why);
        if ended.candidate == Candidate::Systemd {
            self.systemd_why = why;
            self.psi_why = self.row().psi().err().unwrap_or(last);
        } else {
            self.psi_why = last;
        }
        if self.choice.log {
            let path = &ended.path;
            match &next {
                Some(next) => {
                    report::print(format_args!("pressure: {path} lost: {why}; watching {}", next.path))
                }
                None => report::print(format_args!("pressure: {path} lost: {why}; no stalls are watched")),
            }
        }
        self.stall = next;
    }
}

fn kind(candidate: Candidate) -> Kind {
    match candidate {
        Candidate::Systemd => Kind::Systemd,
        Candidate::Cgroup { .. } => Kind::CgroupPsi,
        Candidate::System => Kind::SystemPsi,
    }
}
