//! Runs real programs under the allocator.
//!
//! ```text
//!   Program ──start──▶ Running ──wait──▶ Outcome ──expect_clean──▶ proof that the allocator was there
//!      │                  │
//!   Mode: plain,       own process group, killed whole
//!   rseq, locked       when its time is up
//! ```
//!
//! Environment variables of the harness:
//!
//! | variable | meaning |
//! |---|---|
//! | `USLAB_LIB` | the library to preload, in place of the one that is built; another allocator's file serves as a control |
//! | `USLAB_BIN` | the `uslab` command to start programs with |
//! | `USLAB_TEST_KEEP` | keep the scratch directories of tests that passed, too |
//!
//! A program gets, from the caller's environment, only `PATH` and those `USLAB_*` variables that
//! the harness does not set itself. So a result does not depend on the caller's shell, and
//! `USLAB_REAPER=0 cargo test` works.

mod artifacts;
mod gdb;
mod outcome;
mod packages;
mod program;
mod proof;
mod scratch;

pub use artifacts::{Artifacts, artifacts};
pub use gdb::Gdb;
pub use outcome::Outcome;
pub use packages::tool;
pub use program::{Mode, NOBODY, Program, Running, is_root};
pub use proof::{expect_mapped, family};
pub use scratch::Scratch;
