//! Installs the packages and toolchains that the checks need.
//!
//! It installs only what is missing, so a complete machine needs no network. Where it may not
//! install (not Debian, not root and no sudo), the message names the command to run by hand.

use crate::musl;
use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, bail, ensure};
use std::process::Command;

/// The programs that the tests run under the allocator, one Debian package a line.
const PACKAGES: &str = "tests/programs/packages.txt";

/// The second architecture.
pub const ARM64: &str = "aarch64-unknown-linux-gnu";

/// Installs the Debian packages that are missing.
pub fn packages(workspace: &Workspace) -> Result<()> {
    let text =
        std::fs::read_to_string(workspace.root.join(PACKAGES)).with_context(|| format!("no {PACKAGES}"))?;
    let wanted = listed(&text);
    if !is_debian() {
        println!("this is no Debian; the tests that need one of these will say so: {}", wanted.join(" "));
        return Ok(());
    }
    let missing: Vec<&str> = wanted.into_iter().filter(|package| !installed(package)).collect();
    if missing.is_empty() {
        println!("all are installed");
        return Ok(());
    }
    let line =
        format!("apt-get update -q && apt-get install -qy --no-install-recommends {}", missing.join(" "));
    let Some(sudo) = root_prefix() else {
        bail!("packages are missing, and we are neither root nor have sudo. As root: {line}");
    };
    println!("$ {line}");
    let mut command = Command::new(sudo[0]);
    workspace::check(command.args(&sudo[1..]).args(["DEBIAN_FRONTEND=noninteractive", "sh", "-c", &line]))
        .with_context(|| format!("cannot install packages; by hand, as root: {line}"))
}

/// Whether dpkg is installed.
pub fn is_debian() -> bool {
    Command::new("dpkg-query").arg("--version").output().is_ok()
}

/// Package names of a list; `#` starts a comment.
fn listed(text: &str) -> Vec<&str> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|name| !name.is_empty())
        .collect()
}

fn installed(package: &str) -> bool {
    let query = Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}\n", package]).output();
    query.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).lines().any(|status| status == "installed")
    })
}

/// The words before a command that root runs with variables; `None` without root and sudo.
fn root_prefix() -> Option<&'static [&'static str]> {
    let id = Command::new("id").arg("-u").output().ok()?;
    if id.stdout.trim_ascii() == b"0" {
        return Some(&["env"]);
    }
    // -n: a question for a password would never be answered.
    let sudo = Command::new("sudo").args(["-n", "true"]).output().ok()?;
    sudo.status.success().then_some(&["sudo", "-n", "env"])
}

/// Whether rustup is installed.
pub fn has_rustup() -> bool {
    Command::new("rustup").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Adds components and targets of the toolchain that are missing. rustup asks no network for
/// others.
pub fn toolchain(workspace: &Workspace) -> Result<()> {
    if has_rustup() {
        for args in [["component", "rustfmt", "clippy"], ["target", ARM64, musl::TARGET]] {
            let mut rustup = Command::new("rustup");
            rustup.current_dir(&workspace.root).args([args[0], "add"]).args(&args[1..]);
            workspace::check(&mut rustup)?;
        }
    } else {
        println!("no rustup; the toolchain is used as it is");
        for command in ["fmt", "clippy"] {
            let version = workspace.cargo(&[command, "--version"]).output();
            let is_there = version.is_ok_and(|output| output.status.success());
            ensure!(
                is_there,
                "there is no cargo {command}, and no rustup to add it: install it for this cargo"
            );
        }
    }
    workspace::check(workspace.cargo(&["--version"]).arg("--verbose"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_packages_may_have_comments() {
        assert_eq!(listed("# tests\ngit\n\nperl   # demo\n"), ["git", "perl"]);
    }

    #[test]
    fn a_package_that_does_not_exist_is_not_installed() {
        assert!(!installed("uslab-no-such-package"));
    }

    #[test]
    fn the_list_of_packages_is_there_and_names_some() {
        let workspace = Workspace::find().unwrap();
        let text = std::fs::read_to_string(workspace.root.join(PACKAGES)).unwrap();
        assert!(!listed(&text).is_empty());
    }
}
