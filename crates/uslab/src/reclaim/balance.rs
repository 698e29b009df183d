//! The share of a cache that a round of a pass asks for: in proportion to the cache's size, and
//! smaller the more an entry is worth.
//!
//! ```text
//!   share(priority) = 4 · freeable / 2^priority / seeks    seeks = 2: twice the priority's part
//! ```
//!
//! This is the rule of Linux's shrinkers since 2002, today written `4·(freeable >>
//! priority)/seeks`. For each part of memory that pressure scans, it scans the same part of every
//! cache, weighted by the cost of making an entry again. This version corrects two known faults:
//!
//! * The shift drops fractions. So the light priorities never ask a cache of less than 4096 entries
//!   for any. Here a shrinker owes work in 4096ths of an entry, and the debt of small caches adds
//!   up.
//! * Work that a callback refused ("not now") piles up without a bound, and falls due at once, much
//!   later. Here the debt is capped at twice the cache, and the part beyond one lot (a batch, or
//!   less for a small cache) loses a quarter with each round.
//!
//! This is pure arithmetic: no clock, no lock, no callback. It never overflows, whatever a callback
//! returns.

/// The priority of the lightest pressure. Priority 0 is the heaviest: it takes everything.
pub const LIGHTEST: u32 = 12;
/// Upper bound on the entries of a cache. A callback that returns more is wrong, and counts as
/// this.
const MAX_FREEABLE: u64 = 1 << 36;
/// The unit of owed work is 2^-12 of an entry.
const FRACTION_BITS: u32 = LIGHTEST;

/// The worth of an entry, in 1024ths of a seek.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Weight(u64);

const SEEK: u64 = 1024;
/// The assumed cost of making an entry again if the program sets none: 2 seeks.
const DEFAULT_COST_NS: u64 = 10_000;

impl Weight {
    /// The worth of an entry of `seeks`; with 0 it is worth nothing.
    pub const fn of_seeks(seeks: u32) -> Weight {
        Weight(seeks as u64 * SEEK)
    }

    /// The worth of an entry that takes `cost_ns` to make: 10 µs are 2 seeks.
    pub const fn of_cost_ns(cost_ns: u64) -> Weight {
        let weight = cost_ns.saturating_mul(2 * SEEK) / DEFAULT_COST_NS;
        Weight(if weight == 0 { 1 } else { weight })
    }

    /// Halves the worth `times` times. The result is never 0, which has a meaning of its own.
    #[must_use]
    pub const fn halved(self, times: u32) -> Weight {
        match self.0 {
            0 => self,
            weight if weight >> (times & 63) == 0 => Weight(1),
            weight => Weight(weight >> (times & 63)),
        }
    }

    /// Raises the worth if the program soon made `refaulted` of `evicted` entries again: up to
    /// eight times, if it made all of them again.
    #[must_use]
    pub const fn with_refaults(self, refaulted: u64, evicted: u64) -> Weight {
        let eighths = match evicted {
            0 => 0,
            evicted if refaulted >= evicted => 8,
            evicted => refaulted.saturating_mul(8) / evicted,
        };
        Weight(self.0.saturating_add(self.0.saturating_mul(7 * eighths) / 8))
    }

    /// The worth as a plain number.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`Weight::bits`].
    pub const fn of_bits(bits: u64) -> Weight {
        Weight(bits)
    }
}

/// The work that a shrinker owes, in 4096ths of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owed(pub u64);

impl Owed {
    /// Adds the share of one round at `priority` (0 to [`LIGHTEST`]) over `freeable` entries of
    /// this `weight`.
    #[must_use]
    pub fn after_round(self, freeable: usize, priority: u32, weight: Weight, batch: usize) -> Owed {
        self.after_part(freeable, priority, weight, batch, WHOLE)
    }

    /// As [`Owed::after_round`], for a round that needs only `part` 4096ths of its share.
    #[must_use]
    pub fn after_part(self, freeable: usize, priority: u32, weight: Weight, batch: usize, part: u64) -> Owed {
        let freeable = (freeable as u64).min(MAX_FREEABLE);
        let whole = freeable << FRACTION_BITS;
        let share = share(freeable, priority, weight).min(2 * whole) * part.min(WHOLE) / WHOLE;
        let kept = lot(freeable, batch) << FRACTION_BITS;
        let carried = if self.0 > kept { kept + (self.0 - kept) / 4 * 3 } else { self.0 };
        Owed((carried + share).min(2 * whole))
    }

    /// The entries to ask for now: one lot, if the shrinker owes so much.
    pub fn next(self, freeable: usize, batch: usize) -> Option<usize> {
        let lot = lot((freeable as u64).min(MAX_FREEABLE), batch);
        (lot > 0 && self.0 >= lot << FRACTION_BITS).then_some(lot as usize)
    }

    /// The whole entries owed.
    pub const fn entries(self) -> u64 {
        self.0 >> FRACTION_BITS
    }

    /// Subtracts `entries` that were asked for.
    #[must_use]
    pub fn less(self, entries: usize) -> Owed {
        Owed(self.0.saturating_sub((entries as u64).min(MAX_FREEABLE) << FRACTION_BITS))
    }
}

/// A whole share, in the unit of `part`.
pub const WHOLE: u64 = 1 << FRACTION_BITS;

/// The share of a cache that a round asks for, in 4096ths of an entry.
fn share(freeable: u64, priority: u32, weight: Weight) -> u64 {
    match weight.0 {
        // Entries that cost nothing to make again: half of the cache, at any priority.
        0 => (freeable << FRACTION_BITS) / 2,
        weight => ((freeable * 4 * SEEK) << (FRACTION_BITS - priority.min(LIGHTEST))) / weight,
    }
}

/// Entries that a round at `priority` will ask for in all, at most `freeable`.
pub fn expected(freeable: usize, priority: u32, weight: Weight) -> u64 {
    let freeable = (freeable as u64).min(MAX_FREEABLE);
    (share(freeable, priority, weight) >> FRACTION_BITS).min(freeable)
}

/// A lot, the entries that one call asks for: a batch, or an eighth of a small cache, which so
/// shrinks in steps like a large one.
fn lot(freeable: u64, batch: usize) -> u64 {
    (batch.max(1) as u64).min(freeable.div_ceil(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries that `rounds` rounds ask of a cache of constant size.
    fn asked(freeable: usize, priority: u32, seeks: u32, batch: usize, rounds: usize) -> usize {
        let (mut owed, mut total) = (Owed::default(), 0);
        for _ in 0..rounds {
            owed = owed.after_round(freeable, priority, Weight::of_seeks(seeks), batch);
            while let Some(lot) = owed.next(freeable, batch) {
                owed = owed.less(lot);
                total += lot;
            }
        }
        total
    }

    #[test]
    fn equal_seeks_age_in_proportion_whatever_the_size() {
        for priority in [12, 10, 6, 3] {
            let rounds = 64 << priority;
            let fraction =
                |freeable: usize| asked(freeable, priority, 2, 128, rounds) as f64 / freeable as f64;
            let large = fraction(1_000_000);
            for freeable in [50, 1000, 4095, 30_000] {
                let off = (fraction(freeable) / large - 1.0).abs();
                assert!(off < 0.02, "priority {priority}, {freeable} entries: {off}");
            }
        }
    }

    #[test]
    fn what_costs_ten_times_as_much_ages_a_tenth_as_fast() {
        let cheap = asked(100_000, 6, 2, 128, 1000) as f64;
        let dear = asked(100_000, 6, 20, 128, 1000) as f64;
        assert!((cheap / dear - 10.0).abs() < 0.1, "{}", cheap / dear);
    }

    #[test]
    fn costs_and_seeks_are_one_scale() {
        assert_eq!(Weight::of_cost_ns(10_000), Weight::of_seeks(2));
        assert_eq!(Weight::of_cost_ns(1_000_000), Weight::of_seeks(200));
        assert!(Weight::of_cost_ns(0).0 > 0 && Weight::of_cost_ns(100) < Weight::of_cost_ns(1000));
        assert!(Weight::of_cost_ns(u64::MAX).0 > Weight::of_seeks(u32::MAX).0);
    }

    #[test]
    fn what_comes_back_soon_is_worth_more() {
        let plain = Weight::of_seeks(2);
        assert_eq!(plain.with_refaults(0, 0), plain);
        assert_eq!(plain.with_refaults(0, 1000), plain);
        assert_eq!(plain.with_refaults(1000, 1000), Weight::of_seeks(16));
        assert_eq!(plain.with_refaults(5000, 1000), Weight::of_seeks(16));
        assert!(
            plain.with_refaults(500, 1000) > plain && plain.with_refaults(500, 1000) < Weight::of_seeks(16)
        );
    }

    #[test]
    fn the_formula_of_linux_where_nothing_is_rounded() {
        // 4 * (1_048_576 >> 8) / 2, in whole batches.
        assert_eq!(asked(1 << 20, 8, 2, 128, 1), 8192);
        // At priority 0 the debt is at most twice the cache, however low its weight.
        assert_eq!(asked(1 << 20, 0, 1, 128, 1), 2 << 20);
        assert_eq!(asked(1 << 20, 12, 0, 128, 1), 1 << 19);
    }

    #[test]
    fn deferred_work_is_capped_and_fades() {
        let mut owed = Owed::default();
        for _ in 0..100_000 {
            owed = owed.after_round(10_000, 4, Weight::of_seeks(2), 128);
        }
        assert!(owed.0 <= (2 * 10_000) << 12);
        assert!(owed.0 < (10_000 / 8 * 4 + 128) << 12, "four times a round's share at most");
        for _ in 0..200 {
            owed = owed.after_round(10_000, 12, Weight::of_seeks(1000), 128);
        }
        assert!(owed.0 <= 140 << 12, "fades down to a batch: {}", owed.0 >> 12);
    }

    #[test]
    fn lies_do_not_overflow() {
        for freeable in [0, 1, usize::MAX, usize::MAX / 2, 1 << 52] {
            for priority in [0, 12, 99] {
                for (weight, batch) in [(0, 0), (1, 1), (1024, 128), (u64::MAX, usize::MAX)] {
                    let owed = Owed(u64::MAX).after_round(freeable, priority, Weight(weight), batch);
                    let lot = owed.next(freeable, batch).unwrap_or(0);
                    assert!(owed.less(lot).0 <= owed.0 && owed.less(usize::MAX).0 <= owed.0);
                }
            }
        }
        assert_eq!(Owed::default().after_round(0, 0, Weight::of_seeks(2), 128).next(0, 128), None);
    }
}
