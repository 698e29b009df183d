//! Suppressions: the leaks that the user knows and wants no report of, in the syntax of
//! LeakSanitizer.
//!
//! ```text
//!   # a comment
//!   leak:parse_config          a function or file whose name contains this
//!   leak:^load_*_table$        ^ and $: the start and the end of the name; *: any text
//! ```
//!
//! A pattern is compared with the names that reports show for each frame of the stack.

use super::symbol::Place;
use crate::os;
use core::ffi::CStr;
use core::fmt::{self, Write};
use core::sync::atomic::{
    AtomicU8, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// The path of the file, NUL-terminated. Written at start-up alone.
static PATH: [AtomicU8; os::env::VALUE_BYTES + 1] = [const { AtomicU8::new(0) }; os::env::VALUE_BYTES + 1];
static PATH_USED: AtomicUsize = AtomicUsize::new(0);

/// Sets the file, from a value of `USLAB_LEAK_SUPPRESSIONS`. Called at start-up.
pub fn set_path(path: &[u8]) {
    PATH.iter().zip(path).for_each(|(place, &byte)| place.store(byte, Relaxed));
    PATH_USED.store(path.len().min(PATH.len() - 1), Release);
}

/// The patterns of the file.
pub struct Suppressions<'a> {
    text: &'a [u8],
}

impl<'a> Suppressions<'a> {
    /// Reads the file into `room`. Reports its faults, with their lines, if `is_told`. Without a
    /// file there are no suppressions.
    pub fn read(room: &'a mut [u8], is_told: bool) -> Suppressions<'a> {
        let mut path = [0; os::env::VALUE_BYTES + 1];
        let used = PATH_USED.load(Acquire);
        path[..used].iter_mut().zip(&PATH).for_each(|(byte, place)| *byte = place.load(Relaxed));
        let Some(path) = CStr::from_bytes_until_nul(&path).ok().filter(|path| !path.is_empty()) else {
            return Suppressions { text: &[] };
        };
        let name = path.to_bytes().escape_ascii();
        let tell = |line: usize, why: &str| {
            if is_told {
                os::report::print(format_args!("suppressions of leaks: {name}, line {line}: {why}"));
            }
        };
        let Some(mut file) = os::file::Reader::open(path) else {
            if is_told {
                os::report::print(format_args!("suppressions of leaks: {name} cannot be read"));
            }
            return Suppressions { text: &[] };
        };
        let mut used = 0;
        while used < room.len() {
            match file.read(&mut room[used..]) {
                0 => break,
                n => used += n,
            }
        }
        let is_cut = used == room.len();
        let suppressions = Suppressions { text: &room[..used] };
        for (number, line) in suppressions.lines().enumerate() {
            if let Err(why) = pattern(line) {
                tell(number + 1, why);
            }
        }
        if is_cut {
            tell(suppressions.lines().count(), "the file is too long, the rest is ignored");
        }
        suppressions
    }

    fn lines(&self) -> impl Iterator<Item = &'a [u8]> {
        self.text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        !self.lines().any(|line| matches!(pattern(line), Ok(Some(_))))
    }

    /// Whether a pattern matches a frame of the stack.
    pub fn match_stack(&self, stack: &[usize]) -> bool {
        stack.iter().any(|&pc| self.match_place(&Place::of(pc)))
    }

    fn match_place(&self, place: &Place) -> bool {
        let mut file = Name::default();
        let _ = place.write_file(&mut file);
        let function = place.function().map_or(&[][..], |(name, _)| name);
        let patterns = self.lines().filter_map(|line| pattern(line).ok()?);
        patterns.into_iter().any(|pattern| matches(pattern, function) || matches(pattern, file.bytes()))
    }
}

/// The pattern of a line; `None` for a comment or an empty line.
///
/// # Errors
/// Returns the reason why a line is wrong.
fn pattern(line: &[u8]) -> Result<Option<&[u8]>, &'static str> {
    if line.is_empty() || line[0] == b'#' {
        return Ok(None);
    }
    match line.strip_prefix(b"leak:") {
        Some([]) => Err("the pattern after 'leak:' is missing"),
        Some(pattern) => Ok(Some(pattern)),
        None => Err("it does not begin with 'leak:'"),
    }
}

/// Whether `pattern` occurs in `name`. `^` at the start and `$` at the end anchor it; `*` stands
/// for any text.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.is_empty() {
        return false;
    }
    let (start, pattern) = match pattern.strip_prefix(b"^") {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let (end, pattern) = match pattern.strip_suffix(b"$") {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let parts = pattern.split(|&byte| byte == b'*').count();
    let mut rest = name;
    for (index, part) in pattern.split(|&byte| byte == b'*').enumerate() {
        let is_last = index + 1 == parts;
        let found = match (index == 0 && start, is_last && end) {
            (true, true) => (rest == part).then_some(0),
            (true, false) => rest.starts_with(part).then_some(0),
            (false, true) => rest.ends_with(part).then(|| rest.len() - part.len()),
            (false, false) if part.is_empty() => Some(0),
            (false, false) => rest.windows(part.len()).position(|window| window == part),
        };
        match found {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// The path of a file, cut to its first bytes.
struct Name {
    bytes: [u8; 256],
    used: usize,
}

impl Default for Name {
    fn default() -> Name {
        Name { bytes: [0; 256], used: 0 }
    }
}

impl Name {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let n = text.len().min(self.bytes.len() - self.used);
        self.bytes[self.used..self.used + n].copy_from_slice(&text.as_bytes()[..n]);
        self.used += n;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_leak_sanitizer() {
        let name = b"load_large_table";
        for pattern in
            ["load", "large", "^load", "table$", "^load_*_table$", "l*l*l", "*", "^load_large_table$"]
        {
            assert!(matches(pattern.as_bytes(), name), "{pattern}");
        }
        for pattern in ["loads", "^large", "large$", "^load_large$", "table*load", "^*x", "^table"] {
            assert!(!matches(pattern.as_bytes(), name), "{pattern}");
        }
        assert!(!matches(b"*", b""), "an unknown name matches nothing");
    }

    #[test]
    fn lines_are_patterns_comments_or_wrong() {
        assert_eq!(pattern(b""), Ok(None));
        assert_eq!(pattern(b"# leak:x"), Ok(None));
        assert_eq!(pattern(b"leak:x y"), Ok(Some(&b"x y"[..])));
        assert!(pattern(b"leak:").is_err() && pattern(b"race:x").is_err());
    }

    #[test]
    fn a_stack_is_matched_by_the_file_of_a_frame() {
        let here = a_stack_is_matched_by_the_file_of_a_frame as *const () as usize + 1;
        let suppressions = |text| Suppressions { text }.match_stack(&[0x1000, here]);
        assert!(suppressions(b"# none\nleak:uslab\n"));
        assert!(!suppressions(b"leak:no such name\nrace:uslab"));
        assert!(Suppressions { text: b"#\nx\n" }.is_empty());
    }
}
