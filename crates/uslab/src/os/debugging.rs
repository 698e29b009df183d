//! The syntax of `USLAB_DEBUG`, which is that of the kernel's `slab_debug`.
//!
//! ```text
//!   FZ;P,session,malloc-*        blocks between semicolons: letters, and caches between commas
//!   └┬┘ └───────┬──────┘
//!    all     these caches alone: the first block that names a cache decides, and otherwise the
//!    others  last block without names
//! ```
//!
//! It parses a value without an allocation, and keeps places in it. `xtask` compiles the table of
//! variables beside it, so it uses nothing but `core`.

use core::fmt;

/// Letter F: check each free, and write no record of who did it.
pub const CHECKS: u8 = 1;
/// Letter Z: red zones around objects.
pub const RED_ZONE: u8 = 2;
/// Letter P: patterns in free objects.
pub const POISON: u8 = 4;
/// Letter U: record the last allocation and the last free of each object.
pub const USERS: u8 = 8;
/// Letter T: a line for each allocation and free.
pub const TRACE: u8 = 16;
/// `USLAB_SECURE`, which has no letter: records that stay small, and secret zones.
pub const SECURE: u8 = 32;
/// Zeroes in free objects of `USLAB_SECURE`, which has no letter.
pub const ZERO: u8 = 128;

/// Built for a memory checker ([`super::checkers`]), which has no letter: zones that the checker
/// guards, in place of zones and patterns that this library checks.
pub const CHECKER: u8 = 64;

/// Upper bound on the blocks of a value.
pub const MAX_BLOCKS: usize = 16;

/// The letters, and the names that they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Block {
    letters: u8,
    /// Places in the value; equal where the block names no cache.
    names_start: u32,
    names_end: u32,
}

impl Block {
    /// The names, between commas.
    fn names<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.names_start as usize..self.names_end as usize).unwrap_or(&[])
    }
}

/// A parsed value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    blocks: [Block; MAX_BLOCKS],
    used: usize,
}

/// The first fault of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad {
    /// The column of the fault, from 1.
    pub column: usize,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Letter(u8),
    Dash,
    NoName,
    Star,
    Blocks,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: ", self.column)?;
        match self.why {
            Why::Letter(byte) => write!(f, "'{}' is none of the letters F, Z, P, U, T", byte.escape_ascii()),
            Why::Dash => f.write_str("'-' stands alone"),
            Why::NoName => f.write_str("the name of a cache is missing"),
            Why::Star => f.write_str("'*' may stand only at the end of a name"),
            Why::Blocks => write!(f, "there are more than {MAX_BLOCKS} blocks"),
        }
    }
}

impl Selection {
    /// No debugging.
    pub const NONE: Selection =
        Selection { blocks: [Block { letters: 0, names_start: 0, names_end: 0 }; MAX_BLOCKS], used: 0 };

    /// Parses a value.
    ///
    /// # Errors
    /// Returns the first fault.
    pub fn parse(text: &[u8]) -> Result<Selection, Bad> {
        let mut selection = Selection::NONE;
        let mut start = 0;
        for part in text.split(|&byte| byte == b';') {
            let end = start + part.len();
            if !part.is_empty() {
                let Some(place) = selection.blocks.get_mut(selection.used) else {
                    return Err(Bad { column: start + 1, why: Why::Blocks });
                };
                *place = block(text, start, end)?;
                selection.used += 1;
            }
            start = end + 1;
        }
        Ok(selection)
    }

    /// The letters for the cache `name`; `text` is the value that was parsed.
    pub fn letters(&self, text: &[u8], name: &[u8]) -> u8 {
        let others = self.blocks().iter().rfind(|block| block.names(text).is_empty());
        self.named(text, name).unwrap_or(others.map_or(0, |block| block.letters))
    }

    /// The letters of the first block that names the cache `name`; `None` if no block does.
    pub fn named(&self, text: &[u8], name: &[u8]) -> Option<u8> {
        let names = |block: &&Block| {
            let mut patterns = block.names(text).split(|&byte| byte == b',');
            !block.names(text).is_empty() && patterns.any(|pattern| matches(pattern, name))
        };
        self.blocks().iter().find(names).map(|block| block.letters)
    }

    /// Parses a value of which every block names caches.
    ///
    /// # Errors
    /// Returns the first fault.
    pub fn parse_with_names(text: &[u8]) -> Result<Selection, Bad> {
        let selection = Selection::parse(text)?;
        let is_whole =
            selection.used > 0 && selection.blocks().iter().all(|block| !block.names(text).is_empty());
        is_whole.then_some(selection).ok_or(Bad { column: text.len() + 1, why: Why::NoName })
    }

    /// The letters of all blocks.
    pub fn all_letters(&self) -> u8 {
        self.blocks().iter().fold(0, |letters, block| letters | block.letters)
    }

    fn blocks(&self) -> &[Block] {
        &self.blocks[..self.used]
    }
}

/// Parses `text[start..end]`, a block.
fn block(text: &[u8], start: usize, end: usize) -> Result<Block, Bad> {
    let comma = text[start..end].iter().position(|&byte| byte == b',').map_or(end, |n| start + n);
    let mut letters = 0;
    for (at, &byte) in text[..comma].iter().enumerate().skip(start) {
        letters |= match byte.to_ascii_uppercase() {
            b'F' => CHECKS,
            b'Z' => RED_ZONE,
            b'P' => POISON,
            b'U' => USERS,
            b'T' => TRACE,
            b'-' if comma - start == 1 => 0,
            b'-' => return Err(Bad { column: at + 1, why: Why::Dash }),
            _ => return Err(Bad { column: at + 1, why: Why::Letter(byte) }),
        };
    }
    if comma == start {
        // As in the kernel: names without letters.
        letters = CHECKS | RED_ZONE | POISON | USERS;
    }
    let names_start = (comma + 1).min(end);
    let mut at = names_start;
    if comma < end {
        for name in text[names_start..end].split(|&byte| byte == b',') {
            if name.is_empty() {
                return Err(Bad { column: at + 1, why: Why::NoName });
            }
            if let Some(star) = name[..name.len() - 1].iter().position(|&byte| byte == b'*') {
                return Err(Bad { column: at + star + 1, why: Why::Star });
            }
            at += name.len() + 1;
        }
    }
    Ok(Block { letters, names_start: names_start as u32, names_end: end as u32 })
}

/// Whether `pattern`, a name or the start of one and a star, is for `name`.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.strip_suffix(b"*") {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}
