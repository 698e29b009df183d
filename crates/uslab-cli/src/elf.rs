//! Whether the dynamic loader will see a program, and for which machine it is.
//!
//! A file names its loader in a program header of type PT_INTERP. Without one the kernel starts the
//! program itself and no loader reads LD_PRELOAD: the program is static.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use object::elf::{FileHeader32, FileHeader64, Machine, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};

/// The kernel reads this much of a file to decide what it is (BINPRM_BUF_SIZE).
const HEAD_BYTES: u64 = 256;

/// The kind of a file, as execve(2) sees it.
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
    pub machine: (bool, Endianness, Machine),
}

/// Looks at a file's first bytes and, for ELF, its program headers.
pub fn inspect(path: &Path) -> io::Result<Kind> {
    let file = File::open(path)?;
    let mut head = Vec::new();
    (&file).take(HEAD_BYTES).read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    Ok(elf(&ReadCache::new(file)).map_or(Kind::Other, Kind::Elf))
}

fn script(line: &[u8]) -> Kind {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    match String::from_utf8_lossy(line).split_ascii_whitespace().next() {
        Some(interpreter) => Kind::Script(interpreter.to_owned()),
        None => Kind::Other,
    }
}

fn elf<'data, R: ReadRef<'data>>(data: R) -> Option<Elf> {
    match FileKind::parse(data).ok()? {
        FileKind::Elf32 => facts(FileHeader32::<Endianness>::parse(data).ok()?, data),
        FileKind::Elf64 => facts(FileHeader64::<Endianness>::parse(data).ok()?, data),
        _ => None,
    }
}

fn facts<'data, R: ReadRef<'data>>(header: &impl FileHeader<Endian = Endianness>, data: R) -> Option<Elf> {
    let endian = header.endian().ok()?;
    // Headers that lie outside the file name no loader.
    let segments = header.program_headers(endian, data).unwrap_or_default();
    let dynamic = segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP);
    Some(Elf { dynamic, machine: (header.is_type_64(), endian, header.e_machine(endian)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_dynamic_program() {
        match inspect(Path::new("/proc/self/exe")).expect("readable") {
            Kind::Elf(elf) => assert!(elf.dynamic),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_without_interp_is_static_and_a_damaged_one_does_no_harm() {
        let mut file = std::fs::read("/proc/self/exe").expect("readable");
        let whole = elf(&*file).expect("an ELF file");
        for length in 0..256 {
            assert!(!elf(&file[..length]).is_some_and(|elf| elf.dynamic && length < 64));
        }
        // Headers from e_phoff on, 56 bytes each, begin with their type.
        let table = usize::from_le_bytes(file[32..40].try_into().expect("eight bytes"));
        let count = usize::from(file[56]);
        for header in 0..count {
            let kind = &mut file[table + 56 * header..][..4];
            if *kind == PT_INTERP.0.to_le_bytes() {
                kind.fill(0);
            }
        }
        assert_eq!(elf(&*file), Some(Elf { dynamic: false, ..whole }));
        file[32..40].fill(0xff);
        assert_eq!(elf(&*file).map(|elf| elf.dynamic), Some(false));
        assert_eq!(elf(&b"MZ"[..]), None);
    }

    #[test]
    fn scripts_name_their_interpreter() {
        assert_eq!(script(b" /usr/bin/env python3\nx"), Kind::Script("/usr/bin/env".into()));
        assert_eq!(script(b"/bin/sh"), Kind::Script("/bin/sh".into()));
        assert_eq!(script(b"  \n"), Kind::Other);
    }
}
