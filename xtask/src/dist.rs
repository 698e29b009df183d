//! `cargo xtask dist`: stages a release in `target/dist`, in the layout of a prefix.
//!
//! ```text
//!   bin/      uslab, uslab-bench
//!   lib/      libuslab_malloc.so; libuslab.so, libuslab.a, pkgconfig/, cmake/
//!   include/  uslab.h, uslab.hpp, uslab/kmem.h
//!   share/    doc/uslab, the manual page, the shells' completions, the script for gdb
//! ```
//!
//! `uslab` finds the library as `../lib/libuslab_malloc.so` from its own place, so the tree can be
//! moved as a whole. The stage is made anew each time, so that it has no files of earlier builds.

use crate::capi;
use crate::documents;
use crate::oldest;
use crate::staged;
use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Cargo's archive of the C interface, from which `capi` makes the libraries.
const C_ARCHIVE: &str = "libuslab_capi.a";
/// The texts that the command generates, and their places in the stage.
const GENERATED: &[(&str, &str)] = &[
    ("man", "share/man/man1/uslab.1"),
    ("bash", "share/bash-completion/completions/uslab"),
    ("fish", "share/fish/vendor_completions.d/uslab.fish"),
    ("zsh", "share/zsh/site-functions/_uslab"),
];
/// Arguments of `cargo xtask dist`.
#[derive(clap::Args)]
pub struct Args {
    /// Copy the stage to another place and use it there: the command, pages, completions, C
    /// programs.
    #[arg(long)]
    check: bool,
}

impl Args {
    /// Staging, with the check.
    pub fn checking() -> Args {
        Args { check: true }
    }
}

/// Stages the release, and checks the stage if asked to.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    stage(workspace)?;
    if args.check { staged::check_moved(&workspace.target.join("dist")) } else { Ok(()) }
}

/// Builds the release and stages it.
pub fn stage(workspace: &Workspace) -> Result<()> {
    build_release(workspace, &["uslab-cli", "uslab-bench", "uslab-preload", "uslab-capi"])?;

    let stage = workspace.target.join("dist");
    if stage.exists() {
        std::fs::remove_dir_all(&stage).with_context(|| format!("cannot clear {}", stage.display()))?;
    }
    for directory in ["bin", "lib", "share/doc/uslab", "share/man/man1", "share/man/man3", "share/man/man7"] {
        std::fs::create_dir_all(stage.join(directory))?;
    }
    let release = workspace.release_dir();
    copy(&release, &["uslab", "uslab-bench"], &stage.join("bin"))?;
    copy(&release, &["libuslab_malloc.so"], &stage.join("lib"))?;
    capi::stage(&workspace.root, &release.join(C_ARCHIVE), &stage, env!("CARGO_PKG_VERSION"), &capi::HOST)
        .map_err(|error| anyhow!(error))?;
    documents::stage(&workspace.root, &stage.join("share/doc/uslab"))?;
    copy(&workspace.root.join("crates/uslab"), &["gdb/uslab.py"], &stage.join("share"))?;
    for (what, place) in GENERATED {
        generate(&release.join("uslab"), what, &stage.join(place))?;
    }
    date_manual(workspace, &stage.join(GENERATED[0].1))?;
    stage_manual(&workspace.root, &stage.join("share/man"))?;

    oldest::check(&stage.join("lib"))?;

    println!("dist: {}", stage.display());
    let list =
        staged::output(Command::new("find").arg(&stage).args(["!", "-type", "d", "-printf", "%P %s\\n"]))?;
    let mut list: Vec<&str> = list.lines().collect();
    list.sort_unstable();
    for (path, bytes) in list.into_iter().filter_map(|line| line.rsplit_once(' ')) {
        println!("{bytes:>12}  {path}");
    }
    Ok(())
}

/// Builds packages as they are released.
pub fn build_release(workspace: &Workspace, packages: &[&str]) -> Result<()> {
    let mut cargo = workspace.cargo(&["build", "--release"]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    workspace::check(&mut cargo)
}

/// Stages what `uslab generate WHAT` prints.
fn generate(program: &Path, what: &str, to: &Path) -> Result<()> {
    let text = staged::output(Command::new(program).args(["generate", what]))?;
    ensure!(!text.is_empty(), "`uslab generate {what}` prints nothing");
    std::fs::create_dir_all(to.parent().context("a place without a folder")?)?;
    std::fs::write(to, text).with_context(|| format!("cannot stage {}", to.display()))
}

/// Manual pages need a date, which the command does not know: that of the last commit.
fn date_manual(workspace: &Workspace, page: &Path) -> Result<()> {
    let epoch_s = epoch_s(workspace)?;
    let date = staged::output(Command::new("date").args(["-u", "-d", &format!("@{epoch_s}"), "+%Y-%m-%d"]))?;
    let text = std::fs::read_to_string(page)?;
    let Some((before, after)) = text.split_once(".TH uslab 1  ") else {
        bail!("{} has no title without a date: date_manual is for nothing", page.display());
    };
    std::fs::write(page, format!("{before}.TH uslab 1 {} {after}", date.trim()))
        .with_context(|| format!("cannot stage {}", page.display()))
}

/// The date of the sources in seconds: SOURCE_DATE_EPOCH, or that of the last commit. Never that of
/// now.
pub fn epoch_s(workspace: &Workspace) -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => staged::output(Command::new("git").current_dir(&workspace.root).args([
            "log",
            "-1",
            "--format=%ct",
        ]))
        .context("no date: set SOURCE_DATE_EPOCH, which outside a git repository must be set")?,
    };
    text.trim().parse().with_context(|| format!("SOURCE_DATE_EPOCH is no number of seconds: {text}"))
}

/// Manual pages go to the section that their name ends with. Each function of the C interface has a
/// page that leads to the one with the function in its synopsis.
fn stage_manual(root: &Path, to: &Path) -> Result<()> {
    let mut pages = BTreeMap::new();
    for page in std::fs::read_dir(root.join("docs/man"))? {
        let page = page?.path();
        let (Some(name), Some(section)) = (page.file_name(), page.extension()) else { continue };
        std::fs::copy(&page, to.join(format!("man{}", section.display())).join(name))
            .with_context(|| format!("cannot stage {}", page.display()))?;
        pages.insert(name.display().to_string(), std::fs::read_to_string(&page)?);
    }
    for name in capi::exports(&root.join("crates/uslab-capi/uslab.map")).map_err(|error| anyhow!(error))? {
        let has_it = |(_, text): &(&String, &String)| text.contains(&format!("\n.Fn {name} "));
        let (page, _) =
            pages.iter().find(has_it).with_context(|| format!("{name} is in no page of docs/man"))?;
        if page.strip_suffix(".3") == Some(&name) {
            continue;
        }
        std::fs::write(to.join(format!("man3/{name}.3")), format!(".so man3/{page}\n"))?;
    }
    Ok(())
}

/// Copies files and folders below `from` to their places below `to`.
pub fn copy(from: &Path, names: &[&str], to: &Path) -> Result<()> {
    let mut cp = Command::new("cp");
    staged::output(cp.current_dir(from).args(["-r", "--parents"]).args(names).arg(to)).map(drop)
}
