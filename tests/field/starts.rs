//! Starts: of the library, on a small stack, and of the background thread, by all large allocations
//! of the program and none of the C library.

use super::run;
use uslab_tests::harness::Mode;

both_modes! {
    calloc_starts_the_background_thread => |mode| run("starts", &["calloc"], mode),
    realloc_starts_the_background_thread => realloc,
    the_first_use_may_come_on_a_small_stack => |mode| run("small_stack", &[], mode),
    the_c_library_starts_none => |mode| run("starts", &["strdup"], mode),
}

fn realloc(mode: Mode) {
    run("starts", &["realloc"], mode);
    run("starts", &["grow"], mode);
}
