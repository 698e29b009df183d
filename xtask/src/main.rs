//! `cargo xtask`: the workspace's own tools.
//!
//! Every check that CI makes is one of these, so that anyone can run at home what CI runs.

mod balance;
mod capi;
mod checkers;
mod ci;
mod deb;
mod demo;
mod dist;
mod documents;
mod golden;
mod manual;
mod musl;
mod oldest;
mod picture;
mod public;
mod results;
mod scale;
mod staged;
mod tidy;
mod vm;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The tools of the uslab workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the release, run a program on the allocator, and print the table of its caches.
    Demo(demo::Args),
    /// Build the library for valgrind and AddressSanitizer, and test it under both.
    Checkers(checkers::Args),
    /// Install what the tests need, then run every check; stops at the first that fails.
    Ci(ci::Args),
    /// Check the house rules: layers, assembly, syscalls, safety comments, file form, links.
    Tidy(tidy::Args),
    /// Compare the machine code of the fast path with xtask/golden/x86_64.txt.
    Golden(golden::Args),
    /// Measure and draw docs/results/idle.svg: resident memory over time under five allocators.
    Picture(picture::Args),
    /// Compare the public items of the crate uslab with xtask/golden/public.txt.
    Public(public::Args),
    /// Write the pages of docs/results from the JSON of its latest folder, or check that they
    /// agree.
    Results(results::Args),
    /// Write the curves and numbers of the balance simulation into docs/results, or check that they
    /// agree.
    Balance(balance::Args),
    /// Predict scaling to 256 CPUs by a model of cache coherence, into docs/results/scale.md.
    Scale(scale::Args),
    /// Stage a release in target/dist/{bin,lib,include,share}.
    Dist(dist::Args),
    /// Make Debian packages of the release in target/deb.
    Deb(deb::Args),
    /// Build for musl into target/musl/dist, and test there.
    Musl(musl::Args),
    /// Test in guests under QEMU: memory limits, pressure, 8 CPUs on 2 nodes and more.
    Vm(vm::Args),
}

fn main() -> ExitCode {
    let outcome = workspace::Workspace::find().and_then(|workspace| match Args::parse().command {
        Command::Demo(args) => demo::run(&workspace, &args),
        Command::Checkers(args) => checkers::run(&workspace, &args),
        Command::Ci(args) => ci::run(&workspace, &args),
        Command::Tidy(args) => tidy::run(&workspace, &args),
        Command::Golden(args) => golden::run(&workspace, &args),
        Command::Picture(args) => picture::run(&workspace, &args),
        Command::Public(args) => public::run(&workspace, &args),
        Command::Results(args) => results::run(&workspace, &args),
        Command::Balance(args) => balance::run(&workspace, &args),
        Command::Scale(args) => scale::run(&workspace, &args),
        Command::Dist(args) => dist::run(&workspace, &args),
        Command::Deb(args) => deb::run(&workspace, &args),
        Command::Musl(args) => musl::run(&workspace, &args),
        Command::Vm(args) => vm::run(&workspace, &args),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
