//! Just enough of ELF to know whether the dynamic loader will see a program, and for which machine it is.
//!
//! A file names its loader in a program header of type PT_INTERP. Without one the kernel starts the program
//! itself and nobody reads LD_PRELOAD: it is static. The offsets are those of the System V ABI, chapters 4
//! and 5.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const IDENT_CLASS: usize = 4;
const IDENT_DATA: usize = 5;
const CLASS_64: u8 = 2;
const DATA_LITTLE: u8 = 1;
const PT_INTERP: u32 = 3;
/// More program headers than any linker writes; a bound for files that lie.
const HEADERS_MAX: u64 = 256;
/// The kernel reads this much of a file to decide what it is (BINPRM_BUF_SIZE).
const HEAD_BYTES: usize = 256;

/// What a file is to execve(2).
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program or library.
    Elf(Elf),
    /// A text that names its interpreter in its first line.
    Script(String),
    /// Something else, or a damaged file.
    Other,
}

/// The facts that matter to preloading.
#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    /// It names a dynamic loader.
    pub dynamic: bool,
    /// Word size, byte order and instruction set: equal for files that can live in one process.
    pub machine: (u8, u8, u16),
}

/// Looks at a file's first bytes and, for ELF, its program headers.
pub fn inspect(path: &Path) -> io::Result<Kind> {
    let file = File::open(path)?;
    let mut head = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(&file, HEAD_BYTES as u64), &mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    Ok(elf(&head, |offset| {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, offset).ok()?;
        Some(word)
    })
    .map_or(Kind::Other, Kind::Elf))
}

fn script(line: &[u8]) -> Kind {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    match String::from_utf8_lossy(line).split_ascii_whitespace().next() {
        Some(interpreter) => Kind::Script(interpreter.to_owned()),
        None => Kind::Other,
    }
}

/// Reads an ELF header; `word_at` reads four bytes of the file.
fn elf(head: &[u8], word_at: impl Fn(u64) -> Option<[u8; 4]>) -> Option<Elf> {
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    let class = *head.get(IDENT_CLASS)?;
    let data = *head.get(IDENT_DATA)?;
    let little = data == DATA_LITTLE;
    let number = |offset: usize, bytes: usize| -> Option<u64> {
        let field = head.get(offset..offset + bytes)?;
        let fold = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
        Some(if little { field.iter().rev().fold(0, fold) } else { field.iter().fold(0, fold) })
    };
    let machine = (class, data, number(18, 2)? as u16);
    let (table, entry_bytes, entries) = if class == CLASS_64 {
        (number(32, 8)?, number(54, 2)?, number(56, 2)?)
    } else {
        (number(28, 4)?, number(42, 2)?, number(44, 2)?)
    };
    let kind_is_interp = |index: u64| -> bool {
        let word = table.checked_add(index * entry_bytes).and_then(&word_at);
        let kind = word.map(|w| if little { u32::from_le_bytes(w) } else { u32::from_be_bytes(w) });
        kind == Some(PT_INTERP)
    };
    Some(Elf { dynamic: (0..entries.min(HEADERS_MAX)).any(kind_is_interp), machine })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_64(table: u64, entries: u16) -> Vec<u8> {
        let mut head = vec![0; 64];
        head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        head[18..20].copy_from_slice(&62u16.to_le_bytes());
        head[32..40].copy_from_slice(&table.to_le_bytes());
        head[54..56].copy_from_slice(&56u16.to_le_bytes());
        head[56..58].copy_from_slice(&entries.to_le_bytes());
        head
    }

    #[test]
    fn this_test_is_a_dynamic_program() {
        match inspect(Path::new("/proc/self/exe")).expect("readable") {
            Kind::Elf(elf) => assert!(elf.dynamic),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_without_interp_is_static() {
        let found = elf(&header_64(64, 2), |_| Some(1u32.to_le_bytes())).expect("an ELF file");
        assert_eq!(found, Elf { dynamic: false, machine: (2, 1, 62) });
        let found = elf(&header_64(64, 2), |at| Some(if at == 120 { [3, 0, 0, 0] } else { [1; 4] }));
        assert!(found.expect("an ELF file").dynamic);
    }

    #[test]
    fn damaged_files_are_not_programs_and_do_no_harm() {
        let whole = header_64(u64::MAX - 8, u16::MAX);
        for length in 0..whole.len() {
            let _ = elf(&whole[..length], |_| None);
        }
        assert!(!elf(&whole, |_| None).expect("an ELF file").dynamic);
        assert_eq!(elf(b"MZ", |_| None), None);
    }

    #[test]
    fn scripts_name_their_interpreter() {
        assert_eq!(script(b" /usr/bin/env python3\nx"), Kind::Script("/usr/bin/env".into()));
        assert_eq!(script(b"/bin/sh"), Kind::Script("/bin/sh".into()));
        assert_eq!(script(b"  \n"), Kind::Other);
    }
}
