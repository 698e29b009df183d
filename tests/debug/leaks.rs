//! Leaks: programs that lose memory in every way, and that keep it in every place.

use super::*;

/// The program of `leaks.c`, compiled at the first call.
fn leaks() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| super::compiled(("cc", "gcc"), "leaks.c", "-std=gnu11"))
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
    reachable_while_threads_run => |mode| expect_none(&["thread-moves", "thread-churns"], mode),
    lost_by_threads_that_ended => |mode| {
        expect_leak("thread-ended", "lose_here", [200, 20_000, 0, 0], mode)
    },
    reachable_from_registers => |mode| expect_none(&["thread-register", "thread-vector"], mode),
}

/// Where the kernel refuses ptrace, a copy of the memory is searched, and a line says so.
fn without_ptrace(mode: Mode) {
    let scratch = Scratch::new("leak-refused");
    let outcome = case("refused").run(&scratch, mode);
    outcome.expect(outcome.ended() == "exit status 23", "the status is that of a leak");
    let stderr = outcome.stderr();
    let lines: Vec<&str> = stderr.lines().collect();
    let [leak, _, note] = lines[..] else { outcome.fail("a report, a summary and a note are expected") };
    outcome.expect(found(leak) == [3, 300, 0, 0], "what other threads have is no leak");
    outcome.expect(note.starts_with("uslab: leaks: the kernel refuses ptrace"), "the note");
    // An object whose only pointer is in a register counts as leaked: one a thread at most.
    let outcome = case("refused-churns").env("USLAB_LEAKS", "report").run(&scratch, mode);
    outcome.expect(outcome.succeeded(), "the program ends as it would");
    let count = |line: &str| if line.contains("summary") { found(line)[0] + found(line)[2] } else { 0 };
    let objects: u64 = outcome.stderr().lines().map(count).sum();
    outcome.expect(objects <= 4, "each thread has one object at most in registers alone");
}

/// More leaked objects than a search has room for beside its count.
fn crowd(mode: Mode) {
    let scratch = Scratch::new("leak-crowd");
    let outcome = case("crowd").limit_s(60).run(&scratch, mode);
    let stderr = outcome.stderr();
    let lines: Vec<Found> = stderr.lines().map(found).collect();
    let [list, alone, all] = lines[..] else { outcome.fail("two reports and a summary are expected") };
    outcome.expect(list == [1, 960_000, 120_000, 1_920_000], "the list, and what it leads to");
    outcome.expect(alone == [600, 9600, 0, 0], "each of the others");
    outcome.expect(all == [601, 969_600, 120_000, 1_920_000], "the sums");
}

/// Each open slot of a guarded object parts the heap's mappings.
fn slots(mode: Mode) {
    let scratch = Scratch::new("leak-slots");
    let outcome = case("slots").env("USLAB_GUARD", "all,slots=8192").run_clean(&scratch, mode);
    outcome.expect(outcome.stderr().is_empty(), "the search takes place, and finds no leak");
}

/// The choice between statuses.
fn status(mode: Mode) {
    let scratch = Scratch::new("leak-status");
    for (leaks, name, own, expected) in [
        ("1", "none", "7", "exit status 7"),
        ("1", "direct", "7", "exit status 23"),
        ("report", "direct", "7", "exit status 7"),
        ("0", "direct", "7", "exit status 7"),
    ] {
        let outcome = case(name).arg(own).env("USLAB_LEAKS", leaks).run(&scratch, mode);
        outcome.expect(outcome.ended() == expected, &format!("expected {expected}"));
        let is_silent = leaks == "0" || name == "none";
        outcome.expect(outcome.stderr().is_empty() == is_silent, "a report where one is asked for");
    }
}

/// Each process of a program searches for itself: a child that leaks ends with the status.
fn fork(mode: Mode) {
    let scratch = Scratch::new("leak-fork");
    let outcome = case("fork").run(&scratch, mode);
    outcome.expect(outcome.succeeded(), "the parent does not leak");
    outcome.expect(outcome.stdout() == "child 23\nend", "the child does");
    outcome.expect(outcome.stderr().lines().count() == 2, "a report and a summary");
}

/// The text for people.
fn text(mode: Mode) {
    let scratch = Scratch::new("leak-text");
    let outcome = case("list").env("USLAB_DEBUG_REPORT", "").run(&scratch, mode);
    let stderr = outcome.stderr();
    let headline =
        "uslab: leak of 64 bytes in 1 object, and of 576 bytes in 9 objects that only they lead to\n";
    outcome.expect(stderr.starts_with(headline), "the headline");
    let summary = "\nuslab: leaks from 1 place: 64 bytes in 1 object, indirectly 576 bytes in 9 objects\n";
    outcome.expect(stderr.ends_with(summary), "the summary");
    outcome.expect(stderr.contains(" of 64 bytes, of malloc-64, by malloc\n  allocated "), "the object");
}

/// Suppressions, and the lines of a file that are wrong.
fn suppressions(mode: Mode) {
    let scratch = Scratch::new("leak-suppressions");
    let run = |name: &str, text: &str| {
        let file = scratch.write("known.txt", text);
        case(name).env("USLAB_LEAK_SUPPRESSIONS", file).run(&scratch, mode)
    };
    for text in
        ["# all\nleak:lose_here\n", "leak:^lose_*$", "leak:/debug-leaks", "leak:no\n\n  leak:_here  \n"]
    {
        let outcome = run("direct", text);
        outcome.expect(outcome.succeeded(), text);
        let stderr = outcome.stderr();
        outcome.expect(stderr.lines().count() == 1 && found(&stderr) == [0; 4], "the summary alone");
        outcome.expect(number(&stderr, "suppressed_objects") == 3, "what was suppressed");
        outcome.expect(number(&stderr, "suppressed_bytes") == 300, "its bytes");
    }
    for text in ["leak:^here", "leak:lose_here$x", "leak:libc.so"] {
        let outcome = run("direct", text);
        outcome.expect(outcome.succeeded() == text.ends_with(".so"), text);
    }
    // What suppressed objects lead to is no leak: the tail of a ring, whichever comes first.
    let outcome = run("ring", "leak:make_here\n");
    outcome.expect(outcome.succeeded() && number(&outcome.stderr(), "suppressed_objects") == 8, "the ring");
    let outcome = run("direct", "leak:\nrace:x\n# fine\nleak:lose_here\nbad");
    let stderr = outcome.stderr();
    for (line, why) in
        [(1, "the pattern after 'leak:' is missing"), (2, "it does not begin with 'leak:'"), (5, "it does")]
    {
        let told = format!("known.txt, line {line}: {why}");
        outcome.expect(stderr.contains(&told), &told);
    }
    outcome.expect(outcome.succeeded(), "the line that is right has its effect");
    let outcome = case("direct").env("USLAB_LEAK_SUPPRESSIONS", "/no/such").run(&scratch, mode);
    outcome.expect(outcome.stderr().contains("/no/such cannot be read"), "a missing file");
    outcome.expect(outcome.ended() == "exit status 23", "nothing is suppressed");
}

both_modes! {
    refused_ptrace => without_ptrace,
    many_objects => crowd,
    many_guarded_objects => slots,
    exit_status => status,
    children => fork,
    lines_for_people => text,
    suppressed_leaks => suppressions,
}
