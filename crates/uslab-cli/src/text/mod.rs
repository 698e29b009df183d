//! Formats snapshots, and the numbers in them, as text.

pub mod list;
pub mod nodes;
pub mod reports;
pub mod settings;
pub mod slabinfo;
pub mod table;

use crate::snapshot::{Mode, Snapshot};

/// The mode in one word.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Unknown => "undecided",
        Mode::Rseq => "rseq",
        Mode::Locked => "locked",
    }
}

/// The mode, with the reason for locked mode or for missing barriers, if any.
fn mode_line(snapshot: &Snapshot) -> String {
    match snapshot.reason() {
        Some(reason) => format!("{} ({reason})", mode_name(snapshot.mode)),
        None => mode_name(snapshot.mode).to_owned(),
    }
}

/// Bytes with a binary unit, one decimal at most: `0 B`, `152 KiB`, `12.3 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut value = count as f64;
    while value >= 1024.0 {
        value /= 1024.0;
        unit += 1;
    }
    // Round down: 1023.99 KiB must not become 1024 KiB, and bytes in use must not round up to the
    // bytes held, as if no byte were wasted.
    let tenths = (value * 10.0).floor() as u64;
    let decimal = if tenths.is_multiple_of(10) { String::new() } else { format!(".{}", tenths % 10) };
    format!("{}{decimal} {}", tenths / 10, UNITS[unit])
}

/// A count in at most five characters: whole below 100 000, then 123k, 1.2M, 45M and so on, rounded
/// down.
pub fn count(value: u64) -> String {
    if value < 100_000 {
        return value.to_string();
    }
    let mut unit = 1000;
    let mut letters = "kMGTPE".chars();
    let mut letter = letters.next();
    while value / unit >= 1000 {
        unit *= 1000;
        letter = letters.next();
    }
    let letter = letter.unwrap_or('?');
    let whole = value / unit;
    if whole < 10 {
        format!("{whole}.{}{letter}", value % unit / (unit / 10))
    } else {
        format!("{whole}{letter}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_one_decimal_at_most() {
        let shown = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1023.9 KiB"),
            (1 << 40, "1 TiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (value, text) in shown {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn counts_fit_five_characters() {
        let shown = [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (999_999, "999k"),
            (1_000_000, "1.0M"),
            (9_999_999, "9.9M"),
            (10_000_000, "10M"),
            (u64::MAX, "18E"),
        ];
        for (value, text) in shown {
            assert_eq!(count(value), text);
            assert!(text.len() <= 5);
        }
    }
}
