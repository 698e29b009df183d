//! A program that unmaps the list of its environment ends well, and its final figures stay for the
//! reader that the environment named when the program started.

use super::*;

both_modes!(unmapped => ends_without_an_environment);

fn ends_without_an_environment(mode: Mode) {
    run("environ", &[], mode);
}
