//! Finds the workspace and its target directory, and starts its commands.
//!
//! Cargo is asked for both (`cargo metadata`), so a target directory set by environment, by
//! configuration or on another disk is respected. Nothing here may assume a path of the machine it
//! runs on.

use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The list by which the benchmark notes them.
#[path = "../../crates/uslab-bench/src/settings.rs"]
mod settings;

/// The workspace's two directories.
pub struct Workspace {
    /// The repository's root.
    pub root: PathBuf,
    /// Cargo's target directory.
    pub target: PathBuf,
}

impl Workspace {
    /// Asks Cargo about the workspace that this program was compiled from.
    pub fn find() -> Result<Workspace> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let output = Command::new(cargo_program())
            .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
            .arg(&manifest)
            .output()
            .context("cannot start cargo")?;
        if !output.status.success() {
            bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let path = |key: &str| -> Result<PathBuf> {
            Ok(json[key].as_str().with_context(|| format!("cargo metadata has no {key}"))?.into())
        };
        Ok(Workspace { root: path("workspace_root")?, target: path("target_directory")? })
    }

    /// A cargo command that starts in the root.
    pub fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(cargo_program());
        command.current_dir(&self.root).args(args);
        command
    }

    /// The release build of all that users get, without the programs of this repository's own use,
    /// which take long to optimise. Commands that need most of it build all of it: a choice of
    /// packages is a choice of features too, and would compile the others anew.
    pub fn release_build(&self) -> Command {
        let own = ["xtask", "uslab-tests", "uslab-vm-guest"].map(|package| ["--exclude", package]);
        self.cargo(&[&["build", "--workspace", "--release"][..], own.as_flattened()].concat())
    }

    /// The directory of release builds.
    pub fn release_dir(&self) -> PathBuf {
        self.target.join("release")
    }
}

/// The cargo that started this program, so that a toolchain chosen with `+NAME` stays chosen.
fn cargo_program() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// Runs a command with this program's streams. The error has its command line.
pub fn check(command: &mut Command) -> Result<()> {
    let line = line_of(command);
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Takes the caller's settings of allocators from a command, whose figures they would change.
pub fn without_settings(command: &mut Command) -> &mut Command {
    let names = std::env::vars_os().map(|(name, _)| name);
    remove_settings(command, names)
}

fn remove_settings(command: &mut Command, names: impl Iterator<Item = OsString>) -> &mut Command {
    names
        .filter(|name| settings::is_setting(name.as_bytes()))
        .fold(command, |command, name| command.env_remove(name))
}

/// The command as one would type it: environment set for it, program name, arguments.
pub fn line_of(command: &Command) -> String {
    let shown = |text: &OsStr| {
        let text = text.to_string_lossy();
        if text.contains([' ', '$', '"']) { format!("'{text}'") } else { text.into_owned() }
    };
    let environment = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}={}", name.to_string_lossy(), shown(value)))
    });
    let program =
        Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    environment
        .chain(std::iter::once(program))
        .chain(command.get_args().map(shown))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_the_directory_above_this_package() {
        let workspace = Workspace::find().unwrap();
        assert!(workspace.root.join("xtask/src/workspace.rs").is_file());
    }

    #[test]
    fn a_command_line_is_shown_with_its_environment() {
        let mut command = Command::new("cargo");
        command.env("USLAB_RSEQ", "0").args(["test", "a b"]);
        assert_eq!(line_of(&command), "USLAB_RSEQ=0 cargo test 'a b'");
    }

    #[test]
    fn settings_of_allocators_are_taken_from_a_command_and_others_stay() {
        let mut command = Command::new("x");
        let names = ["PATH", "USLAB_SECURE", "MALLOC_ARENA_MAX", "LD_LIBRARY_PATH"].map(OsString::from);
        remove_settings(&mut command, names.into_iter()).env("USLAB_RSEQ", "0");
        let set: Vec<_> = command.get_envs().map(|(name, value)| (name.to_str(), value.is_some())).collect();
        let wanted = [("MALLOC_ARENA_MAX", false), ("USLAB_RSEQ", true), ("USLAB_SECURE", false)];
        assert_eq!(set, wanted.map(|(name, is_set)| (Some(name), is_set)));
    }

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = check(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(error.to_string().contains("exit 3"), "{error}");
    }
}
