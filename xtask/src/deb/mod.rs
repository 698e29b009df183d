//! `cargo xtask deb`: Debian packages of the staged release, in `target/deb`.
//!
//! ```text
//!   target/dist ─▶ debhelper, by the files in debian/ ─▶ target/deb/*.deb ─▶ check.rs (--check)
//!
//!   libuslab1     libuslab.so.1, in the architecture's folder
//!   libuslab-dev  headers, libuslab.so and .a, pkg-config, CMake, manual pages, guide, examples
//!   uslab         the command, its page and completions, and libuslab_malloc.so
//! ```
//!
//! The packages contain staged files only, and dh_missing fails for a staged file that is in no
//! package. The same stage and date give the same bytes. The date is SOURCE_DATE_EPOCH, or that of
//! the last commit.

mod check;
mod image;

use crate::dist;
use crate::staged::{has, output};
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The maintainer in debian/control, unless DEBFULLNAME and DEBEMAIL name another one.
const MAINTAINER: (&str, &str) = ("The uslab maintainers", "uslab@packages.invalid");

/// Arguments of `cargo xtask deb`.
#[derive(clap::Args)]
pub struct Args {
    /// Package target/dist as it is, rather than build and stage it first.
    #[arg(long)]
    staged: bool,
    /// Check the packages: compare two builds, run lintian, install, use and remove the packages in
    /// a root of their own, and build and run the guide's container with them.
    #[arg(long)]
    check: bool,
}

impl Args {
    /// The check of a stage that was just made.
    pub fn checking_stage() -> Args {
        Args { staged: true, check: true }
    }
}

/// Makes the packages, and checks them if asked to.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    ensure!(has("dh"), "there is no dh: Debian packages are made on Debian, by debhelper");
    if args.staged {
        let stage = workspace.target.join("dist");
        ensure!(stage.is_dir(), "there is no {}: `cargo xtask dist` stages a release there", stage.display());
    } else {
        dist::stage(workspace)?;
    }
    let again_out = workspace.target.join("deb-again");
    let (packages, again) = std::thread::scope(|scope| {
        let again = args.check.then(|| scope.spawn(|| build(workspace, &again_out)));
        let packages = build(workspace, &workspace.target.join("deb"));
        (packages, again.map(|thread| thread.join().expect("it does not panic")))
    });
    let packages = packages?;
    for package in &packages {
        println!("{:>12}  {}", package.metadata()?.len(), package.display());
    }
    if let Some(again) = again {
        compare(&packages, &again?)?;
        std::fs::remove_dir_all(again_out)?;
        println!("deb: a second build gives the same bytes");
        check::run(&packages)?;
        image::check(workspace, &packages)?;
    }
    Ok(())
}

/// Fails unless two builds made the same files, with the same bytes.
fn compare(one: &[PathBuf], other: &[PathBuf]) -> Result<()> {
    let names = |packages: &[PathBuf]| -> Vec<_> {
        packages.iter().map(|path| path.file_name().map(std::ffi::OsStr::to_owned)).collect()
    };
    let (first, second) = (names(one), names(other));
    ensure!(first == second, "a second build makes other packages: {first:?}, then {second:?}");
    for (one, other) in one.iter().zip(other) {
        let is_same =
            one.metadata()?.len() == other.metadata()?.len() && std::fs::read(one)? == std::fs::read(other)?;
        ensure!(is_same, "a second build gives another {}: does it depend on the time?", one.display());
    }
    Ok(())
}

/// Makes the packages in `out`, which is made anew.
fn build(workspace: &Workspace, out: &Path) -> Result<Vec<PathBuf>> {
    if out.exists() {
        std::fs::remove_dir_all(out).with_context(|| format!("cannot clear {}", out.display()))?;
    }
    // Packages land beside the folder that holds debian/.
    let debian = out.join("source/debian");
    std::fs::create_dir_all(out.join("source"))?;
    output(Command::new("cp").arg("-a").arg(workspace.root.join("debian")).arg(&debian))?;
    let variable = |name: &str, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.into());
    let (name, mail) = (variable("DEBFULLNAME", MAINTAINER.0), variable("DEBEMAIL", MAINTAINER.1));
    let maintainer = format!("{name} <{mail}>");
    let epoch_s = dist::epoch_s(workspace)?.to_string();
    let date = output(Command::new("date").env("LC_ALL", "C").args(["-uRd", &format!("@{epoch_s}")]))?;
    let version = env!("CARGO_PKG_VERSION");
    let changelog = format!(
        "uslab ({version}-1) unstable; urgency=medium\n\n  * Made by `cargo xtask deb`. What changed in uslab is in \
         changelog.gz.\n\n -- {maintainer}  {date}"
    );
    std::fs::write(debian.join("changelog"), changelog)?;
    let usual = format!("{} <{}>", MAINTAINER.0, MAINTAINER.1);
    replace(&debian.join("control"), &usual, &maintainer)?;
    replace(&debian.join("copyright"), "@CRATES@\n", &crates(workspace)?)?;

    let mut rules = Command::new("debian/rules");
    rules.arg("binary").current_dir(out.join("source")).env_remove("DEB_BUILD_OPTIONS");
    rules.env("STAGE", workspace.target.join("dist")).env("SOURCE_DATE_EPOCH", epoch_s);
    output(&mut rules)?;
    std::fs::remove_dir_all(out.join("source"))?;
    let mut made: Vec<PathBuf> =
        std::fs::read_dir(out)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    made.sort();
    Ok(made)
}

fn replace(file: &Path, from: &str, to: &str) -> Result<()> {
    let text = std::fs::read_to_string(file)?;
    ensure!(text.contains(from), "{} has no {from}", file.display());
    Ok(std::fs::write(file, text.replace(from, to))?)
}

/// The crates of other projects in the packages: `libc 0.2.191 (MIT OR Apache-2.0)`.
fn crates(workspace: &Workspace) -> Result<String> {
    let mut tree = workspace.cargo(&["tree", "--offline", "--locked", "--edges", "normal,no-proc-macro"]);
    tree.args(["--prefix", "none", "--no-dedupe", "--format", "{p} ({l})"]);
    tree.args(["-p", "uslab-capi", "-p", "uslab-cli", "-p", "uslab-preload"]);
    let text = output(&mut tree)?;
    // The workspace's own come with their folder.
    let mut crates: Vec<&str> =
        text.lines().filter(|line| !line.contains("(/") && !line.trim().is_empty()).collect();
    crates.sort_unstable();
    crates.dedup();
    Ok(crates.iter().map(|one| format!("  {}\n", one.replacen(" v", " ", 1))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_differ_by_a_name_a_number_or_a_byte() {
        let scratch = tempfile::tempdir().unwrap();
        let made = |folder: &str, files: &[(&str, &str)]| -> Vec<PathBuf> {
            let folder = scratch.path().join(folder);
            std::fs::create_dir(&folder).unwrap();
            let paths = files.iter().map(|(name, text)| (folder.join(name), text));
            paths.map(|(path, text)| std::fs::write(&path, text).map(|()| path).unwrap()).collect()
        };
        let one = made("one", &[("a.deb", "1"), ("b.deb", "2")]);
        assert!(compare(&one, &made("same", &[("a.deb", "1"), ("b.deb", "2")])).is_ok());
        assert!(compare(&one, &made("fewer", &[("a.deb", "1")])).is_err());
        assert!(compare(&one, &made("other", &[("a.deb", "1"), ("c.deb", "2")])).is_err());
        assert!(compare(&one, &made("changed", &[("a.deb", "1"), ("b.deb", "3")])).is_err());
        assert!(compare(&[], &one).is_err());
    }
}
