//! Starts: of the library, on a small stack, also at load, and of the background thread, by all
//! large allocations of the program and none of the C library.

use super::{compile, run};
use uslab_tests::harness::{Mode, Program, Scratch};

both_modes! {
    calloc_starts_the_background_thread => |mode| run("starts", &["calloc"], mode),
    realloc_starts_the_background_thread => realloc,
    the_first_use_may_come_on_a_small_stack => |mode| run("small_stack", &[], mode),
    the_library_loads_under_a_small_limit_on_the_stack => |mode| run("small_limit", &[], mode),
    functions_for_system_calls_may_allocate => interposed,
    the_c_library_starts_none => |mode| run("starts", &["strdup"], mode),
}

/// The program exports functions of the C library, so the loader binds the library's calls to them.
fn interposed(mode: Mode) {
    let scratch = Scratch::new("interposed");
    let program = compile(&scratch, "interposed", &["-rdynamic"]);
    let outcome = Program::new(program).limit_s(120).run_clean(&scratch, mode);
    outcome.expect(outcome.stdout() == "ok\n", "the program did not print its last line");
}

fn realloc(mode: Mode) {
    run("starts", &["realloc"], mode);
    run("starts", &["grow"], mode);
}
