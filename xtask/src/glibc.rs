//! Links shared libraries so that they load on glibc 2.28, on a machine with a newer one.
//!
//! The linker binds each symbol to the default version in the C library that it links with. So it
//! links with stubs, which have the symbols and versions of 2.28, and no code.
//!
//! ```text
//!   libc.so.6 here ──▶ of each symbol the newest version up to 2.28 ──▶ stub libc.so.6
//!                      none: left out; a weak reference to it stays, without a version
//! ```
//!
//! glibc keeps old versions for ever, so this machine's library has all of 2.28's. Two kinds of
//! functions are linked in ([`LINKED_IN`]). `stat` and its like were static functions of each
//! program. Threads and `dlsym` were in libraries of their own, and are called only where the
//! program loads these. A dependency on the libraries would cost newer systems two more files at
//! each start (ADR 0025).
//!
//! Used by the build script of `uslab-preload`, by `capi.rs` and by the check of a staged release.
//! Only the standard library may be used here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The arguments of a link against the stubs, besides their folder.
pub const LINK_ARGS: [&str; 1] = ["-Wl,-z,defs"];

/// The newest minor version of `GLIBC_2` that may be asked for.
pub const OLDEST_MINOR: u32 = 28;

/// Functions that are linked in: hidden, and weak, since a linker may be given the file twice. The
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

/// Prefixes of symbols that were in other libraries than `libc.so.6` (libpthread, libdl, librt,
/// libutil, libanl). The stubs omit them, so that a reference fails at the link and not on an old
/// system.
const ELSEWHERE: &str = "pthread_ __pthread_ _pthread_ sem_ mtx_ cnd_ tss_ thrd_ call_once dladdr dlclose \
    dlerror dlinfo dlmopen dlopen dlsym dlvsym \
    aio_ lio_ mq_ shm_ timer_ openpty forkpty login logout logwtmp getaddrinfo_a";

/// Prefixes of symbols among them that were in `libc.so.6`, too.
const IN_LIBC: &str = "pthread_attr_init pthread_attr_destroy pthread_attr_getdetachstate \
    pthread_attr_setdetachstate pthread_attr_getinheritsched pthread_attr_setinheritsched \
    pthread_attr_getsched pthread_attr_setsched pthread_cond_broadcast pthread_cond_destroy \
    pthread_cond_init pthread_cond_signal pthread_cond_wait pthread_equal pthread_exit \
    pthread_getschedparam pthread_setschedparam pthread_mutex_destroy pthread_mutex_init \
    pthread_mutex_lock pthread_mutex_unlock pthread_self pthread_setcanceltype pthread_setcancelstate";

/// A dynamic symbol, defined or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    pub name: String,
    /// Empty if it has none.
    pub version: String,
    /// The letter of nm(1): `T`, `W` and `i` are functions, `U` and `w` references.
    pub kind: char,
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

/// Makes the stubs in `directory`, for the architecture `arch` of the compiler `cc`. Returns false
/// for other architectures and other C libraries.
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
            symbols.extend(dynamic_symbols(cc, &path)?);
        }
        stubs.push((file, old_symbols(&symbols)));
    }
    let source = directory.join("linked_in.c");
    write(&source, LINKED_IN)?;
    let object = directory.join("linked_in.o");
    output(Command::new(cc).args(["-c", "-O2", "-fPIC", "-fno-lto", "-o"]).arg(&object).arg(&source))?;
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

/// One stub: assembly with the names, and a version script with their versions.
fn stub(cc: &str, directory: &Path, file: &str, symbols: &[Symbol]) -> Result<()> {
    let mut assembly = String::from(".text\n");
    let mut versions: BTreeMap<&str, String> = BTreeMap::new();
    for (index, Symbol { name, version, kind }) in symbols.iter().enumerate() {
        let kind = if is_function(*kind) { "function" } else { "object" };
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
    let mut link = Command::new(cc);
    link.args(["-shared", "-nostdlib", "-o"]).arg(directory.join(file)).arg(&source);
    let options = [format!("-Wl,-soname,{file}"), format!("-Wl,--version-script={}", map.display())];
    output(link.args(options)).map(drop)
}

/// Of each symbol its newest version up to 2.28, if it has one.
fn old_symbols(symbols: &[Symbol]) -> Vec<Symbol> {
    let mut newest: BTreeMap<&str, ((u32, u32, u32), &Symbol)> = BTreeMap::new();
    let is_defined = |symbol: &&Symbol| !matches!(symbol.kind, 'U' | 'w' | 'v' | 'A');
    for symbol in symbols.iter().filter(is_defined).filter(|symbol| is_in_libc(&symbol.name)) {
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
    let starts_with_any = |starts: &str| starts.split_whitespace().any(|start| name.starts_with(start));
    let called_if_there = |line: &str| line.strip_prefix("IF_THERE(")?.split(", ").nth(2).map(|n| n == name);
    !starts_with_any(ELSEWHERE)
        || starts_with_any(IN_LIBC)
        || LINKED_IN.lines().any(|line| called_if_there(line) == Some(true))
}

/// The parts of a version's name: `GLIBC_2.2.5` is (2, 2, 5). None for names like `GLIBC_PRIVATE`.
pub fn number(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.strip_prefix("GLIBC_")?.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?))
}

/// The dynamic symbols of a library, old versions too, as the compiler's own nm prints them.
pub fn dynamic_symbols(cc: &str, library: &Path) -> Result<Vec<Symbol>> {
    let nm = output(Command::new(cc).arg("-print-prog-name=nm"))?;
    let text = output(Command::new(nm.trim()).args(["-D", "--with-symbol-versions"]).arg(library))?;
    let symbol = |line: &str| {
        // `ADDRESS KIND NAME@@VERSION`, without the address of a reference.
        let mut words = line.rsplit(' ');
        let (name, kind) = (words.next()?, words.next()?.chars().next()?);
        let (name, version) = name.split_once('@').unwrap_or((name, ""));
        Some(Symbol { name: name.into(), version: version.trim_start_matches('@').into(), kind })
    };
    let symbols: Vec<Symbol> = text.lines().filter_map(symbol).collect();
    if symbols.is_empty() {
        Err(format!("{} has no dynamic symbols", library.display()))
    } else {
        Ok(symbols)
    }
}

fn is_function(kind: char) -> bool {
    matches!(kind, 'T' | 'W' | 'i')
}

/// The path at which the compiler finds a file of the C library.
fn library(cc: &str, file: &str) -> Result<Option<PathBuf>> {
    let place = output(Command::new(cc).arg(format!("-print-file-name={file}")))?;
    // A file that it does not know is printed as it was asked for.
    let path = PathBuf::from(place.trim());
    Ok(path.is_absolute().then_some(path))
}

/// Writes a file.
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs a command that must succeed; its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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
        symbols.map(|(name, version)| Symbol { name, version, kind: 'T' }).collect()
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
        let symbols = dynamic_symbols("cc", &path).unwrap();
        let is_function = |name: &str| {
            let found = symbols.iter().find(|symbol| symbol.name == name).unwrap();
            assert!(number(&found.version).is_some());
            is_function(found.kind)
        };
        assert!(is_function("malloc") && is_function("strlen") && !is_function("environ"));
        assert!(dynamic_symbols("cc", Path::new(file!())).is_err());
    }

    #[test]
    fn functions_that_are_called_if_they_are_there_are_known_by_the_text_that_is_linked_in() {
        assert!(["pthread_create", "pthread_getspecific", "dladdr"].iter().all(|name| is_in_libc(name)));
        assert!(!is_in_libc("pthread_rwlock_init") && !is_in_libc("dlopen") && is_in_libc("malloc"));
    }
}
