//! `uslab-scale`: predicts how the allocator scales to machines that are not at hand.
//!
//! ```text
//!   real code, fake CPU ──trace──▶ accesses ──model──▶ operations a second, and the lines that limit
//! ```
//!
//! One process models one machine and one workload, because the library learns the number of CPUs
//! once. `cargo xtask scale` starts them and writes the page.

#[cfg(target_arch = "x86_64")]
mod clock;
#[cfg(target_arch = "x86_64")]
mod emulate;
#[cfg(target_arch = "x86_64")]
mod fork;
#[cfg(target_arch = "x86_64")]
mod model;
#[cfg(target_arch = "x86_64")]
mod names;
#[cfg(target_arch = "x86_64")]
mod peers;
#[cfg(target_arch = "x86_64")]
mod run;
#[cfg(target_arch = "x86_64")]
mod shared;
#[cfg(target_arch = "x86_64")]
mod trace;
#[cfg(target_arch = "x86_64")]
mod workloads;

fn main() {
    #[cfg(target_arch = "x86_64")]
    run::main();
    #[cfg(not(target_arch = "x86_64"))]
    eprintln!("uslab-scale: the trace decodes x86-64 only");
}
