//! The background thread is scheduled like an ordinary thread of the process. The library resets
//! values only where the creating thread's differ, and never by a call that a filter forbids.

use super::run;

both_modes! {
    the_background_thread_is_ordinary_whatever_thread_started_it =>
        |mode| print!("{}", run("scheduling", &["changed"], mode).stdout()),
    a_program_that_may_not_change_scheduling_lives =>
        |mode| print!("{}", run("scheduling", &["filtered"], mode).stdout()),
}
