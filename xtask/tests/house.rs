//! The repository keeps its own rules, and the release build keeps the promises of the fast path.
//!
//! These run the tools as anyone would, so `cargo test` fails where `cargo xtask tidy` or `golden`
//! does.

use std::process::{Command, Output};

fn xtask(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).output().expect("xtask starts")
}

fn assert_passes(output: &Output) {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", shown(&output.stdout), shown(&output.stderr));
}

#[test]
fn the_repository_is_tidy() {
    assert_passes(&xtask(&["tidy"]));
}

#[test]
fn the_fast_path_is_as_kept_in_the_golden_file() {
    assert_passes(&xtask(&["golden"]));
}

#[test]
fn every_command_explains_itself() {
    for command in ["demo", "ci", "tidy", "golden", "dist", "deb"] {
        let output = xtask(&[command, "--help"]);
        assert_passes(&output);
        assert!(String::from_utf8_lossy(&output.stdout).contains("Usage: cargo xtask"));
    }
}

#[test]
fn an_image_that_is_none_is_refused() {
    let output = xtask(&["golden", "--image", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    assert!(!output.status.success());
}
