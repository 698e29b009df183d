//! Links shared libraries so that they load on glibc 2.28, on a machine with a newer one.
//!
//! The linker binds each symbol to the version that the C library at hand calls its default. So it
//! is given another library at hand: stubs that have the symbols and versions of 2.28, and no code.
//!
//! ```text
//!   libc.so.6 of this machine ──▶ of each symbol the newest version up to 2.28 ──▶ stub libc.so.6
//!                                 none: left out; a weak reference to it stays, without a version
//! ```
//!
//! glibc keeps old versions for ever, so this machine's library has all of 2.28's, but for `stat` and
//! its like, which were functions of the program: [`NOT_SHARED`] has them. Threads and `dlopen` stood
//! in libraries of their own, which newer ones have as empty files: [`LINK_ARGS`] asks for them.
//!
//! Used by the build script of `uslab-preload`, by `capi.rs` and by the check of a staged release.
//! Only the standard library may be used here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a link against the stubs is given besides their folder.
pub const LINK_ARGS: [&str; 2] =
    ["-Wl,--push-state,--no-as-needed,-lpthread,-ldl,--pop-state", "-Wl,-z,defs"];

/// The newest minor version of `GLIBC_2` that may be asked for.
pub const OLDEST_MINOR: u32 = 28;

/// Functions that glibc before 2.33 linked into each program, over the kernel's call. For 64-bit
/// architectures, whose structure is the kernel's. Weak, as a linker may be given the file twice.
const NOT_SHARED: &str = "\
#include <sys/syscall.h>
#define HIDDEN __attribute__((weak, visibility(\"hidden\")))
long syscall(long, ...);
HIDDEN int stat(const char *path, void *to) { return syscall(SYS_newfstatat, -100, path, to, 0); }
HIDDEN int stat64(const char *path, void *to) { return syscall(SYS_newfstatat, -100, path, to, 0); }
HIDDEN int lstat64(const char *path, void *to) { return syscall(SYS_newfstatat, -100, path, to, 0x100); }
HIDDEN int fstat(int fd, void *to) { return syscall(SYS_fstat, fd, to); }
HIDDEN int fstat64(int fd, void *to) { return syscall(SYS_fstat, fd, to); }
";

/// Shared libraries of 2.28, by file name and linker's name.
const LIBRARIES: [(&str, &str); 3] =
    [("libc.so.6", "c"), ("libpthread.so.0", "pthread"), ("libdl.so.2", "dl")];

/// Symbols that stood in libraries besides those (librt, libutil, libanl): starts of their names.
/// Left out, so that a reference fails at the link and not on an old system.
const ELSEWHERE: [&str; 11] = [
    "aio_",
    "lio_",
    "mq_",
    "shm_",
    "timer_",
    "openpty",
    "forkpty",
    "login",
    "logout",
    "logwtmp",
    "getaddrinfo_a",
];

type Result<T> = std::result::Result<T, String>;

/// The loader of an architecture that stubs are made for; the others link as they are.
fn loader(arch: &str) -> Option<&'static str> {
    match arch {
        "x86_64" => Some("ld-linux-x86-64.so.2"),
        "aarch64" => Some("ld-linux-aarch64.so.1"),
        _ => None,
    }
}

/// Makes the stubs in `directory`, for the architecture `arch` of the compiler `cc`; false where
/// there are none for it, or the compiler's C library is another one.
///
/// A link with `-L directory` and [`LINK_ARGS`] then needs no more than 2.28, and fails where a
/// symbol is not in it.
pub fn make_stubs(cc: &str, arch: &str, directory: &Path) -> Result<bool> {
    let Some(loader) = loader(arch) else { return Ok(false) };
    std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut names = Vec::new();
    for (file, _) in LIBRARIES.into_iter().chain([(loader, "")]) {
        let bytes = match library(cc, file)? {
            Some(path) => std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?,
            None => return Ok(false),
        };
        names.push((file, old_symbols(&defined(&bytes).ok_or(format!("{file} is no ELF library"))?)));
    }
    let source = directory.join("not_shared.c");
    write(&source, NOT_SHARED)?;
    let object = directory.join("not_shared.o");
    run(Command::new(cc).args(["-c", "-O2", "-fPIC", "-o"]).arg(&object).arg(&source))?;
    for (file, symbols) in &names {
        stub(cc, directory, file, symbols)?;
    }
    // Functions of the program come first: some are in the library, too, for programs from before.
    let rest = library(cc, "libc_nonshared.a")?.unwrap_or_default();
    let (rest, object, loader) = (rest.display(), object.display(), directory.join(loader));
    for (file, name) in LIBRARIES {
        let stub = directory.join(file);
        let script = match name {
            "c" => format!("{rest} {object} {} AS_NEEDED({})", stub.display(), loader.display()),
            _ => stub.display().to_string(),
        };
        write(&directory.join(format!("lib{name}.so")), &format!("INPUT({script})\n"))?;
    }
    Ok(true)
}

/// One stub: assembly with the names, and a version script that says what versions they have.
fn stub(cc: &str, directory: &Path, file: &str, symbols: &[(String, String)]) -> Result<()> {
    let mut assembly = String::from(".text\n");
    let mut versions: BTreeMap<&str, String> = BTreeMap::new();
    for (index, (name, version)) in symbols.iter().enumerate() {
        writeln!(assembly, ".globl s{index}\ns{index}:\n.symver s{index},{name}@@@{version}").expect("text");
        versions.entry(version).or_default();
    }
    let script: String = versions.keys().map(|version| format!("{version} {{}};\n")).collect();
    let (source, map) = (directory.join(format!("{file}.s")), directory.join(format!("{file}.map")));
    write(&source, &assembly)?;
    write(&map, &script)?;
    run(Command::new(cc)
        .args(["-shared", "-nostdlib", "-o"])
        .arg(directory.join(file))
        .arg(&source)
        .args([format!("-Wl,-soname,{file}"), format!("-Wl,--version-script={}", map.display())]))
}

/// Of each symbol its newest version up to 2.28, if it has one.
fn old_symbols(symbols: &[(String, String)]) -> Vec<(String, String)> {
    let mut newest: BTreeMap<&str, ((u32, u32, u32), &str)> = BTreeMap::new();
    for (name, version) in symbols {
        if ELSEWHERE.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        let Some(number) = number(version).filter(|&(_, minor, _)| minor <= OLDEST_MINOR) else { continue };
        let place = newest.entry(name).or_insert((number, version));
        *place = (*place).max((number, version));
    }
    newest.into_iter().map(|(name, (_, version))| (name.to_owned(), version.to_owned())).collect()
}

/// The parts of a version's name: `GLIBC_2.2.5` is (2, 2, 5). None for `GLIBC_PRIVATE` and the like.
pub fn number(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.strip_prefix("GLIBC_")?.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?))
}

/// Names and versions that a 64-bit ELF library defines, old versions too; None if it is no such
/// file.
fn defined(elf: &[u8]) -> Option<Vec<(String, String)>> {
    const DYNAMIC_SYMBOLS: u64 = 11;
    const VERSIONS_DEFINED: u64 = 0x6fff_fffd;
    const VERSIONS_OF_SYMBOLS: u64 = 0x6fff_ffff;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let little = elf.get(at..at + bytes)?;
        Some(little.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    };
    let word = |at: usize, bytes: usize| number(at, bytes).map(|number| number as usize);
    let text = |at: usize| -> Option<String> {
        let bytes = elf.get(at..)?.split(|&byte| byte == 0).next()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    // Little-endian, 64 bits.
    (elf.get(..6)? == b"\x7fELF\x02\x01").then_some(())?;
    let (headers, header_bytes, count) = (word(0x28, 8)?, word(0x3a, 2)?, word(0x3c, 2)?);
    let section = |index: usize| headers + index * header_bytes;
    let offset = |at: usize| word(at + 0x18, 8);
    let of_type = |kind: u64| (0..count).map(section).find(|&section| number(section + 4, 4) == Some(kind));
    let symbols = of_type(DYNAMIC_SYMBOLS)?;
    let strings = offset(section(word(symbols + 0x28, 4)?))?;
    let indices = offset(of_type(VERSIONS_OF_SYMBOLS)?)?;

    // struct Verdef { u16 version, flags, index, count; u32 hash, aux, next }, u32 name at aux
    let mut versions = BTreeMap::new();
    let mut at = offset(of_type(VERSIONS_DEFINED)?)?;
    loop {
        let name = word(at + word(at + 12, 4)?, 4)?;
        versions.insert(word(at + 4, 2)?, text(strings + name)?);
        match word(at + 16, 4)? {
            0 => break,
            next => at += next,
        }
    }
    // struct Sym { u32 name; u8 info, other; u16 section; u64 value, size }
    let (first, bytes) = (offset(symbols)?, word(symbols + 0x20, 8)?);
    let mut found = Vec::new();
    for index in 0..bytes / 24 {
        let symbol = first + index * 24;
        let version = versions.get(&(word(indices + 2 * index, 2)? & 0x7fff));
        // Neither a reference nor the name of a version.
        let is_defined = !matches!(word(symbol + 6, 2)?, 0 | 0xfff1);
        if let (true, Some(version)) = (is_defined, version) {
            found.push((text(strings + word(symbol, 4)?)?, version.clone()));
        }
    }
    Some(found)
}

/// Where the compiler finds a file of the C library.
fn library(cc: &str, file: &str) -> Result<Option<PathBuf>> {
    let output = Command::new(cc)
        .arg(format!("-print-file-name={file}"))
        .output()
        .map_err(|error| format!("cannot start {cc}: {error}"))?;
    // A file that it does not know is printed as it was asked for.
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(path.is_absolute().then_some(path))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(symbols: &[(&str, &str)]) -> Vec<(String, String)> {
        symbols.iter().map(|&(name, version)| (name.to_owned(), version.to_owned())).collect()
    }

    #[test]
    fn of_each_symbol_the_newest_old_version_is_taken() {
        let new = owned(&[
            ("memcpy", "GLIBC_2.14"),
            ("memcpy", "GLIBC_2.2.5"),
            ("pthread_create", "GLIBC_2.34"),
            ("pthread_create", "GLIBC_2.2.5"),
            ("stat", "GLIBC_2.33"),
            ("__internal", "GLIBC_PRIVATE"),
            ("statx", "GLIBC_2.28"),
            ("timer_create", "GLIBC_2.3.3"),
        ]);
        let expected = [("memcpy", "GLIBC_2.14"), ("pthread_create", "GLIBC_2.2.5"), ("statx", "GLIBC_2.28")];
        assert_eq!(old_symbols(&new), owned(&expected));
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(number("GLIBC_2.2.5"), Some((2, 2, 5)));
        assert_eq!(number("GLIBC_2.28"), Some((2, 28, 0)));
        assert_eq!(number("GLIBC_PRIVATE"), None);
        assert_eq!(number("GLIBC_ABI_DT_RELR"), None);
        assert_eq!(number("GCC_3.0"), None);
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn the_c_library_of_this_machine_can_be_read() {
        let path = library("cc", "libc.so.6").unwrap().unwrap();
        let symbols = defined(&std::fs::read(path).unwrap()).unwrap();
        assert!(symbols.iter().any(|(name, version)| name == "malloc" && number(version).is_some()));
        assert_eq!(defined(b"no library"), None);
    }
}
