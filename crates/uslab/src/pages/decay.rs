//! Decay: free memory stays for about a second, and goes back when it was not needed meanwhile.
//!
//! ```text
//!   dirty pages │    ╱╲    ╱╲    ╱╲
//!               │ ╲╱    ╲╱    ╲╱          a loop that allocates and frees: its pages stay
//!               │ ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ least
//!               │ ::::::::::::::::        was free all the time: goes when the window ends
//!               └────────┬────────┬──▶
//!                 before    now           two periods are the window
//! ```
//!
//! The least number of dirty pages in a window is what the program did without for all of it. The
//! window is two periods of half the decay. So memory freed stays for one decay to one and a half.
//! Of more than 512 MiB, half goes at a time.
//!
//! Free memory must not make a process much larger than its need. Where a program takes fresh pages
//! because the free ones do not fit, and holds more than 8 MiB beyond twice what was in use at most
//! in the window, pages go early, down to 1.5 times that use and 4 MiB.

use super::PAGE_BYTES;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The decay if neither the environment nor the program chose one.
const DEFAULT_MS: u64 = 1000;
/// Memory is never given back for its age.
const NEVER: u64 = u64::MAX;
const NOT_CHOSEN: u64 = u64::MAX - 1;
/// Time between two ticks of the background thread.
pub const TICK_MS: u64 = 500;
/// A tick that comes so much too early counts as one in time: the clock is a coarse one, and ticks
/// do not come to the millisecond.
const EARLY_MS: u64 = TICK_MS / 8;
/// A shorter decay counts as this one, so that the background thread does not spin.
const MIN_MS: u64 = 20;
/// Idle pages go by halves, but no fewer than these at a tick: 512 MiB.
const MIN_STEP_PAGES: usize = (512 << 20) / PAGE_BYTES;

/// Beyond twice what was in use at most, so much may be held: 8 MiB.
const SLACK_PAGES: usize = (8 << 20) / PAGE_BYTES;
/// The background thread counts as late so long after the end of a period.
const LATE_MS: u64 = 1000;

static DECAY_MS: AtomicU64 = AtomicU64::new(NOT_CHOSEN);

/// When the period began. Written under the buddy's lock.
static BEGAN_MS: AtomicU64 = AtomicU64::new(0);

/// Chooses how long free memory stays; `None` for ever.
pub fn set_ms(ms: Option<u64>) {
    DECAY_MS.store(stored(ms), Relaxed);
}

fn stored(ms: Option<u64>) -> u64 {
    ms.map_or(NEVER, |ms| ms.min(NOT_CHOSEN - 1))
}

/// How long free memory stays; `None` for ever.
pub(super) fn ms() -> Option<u64> {
    match DECAY_MS.load(Relaxed) {
        NEVER => None,
        NOT_CHOSEN => Some(DEFAULT_MS),
        ms => Some(ms),
    }
}

/// Chooses as [`set_ms`], unless the program has chosen already.
pub fn set_default_ms(ms: Option<u64>) {
    let _ = DECAY_MS.compare_exchange(NOT_CHOSEN, stored(ms), Relaxed, Relaxed);
}

/// Time between two ticks for what is idle; `None` if none is needed, because no memory goes for
/// its age, or all goes at once.
pub fn period_ms() -> Option<u64> {
    ms().filter(|&ms| ms > 0).map(|ms| ms.max(MIN_MS) / 2)
}

/// With a decay of `ms`, how long no object of a slab in use must be taken or freed before the
/// slab's free pages go: by default the time between two ticks.
fn rest_ms(ms: u64) -> u64 {
    if ms == 0 { 0 } else { ms.saturating_sub(TICK_MS).max(TICK_MS) }
}

/// Whether it is time for the next walk of the slabs in use, of which the last was at `walked_ms`.
pub fn is_walk_due(walked_ms: u64, now_ms: u64) -> bool {
    ms().is_some_and(|ms| now_ms.saturating_sub(walked_ms) + EARLY_MS >= rest_ms(ms))
}

/// Whether free memory goes as soon as it is free.
pub fn is_at_once() -> bool {
    DECAY_MS.load(Relaxed) == 0
}

/// Whether the period is over, or nearly.
pub(super) fn is_over(now_ms: u64, period_ms: u64) -> bool {
    is_over_after(now_ms.saturating_sub(BEGAN_MS.load(Relaxed)), period_ms)
}

/// The same of a period that began so long ago. It ends early by [`EARLY_MS`], or by an eighth of
/// it if that is less.
fn is_over_after(passed_ms: u64, period_ms: u64) -> bool {
    passed_ms >= period_ms - EARLY_MS.min(period_ms / 8)
}

/// Whether the period ended [`LATE_MS`] ago, or a little less.
pub(super) fn is_late(now_ms: u64) -> bool {
    period_ms().is_some_and(|period_ms| is_over(now_ms, period_ms + LATE_MS))
}

/// The time at which the background thread is due, whose next tick is at `next_ms`: the end of the
/// period, if that comes first. A period of the time between two ticks ends at a tick.
pub fn due_ms(next_ms: u64) -> u64 {
    end_of(period_ms(), BEGAN_MS.load(Relaxed)).map_or(next_ms, |end_ms| end_ms.min(next_ms))
}

/// The end of a period that began at `began_ms`; `None` if a tick ends it, or there are no periods.
fn end_of(period_ms: Option<u64>, began_ms: u64) -> Option<u64> {
    period_ms.filter(|&period_ms| period_ms != TICK_MS).map(|period_ms| began_ms.saturating_add(period_ms))
}

/// A period begins; the caller holds the buddy's lock.
pub(super) fn begin_period(now_ms: u64) {
    BEGAN_MS.store(now_ms, Relaxed);
}

/// The least number of dirty pages in a window, and the largest number in use. Guarded by the
/// buddy's lock.
pub(super) struct Window {
    /// The least dirty pages in this period.
    least_pages: usize,
    /// The same in the period before.
    before_pages: usize,
    /// The most pages in use in this period.
    most_used_pages: usize,
    /// The same in the period before.
    most_before_pages: usize,
}

impl Window {
    pub const fn new() -> Window {
        Window { least_pages: 0, before_pages: 0, most_used_pages: 0, most_before_pages: 0 }
    }

    /// Notes the present numbers of dirty pages and of pages in use.
    pub fn note(&mut self, dirty_pages: usize, used_pages: usize) {
        self.least_pages = self.least_pages.min(dirty_pages);
        self.most_used_pages = self.most_used_pages.max(used_pages);
    }

    /// Whether a program that takes fresh pages should give others back, now that it holds so many.
    pub fn is_too_large(&self, held_pages: usize) -> bool {
        held_pages > self.needed_pages() + self.slack_pages()
    }

    /// The pages that such a program should hold.
    pub fn goal_pages(&self) -> usize {
        self.needed_pages() + self.slack_pages() / 2
    }

    fn needed_pages(&self) -> usize {
        self.most_used_pages.max(self.most_before_pages)
    }

    fn slack_pages(&self) -> usize {
        self.needed_pages() + SLACK_PAGES
    }

    /// Notes that `pages` of the idle pages went.
    pub fn note_purged(&mut self, pages: usize) {
        self.least_pages = self.least_pages.saturating_sub(pages);
        self.before_pages = self.before_pages.saturating_sub(pages);
    }

    /// Pages that go back at the end of this period: half of those that were idle for the window,
    /// but [`MIN_STEP_PAGES`] at least, or all if they are fewer.
    pub fn step_pages(&self) -> usize {
        let idle = self.least_pages.min(self.before_pages);
        idle.div_ceil(2).max(MIN_STEP_PAGES).min(idle)
    }

    /// Ends the period, and begins the next one with these dirty pages and pages in use.
    pub fn begin_period(&mut self, dirty_pages: usize, used_pages: usize) {
        (self.before_pages, self.least_pages) = (self.least_pages, dirty_pages);
        (self.most_before_pages, self.most_used_pages) = (self.most_used_pages, used_pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window that saw the numbers `dirty`, one in each period.
    fn after(dirty: &[usize]) -> Window {
        let mut window = Window::new();
        for &pages in dirty {
            window.note(pages, 0);
            window.begin_period(pages, 0);
        }
        window
    }

    #[test]
    fn slabs_rest_for_a_tick_at_least_and_a_tick_less_than_a_longer_decay() {
        let rests = [(0, 0), (20, 500), (1000, 500), (1200, 700), (10_000, 9500)];
        assert!(rests.into_iter().all(|(ms, expected_ms)| rest_ms(ms) == expected_ms));
        assert_eq!(rest_ms(DEFAULT_MS), TICK_MS, "what is free for two ticks goes by default");
    }

    #[test]
    fn periods_end_on_time_and_those_of_the_default_at_a_tick() {
        assert_eq!(DEFAULT_MS / 2, TICK_MS);
        let ends = [Some(TICK_MS), None, Some(10), Some(600)].map(|period_ms| end_of(period_ms, 1000));
        assert_eq!(ends, [None, None, Some(1010), Some(1600)]);
        assert_eq!(due_ms(u64::MAX), u64::MAX, "no test sets another decay");
    }

    #[test]
    fn a_long_period_ends_no_earlier_than_a_tick_may() {
        let ends = [(10, 9), (500, 438), (8000, 7938), (60_000, 59_938)];
        assert!(ends.iter().all(|&(period_ms, end_ms)| is_over_after(end_ms, period_ms)));
        assert!(ends.iter().all(|&(period_ms, end_ms)| !is_over_after(end_ms - 1, period_ms)));
    }

    #[test]
    fn pages_go_when_they_were_free_for_two_periods() {
        assert_eq!(after(&[100]).step_pages(), 0);
        assert_eq!(after(&[100, 100]).step_pages(), 100);
    }

    #[test]
    fn pages_that_were_in_use_in_between_stay() {
        let mut window = after(&[100, 100]);
        window.note(30, 0);
        window.note(100, 0);
        assert_eq!(window.step_pages(), 30);
        window.note_purged(30);
        window.begin_period(70, 0);
        assert_eq!(window.step_pages(), 0);
        window.begin_period(70, 0);
        assert_eq!(window.step_pages(), 70);
    }

    #[test]
    fn many_pages_go_by_halves() {
        let window = after(&[10 * MIN_STEP_PAGES; 3]);
        assert_eq!(window.step_pages(), 5 * MIN_STEP_PAGES);
    }

    #[test]
    fn what_may_be_held_follows_the_need_of_the_window() {
        let mut window = Window::new();
        window.note(0, 80_000);
        window.note(60_000, 20_000);
        assert!(!window.is_too_large(2 * 80_000 + SLACK_PAGES));
        assert!(window.is_too_large(2 * 80_000 + SLACK_PAGES + 1));
        assert_eq!(window.goal_pages(), 80_000 + (80_000 + SLACK_PAGES) / 2);
        window.begin_period(60_000, 20_000);
        assert!(!window.is_too_large(80_000));
        window.begin_period(60_000, 20_000);
        assert!(window.is_too_large(80_000));
    }
}
