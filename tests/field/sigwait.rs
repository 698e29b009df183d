//! The library's thread takes no signal of the program.

use super::run;
use uslab_tests::harness::Mode;

both_modes! {
    a_daemon_takes_each_signal_by_sigwaitinfo => takes,
    a_filter_that_traps_calls_leaves_the_program_alive => |mode| run("sigwait", &["traps"], mode),
}

/// SIGBUS, SIGTRAP and SIGSEGV, which instructions raise as well; and SIGTERM.
fn takes(mode: Mode) {
    for signal in ["7", "5", "11", "15"] {
        run("sigwait", &[signal], mode);
    }
}
