//! `cargo xtask picture`: the README's picture, resident memory over time under five allocators.
//!
//! ```text
//!   load.c ──cc──▶ program ──LD_PRELOAD──▶ five runs, one after the other
//!                  /proc/PID/status, each 50 ms ──▶ docs/results/idle.svg
//! ```
//!
//! The figures are measured anew with each call, so CI does not compare the file.

mod draw;

use crate::dist;
use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, bail};
use draw::Curve;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PICTURE: &str = "docs/results/idle.svg";
/// Length of a run, and the time between two readings.
const RUN: Duration = Duration::from_secs(12);
const STEP: Duration = Duration::from_millis(50);
/// Debian's names of the other allocators' libraries.
const PEERS: [(&str, &str); 3] = [
    ("jemalloc", "libjemalloc.so.2"),
    ("mimalloc", "libmimalloc.so.2.0"),
    ("tcmalloc (gperftools)", "libtcmalloc_minimal.so.4"),
];

/// Arguments of `cargo xtask picture`.
#[derive(clap::Args)]
pub struct Args {
    /// Write the picture here.
    #[arg(long, value_name = "FILE", default_value = PICTURE)]
    output: PathBuf,
    /// Objects of the sessions that stay, in per cent, at random.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    kept: u8,
}

/// Runs the load under each allocator and draws the curves.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    dist::build_release(workspace, &["uslab-preload"])?;
    let program = workspace.target.join("picture-load");
    let source = workspace.root.join("xtask/src/picture/load.c");
    workspace::check(Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(&source))?;
    let own = workspace.release_dir().join("libuslab_malloc.so");
    let mut curves = vec![
        measure("uslab", Some(&own), &program, args.kept)?,
        measure("glibc", None, &program, args.kept)?,
    ];
    for (name, file) in PEERS {
        let library = PathBuf::from(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH)).join(file);
        if library.is_file() {
            curves.push(measure(name, Some(&library), &program, args.kept)?);
        } else {
            println!("{name}: left out, there is no {}", library.display());
        }
    }
    let path = workspace.root.join(&args.output);
    std::fs::write(&path, draw::svg(&curves)).with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// One run; prints the peak and what is left at the end.
fn measure(name: &str, library: Option<&Path>, program: &Path, kept: u8) -> Result<Curve> {
    let mut command = Command::new(program);
    workspace::without_settings(&mut command).arg(kept.to_string());
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let begin = Instant::now();
    let mut points = Vec::new();
    while begin.elapsed() < RUN {
        std::thread::sleep(STEP);
        match resident_mib(child.id()) {
            Some(mib) => points.push((begin.elapsed().as_secs_f64(), mib)),
            None => break,
        }
    }
    let is_alive = child.try_wait()?.is_none();
    child.kill()?;
    child.wait()?;
    if !is_alive {
        bail!("the load ended early under {name}");
    }
    let curve = Curve { name: name.to_string(), points };
    println!("{name}: peak {:.0} MiB, at the end {:.0} MiB", curve.peak_mib(), curve.last_mib());
    Ok(curve)
}

/// Resident memory as the kernel counts it in `/proc/PID/status`.
fn resident_mib(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}
