//! A program that unmaps the list of its environment exits normally. Its final figures stay for the
//! reader that the environment named at the program's start.

use super::*;

both_modes!(unmapped => |mode| run("environ", &[], mode));
