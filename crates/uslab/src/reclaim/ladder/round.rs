//! One round over the shrinkers: count the entries that could go, then ask each shrinker for its
//! share.
//!
//! A round passes over a shrinker that another thread is inside. If a shrinker uses up its time and
//! frees nothing, later rounds leave it out, until the pass would give up.

use super::super::balance::{LIGHTEST, WHOLE, expected};
use super::world::{End, Visit, World};

/// Time of one shrinker in a round. A shrinker that has used it up waits for the next round, so
/// that a slow one does not delay the others for longer.
pub const BUDGET_NS: u64 = 20_000_000;

/// Rounds beyond priority 0. Each halves the worth of entries, and in the last one entries are
/// worth nothing: an allocation fails only after everything went.
pub const ROUNDS_BEYOND: u32 = 24;

/// Number of halvings that reduces any weight to the least one.
const ALL_HALVINGS: u32 = u64::BITS - 1;

/// Upper bound on the rounds: priorities 12 to 0, and the rounds beyond.
pub const MAX_ROUNDS: u32 = LIGHTEST + ROUNDS_BEYOND + 1;

/// The amount that a round asks for.
#[derive(Clone, Copy)]
pub struct Pressure {
    pub priority: u32,
    /// The number of times that the round halves the worth of entries.
    pub halvings: u32,
    /// The part of the resulting share that the round asks for, in 4096ths.
    pub part: u64,
}

impl Pressure {
    /// The pressure of round number `round`; round 0 is the lightest.
    pub fn of(round: u32) -> Pressure {
        Pressure {
            priority: LIGHTEST.saturating_sub(round),
            halvings: if round + 1 < MAX_ROUNDS { round.saturating_sub(LIGHTEST) } else { ALL_HALVINGS },
            part: WHOLE,
        }
    }
}

/// The possible result of a round.
#[derive(Default)]
pub struct Prospect {
    /// Entries that could go.
    pub freeable: usize,
    /// Entries that the round will ask for.
    pub expected: u64,
    /// Another thread is inside a live shrinker, which the round passed over.
    pub has_passed_over: bool,
}

/// The result of a round.
#[derive(Default)]
pub struct Outcome {
    pub entries: usize,
    /// As [`Prospect::has_passed_over`].
    pub has_passed_over: bool,
}

/// Asks all shrinkers for the number of entries that could go.
pub fn prospect<W: World>(world: &W, pressure: Pressure, left_out: &LeftOut<W::Shrinker>) -> Prospect {
    let mut sum = Prospect::default();
    sum.has_passed_over = visit_all(world, left_out, |_, mut visit| {
        let freeable = visit.count(pressure.priority);
        let weight = visit.weight(freeable).halved(pressure.halvings);
        sum.freeable = sum.freeable.saturating_add(freeable);
        sum.expected = sum.expected.saturating_add(expected(freeable, pressure.priority, weight));
    });
    sum
}

/// Asks all shrinkers for their shares.
pub fn shrink<W: World>(world: &W, pressure: Pressure, left_out: &mut LeftOut<W::Shrinker>) -> Outcome {
    let (mut sum, mut newly) = (Outcome::default(), LeftOut::default());
    sum.has_passed_over = visit_all(world, left_out, |shrinker, visit| {
        let end_ns = world.now_ns() + BUDGET_NS;
        let freed = shrink_one(world, visit, pressure, end_ns);
        sum.entries = sum.entries.saturating_add(freed);
        if freed == 0 && world.now_ns() > end_ns {
            newly.add(shrinker);
        }
    });
    newly.0.into_iter().flatten().for_each(|shrinker| left_out.add(shrinker));
    sum
}

/// Enters all shrinkers except those left out, one after the other. Returns whether it passed over
/// some because another thread is inside.
fn visit_all<'w, W: World>(
    world: &'w W,
    left_out: &LeftOut<W::Shrinker>,
    mut each: impl FnMut(W::Shrinker, W::Visit<'w>),
) -> bool {
    let mut has_passed_over = false;
    for shrinker in world.shrinkers().filter(|&shrinker| !left_out.has(shrinker)) {
        match world.visit(shrinker) {
            Some(visit) => each(shrinker, visit),
            None => has_passed_over |= world.is_live(shrinker),
        }
    }
    has_passed_over
}

/// Asks one shrinker for its share, lot by lot.
fn shrink_one<W: World>(world: &W, mut visit: W::Visit<'_>, pressure: Pressure, end_ns: u64) -> usize {
    let freeable = visit.count(pressure.priority);
    let weight = visit.weight(freeable).halved(pressure.halvings);
    let batch = visit.batch();
    let mut owed = visit.owed();
    owed = owed.after_part(freeable, pressure.priority, weight, batch, pressure.part);
    visit.set_owed(owed);
    let mut freed = 0;
    let mut end = if freeable == 0 { End::Empty } else { End::Share };
    // A callback may unregister its own shrinker; after that the context belongs to the program.
    while visit.is_open()
        && let Some(lot) = owed.next(freeable, batch)
    {
        let Some(entries) = visit.scan(pressure.priority, lot) else {
            end = End::Answered;
            break;
        };
        let entries = entries.min(lot);
        freed = entries.saturating_add(freed);
        visit.note_evicted(entries);
        owed = owed.less(lot);
        visit.set_owed(owed);
        if world.now_ns() > end_ns {
            end = End::Time;
            break;
        }
    }
    visit.note_end(if visit.is_open() { end } else { End::Gone });
    freed
}

/// Shrinkers that used up their time and freed nothing. A pass may have 37 rounds, so it asks them
/// no more. There is room for 8; the pass asks further ones again.
pub struct LeftOut<S>([Option<S>; 8]);

impl<S> Default for LeftOut<S> {
    fn default() -> Self {
        LeftOut([const { None }; 8])
    }
}

impl<S: Copy + PartialEq> LeftOut<S> {
    fn add(&mut self, shrinker: S) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(shrinker);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    fn has(&self, shrinker: S) -> bool {
        self.0.contains(&Some(shrinker))
    }
}
