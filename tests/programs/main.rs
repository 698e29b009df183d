//! Real, unmodified programs under `uslab run`, each in both modes. Where possible, results are
//! compared with a run without the allocator.
//!
//! One file a program. `both_modes!` makes two tests of each check, `CHECK::rseq` and
//! `CHECK::locked`, so that the name of a failed test contains the mode. `packages.txt` lists the
//! Debian packages of the programs.

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
