//! Checks the places of assembly and system calls.
//!
//! A restartable sequence is correct only as a whole: the descriptor, the critical section and the
//! abort handler are one argument, made once, in `rseq/`. All system calls are in `os/`, so that a
//! reader finds them in one place, and a test can replace them.
//!
//! Programs and tests around the library may call the system, and the preload library needs the C
//! library's types for its signatures. Assembly stays in `rseq/`, with these exceptions:
//!
//! * the benchmark has one file for values that the compiler must not follow;
//! * the preload library has three functions without a frame (one reads its caller, one returns
//!   twice, one passes its caller on), and names that it defines without exporting them;
//! * the library has two tables of names that may be missing, which Rust cannot declare;
//! * a request to valgrind is a sequence of instructions;
//! * a stack is walked from the values of three registers;
//! * a static probe is a place in the code and a note about it.

use super::source::{Source, Token};
use super::{File, Violation};

const ASSEMBLY: &[&str] = &["asm", "global_asm", "naked_asm"];
const SEQUENCES: &str = "crates/uslab/src/rseq/";
/// Further places of assembly; see above.
const OTHER_ASSEMBLY: &[&str] = &[
    "crates/uslab-bench/src/asm.rs",
    "crates/uslab-preload/src/caller.rs",
    "crates/uslab-preload/src/dlopen.rs",
    "crates/uslab-preload/src/unwind.rs",
    "crates/uslab-preload/src/vfork.rs",
    "crates/uslab-preload/src/weak.rs",
    "crates/uslab/src/os/checkers/asan.rs",
    "crates/uslab/src/os/checkers/valgrind.rs",
    "crates/uslab/src/os/probe.rs",
    "crates/uslab/src/os/unwind/mod.rs",
    "crates/uslab/src/os/weak.rs",
];

/// Crates that are ways to the system.
const SYSTEM: &[&str] = &["libc", "rustix", "linux_raw_sys", "syscalls", "nix"];
const SYSTEM_HOME: &str = "crates/uslab/src/os/";
const LIBRARY: &str = "crates/uslab/src/";

/// Checks one Rust file.
pub fn check(file: &File, source: &Source) -> Vec<Violation> {
    let code = &source.code;
    let mut violations = Vec::new();
    if !file.path.starts_with(SEQUENCES) && !OTHER_ASSEMBLY.contains(&file.path) {
        for pair in code.windows(2).filter(|pair| ASSEMBLY.contains(&pair[0].text) && pair[1].is("!")) {
            let others = OTHER_ASSEMBLY.join(", ");
            let why = format!("`{}!` may stand only in {SEQUENCES} and {others}", pair[0].text);
            violations.push(Violation::new(file, pair[0].line, "assembly", why));
        }
    }
    if file.path.starts_with(LIBRARY) && !file.path.starts_with(SYSTEM_HOME) {
        violations.extend(system(file, code));
    }
    violations
}

fn system(file: &File, code: &[Token]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (at, token) in code.iter().enumerate() {
        let next = |offset: usize, text: &str| code.get(at + offset).is_some_and(|next| next.is(text));
        // `libc::x`, `use libc;`, `extern crate libc`; not a field or a variable of that name.
        let imported = at > 0 && (code[at - 1].is("use") || code[at - 1].is("crate"));
        if SYSTEM.contains(&token.text) && (imported || next(1, "::")) {
            let why =
                format!("`{}` outside {SYSTEM_HOME}: give the layer below a function for it", token.text);
            violations.push(Violation::new(file, token.line, "syscall", why));
        }
        // Declaring the C function oneself is the same door. Weak symbols of the registration
        // belong to rseq/.
        let has_abi = code.get(at + 1).is_some_and(|abi| abi.text.starts_with('"'));
        let block = token.is("extern") && next(1 + usize::from(has_abi), "{");
        if block && !file.path.starts_with(SEQUENCES) {
            let why = format!("foreign functions may be declared only in {SYSTEM_HOME} and {SEQUENCES}");
            violations.push(Violation::new(file, token.line, "syscall", why));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        check(&File { path, text }, &source::read(text))
            .iter()
            .map(|violation| (violation.line, violation.rule))
            .collect()
    }

    #[test]
    fn assembly_stands_only_in_rseq() {
        let text = "fn f() {\n    core::arch::asm!(\"nop\");\n}\nglobal_asm!(\"\");";
        assert_eq!(found("crates/uslab/src/rseq/x86_64.rs", text), []);
        assert_eq!(found("crates/uslab/src/percpu/mod.rs", text), [(2, "assembly"), (4, "assembly")]);
        assert_eq!(found("crates/uslab-bench/src/main.rs", text), [(2, "assembly"), (4, "assembly")]);
        assert_eq!(found("crates/uslab-bench/src/asm.rs", text), []);
        assert_eq!(found("crates/uslab-preload/src/vfork.rs", text), []);
        assert_eq!(found("crates/uslab-preload/src/c.rs", text), [(2, "assembly"), (4, "assembly")]);
        assert_eq!(found("crates/uslab/src/os/weak.rs", text), []);
        assert_eq!(found("crates/uslab/src/os/fork.rs", text), [(2, "assembly"), (4, "assembly")]);
    }

    #[test]
    fn the_c_library_is_named_only_in_os() {
        let text = "use libc::c_int;\nfn f() { unsafe { libc::getpid() }; }";
        assert_eq!(found("crates/uslab/src/os/process.rs", text), []);
        assert_eq!(found("crates/uslab/src/pages/arena.rs", text), [(1, "syscall"), (2, "syscall")]);
        assert_eq!(found("crates/uslab-preload/src/lib.rs", text), []);
        assert_eq!(found("crates/uslab/src/pages/arena.rs", "use libc;"), [(1, "syscall")]);
    }

    #[test]
    fn declaring_a_c_function_is_the_same_door() {
        let text = "unsafe extern \"C\" {\n    fn mmap();\n}";
        assert_eq!(found("crates/uslab/src/pages/arena.rs", text), [(1, "syscall")]);
        assert_eq!(found("crates/uslab/src/rseq/mod.rs", text), []);
        assert_eq!(found("crates/uslab/src/cache/raw.rs", "unsafe extern \"C\" fn ctor(p: *mut u8) {}"), []);
    }

    #[test]
    fn words_in_comments_strings_and_names_are_free() {
        let text = "// libc::mmap and asm!()\nconst S: &str = \"libc::x asm!\";\nlet libc = 1;";
        assert_eq!(found("crates/uslab/src/pages/arena.rs", text), []);
    }
}
