//! `cargo xtask dist`: stages a release in `target/dist`, laid out as it would lie under a prefix.
//!
//! ```text
//!   bin/      uslab, uslab-bench
//!   lib/      libuslab_malloc.so; libuslab.so, libuslab.a, pkgconfig/, cmake/
//!   include/  uslab.h, uslab.hpp, uslab/kmem.h
//!   share/    doc/uslab, the manual page and the shells' completions
//! ```
//!
//! `uslab` finds the library as `../lib/libuslab_malloc.so` from its own place, so the tree can be moved as a whole.
//! The stage is made anew each time: what is not built any more must not linger in it.

use crate::capi;
use crate::oldest;
use crate::staged;
use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, anyhow, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: &[&str] = &["uslab", "uslab-bench"];
const LIBRARIES: &[&str] = &["libuslab_malloc.so"];
/// Cargo's archive of the C interface, from which `capi` makes the libraries.
const C_ARCHIVE: &str = "libuslab_capi.a";
/// What the command prints about itself, and where packagers put it.
const GENERATED: &[(&str, &str)] = &[
    ("man", "share/man/man1/uslab.1"),
    ("bash", "share/bash-completion/completions/uslab"),
    ("fish", "share/fish/vendor_completions.d/uslab.fish"),
    ("zsh", "share/zsh/site-functions/_uslab"),
];
const DOCUMENTS: &[&str] = &["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Arguments of `cargo xtask dist`.
#[derive(clap::Args)]
pub struct Args {
    /// Copy the stage to another place and use it there: the command, pages, completions, C programs.
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
    for directory in ["bin", "lib", "include", "share/doc/uslab"] {
        std::fs::create_dir_all(stage.join(directory))?;
    }
    let release = workspace.release_dir();
    for name in PROGRAMS {
        copy(&release.join(name), &stage.join("bin").join(name))?;
    }
    for name in LIBRARIES {
        copy(&release.join(name), &stage.join("lib").join(name))?;
    }
    capi::stage(&workspace.root, &release.join(C_ARCHIVE), &stage, env!("CARGO_PKG_VERSION"), &capi::HOST)
        .map_err(|error| anyhow!(error))?;
    for name in DOCUMENTS {
        copy(&workspace.root.join(name), &stage.join("share/doc/uslab").join(name))?;
    }
    // Laid out as in the repository: the guide links to the examples.
    for documents in ["docs/guide", "crates/uslab-capi/examples"] {
        copy_tree(&workspace.root.join(documents), &stage.join("share/doc/uslab").join(documents))?;
    }
    for (what, place) in GENERATED {
        generate(&release.join("uslab"), what, &stage.join(place))?;
    }
    date_manual(workspace, &stage.join(GENERATED[0].1))?;
    stage_manual(&workspace.root.join("docs/man"), &stage.join("share/man"))?;
    lead_to_manual(&workspace.root, &stage.join("share/man/man3"))?;

    oldest::check(&stage.join("lib"))?;

    println!("dist: {}", stage.display());
    let mut staged = Vec::new();
    list(&stage, &mut staged)?;
    staged.sort();
    for path in staged {
        let bytes = path.metadata()?.len();
        println!("{bytes:>12}  {}", path.strip_prefix(&stage).unwrap_or(&path).display());
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
    let output = Command::new(program).args(["generate", what]).output().context("cannot start uslab")?;
    if !output.status.success() || output.stdout.is_empty() {
        bail!("`uslab generate {what}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(to, output.stdout).with_context(|| format!("cannot stage {}", to.display()))
}

/// Readers of manual pages want a date, which the command does not know: that of the last commit.
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

/// The date of the sources in seconds: SOURCE_DATE_EPOCH, or that of the last commit. Never that of now.
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

/// Manual pages go to the section that their name ends with: `uslab.1` to `man1`.
fn stage_manual(from: &Path, to: &Path) -> Result<()> {
    let mut pages = Vec::new();
    list(from, &mut pages)?;
    for page in pages {
        let Some(section) = page.extension().and_then(|section| section.to_str()) else { continue };
        if section.chars().all(|c| c.is_ascii_digit()) {
            let name = page.file_name().context("a manual page without a name")?;
            copy(&page, &to.join(format!("man{section}")).join(name))?;
        }
    }
    Ok(())
}

/// A page for each function of the C interface, which leads to the one that has it in its synopsis.
fn lead_to_manual(root: &Path, to: &Path) -> Result<()> {
    let mut pages = Vec::new();
    list(&root.join("docs/man"), &mut pages)?;
    pages.sort();
    for name in capi::exports(&root.join("crates/uslab-capi/uslab.map")).map_err(|error| anyhow!(error))? {
        let has_it = |page: &&PathBuf| {
            std::fs::read_to_string(page).is_ok_and(|text| text.contains(&format!("\n.Fn {name} ")))
        };
        let page = pages.iter().find(has_it).with_context(|| format!("{name} is in no page of docs/man"))?;
        let page = page.file_name().context("a manual page without a name")?.display();
        let own = format!("{name}.3");
        if page.to_string() != own {
            std::fs::write(to.join(&own), format!(".so man3/{page}\n"))
                .with_context(|| format!("cannot stage {own}"))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::copy(from, to).with_context(|| format!("cannot stage {}", from.display()))?;
    Ok(())
}

/// Copies all files under a directory, if there is one.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let mut files = Vec::new();
    list(from, &mut files)?;
    files.iter().try_for_each(|file| copy(file, &to.join(file.strip_prefix(from)?)))
}

/// The files under a directory; none if it does not exist.
fn list(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !directory.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() { list(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_pages_go_to_their_sections() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, to) = (from.path(), to.path());
        for name in ["uslab.1", "uslab.h.3", "README.md"] {
            std::fs::write(from.join(name), name).unwrap();
        }
        stage_manual(from, to).unwrap();
        let mut staged = Vec::new();
        list(to, &mut staged).unwrap();
        staged.sort();
        assert_eq!(staged, [to.join("man1/uslab.1"), to.join("man3/uslab.h.3")]);
    }

    #[test]
    fn trees_are_copied_whole_and_a_missing_one_is_empty() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, to) = (from.path(), to.path());
        std::fs::create_dir_all(from.join("a/b")).unwrap();
        std::fs::write(from.join("a/b/c"), "c").unwrap();
        copy_tree(from, to).unwrap();
        assert_eq!(std::fs::read_to_string(to.join("a/b/c")).unwrap(), "c");
        copy_tree(&from.join("none"), to).unwrap();
    }
}
