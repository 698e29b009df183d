//! The background thread is scheduled like an ordinary thread of the process. The library resets
//! values only where the creating thread's differ, and never by a call that a filter forbids.

use super::run;
use uslab_tests::harness::Mode;

both_modes! {
    the_background_thread_is_ordinary_whatever_thread_started_it => is_ordinary,
    a_program_that_may_not_change_scheduling_lives => is_filtered,
}

fn is_ordinary(mode: Mode) {
    print!("{}", run_scheduling("changed", mode));
}

fn is_filtered(mode: Mode) {
    print!("{}", run_scheduling("filtered", mode));
}

fn run_scheduling(how: &str, mode: Mode) -> String {
    run("scheduling", &[how], mode).stdout()
}
