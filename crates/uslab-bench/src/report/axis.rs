//! An axis of a chart: from values to places, and the ticks that a reader needs.
//!
//! Counts (objects, bytes of a size, threads) have powers of two as ticks; amounts (ns, MiB, s) have 1-2-5. An
//! axis is logarithmic where its values span more than a reader could tell apart on a straight one; a straight one
//! of amounts starts at zero, so that heights may be compared. Must never: loop by adding a step to a float, or
//! take a value that is not finite.

use crate::results::Unit;

/// Ticks that fit beside each other.
const MOST_TICKS: usize = 8;

/// Largest over smallest value from which an axis is logarithmic.
const LOG_COUNTS: f64 = 8.0;
const LOG_AMOUNTS: f64 = 15.0;

/// What the values of an axis are.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// How many, or of what size.
    Count,
    /// In this unit; bytes are given in MiB, as the tables show them.
    Amount(Amount),
    /// The index of a name.
    Names(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Ns,
    Seconds,
    Mib,
    Cycles,
    /// A unit this program does not know: the bare number.
    Plain,
}

impl From<Unit> for Amount {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Ns => Amount::Ns,
            Unit::Seconds => Amount::Seconds,
            Unit::Bytes => Amount::Mib,
        }
    }
}

impl Amount {
    /// A value of the results as this axis has it.
    pub fn scaled(self, value: f64) -> f64 {
        if self == Amount::Mib { value / f64::from(1 << 20) } else { value }
    }

    /// With its unit, in as few characters as say it.
    pub fn text(self, value: f64) -> String {
        match self {
            Amount::Ns if value.abs() >= 1e9 => format!("{} s", short(value / 1e9)),
            Amount::Ns if value.abs() >= 1e6 => format!("{} ms", short(value / 1e6)),
            Amount::Ns if value.abs() >= 1e4 => format!("{} µs", short(value / 1e3)),
            Amount::Ns => format!("{} ns", short(value)),
            Amount::Seconds => format!("{} s", short(value)),
            Amount::Mib if value.abs() >= 1024.0 => format!("{} GiB", short(value / 1024.0)),
            Amount::Mib => format!("{} MiB", short(value)),
            Amount::Cycles | Amount::Plain => short(value),
        }
    }
}

/// Three digits that count, without zeros behind.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    if value.abs() >= 1e15 {
        return format!("{value:.1e}");
    }
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A count as one says it: 4096 is 4Ki.
pub fn count(value: f64) -> String {
    for (factor, suffix) in [(1_073_741_824.0, "Gi"), (1_048_576.0, "Mi"), (1024.0, "Ki")] {
        if value >= factor && value % factor == 0.0 {
            return format!("{}{suffix}", value / factor);
        }
    }
    short(value)
}

#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    pub name: String,
    kind: Kind,
    log: bool,
    low: f64,
    high: f64,
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis that holds all of `values`; `None` where there is none to hold.
    pub fn new(name: impl Into<String>, kind: Kind, values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (&low, &high) = (values.first()?, values.last()?);
        let name = name.into();
        Some(match kind {
            Kind::Count => Self::of_counts(name, low, high, &values),
            Kind::Amount(amount) if low > 0.0 && high / low > LOG_AMOUNTS => {
                Self::log_of_amounts(name, amount, low, high)
            }
            Kind::Amount(amount) => Self::line_of_amounts(name, amount, low, high),
            Kind::Names(names) => {
                let ticks = names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect();
                let high = names.len().saturating_sub(1).max(1) as f64;
                Self { name, kind: Kind::Names(names), log: false, low: 0.0, high, ticks }
            }
        })
    }

    fn of_counts(name: String, low: f64, high: f64, values: &[f64]) -> Self {
        let log = low > 0.0 && high / low >= LOG_COUNTS;
        let marks: Vec<f64> = if log {
            let (first, last) = (low.log2().ceil() as i32, high.log2().floor() as i32);
            thinned((first..=last).map(|power| f64::from(power).exp2()).collect())
        } else {
            thinned(values.to_vec())
        };
        let ticks = marks.into_iter().map(|mark| (mark, count(mark))).collect();
        let high = if high > low { high } else { low + 1.0 };
        Self { name, kind: Kind::Count, log, low, high, ticks }
    }

    fn log_of_amounts(name: String, amount: Amount, low: f64, high: f64) -> Self {
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let marks: Vec<f64> = (first..=last)
            .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)))
            .filter(|mark| mark.is_finite() && *mark > 0.0)
            .collect();
        // The ends are marks themselves, so that no line leaves the frame.
        let low = marks.iter().copied().rfind(|&mark| mark <= low).unwrap_or(low);
        let high = marks.iter().copied().find(|&mark| mark >= high).unwrap_or(high);
        let inside: Vec<f64> = marks.into_iter().filter(|mark| (low..=high).contains(mark)).collect();
        let inside = if inside.len() <= MOST_TICKS {
            inside
        } else {
            thinned(
                inside
                    .into_iter()
                    .filter(|mark| (mark.log10() - mark.log10().round()).abs() < 1e-9)
                    .collect(),
            )
        };
        let ticks = inside.into_iter().map(|mark| (mark, amount.text(mark))).collect();
        Self { name, kind: Kind::Amount(amount), log: true, low, high, ticks }
    }

    fn line_of_amounts(name: String, amount: Amount, low: f64, high: f64) -> Self {
        let (low, high) = (low.min(0.0), if high > low.min(0.0) { high } else { low.min(0.0) + 1.0 });
        let rough = (high / 5.0 - low / 5.0).max(f64::MIN_POSITIVE);
        let power = 10f64.powi(rough.log10().floor() as i32);
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|&step| step >= rough);
        let step = step.unwrap_or(rough);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let steps = (last - first).clamp(1.0, 20.0) as i32;
        let ticks = (0..=steps).map(|i| (first + f64::from(i)) * step).map(|mark| (mark, amount.text(mark)));
        let ticks = ticks.collect();
        Self {
            name,
            kind: Kind::Amount(amount),
            log: false,
            low: first * step,
            high: (first + f64::from(steps)) * step,
            ticks,
        }
    }

    /// Where a value is, from 0 to 1.
    pub fn at(&self, value: f64) -> f64 {
        let place = if self.log {
            (value.max(self.low).log2() - self.low.log2()) / (self.high.log2() - self.low.log2())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// A value as a reader would say it.
    pub fn text(&self, value: f64) -> String {
        match &self.kind {
            Kind::Count => short(value),
            Kind::Amount(amount) => amount.text(value),
            Kind::Names(names) => names.get(value as usize).cloned().unwrap_or_default(),
        }
    }
}

/// Every second, third … of them, so that they fit.
fn thinned(marks: Vec<f64>) -> Vec<f64> {
    let every = marks.len().div_ceil(MOST_TICKS).max(1);
    marks.into_iter().step_by(every).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(kind: Kind, values: &[f64]) -> Vec<String> {
        let axis = Axis::new("", kind, values.iter().copied()).unwrap();
        axis.ticks.into_iter().map(|tick| tick.1).collect()
    }

    #[test]
    fn counts_have_powers_of_two() {
        assert_eq!(labels(Kind::Count, &[1.0, 30.0, 4096.0]), ["1", "4", "16", "64", "256", "1Ki", "4Ki"]);
        assert_eq!(labels(Kind::Count, &[1.0, 2.0, 4.0]), ["1", "2", "4"]);
    }

    #[test]
    fn amounts_start_at_zero_or_are_logarithmic() {
        let ns = Kind::Amount(Amount::Ns);
        assert_eq!(labels(ns.clone(), &[3.0, 9.0]), ["0 ns", "2 ns", "4 ns", "6 ns", "8 ns", "10 ns"]);
        assert_eq!(labels(ns, &[3.0, 90_000.0]), ["10 ns", "100 ns", "1000 ns", "10 µs", "100 µs"]);
        let mib = Kind::Amount(Amount::Mib);
        assert_eq!(labels(mib, &[500.0, 1900.0]).last().unwrap(), "1.95 GiB");
    }

    #[test]
    fn any_values_have_an_axis_with_its_places_inside() {
        let odd = [0.0, -5.0, 1e-300, 1e300, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 1.0, 3.0, 1e9];
        for kind in [Kind::Count, Kind::Amount(Amount::Ns), Kind::Names(vec!["a".into()])] {
            for a in odd {
                for b in odd {
                    let axis = Axis::new("", kind.clone(), [a, b].into_iter()).unwrap();
                    assert!(axis.ticks.len() <= 3 * MOST_TICKS, "{kind:?} {a} {b}: {:?}", axis.ticks.len());
                    for value in [a, b] {
                        assert!((0.0..=1.0).contains(&axis.at(value)), "{kind:?} {a} {b}");
                    }
                }
            }
        }
        assert!(Axis::new("", Kind::Count, [f64::NAN].into_iter()).is_none());
    }

    #[test]
    fn short_numbers() {
        assert_eq!(["0.5", "2.25", "12.3", "1234"].map(str::to_owned), [0.5, 2.25, 12.34, 1234.4].map(short));
        assert_eq!([count(4096.0), count(250.0)], ["4Ki", "250"]);
    }
}
