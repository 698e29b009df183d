//! `cargo xtask musl`: builds everything for musl, and tests it there.
//!
//! ```text
//!   cargo test -p uslab                  the library, in static test programs
//!   bin/uslab                            the command, static
//!   lib/libuslab_malloc.so               the preload library: the conformance program runs on it
//!   lib/libuslab.{so,a}, include/        the C interface: its programs, linked both ways
//! ```
//!
//! Needs rustup's target and Debian's `musl-tools`. musl registers no thread for restartable
//! sequences; the library does.
//!
//! Rust's shared libraries for musl ask for the unwinder of the system's compiler, which on a glibc
//! system is one for glibc. So they are linked with the static one that comes with Rust.

use crate::capi;
use crate::staged::{has, output};
use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target.
pub const TARGET: &str = "x86_64-unknown-linux-musl";
/// The compiler that links for it.
const CC: &str = "musl-gcc";
/// Programs of `tests/capi` that need neither C++ nor another library.
const C_PROGRAMS: [&str; 7] = ["caches", "memory", "reclaim", "sources", "arguments", "endings", "forks"];
/// Tests of the library that depend on the C library. The others run the same code as on glibc, and
/// take minutes.
const LIBRARY_TESTS: [&str; 8] =
    ["destroy", "fork", "headroom", "limits", "many", "misuse", "sources", "threads"];
/// Checks that musl fails without uslab: it runs no `.preinit_array`, `dlclose` unloads nothing,
/// and a process hangs at its exit while a thread forks. Checks that start through this system's
/// shell, a program for glibc. And the list of checks, which is shorter without C++.
const NOT_ON_MUSL: [&str; 6] = [
    "before_main",
    "after_main",
    "loaded_libraries",
    "forks_during_exit",
    "in_4_gib",
    "every_check_is_a_test",
];

/// Arguments of `cargo xtask musl`.
#[derive(clap::Args)]
pub struct Args {
    /// Build into target/musl/dist, and run no tests.
    #[arg(long)]
    build_only: bool,
}

/// Builds for musl and tests what was built.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if !has(CC) {
        bail!("there is no {CC}: apt-get install musl-tools");
    }
    let musl = Musl::new(workspace)?;
    musl.build()?;
    if args.build_only {
        return Ok(());
    }
    musl.test_library()?;
    musl.test_preload()?;
    musl.test_c_interface()
}

struct Musl<'a> {
    workspace: &'a Workspace,
    /// Builds have a folder of their own: they have other flags.
    target: PathBuf,
    stage: PathBuf,
    /// Rust's static unwinder for musl.
    unwinder: PathBuf,
    /// The folder in which the linker finds it under the name of the shared one.
    search: PathBuf,
}

impl Musl<'_> {
    fn new(workspace: &Workspace) -> Result<Musl<'_>> {
        let target = workspace.target.join("musl");
        let (stage, search) = (target.join("dist"), target.join("search"));
        if stage.exists() {
            std::fs::remove_dir_all(&stage).with_context(|| format!("cannot clear {}", stage.display()))?;
        }
        for directory in [&search, &stage.join("bin"), &stage.join("lib")] {
            std::fs::create_dir_all(directory)?;
        }
        let libraries = output(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]))?;
        let unwinder = Path::new(libraries.trim()).join("self-contained/libunwind.a");
        ensure!(unwinder.is_file(), "no {}: rustup target add {TARGET}", unwinder.display());
        std::fs::write(search.join("libgcc_s.so"), format!("INPUT({})\n", unwinder.display()))?;
        Ok(Musl { workspace, target, stage, unwinder, search })
    }

    /// A cargo command for the target; `shared` links to musl's shared library.
    fn cargo(&self, args: &[&str], shared: bool) -> Command {
        let mut cargo = self.workspace.cargo(args);
        let directory = if shared { self.target.join("shared") } else { self.target.clone() };
        cargo.args(["--target", TARGET]).env("CARGO_TARGET_DIR", directory).env_remove("USLAB_RSEQ");
        if shared {
            let flags = format!("-Ctarget-feature=-crt-static -Lnative={}", self.search.display());
            cargo.env("RUSTFLAGS", flags).env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER", CC);
        }
        cargo
    }

    fn build(&self) -> Result<()> {
        let packages = ["build", "--release", "-p", "uslab-preload", "-p", "uslab-capi"];
        // Programs link these libraries or preload them.
        let features = ["--features", "uslab-preload/register-threads,uslab-capi/register-threads"];
        workspace::check(&mut self.cargo(&[&packages[..], &features].concat(), true))?;
        workspace::check(&mut self.cargo(&["build", "-p", "uslab-cli"], false))?;
        let built = self.target.join("shared").join(TARGET).join("release");
        std::fs::copy(built.join("libuslab_malloc.so"), self.preload())?;
        std::fs::copy(self.target.join(TARGET).join("debug/uslab"), self.command())?;
        let (root, archive) = (&self.workspace.root, built.join("libuslab_capi.a"));
        let cc = capi::Linker { cc: CC, search: Some(&self.search), is_glibc: false };
        capi::stage(root, &archive, &self.stage, env!("CARGO_PKG_VERSION"), &cc)
            .map_err(|error| anyhow!(error))?;
        println!("musl: {}", self.stage.display());
        Ok(())
    }

    fn preload(&self) -> PathBuf {
        self.stage.join("lib/libuslab_malloc.so")
    }

    fn command(&self) -> PathBuf {
        self.stage.join("bin/uslab")
    }

    fn test_library(&self) -> Result<()> {
        let mut tests = self.cargo(&["test", "-p", "uslab", "--lib"], false);
        LIBRARY_TESTS.iter().for_each(|name| {
            tests.args(["--test", name]);
        });
        workspace::check(&mut tests)
    }

    /// The conformance program of the tests, compiled for musl and run by the static command.
    fn test_preload(&self) -> Result<()> {
        let needed = output(Command::new("readelf").arg("-dW").arg(self.command()))?;
        ensure!(!needed.contains("NEEDED"), "the command needs a library:\n{needed}");
        output(Command::new(self.command()).arg("--version"))?;
        output(Command::new(self.command()).arg("info"))?;
        // All packages, so that nothing is compiled with other features than before.
        let mut tests = self.workspace.cargo(&["test", "--workspace", "--test", "conformance", "--"]);
        tests.args(["--skip", "operators"]);
        NOT_ON_MUSL.iter().for_each(|name| {
            tests.args(["--skip", name]);
        });
        tests.env("USLAB_LIB", self.preload()).env("USLAB_BIN", self.command()).env("USLAB_TEST_CC", CC);
        workspace::check(&mut tests)
    }

    /// Programs in C on the shared library, and without any shared library.
    fn test_c_interface(&self) -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let lib = self.stage.join("lib");
        for name in C_PROGRAMS {
            for link in ["shared", "static"] {
                let program = scratch.path().join(format!("{name}-{link}"));
                let mut cc = Command::new(CC);
                cc.args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
                cc.arg("-D_POSIX_C_SOURCE=200809L");
                cc.arg(format!("-DUSLAB_TEST_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
                cc.arg("-I").arg(self.stage.join("include"));
                cc.arg(self.workspace.root.join(format!("tests/capi/{name}.c")));
                if link == "shared" {
                    cc.arg("-L").arg(&lib).arg("-luslab").arg(format!("-Wl,-rpath,{}", lib.display()));
                } else {
                    cc.arg("-static").arg(lib.join("libuslab.a")).arg(&self.unwinder);
                }
                output(cc.arg("-o").arg(&program))?;
                let mut run = Command::new(&program);
                let said = output(run.env("USLAB_REAPER", "0").env_remove("USLAB_RSEQ"))?;
                ensure!(said.ends_with("ok\n"), "{name} ({link}) did not say that it ended: {said}");
            }
        }
        println!("musl: {} programs in C, linked both ways", C_PROGRAMS.len());
        Ok(())
    }
}
