//! Forbids the C library's cancellation points in the library, and its functions for system calls
//! that the library makes under locks.
//!
//! `malloc` is no cancellation point, but `open` or `write` inside it would end a thread that
//! another one canceled: its stack unwinds through Rust, and the locks that it holds stay taken.
//! Two files write to streams of the C library, and switch cancellation off before.
//!
//! Another preloaded library may define `mmap` or `getpid`, and allocate there.
//!
//! So the library makes these calls by `os/calls.rs`, as raw system calls.
//!
//! The list has the functions of pthreads(7) that read, write, wait or sleep, and the further ones
//! of glibc and musl. Rust's standard library calls them, too.

use super::source::{Source, Token};
use super::{File, Violation};

const LIBRARY: &[&str] = &["crates/uslab/src/", "crates/uslab-capi/src/", "crates/uslab-preload/src/"];
/// Files that switch cancellation off around their calls.
const SWITCHED_OFF: &[&str] = &["crates/uslab/src/os/process.rs", "crates/uslab-preload/src/stream.rs"];

/// Functions, and the commands that make one of `fcntl`.
const POINTS: &str = "\
    F_OFD_SETLKW F_SETLKW accept accept4 clock_nanosleep close connect copy_file_range creat \
    epoll_pwait epoll_pwait2 epoll_wait fallocate fclose fdatasync fflush fopen fprintf fputc \
    fputs fread fsync fwrite getrandom lockf mq_receive mq_send mq_timedreceive mq_timedsend \
    msgrcv msgsnd msync nanosleep open open64 openat openat64 opendir pause perror poll \
    posix_fallocate ppoll pread pread64 preadv preadv2 printf pselect pthread_cond_timedwait \
    pthread_cond_wait pthread_join pthread_testcancel putchar puts pwrite pwrite64 pwritev \
    pwritev2 read readv recv recvfrom recvmmsg recvmsg select sem_timedwait sem_wait send \
    sendmmsg sendmsg sendto sigsuspend sigtimedwait sigwait sigwaitinfo sleep splice \
    sync_file_range syslog system tcdrain tee usleep vmsplice wait wait3 wait4 waitid waitpid \
    write writev";
/// Functions of which `os/calls.rs` has a form that no other library can replace.
const REPLACED: &str = "\
    clock_gettime fcntl fstat fstatat fstatfs ftruncate geteuid getpid getppid getrlimit lstat \
    madvise mincore mkdir mmap mprotect mremap munmap prctl readlink rename renameat \
    sched_yield socket stat sysconf sysinfo unlink unlinkat";
/// Modules of the standard library that call them.
const STANDARD: &[&str] = &["fs", "io", "net", "process"];

/// Checks one Rust file.
pub fn check(file: &File, source: &Source) -> Vec<Violation> {
    let is_library = LIBRARY.iter().any(|part| file.path.starts_with(part));
    let is_test = file.path.ends_with("tests.rs") || file.path.contains("/tests/");
    if !is_library || is_test || SWITCHED_OFF.contains(&file.path) {
        return Vec::new();
    }
    let code = without_tests(&source.code);
    let (mut imports, mut braces) = (false, 0);
    let mut violations = Vec::new();
    for (at, token) in code.iter().enumerate() {
        let before = |offset: usize, text: &str| at >= offset && code[at - offset].is(text);
        imports = (imports || (token.is("libc") && before(1, "use"))) && !token.is(";");
        // The depth of braces in a block of foreign functions; 0 outside.
        let is_foreign = before(1, "extern") || (before(2, "extern") && code[at - 1].text.starts_with('"'));
        braces += usize::from(token.is("{") && (braces > 0 || is_foreign));
        braces -= usize::from(braces > 0 && token.is("}"));
        let of_c = imports || (before(1, "::") && before(2, "libc")) || (braces > 0 && before(1, "fn"));
        let of_rust = before(1, "::") && before(2, "std") && STANDARD.contains(&token.text);
        let is_called = code.get(at + 1).is_some_and(|next| next.is("("));
        let why = if of_rust || (of_c && POINTS.split(' ').any(|point| token.is(point))) {
            "is or has a cancellation point"
        } else if of_c && is_called && REPLACED.split(' ').any(|name| token.is(name)) {
            "may be another library's function, which allocates"
        } else {
            continue;
        };
        let why = format!("`{}` {why}: use crates/uslab/src/os/calls.rs", token.text);
        violations.push(Violation::new(file, token.line, "cancellation", why));
    }
    violations
}

/// The code without items for tests: each ends with its braces, or with a semicolon before any.
fn without_tests<'a>(code: &[Token<'a>]) -> Vec<Token<'a>> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < code.len() {
        if !is_for_tests(&code[at..]) {
            kept.push(code[at]);
            at += 1;
            continue;
        }
        let mut braces = 0;
        while at < code.len() {
            braces += usize::from(code[at].is("{"));
            let closes = braces == 1 && code[at].is("}");
            braces -= usize::from(braces > 0 && code[at].is("}"));
            at += 1;
            if closes || (braces == 0 && code[at - 1].is(";")) {
                break;
            }
        }
    }
    kept
}

/// Whether the code begins with `#[cfg(test)]` or `#[cfg(all(test`.
fn is_for_tests(code: &[Token]) -> bool {
    let begins = |words: &[&str]| {
        code.len() >= words.len() && words.iter().zip(code).all(|(word, token)| token.is(word))
    };
    begins(&["#", "[", "cfg", "(", "test", ")"]) || begins(&["#", "[", "cfg", "(", "all", "(", "test"])
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&File { path, text }, &source::read(text)).iter().map(|violation| violation.line).collect()
    }

    const FILE: &str = "crates/uslab/src/os/file.rs";
    const NONE: [usize; 0] = [];

    #[test]
    fn functions_of_the_c_library_are_found_wherever_they_come_from() {
        let text = "fn f() {\n    libc::read(0, p, 1);\n    libc::close(0);\n}";
        assert_eq!(lines(FILE, text), [2, 3]);
        assert_eq!(lines("crates/uslab-preload/src/c.rs", text), [2, 3]);
        assert_eq!(lines("crates/uslab-capi/src/text.rs", "use libc::{c_int,\n    write};"), [2]);
        assert_eq!(lines(FILE, "extern \"C\" {\n    fn fsync(fd: i32) -> i32;\n}"), [2]);
        assert_eq!(lines(FILE, "libc::fcntl(fd, libc::F_SETLKW, 0);"), [1, 1]);
        assert_eq!(lines(FILE, "std::fs::read(path);"), [1]);
        assert_eq!(lines(FILE, "let id = libc::getpid();"), [1]);
    }

    #[test]
    fn other_functions_of_these_names_and_raw_calls_pass() {
        let text = "calls::read(0, b); file.read(b); libc::syscall(libc::SYS_read); fn open() { read() }";
        assert_eq!(lines(FILE, text), NONE);
        assert_eq!(lines(FILE, "trait T { fn read(); } extern \"C\" fn write() { close() }"), NONE);
        assert_eq!(lines(FILE, "calls::getpid(); let s: libc::stat = f();"), NONE);
        assert_eq!(lines(FILE, "use libc::c_int;\nuse super::calls::{open, read};"), NONE);
        assert_eq!(lines("crates/uslab-bench/src/process.rs", "libc::read(0, p, 1);"), NONE);
        assert_eq!(lines("crates/uslab-preload/src/stream.rs", "libc::fwrite(p, 1, 1, f);"), NONE);
    }

    #[test]
    fn tests_may_block_and_the_code_behind_them_may_not() {
        let text = "#[cfg(test)]\nuse libc::open;\n#[cfg(test)]\nmod tests {\n    fn f() { libc::close(0); }\n}\nfn g() { libc::close(0) }";
        assert_eq!(lines(FILE, text), [7]);
        assert_eq!(lines("crates/uslab/src/os/tests.rs", "fn f() { libc::close(0) }"), NONE);
        assert_eq!(lines("crates/uslab/src/slab/tests/takes.rs", "std::io::stdin()"), NONE);
    }
}
