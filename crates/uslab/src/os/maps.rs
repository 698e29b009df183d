//! The mappings of the process, as `/proc/self/maps` lists them.

use super::file::Reader;
use core::ops::Range;

/// Bytes of a line that are kept: the numbers, and the start of the name.
const LINE_BYTES: usize = 256;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// Its addresses.
    pub range: Range<usize>,
    /// Whether loads are allowed.
    pub is_readable: bool,
    /// Whether other processes see stores.
    pub is_shared: bool,
    /// The file, or a name of the kernel in brackets, cut to its first bytes; empty for anonymous
    /// memory.
    pub name: &'a [u8],
}

/// Calls `visit` with each mapping, in ascending order. False if the kernel does not list them.
pub fn for_each(mut visit: impl FnMut(&Mapping<'_>)) -> bool {
    let Some(mut reader) = Reader::open(c"/proc/self/maps") else { return false };
    let (mut line, mut used) = ([0u8; LINE_BYTES], 0);
    let mut block = [0u8; 1024];
    let mut is_any = false;
    loop {
        let n = reader.read(&mut block);
        for &byte in &block[..n] {
            if byte == b'\n' {
                if let Some(mapping) = parse(&line[..used]) {
                    is_any = true;
                    visit(&mapping);
                }
                used = 0;
            } else if used < line.len() {
                line[used] = byte;
                used += 1;
            }
        }
        if n == 0 {
            return is_any;
        }
    }
}

/// Parses `start-end perms offset device inode name`.
fn parse(line: &[u8]) -> Option<Mapping<'_>> {
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|&byte| byte != b' ')?;
        let end = rest[start..].iter().position(|&byte| byte == b' ').map_or(rest.len(), |n| start + n);
        let field = &rest[start..end];
        rest = &rest[end..];
        Some(field)
    };
    let addresses = field()?;
    let permissions = field()?;
    // Offset, device and inode.
    for _ in 0..3 {
        field()?;
    }
    let name = rest.trim_ascii();
    let dash = addresses.iter().position(|&byte| byte == b'-')?;
    let range = hexadecimal(&addresses[..dash])?..hexadecimal(&addresses[dash + 1..])?;
    let [readable, _, _, shared] = permissions else { return None };
    Some(Mapping { range, is_readable: *readable == b'r', is_shared: *shared == b's', name })
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let line = b"7ffe1000-7ffe3000 rw-p 00000000 00:00 0                          [stack]";
        let stack = Mapping {
            range: 0x7ffe_1000..0x7ffe_3000,
            is_readable: true,
            is_shared: false,
            name: b"[stack]",
        };
        assert_eq!(parse(line), Some(stack));
        let shared = parse(b"1000-2000 ---s 00000000 00:01 9 /dev/zero (deleted)").unwrap();
        assert_eq!((shared.is_readable, shared.is_shared), (false, true));
        assert_eq!(shared.name, b"/dev/zero (deleted)");
        assert_eq!(parse(b"1000-2000 rw-p 00000000 00:00 0 ").unwrap().name, b"");
        assert_eq!(parse(b"1000 rw-p"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn a_variable_lies_in_a_mapping() {
        let local = 0u8;
        let here = &raw const local as usize;
        let mut found = 0;
        assert!(for_each(|mapping| {
            if mapping.range.contains(&here) {
                found += 1;
                assert!(mapping.is_readable && !mapping.is_shared);
            }
        }));
        assert_eq!(found, 1);
    }
}
