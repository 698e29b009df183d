//! A seccomp filter refuses `membarrier` long after the library was set up.

use super::run;
use uslab_tests::harness::Mode;

/// No drain and no fork relies on a barrier that was refused.
fn refused(mode: Mode) {
    run("membarrier", &["before", "3"], mode);
}

/// Nor where the filter is installed between a drain's check and its barrier.
fn refused_amid_drains(mode: Mode) {
    run("membarrier", &["amid", "3"], mode);
}

both_modes! {
    barriers_are_refused => refused,
    barriers_are_refused_amid_drains => refused_amid_drains,
}
