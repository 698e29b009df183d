//! Paths of fixed size, and files read line by line in fixed memory.
//!
//! Must never: cut a path that is too long, or take half a line for a whole one. Either is refused.

use core::ffi::CStr;
use core::fmt;

/// Longest path, with the NUL at its end. Paths of cgroups in Kubernetes have some 230 bytes.
pub const PATH_BYTES: usize = 512;
/// Longest line that is looked at. Mounts of other file systems may have longer ones.
const LINE_BYTES: usize = 1024;

/// A path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Path {
    bytes: [u8; PATH_BYTES],
    used: usize,
}

impl Path {
    pub const EMPTY: Path = Path { bytes: [0; PATH_BYTES], used: 0 };

    /// `None` if it is too long or has a NUL in it.
    pub fn of(bytes: &[u8]) -> Option<Path> {
        Path::EMPTY.with(bytes)
    }

    /// This path with `more` right behind it.
    pub fn with(mut self, more: &[u8]) -> Option<Path> {
        if more.contains(&0) || self.used + more.len() >= PATH_BYTES {
            return None;
        }
        self.bytes[self.used..self.used + more.len()].copy_from_slice(more);
        self.used += more.len();
        Some(self)
    }

    /// The path `levels` directories up; the root's is empty, so that a name with its slash can be put behind any.
    pub fn up(mut self, levels: usize) -> Path {
        for _ in 0..levels {
            self.used = self.as_bytes().iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        }
        self.bytes[self.used..].fill(0);
        self
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    pub fn as_c(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().escape_ascii().fmt(f)
    }
}

/// Calls `visit` with each line that `read` gives, without its end, until it says false. Lines that are too long, and one that has
/// no end, are left out.
pub fn lines(read: &mut dyn FnMut(&mut [u8]) -> usize, visit: &mut dyn FnMut(&[u8]) -> bool) {
    let (mut line, mut used, mut too_long) = ([0u8; LINE_BYTES], 0, false);
    let mut block = [0u8; 512];
    loop {
        let n = read(&mut block).min(block.len());
        if n == 0 {
            return;
        }
        for &byte in &block[..n] {
            if byte == b'\n' {
                if !too_long && !visit(&line[..used]) {
                    return;
                }
                (used, too_long) = (0, false);
            } else if used < LINE_BYTES {
                line[used] = byte;
                used += 1;
            } else {
                too_long = true;
            }
        }
    }
}

/// The number that `text` is: decimal digits, with white space around them.
pub fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn lines_of(mut text: &[u8], step: usize) -> Vec<Vec<u8>> {
        let mut seen = Vec::new();
        let mut read = |buffer: &mut [u8]| {
            let n = step.min(text.len()).min(buffer.len());
            buffer[..n].copy_from_slice(&text[..n]);
            text = &text[n..];
            n
        };
        lines(&mut read, &mut |line| {
            seen.push(line.to_vec());
            true
        });
        seen
    }

    #[test]
    fn lines_are_whole_however_they_are_read() {
        for step in [1, 3, 512] {
            assert_eq!(lines_of(b"a\n\nbc\nno end", step), [&b"a"[..], b"", b"bc"]);
        }
        let mut text = std::vec![b'x'; LINE_BYTES + 1];
        text.extend_from_slice(b"\nshort\n");
        assert_eq!(lines_of(&text, 512), [b"short"]);
    }

    #[test]
    fn paths_are_whole_or_none() {
        let path = Path::of(b"/a/b").unwrap().with(b"/c").unwrap();
        assert_eq!(path.as_c(), c"/a/b/c");
        assert_eq!(path.up(2).as_c(), c"/a");
        assert_eq!(path.up(9).as_c(), c"");
        assert!(Path::of(&[b'x'; PATH_BYTES]).is_none() && Path::of(&[b'x'; PATH_BYTES - 1]).is_some());
        assert!(Path::of(b"/a\0b").is_none());
    }

    #[test]
    fn numbers_are_digits() {
        assert_eq!(number(b"42\n"), Some(42));
        for text in [&b""[..], b"\n", b"max\n", b"-1", b"1 2", b"99999999999999999999", b"\xff"] {
            assert_eq!(number(text), None);
        }
    }
}
