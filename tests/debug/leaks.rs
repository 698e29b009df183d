//! Leaks: programs that lose memory in every way, and that keep it in every place.

use super::*;

/// The program of `leaks.c`, compiled at the first call.
fn leaks() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let scratch = Scratch::new("leaks-compile");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("debug/leaks.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debug-leaks");
        let built = Program::new(tool("cc", "gcc"))
            .args(["-O1", "-g", "-Wall", "-Wextra", "-fno-builtin", "-pthread", "-rdynamic"])
            .arg(file)
            .arg("-o")
            .arg(&program)
            .limit_s(120)
            .run_clean(&scratch, Mode::Plain);
        built.expect(built.stderr().is_empty(), "the compiler wrote to standard error");
        program
    })
}

fn case(name: &str) -> Program {
    Program::new(leaks()).arg(name).env("USLAB_LEAKS", "1").env("USLAB_DEBUG_REPORT", "json:")
}

/// The number behind a key of a line of JSON.
fn number(line: &str, key: &str) -> u64 {
    let digits = line.split_once(&format!("\"{key}\":")).map_or("", |(_, rest)| rest);
    digits.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(u64::MAX)
}

/// Objects and bytes that leaked, and those that only they lead to.
type Found = [u64; 4];

fn found(line: &str) -> Found {
    ["objects", "bytes", "indirect_objects", "indirect_bytes"].map(|key| number(line, key))
}

/// Runs a case that leaks `expected` from one place, in a function called `function`.
fn expect_leak(name: &str, function: &str, expected: Found, mode: Mode) {
    let scratch = Scratch::new(&format!("leak-{name}"));
    let outcome = case(name).run(&scratch, mode);
    outcome.expect(outcome.ended() == "exit status 23", "the status is that of a leak");
    outcome.expect(outcome.stdout() == "end", "what was printed is not lost");
    let stderr = outcome.stderr();
    let lines: Vec<&str> = stderr.lines().collect();
    let [leak, summary] = lines[..] else { outcome.fail("a report and a summary are expected") };
    outcome.expect(found(leak) == expected, &format!("expected {expected:?}, found {:?}", found(leak)));
    outcome.expect(found(summary) == expected && number(summary, "places") == 1, "the summary");
    let stack = leak.split_once("\"stack\":").map_or("", |(_, stack)| stack);
    outcome.expect(stack.contains(&format!("({function}+")), "the stack of the allocation");
    outcome.expect(leak.starts_with("{\"fault\":\"leak\"") && leak.ends_with('}'), "JSON");
}

/// Runs cases that leak nothing.
fn expect_none(names: &[&str], mode: Mode) {
    for name in names {
        let scratch = Scratch::new(&format!("leak-{name}"));
        let outcome = case(name).run_clean(&scratch, mode);
        outcome.expect(outcome.stderr().is_empty(), "a leak is reported that is none");
        outcome.expect(outcome.stdout() == "end", "what was printed is not lost");
    }
}

both_modes! {
    direct => |mode| expect_leak("direct", "lose_here", [3, 300, 0, 0], mode),
    list => |mode| expect_leak("list", "list_here", [1, 64, 9, 576], mode),
    ring => |mode| expect_leak("ring", "lose_ring", [1, 64, 7, 448], mode),
    itself => |mode| expect_leak("self", "make_here", [1, 64, 0, 0], mode),
    shared_child => |mode| expect_leak("shared", "make_here", [2, 128, 1, 64], mode),
    hidden_pointer => |mode| expect_leak("hidden", "hide_here", [1, 100, 0, 0], mode),
    untouched_memory => |mode| expect_leak("reserved", "lose_here", [1, 100, 0, 0], mode),
    every_size => |mode| {
        let scratch = Scratch::new("leak-sizes");
        let outcome = case("sizes").run(&scratch, mode);
        let stderr = outcome.stderr();
        let sizes: Vec<Found> = stderr.lines().map(found).collect();
        let [a, b, c, d] = [3 << 20, 100_000, 5000, 1].map(|bytes| [1, bytes, 0, 0]);
        outcome.expect(sizes == [a, b, c, d, [4, (3 << 20) + 105_001, 0, 0]], "the largest comes first");
    },
    reachable => |mode| expect_none(
        &["none", "global", "array", "inside", "end", "empty", "tls", "stack", "realloc", "environment"],
        mode,
    ),
    reachable_in_large_objects => |mode| {
        expect_none(&["end-large", "inside-large", "from-large", "protected"], mode)
    },
    reachable_by_a_tagged_pointer => |mode| expect_none(&["tagged"], mode),
    reachable_from_mappings => |mode| expect_none(&["mmap", "mmap-shared"], mode),
    reachable_from_threads => |mode| expect_none(&["thread-stack", "thread-tls"], mode),
    reachable_from_registers => |mode| expect_none(&["thread-register", "thread-vector"], mode),
}
