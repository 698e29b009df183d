//! What a suite asks of its rows together: that a cost does not grow from one to another.
//!
//! Must never: judge where the rows were not judged (the locked mode, a run for function).

use crate::results::{Run, Verdict};
use std::fmt::Write;

/// Whether the run's rows were judged.
fn judged(run: &Run) -> bool {
    run.rows.iter().any(|row| row.verdict != Verdict::None)
}

/// "pass" or "MISS", and nothing where nothing is judged.
pub fn mark(run: &Run, held: bool) -> &'static str {
    match (judged(run), held) {
        (false, _) => "",
        (true, true) => "pass",
        (true, false) => "MISS",
    }
}

/// Writes `what`, `cost` over `base`, against the most it may be; nothing if the run lacks one of them.
pub fn line(
    run: &Run,
    what: &str,
    cost: Option<f64>,
    base: Option<f64>,
    most: f64,
    out: &mut dyn Write,
) -> std::fmt::Result {
    let (Some(cost), Some(base)) = (cost, base) else { return Ok(()) };
    let ratio = cost / base;
    writeln!(
        out,
        "{what}: {cost:.2} / {base:.2} ns = {ratio:.3} (at most {most:.2})  {}",
        mark(run, ratio <= most)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_told_but_not_judged_where_no_row_is() {
        let run = Run { suite: "s".into(), mode: "locked".into(), complete: true, rows: Vec::new() };
        let mut text = String::new();
        line(&run, "large to small", Some(3.0), Some(2.0), 1.3, &mut text).unwrap();
        line(&run, "none", None, Some(2.0), 1.3, &mut text).unwrap();
        assert_eq!(text, "large to small: 3.00 / 2.00 ns = 1.500 (at most 1.30)  \n");
    }
}
