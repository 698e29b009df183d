//! What the checks need from the machine, and how it gets there.
//!
//! Only what is missing is installed, so on a machine that has everything nothing is asked of any network. Where
//! we may not install (not Debian, not root and no sudo) the message says what to do by hand.

use crate::musl;
use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, bail};
use std::process::Command;

/// The programs that the tests run under the allocator, one Debian package a line.
const PACKAGES: &str = "tests/programs/packages.txt";

/// Components of the toolchain beyond the compiler.
const COMPONENTS: &[&str] = &["rustfmt", "clippy"];

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
    let line = format!("apt-get install -y --no-install-recommends {}", missing.join(" "));
    let Some(prefix) = root_prefix() else {
        bail!(
            "packages are missing, and we are neither root nor have sudo. As root: apt-get update && {line}"
        );
    };
    println!("$ {line}");
    apt(prefix, &["update", "-q"])
        .and_then(|()| {
            let mut args = vec!["install", "-q", "-y", "--no-install-recommends"];
            args.extend(&missing);
            apt(prefix, &args)
        })
        .with_context(|| format!("cannot install packages; by hand, as root: apt-get update && {line}"))
}

/// True where packages are dpkg's.
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

/// What to put before a command so that root runs it; nothing if that cannot be.
fn root_prefix() -> Option<&'static [&'static str]> {
    let id = Command::new("id").arg("-u").output().ok()?;
    if id.stdout.trim_ascii() == b"0" {
        return Some(&[]);
    }
    // -n: a question for a password would wait for ever where nobody sits.
    let sudo = Command::new("sudo").args(["-n", "true"]).output().ok()?;
    sudo.status.success().then_some(&["sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive"])
}

fn apt(prefix: &[&str], args: &[&str]) -> Result<()> {
    let mut line = prefix.to_vec();
    line.push("apt-get");
    line.extend(args);
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).env("DEBIAN_FRONTEND", "noninteractive");
    workspace::check(&mut command)
}

/// True when toolchains are rustup's.
pub fn has_rustup() -> bool {
    Command::new("rustup").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Adds components and targets of the toolchain that are missing.
pub fn toolchain(workspace: &Workspace) -> Result<()> {
    if !has_rustup() {
        let missing: Vec<&str> = [("rustfmt", "fmt"), ("clippy", "clippy")]
            .into_iter()
            .filter(|(_, command)| {
                !workspace.cargo(&[command, "--version"]).output().is_ok_and(|o| o.status.success())
            })
            .map(|(component, _)| component)
            .collect();
        if !missing.is_empty() {
            bail!(
                "{} missing, and there is no rustup to add them: install them for this cargo",
                missing.join(", ")
            );
        }
        println!("no rustup; the toolchain is used as it is");
        return Ok(());
    }
    let lines = |args: &[&str]| -> Result<Vec<String>> {
        let output = Command::new("rustup").current_dir(&workspace.root).args(args).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect())
    };
    let components = lines(&["component", "list", "--installed"])?;
    for component in COMPONENTS {
        if !components.iter().any(|have| have.starts_with(component)) {
            rustup(workspace, &["component", "add", component])?;
        }
    }
    let targets = lines(&["target", "list", "--installed"])?;
    for target in [ARM64, musl::TARGET] {
        if !targets.iter().any(|have| have == target) {
            rustup(workspace, &["target", "add", target])?;
        }
    }
    workspace::check(workspace.cargo(&["--version"]).arg("--verbose"))
}

fn rustup(workspace: &Workspace, args: &[&str]) -> Result<()> {
    let mut command = Command::new("rustup");
    command.current_dir(&workspace.root).args(args);
    println!("$ {}", workspace::line_of(&command));
    workspace::check(&mut command)
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
