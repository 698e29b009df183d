//! A pass: every shrinker is asked for its share, then what came free goes back to the system.

use super::balance::{LIGHTEST, WHOLE, expected};
use super::registry::{self, Entry, Outcome, Visit};
use super::shrinker::ShrinkControl;
use crate::pages::{self, Scattered};
use crate::sync::{CachePadded, in_flight};
use crate::{cache, counters, os};
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// A shrinker that has taken this long in a pass is left until the next: one that is slow holds up the others no longer.
const BUDGET_NS: u64 = 20_000_000;

/// Gives `bytes` of memory back to the system if it can; says how many it gave, which may be more.
///
/// First goes what is free and nobody is about to use, then what registered shrinkers let go, and the sheaves that programs are using only where that is not
/// enough.
///
/// Blocks for as long as callbacks do, about 20 ms each in a pass. Several threads may reclaim at once: none waits for another. From within a
/// callback it does nothing and returns 0. `usize::MAX` takes everything.
///
/// ```
/// let gone = uslab::reclaim(1 << 20);
/// assert!(gone == 0 || gone >= 4096);
/// ```
pub fn reclaim(bytes: usize) -> usize {
    run(bytes, Goal::Given).given_bytes
}

/// When a pass has done enough.
pub(super) enum Goal<'a> {
    /// When so many bytes are with the system.
    Given,
    /// When an allocation that found no memory has succeeded. Bytes do not tell: holes in slabs are room for one size and not for another, and
    /// other threads take what comes free. So it is tried between the rounds, and each round asks for twice as much as the one before.
    Until(&'a mut dyn FnMut() -> bool),
    /// When as many entries went as should hold so much, on average. In the background, where programs take what comes free as it comes: what they take
    /// is not to be taken for too little, or the caches would be emptied. There will be another pass.
    Estimate {
        /// Nor when no more than this is held: several passes for one limit may run at once, and
        /// each would bring what all of them miss. 0 for no bound.
        floor_bytes: usize,
        /// Called whenever a callback has returned: a pass that is slow does not hang.
        progress: fn(),
    },
}

/// What a pass came to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Progress {
    /// Bytes that went to the system. What frees in callbacks purge by themselves counts, and what others give meanwhile: it was this memory that was
    /// wanted.
    pub given_bytes: usize,
    /// Entries that shrinkers let go.
    pub entries: usize,
}

/// One pass for `bytes`.
pub(super) fn run(bytes: usize, mut goal: Goal) -> Progress {
    if registry::live() > 0 && registry::is_inside() {
        return Progress::default();
    }
    let purged_before = purged_bytes();
    // What programs hold, or, where what entries bring corrects it, simply what is used: adding the other up takes lines from everybody's slow path.
    let used_before = match goal {
        Goal::Estimate { .. } => counters::usage().allocated_bytes,
        Goal::Given | Goal::Until(_) => counters::header().used_bytes.load(Relaxed) as usize,
    };
    let given = || purged_bytes().wrapping_sub(purged_before) as usize;
    let mut scattered = match goal {
        Goal::Until(_) => Scattered::Go,
        Goal::Given | Goal::Estimate { .. } => Scattered::Stay,
    };
    purge_free(bytes, scattered);
    let free_bytes = given();
    let mut exhausted = Exhausted::default();
    // Everything that is free has been given back since the last entry went; other threads' entries went meanwhile.
    let (mut is_trimmed, mut others, mut forgiven) = (false, false, false);
    let (mut round, mut waits, mut entries, mut estimated_bytes) = (0, 0, 0_usize, 0);
    loop {
        let (missing_bytes, holes) = match &mut goal {
            Goal::Given => (bytes.saturating_sub(given()), 2),
            Goal::Estimate { floor_bytes, .. } => {
                let above_bytes = pages::held_bytes().saturating_sub(*floor_bytes);
                (bytes.saturating_sub(given().max(estimated_bytes)).min(above_bytes), 1)
            }
            Goal::Until(attempt) => match attempt() {
                true => break,
                false => (bytes.saturating_mul(1 << round), 2),
            },
        };
        if missing_bytes == 0 {
            break;
        }
        let pressure = Pressure {
            priority: LIGHTEST.saturating_sub(round),
            urge: round.saturating_sub(LIGHTEST),
            part: WHOLE,
            progress: if let Goal::Estimate { progress, .. } = goal { progress } else { || () },
        };
        let prospect = look_at_all(&pressure, &exhausted);
        // Where entries alone do not bring it: first pages that are free but stand alone, then what programs are using.
        if (prospect.freeable == 0 || round >= LIGHTEST) && !is_trimmed {
            if scattered == Scattered::Stay {
                scattered = Scattered::Go;
                purge_free(missing_bytes, scattered);
                continue;
            }
            is_trimmed = true;
            trim_all(matches!(goal, Goal::Until(_)));
            continue;
        }
        if round >= MAX_ROUNDS {
            // What others let go, while this thread waited for them, may lie in their sheaves; and who was slow may have been kept from its CPU.
            let forgives = !core::mem::replace(&mut forgiven, true) && exhausted.is_any();
            if !core::mem::take(&mut others) && !forgives {
                break;
            }
            exhausted = Exhausted::default();
            (is_trimmed, round) = (false, LIGHTEST);
            continue;
        }
        // The priorities go by powers of two; what is more than enough of one is not asked for.
        let entry_bytes = (used_before / prospect.freeable.max(1)).max(1);
        // No less than a lot, which is what shrinkers are asked for at least.
        let mut enough = (missing_bytes / entry_bytes).saturating_mul(holes).max(LOT);
        // Too few, where most of what is used is no entries. Those that went tell how much they brought, once that is more than what stayed in sheaves and
        // lists, or these have been emptied; where others take what comes free they do not. Not to be trusted further than to as many again, and not at
        // all if they seem smaller than any object.
        let each_bytes = given().saturating_sub(free_bytes) / entries.max(1);
        let tells = each_bytes * entries >= TELLING_BYTES || scattered == Scattered::Go;
        if matches!(goal, Goal::Given) && tells && each_bytes >= MIN_ENTRY_BYTES {
            enough = enough.max((missing_bytes / each_bytes).min(entries));
        }
        let enough = enough as u64;
        let part = match prospect.expected {
            expected if expected > enough => enough.saturating_mul(WHOLE).div_ceil(expected),
            _ => WHOLE,
        };
        let freed = match prospect.freeable {
            0 => RoundResult { entries: 0, passed_over: prospect.passed_over },
            _ => shrink_all(&Pressure { part, ..pressure }, &mut exhausted),
        };
        if freed.entries > 0 {
            entries = freed.entries.saturating_add(entries);
            estimated_bytes = freed.entries.saturating_mul(entry_bytes).saturating_add(estimated_bytes);
            purge_free(missing_bytes, scattered);
            is_trimmed = false;
        } else if matches!(goal, Goal::Until(_)) && waits < MAX_WAITS && freed.passed_over {
            // Nothing is not the last word, if that is because others are inside.
            waits += 1;
            others = true;
            os::sleep::pause(1);
            continue;
        } else if prospect.freeable == 0 {
            round = MAX_ROUNDS;
            continue;
        }
        round += 1;
    }
    Progress { given_bytes: given(), entries }
}

/// Times that an allocation waits a millisecond for others who are inside shrinkers.
const MAX_WAITS: u32 = 250;

fn purged_bytes() -> u64 {
    counters::header().purged_bytes.load(Relaxed)
}

/// About what stays in this CPU's sheaves, page lists and scattered pages of what entries bring.
const TELLING_BYTES: usize = 512 << 10;

/// The least that an object of `malloc` holds.
const MIN_ENTRY_BYTES: usize = 16;

/// A batch, as most shrinkers have it.
const LOT: usize = 128;

/// Rounds beyond priority 0. In each an entry counts half of what it did, until the dearest are worth no more than memory: that everything can be had
/// is what makes the difference to a failed allocation.
const MAX_URGES: u32 = 24;

const MAX_ROUNDS: u32 = LIGHTEST + MAX_URGES + 1;

/// How much a round asks for.
struct Pressure {
    priority: u32,
    urge: u32,
    /// 4096ths of what that comes to.
    part: u64,
    /// See [`Goal::Estimate`].
    progress: fn(),
}

/// What a round could come to, in entries.
#[derive(Default)]
struct Prospect {
    freeable: usize,
    expected: u64,
    passed_over: bool,
}

fn look_at_all(pressure: &Pressure, exhausted: &Exhausted) -> Prospect {
    let mut sum = Prospect::default();
    sum.passed_over = visit_all(exhausted, |_, mut visit| {
        let freeable = count(&mut visit, pressure.priority);
        let weight = visit.weight(freeable).halved(pressure.urge);
        sum.freeable = sum.freeable.saturating_add(freeable);
        sum.expected = sum.expected.saturating_add(expected(freeable, pressure.priority, weight));
    });
    sum
}

/// What a round came to.
#[derive(Default)]
struct RoundResult {
    entries: usize,
    passed_over: bool,
}

/// Asks all shrinkers for their shares.
fn shrink_all(pressure: &Pressure, exhausted: &mut Exhausted) -> RoundResult {
    let (mut sum, mut newly) = (RoundResult::default(), Exhausted::default());
    sum.passed_over = visit_all(exhausted, |entry, visit| {
        let started_ns = os::clock::boot_ns();
        let freed = shrink(visit, pressure, started_ns);
        sum.entries = sum.entries.saturating_add(freed);
        if freed == 0 && os::clock::boot_ns() - started_ns > BUDGET_NS {
            newly.add(entry);
        }
    });
    newly.0.into_iter().flatten().for_each(|entry| exhausted.add(entry));
    sum
}

/// Enters all shrinkers that are not exhausted, one after the other; true if some were passed over because another thread is inside.
fn visit_all(exhausted: &Exhausted, mut each: impl FnMut(&'static Entry, Visit)) -> bool {
    registry::entries().filter(|&entry| !exhausted.has(entry)).fold(false, |passed_over, entry| {
        match entry.visit() {
            Some(visit) => {
                each(entry, visit);
                passed_over
            }
            None => passed_over || entry.is_live(),
        }
    })
}

/// Shrinkers that used up their time and freed nothing: they are left alone, since there may be 37 rounds, until the pass would give up. There is room for a
/// few; who finds none is asked again.
#[derive(Default)]
struct Exhausted([Option<&'static Entry>; 8]);

impl Exhausted {
    fn add(&mut self, entry: &'static Entry) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(entry);
        }
    }

    fn is_any(&self) -> bool {
        self.0[0].is_some()
    }

    fn has(&self, entry: &'static Entry) -> bool {
        self.0.iter().flatten().any(|exhausted| core::ptr::eq(*exhausted, entry))
    }
}

/// Entries that could go.
fn count(visit: &mut Visit, priority: u32) -> usize {
    let Some(callbacks) = visit.inside().callbacks else { return 0 };
    let control = ShrinkControl { nr_to_scan: 0, priority: priority as i32, flags: 0 };
    // SAFETY: this visit keeps the context alive, and this is its function.
    match unsafe { (callbacks.count)(callbacks.context, &control) } {
        Outcome::Entries(freeable) => freeable,
        Outcome::Stop => 0,
        Outcome::Panicked => {
            retire(visit);
            0
        }
    }
}

/// Asks one shrinker for its share.
fn shrink(mut visit: Visit, pressure: &Pressure, started_ns: u64) -> usize {
    let freeable = count(&mut visit, pressure.priority);
    let weight = visit.weight(freeable).halved(pressure.urge);
    let inside = visit.inside();
    let Some(callbacks) = inside.callbacks else { return 0 };
    let batch = inside.batch;
    inside.owed = inside.owed.after_part(freeable, pressure.priority, weight, batch, pressure.part);
    let mut freed = 0;
    // A callback may unregister its own shrinker: from then on its context is the program's again.
    while visit.goes_on()
        && let Some(lot) = visit.inside().owed.next(freeable, batch)
    {
        let control = ShrinkControl { nr_to_scan: lot, priority: pressure.priority as i32, flags: 0 };
        // SAFETY: this visit keeps the context alive, and this is its function.
        let outcome = unsafe { (callbacks.scan)(callbacks.context, &control) };
        (pressure.progress)();
        match outcome {
            Outcome::Entries(entries) => {
                freed = entries.min(lot).saturating_add(freed);
                let inside = visit.inside();
                inside.evicted = inside.evicted.saturating_add(entries.min(lot) as u64);
                inside.owed = inside.owed.less(lot);
            }
            Outcome::Stop => break,
            Outcome::Panicked => {
                retire(&mut visit);
                return freed;
            }
        }
        if os::clock::boot_ns() - started_ns > BUDGET_NS {
            break;
        }
    }
    freed
}

#[cold]
fn retire(visit: &mut Visit) {
    os::report::print(format_args!(
        "shrinker {} panicked; it will not be called again",
        visit.inside().name()
    ));
    visit.retire();
}

static TRIMMING: CachePadded<AtomicBool> = CachePadded(AtomicBool::new(false));

/// Gives back so much of what is free and not about to be used. Caches are asked by one thread at a time; the others have little to add, and go on.
///
/// Of the reclaim calls that Linux saw in 2002 nine in ten came back empty-handed, and stood in a queue for it: where there is nothing, no lock is taken.
fn purge_free(bytes: usize, scattered: Scattered) {
    if !cache::has_free_memory() {
        return;
    }
    let missing_bytes = bytes.saturating_sub(pages::purge_some(bytes, scattered));
    if missing_bytes > 0 && !TRIMMING.swap(true, Acquire) {
        cache::trim_some(missing_bytes);
        TRIMMING.store(false, Release);
        pages::purge_some(missing_bytes, scattered);
    }
}

/// Gives back all that is free: sheaves, empty slabs, pages. With `wait` also what others have in hand: an allocation must not fail for what they are about to free.
fn trim_all(wait: bool) {
    if !cache::will_have_free_memory() {
        return;
    }
    if wait {
        // What a drain has in hand comes to slabs.
        wait_for_in_flight();
    }
    cache::trim(0);
    if wait {
        // What a purge has in hand comes to pages.
        wait_for_in_flight();
    }
}

/// Waits until others have put down what they have in hand, most often for a system call's time; a few naps longer, in case that they are off their CPUs.
fn wait_for_in_flight() {
    const SPINS: u32 = 1000;
    const NAPS: u32 = 4;
    for looks in 0..SPINS + NAPS {
        if !in_flight::is_any() {
            return;
        }
        if looks < SPINS {
            core::hint::spin_loop();
        } else {
            os::sleep::pause(1);
        }
    }
}

/// In a fork child: the thread that was releasing is not here.
pub(super) fn reset_in_child() {
    TRIMMING.whole().store(false, Relaxed);
    in_flight::reset_in_child();
}
