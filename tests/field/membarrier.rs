//! A seccomp filter refuses `membarrier` long after the library was set up.

use super::run;

both_modes! {
    // No drain and no fork relies on a barrier that was refused.
    barriers_are_refused => |mode| run("membarrier", &["before", "3"], mode),
    // Nor where the filter is installed between a drain's check and its barrier.
    barriers_are_refused_amid_drains => |mode| run("membarrier", &["amid", "3"], mode),
}
