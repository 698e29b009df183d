//! Threads of real-time priority beside ordinary ones.

use super::compile;
use uslab_tests::harness::{Mode, Program, Scratch};

/// A drainer does not starve a thread that it preempted with a slot's lock held.
fn drainer(mode: Mode) {
    let scratch = Scratch::new("realtime");
    let outcome = Program::new(compile(&scratch, "realtime", &[])).run_clean(&scratch, mode);
    if outcome.stdout().starts_with("skipped") {
        eprintln!("NOT TESTED: {}", outcome.stdout().trim());
    }
}

both_modes! {
    a_real_time_drainer_starves_no_holder => drainer,
}
