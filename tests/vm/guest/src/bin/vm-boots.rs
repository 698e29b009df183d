//! `vm-boots CPUS NODES` checks the guest, on which the other tests rely: so many CPUs and nodes,
//! PSI, the memory controller, restartable sequences.
//!
//! Prints its findings, and exits with 1 if something is missing. It must never run on a host.

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

use std::process::ExitCode;

fn main() -> ExitCode {
    let wanted = |at: usize| std::env::args().nth(at).and_then(|number| number.parse::<usize>().ok());
    let cpus = uslab::internal::cpu::possible_cpus().unwrap_or(0);
    let nodes = uslab::internal::cpu::nodes();
    let psi = std::fs::read_to_string("/proc/pressure/memory").is_ok_and(|text| text.starts_with("some "));
    // The pressure file of this process's group.
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.trim().strip_prefix("0::").unwrap_or_default();
    let pressure = format!("/sys/fs/cgroup{group}/memory.pressure");
    let controller = std::fs::read_to_string(format!("/sys/fs/cgroup{group}/memory.current")).is_ok();
    let mode = uslab::mode();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!(
        "kernel {}, {cpus} CPUs, {nodes} nodes, PSI {}, memory controller {}, mode {mode}",
        kernel.trim(),
        yes(psi),
        yes(controller)
    );
    let mut missing = Vec::new();
    let mut want = |there: bool, what: &'static str| {
        if !there {
            missing.push(what);
        }
    };
    want(Some(cpus) == wanted(1), "the CPUs");
    want(Some(nodes) == wanted(2), "the nodes");
    want(psi, "PSI of the system");
    want(std::path::Path::new(&pressure).exists(), "PSI of the control group");
    want(controller, "the memory controller");
    want(mode == uslab::Mode::Rseq, "restartable sequences");
    missing.iter().for_each(|what| println!("missing: {what}"));
    ExitCode::from(u8::from(!missing.is_empty()))
}

fn yes(there: bool) -> &'static str {
    if there { "yes" } else { "no" }
}
