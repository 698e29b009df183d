//! `uslab bench`: hands over to `uslab-bench`, which lives beside this program.
//!
//! The benchmarks link the allocator and its peers, so they are a program of their own; this one
//! stays an observer.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::args::Bench;
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, Outcome};
use crate::process::own_folder;

/// Becomes `uslab-bench` with the same arguments. Returns only when that fails.
pub fn bench(options: &Bench) -> Outcome {
    let folder = own_folder().map_err(|error| {
        Failure::new(
            NOT_FOUND,
            format_args!("cannot tell where this program is, to find uslab-bench: {error}"),
        )
    })?;
    let program = folder.join("uslab-bench");
    let error = Command::new(&program).args(&options.arguments).exec();
    if error.kind() == io::ErrorKind::NotFound {
        let line = format!("there is no {}: the benchmarks are not installed", program.display());
        return Err(Failure::new(NOT_FOUND, line));
    }
    Err(Failure::new(NOT_EXECUTABLE, format_args!("cannot execute {}: {error}", program.display())))
}
