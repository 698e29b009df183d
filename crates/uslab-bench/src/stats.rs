//! Minimum, median and the median's confidence interval of a set of rounds.
//!
//! **Minimum**, because disturbances only add time: the fastest of many short rounds is the cost of
//! the code. **Median**, because users see it. Its 95 % interval comes from order statistics: the
//! ranks that a binomial of n tries and p = ½ leaves out on each side. It assumes no distribution
//! of the rounds.
//!
//! Must never: average (one preemption outweighs a thousand rounds), or drop rounds by their value.

use serde::{Deserialize, Serialize};

/// The summary of a set of rounds, in the unit of its values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub min: f64,
    pub median: f64,
    /// Lower and upper end of the median's 95 % confidence interval.
    pub median_low: f64,
    pub median_high: f64,
}

impl Cost {
    /// Whether the median is too uncertain to compare percents: its 95 % interval is wider than a
    /// tenth of it.
    pub fn is_unsure(&self) -> bool {
        self.median_high - self.median_low > 0.1 * self.median
    }
}

/// Summarises `values`; `None` if there are none.
pub fn summarise(values: &[f64]) -> Option<Cost> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (&min, n) = (sorted.first()?, sorted.len());
    let (low, high) = median_ranks(n);
    Some(Cost { min, median: median_of_sorted(&sorted), median_low: sorted[low], median_high: sorted[high] })
}

/// The median; the mean of the middle two where their number is even.
fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The ranks (from 0) between which the true median lies with 95 % confidence: n/2 ∓ 1.96·√n/2, the
/// normal approximation of the binomial, widened to whole ranks. Too few rounds give the whole
/// range.
fn median_ranks(n: usize) -> (usize, usize) {
    let half = n as f64 / 2.0;
    let reach = 1.96 * (n as f64).sqrt() / 2.0;
    let low = (half - reach).floor().max(0.0) as usize;
    let high = ((half + reach).ceil() as usize).min(n - 1);
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_summary() {
        assert_eq!(summarise(&[]), None);
    }

    #[test]
    fn one_value_is_everything() {
        let summary = summarise(&[3.0]).unwrap();
        assert_eq!((summary.min, summary.median), (3.0, 3.0));
        assert_eq!((summary.median_low, summary.median_high), (3.0, 3.0));
    }

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert_eq!(summarise(&[9.0, 1.0, 5.0]).unwrap().median, 5.0);
        assert_eq!(summarise(&[9.0, 1.0, 5.0, 7.0]).unwrap().median, 6.0);
    }

    #[test]
    fn an_outlier_moves_neither_figure() {
        let mut values: Vec<f64> = (0..99).map(|i| 10.0 + f64::from(i) / 100.0).collect();
        let before = summarise(&values).unwrap();
        values[50] = 1e9;
        let after = summarise(&values).unwrap();
        assert_eq!(before.min, after.min);
        assert!((before.median - after.median).abs() < 0.02);
    }

    #[test]
    fn the_interval_holds_the_median_and_narrows_with_more_rounds() {
        let width = |n: usize| {
            let values: Vec<f64> = (0..n).map(|i| i as f64 / n as f64).collect();
            let summary = summarise(&values).unwrap();
            assert!(summary.median_low <= summary.median && summary.median <= summary.median_high);
            summary.median_high - summary.median_low
        };
        assert!(width(400) < width(40));
        assert_eq!(median_ranks(100), (40, 60));
        assert_eq!(median_ranks(3), (0, 2));
    }
}
