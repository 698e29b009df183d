//! Real programs under debugging: none of them gets a report.

use super::*;

/// Runs a shell command with each set of letters. It must end as it does without the library, and
/// no line of the library may appear.
fn expect_no_report(name: &str, command: &str, mode: Mode) {
    let scratch = Scratch::new(&format!("debug-{name}"));
    let sh = |letters: &str| {
        let program = Program::new("/bin/bash").args(["-c", command]).env("USLAB_DEBUG", letters);
        program.dir(env!("CARGO_MANIFEST_DIR"))
    };
    let plain = sh("").run_clean(&scratch, Mode::Plain);
    for letters in if mode == Mode::Locked { &["FZPU"][..] } else { &["F", "FZPU"] } {
        let outcome = sh(letters).run_clean(&scratch, mode);
        outcome.expect(outcome.stdout() == plain.stdout(), "the output differs");
        outcome.expect(!outcome.stderr().contains("uslab"), "a report");
    }
}

both_modes! {
    python => |mode| expect_no_report(
        "python",
        "python3 -c 'import json, re, decimal; print(len(json.dumps([str(i) * 9 for i in range(9999)])))'",
        mode,
    ),
    bash => |mode| expect_no_report(
        "bash",
        "for i in $(seq 300); do x=\"$x$(echo $i)\"; done; echo ${#x}; ls / | sort | head -5",
        mode,
    ),
    git => |mode| expect_no_report(
        "git",
        "d=$(mktemp -d); cd $d && git init -q . && seq 5000 > f && git add f && git hash-object f && git fsck; rm -rf $d",
        mode,
    ),
    compiler => |mode| expect_no_report(
        "compiler",
        "d=$(mktemp -d); g++ -O1 -w -o $d/x debug/faults.cc -pthread && $d/x none 100 thread && echo built; rm -rf $d",
        mode,
    ),
}

/// Runs a command with a search for leaks in each of its processes. It must end as without it, and
/// the library may write nothing but reports of leaks: git and the compiler have some.
fn expect_only_leaks(name: &str, command: &str, mode: Mode) {
    let scratch = Scratch::new(&format!("leaks-of-{name}"));
    let sh = |leaks: &str| {
        let program = Program::new("/bin/bash").args(["-c", command]).env("USLAB_LEAKS", leaks);
        program.env("USLAB_DEBUG_REPORT", "json:").dir(env!("CARGO_MANIFEST_DIR"))
    };
    let plain = sh("").run_clean(&scratch, Mode::Plain);
    let outcome = sh("report").run_clean(&scratch, mode);
    outcome.expect(outcome.stdout() == plain.stdout(), "the output differs");
    let is_leak = |line: &&str| line.starts_with("{\"fault\":\"leak\"") || line.starts_with("{\"summary\":");
    let stderr = outcome.stderr();
    let others: Vec<&str> = stderr.lines().filter(|line| !is_leak(line)).collect();
    outcome.expect(!others.iter().any(|line| line.contains("uslab")), "another report");
}

both_modes! {
    leaks_of_python => |mode| expect_only_leaks(
        "python",
        "python3 -c 'import json, threading; t = threading.Thread(target=print); t.start(); print(len(json.dumps(list(range(9999)))))'",
        mode,
    ),
    leaks_of_git => |mode| expect_only_leaks(
        "git",
        "d=$(mktemp -d); cd $d && git init -q . && seq 5000 > f && git add f && git hash-object f; rm -rf $d",
        mode,
    ),
    leaks_of_the_compiler => |mode| expect_only_leaks(
        "compiler",
        "d=$(mktemp -d); g++ -O1 -w -o $d/x debug/faults.cc -pthread && $d/x none 100 thread && echo built; rm -rf $d",
        mode,
    ),
}

/// A library with its own `operator new`, bound locally: its memory comes from `malloc`, and the
/// program deletes it by the preloaded library's `operator delete`.
fn local_operators(mode: Mode) {
    let scratch = Scratch::new("debug-local-operators");
    let library = scratch.write(
        "make.cc",
        "#include <stdlib.h>\n\
         void *operator new(size_t n) { return malloc(n); }\n\
         void *operator new[](size_t n) { return malloc(n); }\n\
         struct Made { char text[100]; };\n\
         Made *make() { return new Made; }\n\
         char *make_array() { return new char[100]; }\n",
    );
    let program = scratch.write(
        "use.cc",
        "struct Made { char text[100]; };\n\
         Made *make(); char *make_array();\n\
         int main() { delete make(); delete[] make_array(); }\n",
    );
    let (made, user) = (scratch.join("libmade.so"), scratch.join("use"));
    let compiler = || Program::new(tool("c++", "g++")).arg("-fno-builtin").limit_s(120);
    let flags = ["-O1", "-shared", "-fPIC", "-Wl,-Bsymbolic-functions", "-o"];
    compiler().args(flags).arg(&made).arg(library).run_clean(&scratch, Mode::Plain);
    compiler().args(["-O1", "-o"]).arg(&user).arg(program).arg(&made).run_clean(&scratch, Mode::Plain);
    for (name, value) in [("USLAB_DEBUG", "F"), ("USLAB_DEBUG", "FZPU"), ("USLAB_SECURE", "1")] {
        let outcome = Program::new(&user).env(name, value).run_clean(&scratch, mode);
        outcome.expect(outcome.stderr().is_empty(), "a report");
    }
}

/// A hardened process does not judge the families: a mismatch does no harm there.
fn mismatch_in_a_hardened_process(mode: Mode) {
    let scratch = Scratch::new("debug-hardened-mismatch");
    for case in ["malloc-delete", "new-free", "array-delete"] {
        let run = Program::new(faults()).args([case, "100", "main"]).env("USLAB_SECURE", "1");
        let outcome = run.run_clean(&scratch, mode);
        outcome.expect(outcome.stderr().is_empty(), "a report");
    }
}

both_modes! {
    library_with_operators_of_its_own => local_operators,
    families_in_a_hardened_process => mismatch_in_a_hardened_process,
}
