//! The soft limit of the simulation: what asks for a pass, and what such a pass promises.
//!
//! ```text
//!   a page taken ─▶ held > soft, no rest ─▶ pass to the floor ─▶ too little: a rest
//! ```
//!
//! Checked: no entry goes once no more is held than the floor; a pass that gave what it was asked
//! leaves room below the limit; none soon follows one that gave less and left more than the limit;
//! one that ended unmet left nothing that could go.

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
    /// Whether a rest follows a pass: by its results, the bytes that it was asked for, and whether
    /// it met its goal.
    pub rests: fn(&Progress, usize, bool) -> bool,
}

impl Policy {
    /// The library's.
    pub const LIBRARY: Policy = Policy {
        floor: budget::floor,
        looks_above: true,
        rests: |progress, bytes, _| budget::falls_short(progress, bytes),
    };
}

/// The soft limit of a run.
pub struct Soft {
    policy: Policy,
    rest: Rest,
    /// When a pass last brought too little, and the bytes that it left.
    fell_short: Option<(u64, usize)>,
}

impl Soft {
    pub fn new(policy: Policy) -> Soft {
        Soft { policy, rest: Rest::up_to(TICK_MS), fell_short: None }
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
        let is_early =
            |&(ms, left): &(u64, usize)| now_ms < ms + TICK_MS && held < left + budget::growth_bytes(left);
        if soft.fell_short.as_ref().is_some_and(is_early) {
            model.state.borrow_mut().fail("a pass that brought too little was followed by another at once");
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
        let has_fallen_short = progress.given_bytes < bytes && left > limit;
        soft.fell_short = has_fallen_short.then_some((now_ms, left));
        if (soft.policy.rests)(&progress, bytes, is_met) && left > limit {
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
            Policy { rests: |progress, _, is_met| !is_met && progress.entries == 0, ..library },
            "a pass that brought too little was followed by another at once",
        ),
        (
            "a rest only after an unmet goal",
            Policy { rests: |_, _, is_met| !is_met, ..library },
            "a pass that brought too little was followed by another at once",
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
