//! A program that unmaps the list of its environment exits normally. Its final figures stay for the
//! reader that the environment named at the program's start.

use super::*;

both_modes!(unmapped => ends_without_an_environment);

fn ends_without_an_environment(mode: Mode) {
    run("environ", &[], mode);
}
