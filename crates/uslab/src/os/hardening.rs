//! The words of `USLAB_SECURE`: mitigations, each alone or together. It parses without an
//! allocation.

use core::fmt;

/// Mitigations, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hardening(u8);

/// The first fault of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadWord {
    /// The column of the word, from 1.
    pub column: usize,
}

impl fmt::Display for BadWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: none of 1, ", self.column)?;
        for (at, (word, _)) in WORDS.iter().enumerate() {
            write!(f, "{}{word}", if at == 0 { "" } else { ", " })?;
        }
        f.write_str("; nothing is hardened beyond the default")
    }
}

const WORDS: [(&str, Hardening); 6] = [
    ("check", Hardening::CHECK),
    ("canary", Hardening::CANARY),
    ("zero", Hardening::ZERO),
    ("quarantine", Hardening::QUARANTINE),
    ("order", Hardening::ORDER),
    ("ranges", Hardening::RANGES),
];

impl Hardening {
    /// Check each free by a record of the object.
    pub const CHECK: Hardening = Hardening(1);
    /// Canaries around the bytes asked for.
    pub const CANARY: Hardening = Hardening(2);
    /// Zeroes in free objects.
    pub const ZERO: Hardening = Hardening(4);
    /// A random quarantine.
    pub const QUARANTINE: Hardening = Hardening(8);
    /// Random order of a slab's objects.
    pub const ORDER: Hardening = Hardening(16);
    /// Addresses of a cache serve no other.
    pub const RANGES: Hardening = Hardening(32);

    /// No mitigation.
    pub const NONE: Hardening = Hardening(0);
    /// All of them.
    pub const ALL: Hardening = Hardening(63);

    /// Whether any of `other` is among these.
    pub const fn has(self, other: Hardening) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether objects need a record: it has their size and their state.
    pub const fn needs_records(self) -> bool {
        self.has(Hardening(1 | 2 | 4 | 8))
    }

    /// Parses a value: `1` for all, words between commas, or `0` or no text for none.
    ///
    /// # Errors
    /// Returns the place of the first word without a meaning.
    pub fn parse(text: &[u8]) -> Result<Hardening, BadWord> {
        match text {
            b"" | b"0" => return Ok(Hardening::NONE),
            b"1" => return Ok(Hardening::ALL),
            _ => {}
        }
        let (mut all, mut column) = (Hardening::NONE, 1);
        for part in text.split(|&byte| byte == b',') {
            let Some((_, word)) = WORDS.iter().find(|(word, _)| word.as_bytes() == part) else {
                return Err(BadWord { column });
            };
            all.0 |= word.0;
            column += part.len() + 1;
        }
        Ok(all)
    }
}
