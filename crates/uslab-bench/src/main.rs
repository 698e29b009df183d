//! `uslab-bench SUITE`: see the library for everything.

use std::process::ExitCode;

fn main() -> ExitCode {
    uslab_bench::app::main()
}
