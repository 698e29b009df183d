//! One round over the shrinkers: look at what could go, then ask each for its share.
//!
//! A shrinker that another thread is inside is passed over. One that used up its time and freed
//! nothing is left out of the following rounds, until the pass would give up.

use super::super::balance::{LIGHTEST, WHOLE, expected};
use super::world::{Visit, World};

/// A shrinker that has taken this long in a round is left until the next one: one that is slow
/// holds up the others no longer.
pub const BUDGET_NS: u64 = 20_000_000;

/// Rounds beyond priority 0. In each an entry counts half of what it did, and in the last nothing:
/// an allocation fails only when everything went.
pub const MAX_URGES: u32 = 24;

/// Halvings that leave nothing of any weight.
const ALL_HALVINGS: u32 = u64::BITS - 1;

/// Priorities 12 to 0, and the rounds beyond.
pub const MAX_ROUNDS: u32 = LIGHTEST + MAX_URGES + 1;

/// How much a round asks for.
#[derive(Clone, Copy)]
pub struct Pressure {
    pub priority: u32,
    /// How often the worth of entries is halved.
    pub urge: u32,
    /// 4096ths of what that comes to.
    pub part: u64,
}

impl Pressure {
    /// Of round number `round`, from the lightest on.
    pub fn of(round: u32) -> Pressure {
        Pressure {
            priority: LIGHTEST.saturating_sub(round),
            urge: if round + 1 < MAX_ROUNDS { round.saturating_sub(LIGHTEST) } else { ALL_HALVINGS },
            part: WHOLE,
        }
    }
}

/// What a round could come to.
#[derive(Default)]
pub struct Prospect {
    /// Entries that could go.
    pub freeable: usize,
    /// Entries that the round will ask for.
    pub expected: u64,
    /// A live shrinker has another thread inside.
    pub has_passed_over: bool,
}

/// What a round came to.
#[derive(Default)]
pub struct Outcome {
    pub entries: usize,
    /// As [`Prospect::has_passed_over`].
    pub has_passed_over: bool,
}

/// Asks all shrinkers what they have.
pub fn look<W: World>(world: &W, pressure: Pressure, left_out: &LeftOut<W::Shrinker>) -> Prospect {
    let mut sum = Prospect::default();
    sum.has_passed_over = visit_all(world, left_out, |_, mut visit| {
        let freeable = visit.count(pressure.priority);
        let weight = visit.weight(freeable).halved(pressure.urge);
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

/// Enters all shrinkers but those left out, one after the other; true if some were passed over
/// because another thread is inside.
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
    let weight = visit.weight(freeable).halved(pressure.urge);
    let batch = visit.batch();
    let mut owed = visit.owed();
    owed = owed.after_part(freeable, pressure.priority, weight, batch, pressure.part);
    visit.set_owed(owed);
    let mut freed = 0;
    // A callback may unregister its own shrinker: from then on its context is the program's again.
    while visit.is_open()
        && let Some(lot) = owed.next(freeable, batch)
    {
        let Some(entries) = visit.scan(pressure.priority, lot) else { break };
        let entries = entries.min(lot);
        freed = entries.saturating_add(freed);
        visit.note_evicted(entries);
        owed = owed.less(lot);
        visit.set_owed(owed);
        if world.now_ns() > end_ns {
            break;
        }
    }
    freed
}

/// Shrinkers that used up their time and freed nothing. A pass may have 37 rounds, so they are left
/// out. There is room for a few; one that finds none is asked again.
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
