//! Reads the kernel's files in fixed memory.
//!
//! A line that does not fit is left out, and never taken for a whole line.

use crate::os::file::Reader;
use crate::os::path::Path;

/// The longest line that is read. Mounts of other file systems may have longer ones.
const LINE_BYTES: usize = 1024;
/// The value of a file that reads `max`: no limit.
pub const NONE: u64 = u64::MAX;

/// Opens the file `name`, which starts with a slash, of `directory`.
pub fn open(directory: &Path, name: &[u8]) -> Option<Reader> {
    Reader::open(directory.with(name)?.as_c())
}

/// Calls `visit` with each line that `read` returns, without its end, until `visit` returns false.
/// Lines that are too long, and one that has no end, are left out.
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

/// The number after `key` in a file of keys and values.
pub fn value_in(directory: &Path, name: &[u8], key: &[u8]) -> Option<u64> {
    let mut reader = open(directory, name)?;
    let mut value = None;
    lines(&mut |buffer| reader.read(buffer), &mut |line| {
        value = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(b" ")).and_then(number);
        value.is_none()
    });
    value
}

/// The number that a file consists of.
pub fn bytes_in(directory: &Path, name: &[u8]) -> Option<u64> {
    let mut text = [0u8; 32];
    let used = open(directory, name)?.read(&mut text);
    bytes_of(&text[..used])
}

fn bytes_of(text: &[u8]) -> Option<u64> {
    if text.trim_ascii() == b"max" { Some(NONE) } else { number(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
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
    fn numbers_are_digits() {
        assert_eq!(number(b"42\n"), Some(42));
        for text in [&b""[..], b"\n", b"max\n", b"-1", b"1 2", b"99999999999999999999", b"\xff"] {
            assert_eq!(number(text), None);
        }
    }

    #[test]
    fn limits_are_numbers_or_none() {
        assert_eq!(bytes_of(b"max\n"), Some(NONE));
        assert_eq!(bytes_of(b"4096\n"), Some(4096));
        assert_eq!(bytes_of(b""), None);
        assert_eq!(bytes_of(b"maximum\n"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_them_panic(text: Vec<u8>) {
            let _ = bytes_of(&text);
        }
    }
}
