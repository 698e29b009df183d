//! The soft limit of the simulation: what asks for a pass, and what such a pass promises.
//!
//! ```text
//!   a page taken ─▶ held > soft ─▶ no rest lasts ─▶ pass down to the floor ─▶ unmet: a rest
//! ```
//!
//! Checked: no entry goes once no more is held than the floor; a pass that gave what it was asked
//! leaves room below the limit; one that gave up left nothing that could go, and none follows it
//! soon.

use super::super::{Estimate, Goal, Progress};
use super::model::For;
use super::{Rules, Run, SCHEDULES, Tally, pass, simulate};
use crate::cache::TICK_MS;
use crate::pages::PAGE_BYTES;
use crate::reclaim::budget::{self, Rest};
use std::println;

/// How the soft limit is kept.
#[derive(Clone, Copy)]
pub struct Policy {
    /// Bytes that may stay: of those held, and of the limit.
    pub floor: fn(usize, usize) -> Option<usize>,
    /// Whether a pass asks what is above the floor now.
    pub looks_above: bool,
    /// Whether a rest follows a pass that was met or not.
    pub rests: fn(&Progress, bool) -> bool,
}

impl Policy {
    /// The library's.
    pub const LIBRARY: Policy =
        Policy { floor: budget::floor, looks_above: true, rests: |_, is_met| !is_met };
}

/// The soft limit of a run.
pub struct Soft {
    policy: Policy,
    rest: Rest,
    /// When a pass last gave up, and what it left.
    gave_up: Option<(u64, usize)>,
}

impl Soft {
    pub fn new(policy: Policy) -> Soft {
        Soft { policy, rest: Rest::none(), gave_up: None }
    }
}

impl Run<'_> {
    /// What the listener does where pages were taken.
    pub fn keep_soft(&mut self) {
        let Run { ladder, model, soft, tally, .. } = self;
        let (held, limit, now_ms) = {
            let state = model.state.borrow();
            (state.all_bytes(), state.soft * PAGE_BYTES, state.now_ns / 1_000_000)
        };
        if limit == 0 || soft.rest.lasts(now_ms, held) {
            return;
        }
        let Some(floor_bytes) = (soft.policy.floor)(held, limit) else { return };
        let is_early = |&(ms, left): &(u64, usize)| now_ms < ms + TICK_MS && held < left + left / 16;
        if soft.gave_up.as_ref().is_some_and(is_early) {
            model.state.borrow_mut().fail("a pass that gave up was followed by another at once");
            return;
        }
        let bytes = held.saturating_sub(floor_bytes);
        let above_bytes = || match soft.policy.looks_above {
            true => model.state.borrow().all_bytes().saturating_sub(floor_bytes),
            false => usize::MAX,
        };
        let mut goal = Estimate { bytes, above_bytes: &above_bytes };
        let progress = pass(ladder, model, tally, For::Held { bytes, floor_bytes }, bytes, &mut goal);
        let is_met = goal.is_met(&progress);
        let state = &mut *model.state.borrow_mut();
        let (left, now_ms) = (state.all_bytes(), state.now_ns / 1_000_000);
        tally.soft += 1;
        tally.soft_unmet += usize::from(!is_met);
        if !state.is_disturbed && progress.given_bytes >= bytes && left + PAGE_BYTES > limit {
            state.fail("a pass that met its goal leaves no room below the limit");
        }
        if !state.is_disturbed && !is_met {
            state.check_unmet();
        }
        let has_given_up = !is_met && left > limit;
        soft.gave_up = has_given_up.then_some((now_ms, left));
        if (soft.policy.rests)(&progress, is_met) && left > limit {
            soft.rest.begin(now_ms, left);
        }
    }
}

#[test]
fn each_mistake_in_the_soft_limit_is_found_and_its_schedule_is_short() {
    let library = Policy::LIBRARY;
    let mistakes = [
        (
            "the floor is the limit",
            Policy { floor: |held, soft| (held > soft).then_some(soft), ..library },
            "a pass that met its goal leaves no room below the limit",
        ),
        (
            "no look at the floor",
            Policy { looks_above: false, ..library },
            "entries went while no more was held than may stay",
        ),
        (
            "a rest only where no entry went",
            Policy { rests: |progress, is_met| !is_met && progress.entries == 0, ..library },
            "a pass that gave up was followed by another at once",
        ),
    ];
    for (mistake, soft, violation) in mistakes {
        let rules = Rules { soft, ..Rules::LIBRARY };
        let found = simulate(rules, 0..SCHEDULES / 4, &mut Tally::default());
        let found = found.unwrap_or_else(|| panic!("{mistake}: not found"));
        println!("{mistake}: {found:?}");
        assert_eq!(found.violation, violation, "{mistake}: {found:?}");
        assert!(found.events.len() <= 8, "{mistake}: {found:?}");
    }
}
