//! A simulation of passes, limits and pressure sources: runs a hundred thousand random schedules,
//! each from a seed, against a model of the process. It needs one thread and no clock.
//!
//! ```text
//!   seed ─▶ schedule ─▶ model ◀── ladder      checks while it runs (model.rs) and after each pass
//!             ▲           │
//!             └─ fewer ◀──┴─ a check fails: events are removed as long as one does
//! ```
//!
//! It checks that no allocation fails while an entry could go or while there is free memory; that
//! every pass ends; that busy sheaves go last; that no shrinker is asked after it left; that only
//! passes for an allocation wait; that the bytes reported went to the system; and what `soft`
//! promises for the soft limit. [`mistakes`] shows that it finds each mistake of a table.

mod cache;
mod model;
mod schedule;
mod soft;

use super::round::MAX_ROUNDS;
use super::standing::Standing;
use super::{Estimate, Given, Goal, LADDER, Progress, Step, Takes, Until, climb};
use crate::pages::PAGE_BYTES;
use crate::reclaim::balance::LIGHTEST;
use crate::reclaim::sources::Demand;
use model::{For, Model};
use schedule::{Event, schedule};
use soft::{Policy, Soft};
use std::println;
use std::string::String;
use std::vec;
use std::vec::Vec;

/// Number of schedules of the whole simulation.
const SCHEDULES: u64 = 100_000;

/// Counts of what the schedules did, which show that they were not empty.
#[derive(Default, Debug)]
struct Tally {
    passes: usize,
    met: usize,
    failed: usize,
    /// Passes for the soft limit, and those that could not meet it.
    soft: usize,
    soft_unmet: usize,
    max_calls: usize,
    max_pauses: usize,
}

/// The rules that a simulation runs: those of the library, or rules with a mistake.
#[derive(Clone, Copy)]
struct Rules<'a> {
    ladder: &'a [Step],
    /// A shrinker that left still reports that it is open.
    hides_leaving: bool,
    soft: Policy,
}

impl Rules<'static> {
    const LIBRARY: Rules<'static> = Rules { ladder: &LADDER, hides_leaving: false, soft: Policy::LIBRARY };
}

/// A schedule in progress.
struct Run<'a> {
    ladder: &'a [Step],
    model: Model,
    demand: Demand,
    soft: Soft,
    tally: &'a mut Tally,
}

/// One pass of a run.
fn pass(
    ladder: &[Step],
    model: &Model,
    tally: &mut Tally,
    what: For,
    bytes: usize,
    goal: &mut dyn Goal,
) -> Progress {
    model.state.borrow_mut().begin(what);
    let before = model.state.borrow().purged_bytes;
    let progress = climb(ladder, model, bytes, goal);
    let state = &mut *model.state.borrow_mut();
    let given = (state.purged_bytes - before) as usize;
    if progress.given_bytes > given && state.violation.is_none() {
        state.violation = Some(std::format!("{} given, {given} reported", progress.given_bytes));
    }
    tally.passes += 1;
    tally.max_calls = tally.max_calls.max(state.calls);
    tally.max_pauses = tally.max_pauses.max(state.pauses);
    progress
}

impl Run<'_> {
    fn pass(&mut self, what: For, bytes: usize, goal: &mut dyn Goal) {
        pass(self.ladder, &self.model, self.tally, what, bytes, goal);
    }

    fn allocate(&mut self, pages: usize) -> bool {
        if self.model.state.borrow_mut().allocate(pages) {
            return true;
        }
        let hard = self.model.state.borrow().hard;
        // Evict no entries for a request that can never succeed.
        if hard != 0 && pages > hard {
            return false;
        }
        // A pass has its own reference to the model.
        let model = std::mem::replace(&mut self.model, Model::new(false));
        let mut is_done = false;
        let mut attempt = || {
            is_done |= !is_done && model.state.borrow_mut().allocate(pages);
            is_done || model.is_broken()
        };
        let bytes = pages * PAGE_BYTES;
        model.state.borrow_mut().begin(For::Allocation(pages));
        climb(self.ladder, &model, bytes, &mut Until { bytes, attempt: &mut attempt });
        {
            let state = &mut *model.state.borrow_mut();
            if !is_done && state.violation.is_none() {
                state.check_failed(pages);
            }
            self.tally.max_calls = self.tally.max_calls.max(state.calls);
            self.tally.max_pauses = self.tally.max_pauses.max(state.pauses);
        }
        self.tally.passes += 1;
        *if is_done { &mut self.tally.met } else { &mut self.tally.failed } += 1;
        self.model = model;
        is_done
    }

    fn estimate(&mut self, bytes: usize) {
        self.pass(For::Bytes(bytes), bytes, &mut Estimate { bytes, above_bytes: &|| usize::MAX });
    }

    fn event(&mut self, event: Event) {
        let state = self.model.state.get_mut();
        match event {
            Event::Limit { soft, hard } => (state.soft, state.hard) = (soft, hard),
            Event::Register { seeks, batch, per_page, stride, lands } => {
                self.model.register(seeks, batch, per_page, stride, lands);
            }
            Event::Unregister { cache } => state.unregister(cache),
            Event::Insert { cache, entries } => {
                for _ in 0..entries {
                    let is_there = |run: &Run| {
                        run.model.state.borrow().caches.get(cache).is_some_and(|of| of.is_registered)
                    };
                    if !is_there(self) {
                        break;
                    }
                    if !self.model.state.get_mut().insert(cache, false) {
                        if !self.allocate(1) || !is_there(self) {
                            break;
                        }
                        self.model.state.get_mut().insert(cache, true);
                        self.keep_soft();
                    }
                }
            }
            Event::Behave { cache, manner } => state.behave(cache, manner),
            Event::Allocate { pages } => {
                self.allocate(pages);
                self.keep_soft();
            }
            Event::Free { pages, lands } => state.free(pages, lands),
            Event::Reclaim { pages } => {
                let bytes = pages * PAGE_BYTES;
                self.pass(For::Bytes(bytes), bytes, &mut Given { bytes });
            }
            Event::Stall => {
                let held = state.all_pages() * PAGE_BYTES;
                let now_ms = state.now_ns / 1_000_000;
                let bytes = self.demand.part(now_ms, held).min(held / 4);
                self.estimate(bytes);
            }
            Event::Headroom { pages } => self.estimate(pages * PAGE_BYTES),
            Event::Meanwhile { at, act } => state.meanwhile.push((at, act)),
            Event::Sleep { ms } => state.now_ns += ms * 1_000_000,
        }
    }
}

/// Runs a schedule; returns the first violation, if any.
fn run(rules: Rules, events: &[Event], tally: &mut Tally) -> Option<String> {
    let model = Model::new(rules.hides_leaving);
    let soft = Soft::new(rules.soft);
    let mut run = Run { ladder: rules.ladder, model, demand: Demand::new(), soft, tally };
    for &event in events {
        run.event(event);
        if let Some(violation) = run.model.state.get_mut().violation.take() {
            return Some(violation);
        }
    }
    None
}

/// A failure that the simulation found: its seed, and the smallest schedule that still fails.
struct Found {
    seed: u64,
    violation: String,
    events: Vec<Event>,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.violation)?;
        self.events.iter().try_for_each(|event| writeln!(f, "    {event:?}"))
    }
}

/// Runs the schedules of `seeds` until one fails.
fn simulate(rules: Rules, seeds: std::ops::Range<u64>, tally: &mut Tally) -> Option<Found> {
    for seed in seeds {
        let mut events = schedule(seed);
        let Some(mut violation) = run(rules, &events, tally) else { continue };
        // Remove events, the last first, as long as the schedule fails without them.
        let mut at = events.len();
        while at > 0 {
            at -= 1;
            let mut fewer = events.clone();
            fewer.remove(at);
            if let Some(still) = run(rules, &fewer, &mut Tally::default()) {
                (events, violation) = (fewer, still);
                at = events.len();
            }
        }
        return Some(Found { seed, violation, events });
    }
    None
}

#[test]
fn a_hundred_thousand_schedules_keep_every_promise() {
    let mut tally = Tally::default();
    if let Some(found) = simulate(Rules::LIBRARY, 0..SCHEDULES, &mut tally) {
        panic!("{found:?}");
    }
    println!("{tally:?}");
    assert!(tally.met > 10_000 && tally.failed > 1000, "{tally:?}");
    assert!(tally.soft > 10_000 && tally.soft_unmet > 1000, "{tally:?}");
}

/// The ladder without one of its steps.
fn without(takes: Takes) -> Vec<Step> {
    LADDER.into_iter().filter(|step| step.takes != takes).collect()
}

/// The ladder with another condition for one of its steps.
fn with(takes: Takes, when: fn(&Standing) -> bool) -> Vec<Step> {
    let change = |step: Step| if step.takes == takes { Step { takes, when } } else { step };
    LADDER.into_iter().map(change).collect()
}

/// The ladder's own condition for a step.
fn allows(takes: Takes, now: &Standing) -> bool {
    LADDER.iter().any(|step| step.takes == takes && (step.when)(now))
}

/// Ladders with a mistake, and the violation that each leads to.
fn mistakes() -> Vec<(&'static str, Vec<Step>, &'static str)> {
    const ENTRY: &str = "an allocation failed while an entry could go";
    const GENTLE: &str = "busy sheaves went while gentler steps had enough";
    let busy_before_entries = {
        let mut ladder = with(Takes::BusySheaves, |now| now.is_settled() && !now.is_trimmed);
        let busy = ladder.iter().position(|step| step.takes == Takes::BusySheaves).expect("a step");
        ladder.swap(busy, 2);
        ladder
    };
    vec![
        ("no retry", without(Takes::Retry), ENTRY),
        ("no entries", without(Takes::Entries), ENTRY),
        ("no wait", without(Takes::Time), ENTRY),
        ("no busy sheaves", without(Takes::BusySheaves), "an allocation failed"),
        ("no scattered pages", without(Takes::ScatteredPages), GENTLE),
        (
            "priorities end at 1",
            with(Takes::Entries, |now| !now.is_at_last_priority() && allows(Takes::Entries, now)),
            ENTRY,
        ),
        (
            "dear entries stay dear",
            with(Takes::Entries, |now| now.round <= LIGHTEST && allows(Takes::Entries, now)),
            ENTRY,
        ),
        (
            "the last round is not for everything",
            with(Takes::Entries, |now| now.round + 1 < MAX_ROUNDS && allows(Takes::Entries, now)),
            ENTRY,
        ),
        ("the slow are not forgiven", with(Takes::Retry, |now| now.has_waited), ENTRY),
        (
            "the slow are forgiven for ever",
            with(Takes::Retry, |now| now.has_waited || now.has_left_out),
            "a pass does not end",
        ),
        ("retries without end", with(Takes::Retry, |_| true), "a pass does not end"),
        (
            "all passes wait",
            with(Takes::Time, |now| allows(Takes::Time, now) || now.is_barren),
            "a pass waited that may not",
        ),
        (
            "scattered pages go after busy sheaves",
            with(Takes::ScatteredPages, |now| now.is_trimmed && allows(Takes::ScatteredPages, now)),
            GENTLE,
        ),
        ("busy sheaves go before entries", busy_before_entries, "busy sheaves went before entries"),
        ("what entries bring is not swept", with(Takes::Pages, |now| now.round == 0 && !now.is_purged), ""),
    ]
}

#[test]
fn each_seeded_mistake_is_found_and_its_schedule_is_short() {
    for (mistake, ladder, violation) in mistakes() {
        let rules = Rules { ladder: &ladder, ..Rules::LIBRARY };
        let found = simulate(rules, 0..SCHEDULES / 4, &mut Tally::default());
        let found = found.unwrap_or_else(|| panic!("{mistake}: not found"));
        println!("{mistake}: {found:?}");
        assert!(found.violation.starts_with(violation), "{mistake}: {found:?}");
        assert!(found.events.len() <= 8, "{mistake}: {found:?}");
    }
}

#[test]
fn a_shrinker_that_is_asked_after_it_left_is_found() {
    let rules = Rules { hides_leaving: true, ..Rules::LIBRARY };
    let found = simulate(rules, 0..SCHEDULES, &mut Tally::default());
    let found = found.expect("an unregistered shrinker was asked");
    println!("{found:?}");
    assert_eq!(found.violation, "a shrinker was asked after it left");
}
