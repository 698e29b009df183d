//! Settings as text: the strings that hold several, why a value has no meaning, and the words for
//! defaults.
//!
//! ```text
//!   "decay_ms=0,limit=80%,90%" ──▶ decay_ms = 0    limit = 80%,90%
//! ```
//!
//! The command-line tool compiles this file by path, with those that it names. They must use
//! nothing but `core` and each other.

use super::config::{
    CPU_BYTES, DEBUG, DEBUG_REPORT, DECAY_MS, GUARD, HUGE_PAGES, LEAKS, LIMIT, Limit, NUMA, ON_MISUSE,
    PRESSURE, PROFILE, READ_AT_START, REAPER, RSEQ, SECURE, SNAPSHOT, SNAPSHOT_READER, STATS, is_wrong,
};
use super::debugging::{Bad, Selection};
use super::hardening::{BadWord, Hardening};
use core::fmt;

/// Why a value has no meaning, for the message.
pub enum Fault {
    Debug(Bad),
    Secure(BadWord),
    Other(&'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Debug(bad) => bad.fmt(f),
            Fault::Secure(bad) => bad.fmt(f),
            Fault::Other(why) => f.write_str(why),
        }
    }
}

/// Why the value of a variable has no meaning and counts as unset. `None` if it has one, or is
/// empty.
pub fn fault(name: &str, text: &[u8]) -> Option<Fault> {
    match name {
        DEBUG => Selection::parse(text).err().map(Fault::Debug),
        SECURE => Hardening::parse(text).err().map(Fault::Secure),
        LIMIT if !text.is_empty() => Limit::parse(text).err().map(Fault::Other),
        _ => is_wrong(name, text).then(|| Fault::Other(meant(name))),
    }
}

fn meant(name: &str) -> &'static str {
    match name {
        RSEQ => "it is none of 0, 1, own",
        NUMA | REAPER | STATS => "it is neither 0 nor 1",
        DECAY_MS => "it is no number of milliseconds, and not never",
        HUGE_PAGES => "it is none of auto, never, always",
        ON_MISUSE => "it is neither report nor abort",
        CPU_BYTES => "it is no number of bytes",
        LEAKS => "it is neither 1 nor report",
        GUARD => "it is neither all nor a number of milliseconds, with left, right or slots=N",
        PROFILE => "it is neither 1 nor a number of bytes",
        _ => "a word without a meaning",
    }
}

/// The value of a setting that is not set, as a variable would have it.
pub fn default_text(name: &str) -> &'static str {
    match name {
        RSEQ | NUMA | REAPER => "1",
        DECAY_MS => "1000",
        HUGE_PAGES | CPU_BYTES => "auto",
        ON_MISUSE => "abort",
        SECURE | STATS | LIMIT => "0",
        GUARD | LEAKS | DEBUG | PROFILE => "off",
        DEBUG_REPORT => "stderr",
        _ => "",
    }
}

/// The settings of a string `name=value,name=value`: calls `visit` with each name and value.
///
/// A value may contain commas: a part without a known name belongs to the value before it. So does
/// `slots=`, which is a word of `USLAB_GUARD`. A part with an unknown name is passed on alone.
pub fn each_setting<'a>(text: &'a [u8], visit: &mut dyn FnMut(&'a [u8], &'a [u8])) {
    let mut rest = text;
    while !rest.is_empty() {
        let name_bytes = rest.iter().position(|&byte| byte == b'=' || byte == b',').unwrap_or(rest.len());
        let name = rest[..name_bytes].trim_ascii();
        rest = rest.get(name_bytes..).unwrap_or(&[]);
        if rest.first() != Some(&b'=') {
            if !name.is_empty() {
                visit(name, b"");
            }
            rest = rest.get(1..).unwrap_or(&[]);
            continue;
        }
        let value = &rest[1..];
        let end = (0..value.len()).find(|&at| value[at] == b',' && begins_setting(&value[at + 1..]));
        let (value, after) = match end {
            Some(end) => (&value[..end], &value[end + 1..]),
            None => (value, &[][..]),
        };
        visit(name, value.trim_ascii());
        rest = after;
    }
}

/// Whether a setting begins here: a word of letters and an equals sign.
fn begins_setting(text: &[u8]) -> bool {
    let Some(end) = text.iter().position(|&byte| !byte.is_ascii_lowercase() && byte != b'_' && byte != b' ')
    else {
        return false;
    };
    text[end] == b'=' && text[..end].trim_ascii() != b"slots" && end > 0
}

/// The index in [`READ_AT_START`] of a setting of this name, in lower case and without `USLAB_`.
/// Strings set no directory and no process that reads it: these are `uslab run`'s.
pub fn index_of_setting(name: &[u8]) -> Option<usize> {
    READ_AT_START.iter().position(|variable| {
        let word = variable.as_bytes().strip_prefix(b"USLAB_").unwrap_or(b"");
        word.eq_ignore_ascii_case(name)
            && !name.iter().any(u8::is_ascii_uppercase)
            && ![SNAPSHOT, SNAPSHOT_READER, PRESSURE].contains(variable)
    })
}
