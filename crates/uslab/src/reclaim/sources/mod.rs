//! Pressure sources: from an event of the system to a number of bytes, in three hops.
//!
//! ```text
//!   1 event                                    2 source        3 Pressure { kind, bytes }
//!   systemd's or the kernel's PSI descriptor ─▶ stall.rs ────┐
//!                                                            ├─ Demand ─▶ the thread's pass
//!   a limit is near or was hit ───────────────▶ headroom.rs ─┘    └ swap.rs: counts twice
//! ```
//!
//! [`Sources::wait`] is the background thread's sleep. It waits for the descriptors. It reads the
//! limits once a second, and soon after the kernel signals that one was hit. While more than half
//! of a limit is used, each wait begins by reading them, at least 100 ms after the last read.
//! Everything is in fixed memory.
//!
//! # To add a source
//!
//! 1. Give it a [`Kind`] (`pressure.rs`) and a word in [`Choice`] (`choice.rs`).
//! 2. Write it in a file beside `headroom.rs`, make it a field of [`Sources`], and print its line
//!    in [`Sources::describe`].
//! 3. If it reads files, call it in `Sources::poll`. If it has a descriptor, `Sources::listen`
//!    must poll it and pass its event to the source.
//!    Its report is made by `Demand::of_bytes` if it knows the bytes, by `Demand::of_stall` if not.
//! 4. Test it on made-up files, as `tests/sources.rs` does. Name it in `docs/guide` and in the
//!    options of `uslab.h`.
//!
//! Any source may be missing, and any may go away while the program runs: the program closes all
//! descriptors, a service manager moves the process, the manager exits. A fork child shares its
//! parent's descriptors and their events. So its fork handler closes them (`os::descriptors`), and
//! its background thread opens new ones. The sources never spin, never block without a bound, and
//! never touch a descriptor that has become the program's.

mod choice;
mod context;
mod files;
mod headroom;
mod place;
pub(super) mod pressure;
mod reason;
mod stall;
mod swap;
mod systemd;

pub use choice::Choice;
pub use pressure::{Kind, Pressure};
pub use reason::Reason;

use crate::counters::{self, layout};
use crate::os::errno::Preserved;
use crate::os::path::Path;
use crate::os::pressure::Event;
use crate::os::{self, clock, report};
use context::Context;
use core::sync::atomic::Ordering::Relaxed;
use headroom::Headroom;
pub(super) use pressure::Demand;
use stall::{APART_MS, Stall};
use systemd::Watch;

/// Period of reading the limits if the kernel signals no change.
const LIMITS_PERIOD_MS: u64 = 1000;

/// The environment that [`Sources`] read; tests make their own.
#[doc(hidden)]
pub struct Environment<'a> {
    /// The proc file system, with no slash at its end.
    pub proc: &'a [u8],
    /// The value of `MEMORY_PRESSURE_WATCH`, or why there is none.
    pub watch: Result<&'a [u8], Reason>,
    /// The value of `MEMORY_PRESSURE_WRITE`, or why there is none.
    pub write: Result<&'a [u8], Reason>,
    /// Whether the process gained privileges when it started.
    pub is_privileged: bool,
}

/// All sources. Dropping them closes their descriptors.
pub struct Sources {
    context: Context,
    stall: Stall,
    headroom: Headroom,
    demand: Demand,
    looked_ms: u64,
    /// The kernel has signalled a limit since the last poll.
    is_signalled: bool,
}

impl Sources {
    /// No source.
    pub const fn none() -> Sources {
        Sources {
            context: Context::none(),
            stall: Stall::none(),
            headroom: Headroom::new(),
            demand: Demand::new(),
            looked_ms: 0,
            is_signalled: false,
        }
    }

    /// Opens the chosen sources that the system has. Neither waits nor allocates. If `choice` asks
    /// for the log, writes the sources found to standard error.
    pub fn detect(choice: &Choice) -> Sources {
        let _errno = Preserved::new();
        Self::open(choice, b"/proc", Watch::from_environment())
    }

    /// As [`Sources::detect`], in the given environment.
    #[doc(hidden)]
    pub fn detect_in(choice: &Choice, environment: &Environment) -> Sources {
        let request = Watch::of(environment.watch, environment.write, environment.is_privileged);
        Self::open(choice, environment.proc, request)
    }

    fn open(choice: &Choice, proc: &[u8], request: Result<Watch, Reason>) -> Sources {
        let now_ms = clock::coarse_ms();
        let proc = Path::of(proc).unwrap_or(Path::EMPTY);
        let context = Context::new(*choice, proc, request, now_ms);
        let stall = Stall::open(&context, now_ms);
        let mut sources = Sources { context, stall, ..Sources::none() };
        // The first poll only gives the figures that later ones are compared with.
        sources.poll(now_ms);
        if choice.log {
            sources.describe(&mut |line| report::print(line));
        }
        sources
    }

    /// Waits until a source reports that memory is short; returns `None` after `timeout_ms` without
    /// a report. Reports of one source are at least 100 ms apart. Signals do not end the wait.
    pub fn wait(&mut self, timeout_ms: u64) -> Option<Pressure> {
        let _errno = Preserved::new();
        let mut now_ms = clock::coarse_ms();
        let end_ms = now_ms.saturating_add(timeout_ms);
        let mut apart_ms =
            if self.headroom.is_near() || self.is_signalled { APART_MS } else { LIMITS_PERIOD_MS };
        loop {
            self.stall.refresh(&self.context, now_ms);
            if now_ms >= self.looked_ms.saturating_add(apart_ms) {
                (self.looked_ms, self.is_signalled) = (now_ms, false);
                apart_ms = LIMITS_PERIOD_MS;
                if let Some(pressure) = self.poll(now_ms) {
                    // The limit's report is the stronger one. Read a stall's event as well, or its
                    // bytes would pile up in their pipe.
                    self.listen(now_ms, 0, false);
                    return Some(pressure);
                }
            }
            let mut until_ms = end_ms.min(self.stall.due_ms(now_ms).unwrap_or(u64::MAX));
            if self.stall.is_watched() || self.context.has_cgroup() {
                until_ms = until_ms.min(self.looked_ms.saturating_add(apart_ms));
            }
            // Once the kernel has signalled a limit, the limit's descriptor stays ready until a
            // poll reads it. So do not wait for it before that poll.
            let timeout_ms = until_ms.saturating_sub(now_ms);
            let stall = self.listen(now_ms, timeout_ms, apart_ms == LIMITS_PERIOD_MS);
            now_ms = clock::coarse_ms();
            if let Some(kind) = stall {
                self.demand.look_at_swap(&self.context, now_ms);
                return Some(self.demand.of_stall(kind, now_ms));
            }
            if self.is_signalled {
                apart_ms = APART_MS;
            }
            if now_ms >= end_ms {
                return None;
            }
        }
    }

    /// Waits for the descriptors, for that of the limits only if `limits` is set. Returns the
    /// source that reports a stall.
    fn listen(&mut self, now_ms: u64, timeout_ms: u64, limits: bool) -> Option<Kind> {
        let limits = self.headroom.descriptor().filter(|_| limits);
        let [stall, limits] = os::pressure::wait([self.stall.descriptor(now_ms), limits], timeout_ms);
        self.is_signalled |= limits != Event::Nothing;
        self.stall.hear(stall, &self.context, clock::coarse_ms())
    }

    /// The last report led to no pass: the next stall asks for no more than a first one.
    pub fn ignore_report(&mut self) {
        self.demand.forget_stall();
    }

    /// Reads the limits at once, however soon after the last time. Does not wait.
    pub fn headroom(&mut self) -> Option<Pressure> {
        let _errno = Preserved::new();
        self.poll(clock::coarse_ms())
    }

    fn poll(&mut self, now_ms: u64) -> Option<Pressure> {
        if self.context.follow(now_ms) {
            self.headroom = Headroom::new();
            self.demand.forget_swap();
            self.stall.follow(&self.context, now_ms);
            if self.context.choice.log {
                report::print(format_args!("pressure: the process is in another cgroup"));
                self.describe(&mut |line| report::print(line));
            }
        }
        self.demand.look_at_swap(&self.context, now_ms);
        self.headroom.pressure(&self.context, &mut self.demand, now_ms)
    }

    /// Whether a source was chosen, which the system may lack so far.
    pub fn has_chosen(&self) -> bool {
        let choice = self.context.choice;
        choice.systemd || choice.psi || choice.cgroup
    }

    /// Whether an event can end [`wait`](Self::wait) before the next poll. A source whose
    /// descriptor the program has closed counts: `wait` opens it again.
    pub fn watches_descriptors(&self) -> bool {
        self.stall.is_watched() || self.headroom.descriptor().is_some()
    }

    /// Writes the state of each source into the snapshot, and the report that `pressure` is.
    pub fn publish(&self, pressure: Option<Pressure>) {
        let [systemd, psi, cgroup] = counters::sources();
        let state = |is_watched, is_chosen| match (is_watched, is_chosen) {
            (true, _) => layout::SOURCE_WATCHED,
            (false, true) => layout::SOURCE_MISSING,
            (false, false) => layout::SOURCE_OFF,
        };
        let choice = self.context.choice;
        let stall = self.stall.kind();
        systemd.state.store(state(stall == Some(Kind::Systemd), choice.systemd), Relaxed);
        psi.state.store(state(stall == Some(Kind::Psi), choice.psi), Relaxed);
        cgroup.state.store(state(self.context.limits().is_ok(), choice.cgroup), Relaxed);
        let (limit_bytes, used_bytes) = self.headroom.figures();
        cgroup.limit_bytes.store(limit_bytes, Relaxed);
        cgroup.used_bytes.store(used_bytes, Relaxed);
        let Some(Pressure { kind, bytes }) = pressure else { return };
        let source = match kind {
            Kind::Systemd => systemd,
            Kind::Psi => psi,
            Kind::Cgroup => cgroup,
        };
        source.reports.fetch_add(1, Relaxed);
        source.asked_bytes.store(bytes as u64, Relaxed);
        source.last_ns.store(clock::boot_ns(), Relaxed);
    }

    /// Prints one line for each source: the file that is watched, or the reason why none is.
    pub fn describe(&self, print: &mut dyn FnMut(core::fmt::Arguments)) {
        self.stall.describe(print);
        self.headroom.describe(&self.context, print);
    }
}
