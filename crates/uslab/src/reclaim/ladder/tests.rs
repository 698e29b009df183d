//! Tests of each transition of the ladder and of the goals, without a thread or a clock.

use super::super::balance::{LIGHTEST, Weight, expected};
use super::standing::{MAX_REPEATS, MAX_WAITS};
use super::*;

const WAITS: Terms =
    Terms { waits: true, scattered: Scattered::Go, margin: 2, learns: false, basis: Basis::Pages };
const HURRIES: Terms = Terms { waits: false, scattered: Scattered::Stay, ..WAITS };

/// The next step in this state.
fn next(now: &Standing) -> Option<Takes> {
    LADDER.iter().find(|step| (step.when)(now)).map(|step| step.takes)
}

/// The state of a pass whose free memory has been swept, before round number `round`.
fn swept(terms: Terms, round: u32) -> Standing {
    Standing { round, is_purged: true, is_swept: true, ..Standing::new(4096, terms) }
}

/// A round that found `freeable` entries and freed `entries` of them.
fn round(freeable: usize, entries: usize) -> Round {
    Round { freeable, entries, has_passed_over: false, has_left_out: false }
}

const NOTHING: Round = Round { freeable: 0, entries: 0, has_passed_over: false, has_left_out: false };

#[test]
fn free_memory_goes_first_pages_before_slabs() {
    let mut now = Standing::new(8192, HURRIES);
    assert_eq!((next(&now), now.is_settled()), (Some(Takes::Pages), false));
    now.note_purged(4096);
    assert_eq!((next(&now), now.sweep_bytes), (Some(Takes::Slabs), 4096));
    now.is_swept = true;
    assert_eq!((next(&now), now.is_settled()), (Some(Takes::Entries), true));
}

#[test]
fn slabs_stay_where_pages_are_enough() {
    let mut now = Standing::new(8192, HURRIES);
    now.note_purged(8192);
    assert_eq!((next(&now), now.is_settled()), (Some(Takes::Entries), true));
}

#[test]
fn what_entries_bring_is_swept_before_the_goal_is_asked() {
    let mut now = Standing { is_trimmed: true, ..swept(HURRIES, 3) };
    now.note_round(&round(100, 5), HURRIES, 12_288);
    assert_eq!((next(&now), now.sweep_bytes, now.round), (Some(Takes::Pages), 12_288, 4));
    assert!(!now.is_settled() && !now.is_trimmed);
}

#[test]
fn a_round_that_brings_nothing_is_followed_by_the_next_priority() {
    let mut now = swept(HURRIES, 3);
    now.note_round(&round(100, 0), HURRIES, 4096);
    assert_eq!((next(&now), now.round), (Some(Takes::Entries), 4));
    assert!(now.is_settled(), "nothing came free");
}

#[test]
fn without_entries_scattered_pages_go_and_then_busy_sheaves() {
    let mut now = swept(HURRIES, 0);
    now.note_round(&NOTHING, HURRIES, 4096);
    assert_eq!(next(&now), Some(Takes::ScatteredPages));
    now.note_scattered(4096);
    assert_eq!((next(&now), now.scattered), (Some(Takes::Pages), Scattered::Go));
    (now.is_purged, now.is_swept) = (true, true);
    assert_eq!(next(&now), Some(Takes::Entries), "there may be some by now");
    now.note_round(&NOTHING, HURRIES, 4096);
    assert_eq!(next(&now), Some(Takes::BusySheaves));
    now.note_trimmed();
    assert_eq!(next(&now), Some(Takes::Entries), "and once more");
    now.note_round(&NOTHING, HURRIES, 4096);
    assert_eq!((next(&now), now.round), (None, 0));
}

#[test]
fn before_priority_0_the_same_two_go_and_again_after_each_round() {
    let mut now = swept(HURRIES, LIGHTEST - 1);
    assert_eq!(next(&now), Some(Takes::Entries));
    now.note_round(&round(100, 0), HURRIES, 4096);
    assert_eq!(next(&now), Some(Takes::ScatteredPages));
    now = Standing { scattered: Scattered::Go, ..now };
    assert_eq!(next(&now), Some(Takes::BusySheaves));
    now.note_trimmed();
    assert_eq!(next(&now), Some(Takes::Entries));
    now.note_round(&round(100, 1), HURRIES, 4096);
    (now.is_purged, now.is_swept) = (true, true);
    assert_eq!(next(&now), Some(Takes::BusySheaves));
}

#[test]
fn an_allocation_begins_with_scattered_pages() {
    assert_eq!(Standing::new(4096, WAITS).scattered, Scattered::Go);
    let mut now = swept(WAITS, 0);
    now.note_round(&NOTHING, WAITS, 4096);
    assert_eq!(next(&now), Some(Takes::BusySheaves));
}

#[test]
fn another_thread_inside_is_waited_for_and_the_same_round_follows() {
    let mut now = swept(WAITS, 5);
    let busy = Round { has_passed_over: true, ..round(100, 0) };
    for waits in 0..MAX_WAITS {
        now.note_round(&busy, WAITS, 4096);
        assert_eq!((next(&now), now.round, now.waits), (Some(Takes::Time), 5, waits));
        now.note_wait();
        assert_eq!(next(&now), Some(Takes::Entries));
    }
    now.note_round(&busy, WAITS, 4096);
    assert_eq!((next(&now), now.round), (Some(Takes::Entries), 6));
}

#[test]
fn a_pass_that_may_not_wait_goes_on() {
    let mut now = swept(HURRIES, 5);
    now.note_round(&Round { has_passed_over: true, ..round(100, 0) }, HURRIES, 4096);
    assert_eq!((next(&now), now.round), (Some(Takes::Entries), 6));
}

#[test]
fn as_long_as_entries_go_no_thread_is_waited_for() {
    let mut now = swept(WAITS, 5);
    now.note_round(&Round { has_passed_over: true, ..round(100, 1) }, WAITS, 4096);
    assert_eq!((next(&now), now.round), (Some(Takes::Pages), 6));
}

#[test]
fn in_the_last_round_it_is_waited_for_all_the_same() {
    let mut now = Standing { is_trimmed: true, ..swept(WAITS, MAX_ROUNDS - 1) };
    now.note_round(&Round { has_passed_over: true, ..round(100, 1) }, WAITS, 4096);
    (now.is_purged, now.is_swept) = (true, true);
    assert_eq!((next(&now), now.round), (Some(Takes::BusySheaves), MAX_ROUNDS - 1));
    now.note_trimmed();
    assert_eq!(next(&now), Some(Takes::Time), "not the round again, for ever");
}

#[test]
fn busy_sheaves_go_before_an_allocation_waits_without_entries() {
    let mut now = swept(WAITS, 0);
    let busy = Round { has_passed_over: true, ..NOTHING };
    now.note_round(&busy, WAITS, 4096);
    assert_eq!(next(&now), Some(Takes::BusySheaves));
    now.note_trimmed();
    assert_eq!(next(&now), Some(Takes::Time));
}

#[test]
fn what_was_waited_for_is_asked_once_more_at_priority_0() {
    let ended = Standing { is_trimmed: true, has_waited: true, ..swept(WAITS, MAX_ROUNDS) };
    let mut now = ended;
    assert_eq!(next(&now), Some(Takes::Retry));
    now.note_retry();
    assert_eq!((next(&now), now.round), (Some(Takes::BusySheaves), LIGHTEST));
    assert_eq!(next(&Standing { has_waited: false, ..ended }), None);
}

#[test]
fn slow_shrinkers_are_forgiven_once() {
    let mut now = Standing { is_trimmed: true, ..swept(HURRIES, LIGHTEST) };
    let slow = Round { has_left_out: true, ..NOTHING };
    now.note_round(&slow, HURRIES, 4096);
    now.scattered = Scattered::Go;
    assert_eq!(next(&now), Some(Takes::Retry));
    now.note_retry();
    assert!(!now.has_left_out && now.has_forgiven);
    now.is_trimmed = true;
    now.note_round(&slow, HURRIES, 4096);
    assert_eq!(next(&now), None);
}

#[test]
fn the_last_round_is_repeated_while_fewer_entries_are_left() {
    let last = Standing { is_trimmed: true, ..swept(WAITS, MAX_ROUNDS - 1) };
    let mut now = last;
    for left in (1..=MAX_REPEATS as usize).rev() {
        now.note_round(&round(left, 1), WAITS, 4096);
        assert_eq!(now.round, MAX_ROUNDS - 1, "{left}");
    }
    now = last;
    for left in [100, 100] {
        now.note_round(&round(left, 1), WAITS, 4096);
    }
    assert_eq!(now.round, MAX_ROUNDS, "a shrinker that has as many as before is no reason");
    now = Standing { repeats: MAX_REPEATS, ..last };
    now.note_round(&round(50, 1), WAITS, 4096);
    assert_eq!(now.round, MAX_ROUNDS);
    now = last;
    now.note_round(&round(50, 1), HURRIES, 4096);
    assert_eq!(now.round, MAX_ROUNDS, "only an allocation is worth the time");
}

#[test]
fn after_the_last_round_everything_free_is_taken_before_the_end() {
    let mut now = swept(WAITS, MAX_ROUNDS);
    assert_eq!(next(&now), Some(Takes::BusySheaves));
    now.note_trimmed();
    assert_eq!(next(&now), None);
}

#[test]
fn goals_ask_for_what_they_miss() {
    let mut given = Given { bytes: 100 };
    let so_far =
        |given_bytes, estimated_bytes| Progress { given_bytes, estimated_bytes, ..Progress::default() };
    assert_eq!(given.missing_bytes(&so_far(30, 500)), 70);
    assert!(!given.is_met(&so_far(99, 500)) && given.is_met(&so_far(100, 0)));

    let mut estimate = Estimate { bytes: 100, above_bytes: &|| usize::MAX };
    assert_eq!(estimate.missing_bytes(&so_far(30, 60)), 40);
    assert!(estimate.is_met(&so_far(0, 100)) && estimate.is_met(&so_far(100, 0)));
    let mut beside_others = Estimate { bytes: 100, above_bytes: &|| 7 };
    assert_eq!(beside_others.missing_bytes(&so_far(30, 60)), 7, "no more than is above the floor");
    assert!(beside_others.is_met(&so_far(100, 0)));

    let (mut tries, rounds) = (0, |rounds| Progress { rounds, ..Progress::default() });
    let mut attempt = || {
        tries += 1;
        tries == 2
    };
    let until = Until { bytes: 100, attempt: &mut attempt };
    assert_eq!(until.missing_bytes(&rounds(0)), 100);
    assert_eq!(until.missing_bytes(&rounds(3)), 800, "each round twice as much");
    assert_eq!(Until { bytes: usize::MAX, ..until }.missing_bytes(&rounds(MAX_ROUNDS)), usize::MAX);
    let mut attempt = || {
        tries += 1;
        tries == 2
    };
    let mut until = Until { bytes: 100, attempt: &mut attempt };
    assert!(!until.is_met(&so_far(1000, 1000)) && until.is_met(&so_far(0, 0)));
}

#[test]
fn only_an_allocation_waits_and_takes_scattered_pages_at_once() {
    let until = Until { bytes: 1, attempt: &mut || true }.terms();
    assert!(until.waits && until.scattered == Scattered::Go);
    for terms in [Given { bytes: 1 }.terms(), Estimate { bytes: 1, above_bytes: &|| 1 }.terms()] {
        assert!(!terms.waits && terms.scattered == Scattered::Stay);
    }
}

#[test]
fn rounds_go_through_the_priorities_and_end_with_everything() {
    let of = |round| (Pressure::of(round).priority, Pressure::of(round).halvings);
    assert_eq!([0, 1, 12, 13].map(of), [(12, 0), (11, 0), (0, 0), (0, 1)]);
    let last = Pressure::of(MAX_ROUNDS - 1);
    let dearest = Weight::of_seeks(u32::MAX).halved(last.halvings);
    assert_eq!(expected(1000, last.priority, dearest), 1000);
    let before = Weight::of_seeks(u32::MAX).halved(Pressure::of(MAX_ROUNDS - 2).halvings);
    assert!(expected(1000, 0, before) < 1000, "so that the last round is needed");
}
