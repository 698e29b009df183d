//! Helpers shared by the cross-crate tests: find the built library and command, run a program under them with a
//! time limit, and prove afterwards that the allocator really served it.

pub mod harness;
