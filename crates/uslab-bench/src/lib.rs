//! The benchmark of uslab: suites of rows, each row a question that uslab and today's allocators
//! answer in turn.
//!
//! ```text
//!   app, cli, session, modes      the program
//!   report, summary, orders ── load   result files as a page, as tables, as a picture
//!   table ── facts                results as text; what they were measured on
//!   suites/                       which rows there are, their targets and what is said of them
//!   overall                       all programs together
//!   task                          what a child can be asked for
//!   programs/, linked/,           loads beyond a loop: whole programs, C and C++ programs,
//!   locality/                     walks over what a program has allocated
//!   child ── process, preload     one measurement in a process of its own; programs under it
//!   built, resident               peers made of their sources; a program's memory over its run
//!   lineup                        the contestants as values
//!   rounds/                       the timed loops, generic over the contestant
//!   measure ── turns              interleaved rounds of lanes; disturbed ones again; their order
//!   contestants/                  an allocator, called one way
//!   results ── machine, stats     one schema; minimum, median, ratio, verdict
//!   clock, cpu, stop, asm         ticks and cycles; CPUs; Ctrl-C
//! ```
//!
//! A module uses only modules below it, and beside it to the right; tests are exempt.
//!
//! **Method.** All contestants of a row run in one process, in turn, in hundreds of rounds of about
//! 100 µs. Rows of one thread are pinned to a CPU. The minimum of its rounds is its cost; its ratio
//! to the best peer's of the same row is judged. The minimum is used because disturbances only add
//! time. Rounds are interleaved so that lasting disturbances (a slower clock, a busy neighbour)
//! affect all contestants alike.
//!
//! **Fairness.** All contestants run the same loop, compiled for each, with sizes as run-time
//! values. Peers are called as plain C functions, either linked statically from optimised builds
//! without their checks, or as shared libraries of the system. uslab's malloc is behind a C call
//! like theirs. Only the typed cache is inlined, as Rust programs use it; the same cache behind a
//! call stands beside it.
//!
//! This is the only crate of the workspace that depends on other allocators. It must never install
//! one as the malloc of a process. No test may depend on its timed figures: tests run suites with
//! `--check`, for function.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the benchmark reads the cycle counters of x86_64 and aarch64 only");

pub mod app;
pub mod asm;
pub mod built;
pub mod child;
pub mod cli;
pub mod clock;
pub mod contestants;
pub mod cpu;
pub mod facts;
pub mod lineup;
pub mod linked;
pub mod load;
pub mod locality;
pub mod machine;
pub mod measure;
pub mod modes;
pub mod orders;
pub mod overall;
pub mod preload;
pub mod process;
pub mod programs;
pub mod report;
pub mod resident;
pub mod results;
pub mod rounds;
pub mod session;
pub mod settings;
pub mod spread;
pub mod stats;
pub mod stop;
pub mod suites;
pub mod summary;
pub mod table;
pub mod task;
pub mod turns;
