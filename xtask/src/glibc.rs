//! Links shared libraries so that they load on glibc 2.28, on a machine with a newer one.
//!
//! The linker binds each symbol to the version that the C library at hand calls its default. So it
//! is given another library at hand: stubs that have the symbols and versions of 2.28, and no code.
//!
//! ```text
//!   libc.so.6 here ──▶ of each symbol the newest version up to 2.28 ──▶ stub libc.so.6
//!                      none: left out; a weak reference to it stays, without a version
//! ```
//!
//! glibc keeps old versions for ever, so this machine's library has all of 2.28's. Two kinds of
//! functions are linked in ([`LINKED_IN`]). `stat` and its like were functions of the program.
//! Threads and `dlsym` stood in libraries of their own: they are called where the program has these.
//! To name the libraries as needed costs newer systems two more files at each start (ADR 0025).
//!
//! Used by the build script of `uslab-preload`, by `capi.rs` and by the check of a staged release.
//! Only the standard library may be used here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a link against the stubs is given besides their folder.
pub const LINK_ARGS: [&str; 1] = ["-Wl,-z,defs"];

/// The newest minor version of `GLIBC_2` that may be asked for.
pub const OLDEST_MINOR: u32 = 28;

/// Functions that are linked in, hidden. Weak, as a linker may be given the file twice. The
/// structure of `stat` is the kernel's on 64-bit architectures.
const LINKED_IN: &str = r#"
#include <sys/syscall.h>
#define HIDDEN __attribute__((weak, visibility("hidden")))

long syscall(long, ...);
HIDDEN int stat(const char *path, void *to) { return syscall(SYS_newfstatat, -100, path, to, 0); }
HIDDEN int stat64(const char *path, void *to) { return syscall(SYS_newfstatat, -100, path, to, 0); }
HIDDEN int fstatat(int at, const char *path, void *to, int flags) { return syscall(SYS_newfstatat, at, path, to, flags); }
HIDDEN int fstatat64(int at, const char *path, void *to, int flags) { return syscall(SYS_newfstatat, at, path, to, flags); }
HIDDEN int lstat64(const char *path, void *to) { return syscall(SYS_newfstatat, -100, path, to, 0x100); }
HIDDEN int fstat(int fd, void *to) { return syscall(SYS_fstat, fd, to); }
HIDDEN int fstat64(int fd, void *to) { return syscall(SYS_fstat, fd, to); }

#ifdef __x86_64__
#define FIRST "GLIBC_2.2.5"
#define SINCE_2_3_4 "GLIBC_2.3.4"
#else
#define FIRST "GLIBC_2.17"
#define SINCE_2_3_4 FIRST
#endif
/* Calls the function of libpthread or libdl, or returns what it does without them. */
#define IF_THERE(version, result, name, parameters, arguments, otherwise) \
    __attribute__((weak)) result shared_##name parameters;                \
    __asm__(".symver shared_" #name "," #name "@" version);               \
    HIDDEN result name parameters {                                       \
        return shared_##name ? shared_##name arguments : otherwise;       \
    }
/* EAGAIN, ESRCH, EINVAL, ENOSYS. */
IF_THERE(FIRST, int, pthread_create, (void *a, void *b, void *c, void *d), (a, b, c, d), 11)
IF_THERE(FIRST, int, pthread_detach, (void *a), (a), 3)
IF_THERE(FIRST, int, pthread_attr_setstacksize, (void *a, unsigned long b), (a, b), 22)
IF_THERE(FIRST, int, pthread_sigmask, (int a, void *b, void *c), (a, b, c), 38)
IF_THERE(SINCE_2_3_4, int, pthread_setaffinity_np, (void *a, unsigned long b, void *c), (a, b, c), 38)
IF_THERE(FIRST, int, pthread_key_create, (void *a, void *b), (a, b), 11)
IF_THERE(FIRST, int, pthread_key_delete, (unsigned a), (a), 22)
IF_THERE(FIRST, int, pthread_setspecific, (unsigned a, void *b), (a, b), 22)
IF_THERE(FIRST, void *, pthread_getspecific, (unsigned a), (a), 0)
IF_THERE(FIRST, void *, dlsym, (void *a, void *b), (a, b), 0)
IF_THERE(FIRST, int, dladdr, (void *a, void *b), (a, b), 0)
"#;

/// The functions of libpthread and libdl that are linked in.
const IF_THERE: &[&str] = &[
    "pthread_create",
    "pthread_detach",
    "pthread_attr_setstacksize",
    "pthread_sigmask",
    "pthread_setaffinity_np",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setspecific",
    "pthread_getspecific",
    "dlsym",
    "dladdr",
];

/// Symbols that stood in libraries besides `libc.so.6`: starts of their names. Left out, so that a
/// reference fails at the link and not on an old system.
const ELSEWHERE: &[&str] = &[
    // libpthread, libdl
    "pthread_",
    "__pthread_",
    "_pthread_",
    "sem_",
    "mtx_",
    "cnd_",
    "tss_",
    "thrd_",
    "call_once",
    "dladdr",
    "dlclose",
    "dlerror",
    "dlinfo",
    "dlmopen",
    "dlopen",
    "dlsym",
    "dlvsym",
    // librt, libutil, libanl
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

/// But these, or functions that start so, were in `libc.so.6`, too.
const IN_LIBC: &[&str] = &[
    "pthread_attr_init",
    "pthread_attr_destroy",
    "pthread_attr_getdetachstate",
    "pthread_attr_setdetachstate",
    "pthread_attr_getinheritsched",
    "pthread_attr_setinheritsched",
    "pthread_attr_getsched",
    "pthread_attr_setsched",
    "pthread_cond_broadcast",
    "pthread_cond_destroy",
    "pthread_cond_init",
    "pthread_cond_signal",
    "pthread_cond_wait",
    "pthread_equal",
    "pthread_exit",
    "pthread_getschedparam",
    "pthread_setschedparam",
    "pthread_mutex_destroy",
    "pthread_mutex_init",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "pthread_self",
    "pthread_setcanceltype",
    "pthread_setcancelstate",
];

/// A symbol that a library defines.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Symbol {
    name: String,
    version: String,
    is_function: bool,
}

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
    let mut stubs = Vec::new();
    // Before 2.34 the functions that are called if they are there stand in libraries of their own.
    for (file, more) in [("libc.so.6", &["libpthread.so.0", "libdl.so.2"][..]), (loader, &[])] {
        let mut symbols = Vec::new();
        for name in [file].iter().chain(more) {
            let Some(path) = library(cc, name)? else { return Ok(false) };
            let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            symbols.extend(defined(&bytes).ok_or(format!("{name} is no ELF library"))?);
        }
        stubs.push((file, old_symbols(&symbols)));
    }
    let source = directory.join("linked_in.c");
    write(&source, LINKED_IN)?;
    let object = directory.join("linked_in.o");
    run(Command::new(cc).args(["-c", "-O2", "-fPIC", "-fno-lto", "-o"]).arg(&object).arg(&source))?;
    for (file, symbols) in &stubs {
        stub(cc, directory, file, symbols)?;
    }
    // Functions of the program come first: some are in the library, too, for programs from before.
    let rest = library(cc, "libc_nonshared.a")?.unwrap_or_default();
    let (libc, loader) = (directory.join("libc.so.6"), directory.join(loader));
    let (libc, loader) = (libc.display(), loader.display());
    let script = format!("INPUT({} {} {libc} AS_NEEDED({loader}))\n", rest.display(), object.display());
    write(&directory.join("libc.so"), &script)?;
    Ok(true)
}

/// One stub: assembly with the names, and a version script that says what versions they have.
fn stub(cc: &str, directory: &Path, file: &str, symbols: &[Symbol]) -> Result<()> {
    let mut assembly = String::from(".text\n");
    let mut versions: BTreeMap<&str, String> = BTreeMap::new();
    for (index, Symbol { name, version, is_function }) in symbols.iter().enumerate() {
        let kind = if *is_function { "function" } else { "object" };
        writeln!(
            assembly,
            ".globl s{index}\n.type s{index}, %{kind}\n.size s{index}, 8\ns{index}:\n\
             .symver s{index},{name}@@@{version}"
        )
        .expect("text");
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
fn old_symbols(symbols: &[Symbol]) -> Vec<Symbol> {
    let mut newest: BTreeMap<&str, ((u32, u32, u32), &Symbol)> = BTreeMap::new();
    for symbol in symbols.iter().filter(|symbol| is_in_libc(&symbol.name)) {
        let Some(number) = number(&symbol.version) else { continue };
        let place = newest.get(symbol.name.as_str());
        if number.1 <= OLDEST_MINOR && place.is_none_or(|&(before, _)| before < number) {
            newest.insert(&symbol.name, (number, symbol));
        }
    }
    newest.into_values().map(|(_, symbol)| symbol.clone()).collect()
}

/// Whether `libc.so.6` had a symbol of this name, or it is called only if it is there.
fn is_in_libc(name: &str) -> bool {
    let starts_with_any = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    !starts_with_any(ELSEWHERE) || starts_with_any(IN_LIBC) || IF_THERE.contains(&name)
}

/// The parts of a version's name: `GLIBC_2.2.5` is (2, 2, 5). None for names like `GLIBC_PRIVATE`.
pub fn number(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.strip_prefix("GLIBC_")?.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?))
}

/// What a 64-bit ELF library defines, old versions too; None if it is no such file.
fn defined(elf: &[u8]) -> Option<Vec<Symbol>> {
    const DYNAMIC_SYMBOLS: u64 = 11;
    const VERSIONS_DEFINED: u64 = 0x6fff_fffd;
    const VERSIONS_OF_SYMBOLS: u64 = 0x6fff_ffff;
    const FUNCTION: u8 = 2;
    const CHOSEN_FUNCTION: u8 = 10;
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
            let name = text(strings + word(symbol, 4)?)?;
            let is_function = matches!(elf.get(symbol + 4)? & 0xf, FUNCTION | CHOSEN_FUNCTION);
            found.push(Symbol { name, version: version.clone(), is_function });
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

    fn functions(symbols: &[(&str, &str)]) -> Vec<Symbol> {
        let one = |&(name, version): &(&str, &str)| (name.to_owned(), version.to_owned());
        let symbols = symbols.iter().map(one);
        symbols.map(|(name, version)| Symbol { name, version, is_function: true }).collect()
    }

    #[test]
    fn of_each_symbol_the_newest_old_version_is_taken() {
        let new = functions(&[
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
        assert_eq!(old_symbols(&new), functions(&expected));
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
        let is_function = |name: &str| {
            let found = symbols.iter().find(|symbol| symbol.name == name).unwrap();
            assert!(number(&found.version).is_some());
            found.is_function
        };
        assert!(is_function("malloc") && is_function("strlen") && !is_function("environ"));
        assert_eq!(defined(b"no library"), None);
    }
}
