//! `cargo xtask deb`: Debian packages of the staged release, in `target/deb`.
//!
//! ```text
//!   target/dist ─▶ tree.rs: files to their places ─▶ control.rs: what dpkg is told ─▶ target/deb/*.deb ─▶ check.rs (--check)
//!
//!   libuslab1     libuslab.so.1, in the architecture's folder, so that several architectures may be installed
//!   libuslab-dev  headers, libuslab.so and libuslab.a, pkg-config, CMake, manual pages, guide and examples
//!   uslab         the command, its manual page and completions, and libuslab_malloc.so, which it puts under programs
//! ```
//!
//! The stage is the one source: nothing is built for the packages that is not in it. `uslab-bench` is left out: it is for those who have the
//! sources, and other allocators are linked into it. Same stage, same date, same bytes: the date is SOURCE_DATE_EPOCH, or that of the last
//! commit, never that of now.

mod check;
mod control;
mod tree;

use crate::dist;
use crate::staged::output;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of `cargo xtask deb`.
#[derive(clap::Args)]
pub struct Args {
    /// Package target/dist as it is, rather than build and stage it first.
    #[arg(long)]
    staged: bool,
    /// Check the packages: lintian, two builds compared, and install, use and remove them in a root of their own.
    #[arg(long)]
    check: bool,
}

impl Args {
    /// The check of a stage that was just made.
    pub fn checking_stage() -> Args {
        Args { staged: true, check: true }
    }
}

/// What all packages of one run have in common.
struct Release {
    /// Upstream's version and the package's revision.
    version: String,
    /// Debian's name for the architecture: `amd64`.
    architecture: String,
    /// Where its libraries lie: `x86_64-linux-gnu`.
    multiarch: String,
    /// The date of everything, in seconds.
    epoch_s: u64,
    /// Who to write to: DEBFULLNAME and DEBEMAIL, as Debian's tools have them.
    maintainer: String,
}

/// Makes the packages, and checks them if asked to.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    for (tool, package) in [("dpkg-deb", "dpkg"), ("dpkg-shlibdeps", "dpkg-dev"), ("strip", "binutils")] {
        if Command::new(tool).arg("--version").output().is_err() {
            bail!("there is no {tool} (package {package}): Debian packages are made on Debian");
        }
    }
    if !args.staged {
        dist::stage(workspace)?;
    }
    let release = Release::find(workspace)?;
    let out = workspace.target.join("deb");
    let packages = build(workspace, &release, &out)?;
    for package in &packages {
        println!("{:>12}  {}", package.metadata()?.len(), package.display());
    }
    if args.check {
        let again_out = workspace.target.join("deb-again");
        let again = build(workspace, &release, &again_out)?;
        for (one, other) in packages.iter().zip(&again) {
            if std::fs::read(one)? != std::fs::read(other)? {
                bail!(
                    "{} and {} differ: packages must not depend on when they are made",
                    one.display(),
                    other.display()
                );
            }
        }
        std::fs::remove_dir_all(again_out)?;
        println!("deb: a second build gives the same bytes");
        check::run(&release, &packages)?;
    }
    Ok(())
}

/// Makes the packages in `out`, which is made anew.
fn build(workspace: &Workspace, release: &Release, out: &Path) -> Result<Vec<PathBuf>> {
    if out.exists() {
        std::fs::remove_dir_all(out).with_context(|| format!("cannot clear {}", out.display()))?;
    }
    let stage = workspace.target.join("dist");
    if !stage.join("lib/libuslab.so").exists() {
        bail!("nothing is staged in {}: run `cargo xtask dist`", stage.display());
    }
    let packages = tree::lay_out(workspace, release, &stage, &out.join("trees"))?;
    control::write_all(workspace, release, &packages, out)?;
    let mut made = Vec::new();
    for package in &packages {
        let path = out.join(format!("{}_{}_{}.deb", package.name, release.version, release.architecture));
        // One compressor thread: how the data is cut into blocks must not depend on the machine.
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "--threads-max=1", "-Zxz", "--build"]);
        pack.arg(&package.tree).arg(&path).env("SOURCE_DATE_EPOCH", release.epoch_s.to_string());
        output(&mut pack)?;
        made.push(path);
    }
    std::fs::remove_dir_all(out.join("trees"))?;
    Ok(made)
}

impl Release {
    fn find(workspace: &Workspace) -> Result<Release> {
        let ask = |variable: &str| -> Result<String> {
            let answer = output(Command::new("dpkg-architecture").arg(format!("-q{variable}")))?;
            Ok(answer.trim().to_owned())
        };
        let name = std::env::var("DEBFULLNAME").unwrap_or_else(|_| "The uslab maintainers".into());
        let mail = std::env::var("DEBEMAIL").unwrap_or_else(|_| "uslab@packages.invalid".into());
        Ok(Release {
            version: format!("{}-1", env!("CARGO_PKG_VERSION")),
            architecture: ask("DEB_HOST_ARCH")?,
            multiarch: ask("DEB_HOST_MULTIARCH")?,
            epoch_s: dist::epoch_s(workspace)?,
            maintainer: format!("{name} <{mail}>"),
        })
    }

    /// Upstream's part of the version.
    fn upstream(&self) -> &str {
        self.version.split('-').next().unwrap_or(&self.version)
    }

    /// The folder of libraries, from the root.
    fn lib(&self) -> String {
        format!("usr/lib/{}", self.multiarch)
    }
}
