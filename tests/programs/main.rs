//! Real programs, unmodified, under `uslab run`: each in both modes, with results compared to a run without the
//! allocator where there is something to compare.
//!
//! One file a program. `both_modes!` makes two tests of each check, `CHECK::rseq` and `CHECK::locked`, so that a
//! failure says at once which of them it concerns. `packages.txt` lists the Debian packages that hold the programs.

#[macro_use]
extern crate uslab_tests;

mod apt;
mod cpp;
mod ffmpeg;
mod git;
mod java;
mod limits;
mod memcached;
mod nginx;
mod node;
mod openssl;
mod php;
mod postgres;
mod python;
mod redis;
mod ruby;
mod shell;
mod shells;
mod sqlite;
mod start;
mod stress_ng;
