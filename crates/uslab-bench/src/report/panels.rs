//! Which rows make a curve: those that ask the same question and differ in live, size or threads.
//!
//! Must never: put two rows at one place of a curve.

use super::words;
use crate::results::Row;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Fewer points than this are bars.
pub const LEAST_POINTS: usize = 3;

/// What a row may vary.
#[derive(Clone, Copy, PartialEq)]
pub enum Dimension {
    Threads,
    Size,
    Live,
}

impl Dimension {
    const ALL: [Dimension; 3] = [Dimension::Threads, Dimension::Size, Dimension::Live];

    pub fn of(self, row: &Row) -> usize {
        match self {
            Dimension::Threads => row.threads,
            Dimension::Size => row.size_bytes,
            Dimension::Live => row.live,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Dimension::Threads => "threads",
            Dimension::Size => "object size, bytes",
            Dimension::Live => "objects at once",
        }
    }

    /// A fixed value of it, for the title.
    fn fixed(self, value: usize) -> String {
        match self {
            Dimension::Threads => format!("{value} threads"),
            Dimension::Size => format!("{value} B"),
            Dimension::Live => format!("{value} live"),
        }
    }
}

/// Rows that differ in one dimension only.
pub struct Panel<'a> {
    pub title: String,
    pub by: Dimension,
    pub rows: Vec<&'a Row>,
}

/// What the rows of a panel share: the question, and the other two dimensions.
#[derive(PartialEq)]
struct Key {
    stem: String,
    fixed: Vec<usize>,
}

/// The rows as panels over the dimension that covers most of them.
pub fn panels(rows: &[Row]) -> Vec<Panel<'_>> {
    let covered = |panels: &Vec<Panel>| panels.iter().map(|panel| panel.rows.len()).sum::<usize>();
    // Where other dimensions go along (more threads, more objects in all), rows of one stem are a curve as well; but
    // a curve with all else the same comes first.
    let ways = [true, false].into_iter().flat_map(|strict| Dimension::ALL.map(|by| (strict, by)));
    // The first of the greatest; fewer panels first, because their lines are longer.
    ways.map(|(strict, by)| (strict, panels_by(rows, by, strict)))
        .min_by_key(|(strict, panels)| (Reverse(covered(panels)), !strict, panels.len()))
        .map(|(_, panels)| panels)
        .unwrap_or_default()
}

fn panels_by(rows: &[Row], by: Dimension, strict: bool) -> Vec<Panel<'_>> {
    let others: Vec<Dimension> = Dimension::ALL.into_iter().filter(|&d| strict && d != by).collect();
    let mut found: Vec<(Key, Vec<&Row>)> = Vec::new();
    for row in rows {
        let key = Key { stem: stem(&row.id), fixed: others.iter().map(|d| d.of(row)).collect() };
        match found.iter_mut().find(|panel| panel.0 == key) {
            Some(panel) => panel.1.push(row),
            None => found.push((key, vec![row])),
        }
    }
    found.retain(|(_, rows)| {
        let places: BTreeSet<usize> = rows.iter().map(|row| by.of(row)).collect();
        places.len() == rows.len()
            && rows.len() >= LEAST_POINTS
            && rows.iter().all(|r| r.unit == rows[0].unit)
    });
    let stems: BTreeSet<&String> = found.iter().map(|panel| &panel.0.stem).collect();
    let several_stems = stems.len() > 1;
    let varies = |d: Dimension| rows.iter().any(|row| d.of(row) != d.of(&rows[0]));
    let title = |key: &Key| {
        let mut parts = Vec::new();
        parts.extend(several_stems.then(|| words(&key.stem.replace(['#', '/'], " "))));
        let fixed = others.iter().zip(&key.fixed).filter(|(d, _)| varies(**d));
        parts.extend(fixed.map(|(d, &value)| d.fixed(value)));
        parts.join(", ")
    };
    let mut panels: Vec<Panel> =
        found.into_iter().map(|(key, rows)| Panel { title: title(&key), by, rows }).collect();
    for panel in &mut panels {
        panel.rows.sort_by_key(|row| by.of(row));
    }
    panels
}

/// An id without its numbers: rows of one stem ask the same question.
fn stem(id: &str) -> String {
    let mut stem = String::new();
    for c in id.chars() {
        match c {
            '0'..='9' if stem.ends_with('#') => {}
            '0'..='9' => stem.push('#'),
            _ => stem.push(c),
        }
    }
    stem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_differ_in_numbers_only_have_one_stem() {
        assert_eq!(stem("malloc/16/live64"), stem("malloc/1024/live4096"));
        assert_ne!(stem("alloc/16"), stem("free/16"));
    }
}
