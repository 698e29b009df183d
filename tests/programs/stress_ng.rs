//! stress-ng: its allocator stressor, which checks every block, beside stressors that fork, vfork,
//! clone, spawn, start threads, load libraries and fill tables. Counts bound each run, not time.

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(processes => malloc_fork_and_vfork, mixture => threads_and_tables);

/// The three stressors that the allocator must survive together.
fn malloc_fork_and_vfork(mode: Mode) {
    let line = "--malloc 2 --malloc-ops 50000 --malloc-pthreads 2 --malloc-touch \
                --fork 2 --fork-ops 150 --vfork 2 --vfork-ops 400";
    stress(mode, line, 6);
}

fn threads_and_tables(mode: Mode) {
    let line = "--clone 1 --clone-ops 10 --spawn 1 --spawn-ops 20 --exec 1 --exec-ops 10 \
                --pthread 1 --pthread-ops 700 --dynlib 1 --dynlib-ops 30 \
                --hsearch 1 --hsearch-ops 50 --membarrier 1 --membarrier-ops 20";
    stress(mode, line, 7);
}

/// `--verify` makes each stressor check its own results. The timeout only ends a hang.
fn stress(mode: Mode, line: &str, stressors: usize) {
    let scratch = Scratch::new("stress");
    // Some stressors refuse to run as root.
    let program = Program::new(tool("stress-ng", "stress-ng")).unprivileged();
    let program = program.args(["--verify", "--timeout", "90", "--temp-path"]);
    let outcome =
        program.arg(scratch.unprivileged_dir("t")).args(line.split_whitespace()).run_clean(&scratch, mode);
    let said = outcome.stdout() + &outcome.stderr();
    outcome.expect(said.contains("successful run completed"), "no successful run");
    outcome.expect(!said.contains("fail:") && !said.contains("error:"), "a stressor reported a failure");
    let hogs: usize = said.lines().find_map(|l| l.split_once("dispatching hogs:")).map_or(0, |(_, list)| {
        list.split(',').filter_map(|h| h.trim().split(' ').next()?.parse::<usize>().ok()).sum()
    });
    outcome.expect(hogs == stressors, &format!("{hogs} stressors ran, not {stressors}"));
}
