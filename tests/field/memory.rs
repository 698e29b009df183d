//! Memory under restrictions: locked, limited mappings, or other mappings in the heap's way.

use crate::{compile, run};
use uslab_tests::harness::{Mode, Program, Scratch};

both_modes!(
    locked_unprivileged => unprivileged_programs_lock_their_memory,
    locked_refused => frees_do_not_retry_a_refused_purge,
    locked_kept => |mode| run("locked", &["kept"], mode),
    // The library asks the kernel nothing that an allocator needs not ask.
    sandboxed => |mode| run("sandboxed", &["early"], mode),
    sandboxed_later => |mode| run("sandboxed", &["late"], mode),
    sandboxed_thread => |mode| run("sandboxed", &["thread"], mode),
    serviced => |mode| run("sandboxed", &["service"], mode),
    address_space_later => |mode| run("address_space", &["later"], mode),
    address_space_back => |mode| limited("as", mode),
    data_back => |mode| limited("data", mode),
    address_space_start => works_in_256_mib,
    in_the_way => |mode| run("in_the_way", &[], mode),
    sparse => |mode| run("sparse", &[], mode),
    mixed => |mode| run("mixed", &[], mode),
    divided => |mode| run("divided", &[], mode),
    tables => |mode| run("tables", &[], mode),
    code => code_that_is_not_run_is_not_resident,
);

fn unprivileged_programs_lock_their_memory(mode: Mode) {
    let scratch = Scratch::new("locked-unprivileged");
    let program = compile(&scratch, "locked", &[]);
    for how in ["current", "future", "both", "onfault"] {
        for when in ["before", "after"] {
            let outcome = Program::new(&program).args(["unprivileged", how, when]).run_clean(&scratch, mode);
            outcome.expect(outcome.stdout() == "ok\n", &format!("{how} {when}"));
        }
    }
}

fn frees_do_not_retry_a_refused_purge(mode: Mode) {
    let scratch = Scratch::new("locked-refused");
    let program = compile(&scratch, "locked", &[]);
    // With a decay of zero every free purges.
    let refused = Program::new(&program).arg("refused").env("USLAB_DECAY_MS", "0");
    let outcome = refused.run_clean(&scratch, mode);
    outcome.expect(outcome.stdout() == "ok\n", "the program did not print its last line");
}

/// The linker puts such code at the end of the library (`rare.ld`).
fn code_that_is_not_run_is_not_resident(mode: Mode) {
    let scratch = Scratch::new("code");
    // `cat` shows its own mappings.
    let outcome = Program::new("/bin/cat").arg("/proc/self/smaps").run_clean(&scratch, mode);
    let shown = outcome.stdout();
    let is_code = |line: &str| line.contains(" r-xp ") && line.contains("libuslab_malloc");
    let code = shown.lines().skip_while(|line| !is_code(line));
    let kib = |name: &str| {
        let value = code.clone().find_map(|line| line.strip_prefix(name))?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let (size, resident) = (kib("Size:").expect("the code's size"), kib("Rss:").expect("its part in memory"));
    outcome.expect(resident * 2 < size, &format!("{resident} of {size} KiB of code are resident"));
}

/// With the background thread, and without it, when the program itself trims.
fn limited(what: &str, mode: Mode) {
    let scratch = Scratch::new(what);
    let program = compile(&scratch, "address_space", &[]);
    for reaper in ["1", "0"] {
        let limited = Program::new(&program).arg(what).env("USLAB_REAPER", reaper);
        let outcome = limited.run_clean(&scratch, mode);
        outcome.expect(outcome.stdout() == "ok\n", &format!("USLAB_REAPER={reaper}"));
    }
}

fn works_in_256_mib(mode: Mode) {
    let scratch = Scratch::new("address-space-start");
    let program = compile(&scratch, "address_space", &[]);
    let limited = Program::new(program).arg("start").address_space_kib(256 << 10);
    let outcome = limited.run_clean(&scratch, mode);
    outcome.expect(outcome.stdout() == "ok\n", "the program did not print its last line");
}
