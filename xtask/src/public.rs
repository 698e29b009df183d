//! `cargo xtask public`: the public names of the crate `uslab`, compared with the list that is kept.
//!
//! rustdoc describes the crate as JSON, the crate `public-api` turns that into one line for each
//! public item, and the lines must be those of `xtask/golden/public.txt`. So no item becomes public,
//! changes its signature or goes away unseen.

use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Where the accepted list is kept.
const GOLDEN: &str = "xtask/golden/public.txt";
/// All features that add public items.
const FEATURES: &str = "allocator-api2,lru,schnellru";

/// Arguments of `cargo xtask public`.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Accept what was found as the new list.
    #[arg(long)]
    bless: bool,
}

/// Lists the public items and compares.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let json = describe(workspace)?;
    let found = public_api::Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    let found = match found {
        Ok(api) => api.to_string(),
        // Each version of rustdoc writes one format, and `public-api` reads a few.
        Err(error) => {
            println!("public: not compared, this compiler's rustdoc is not understood: {error}");
            return Ok(());
        }
    };
    let path = workspace.root.join(GOLDEN);
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    if kept == found {
        println!("public: {} public items, as kept in {GOLDEN}", found.lines().count());
        return Ok(());
    }
    for line in kept.lines().filter(|line| !found.lines().any(|other| other == *line)) {
        println!("-{line}");
    }
    for line in found.lines().filter(|line| !kept.lines().any(|other| other == *line)) {
        println!("+{line}");
    }
    if !args.bless {
        bail!("the public items differ from {GOLDEN}; `cargo xtask public --bless` accepts them");
    }
    std::fs::write(&path, found).with_context(|| format!("cannot write {}", path.display()))?;
    println!("public: wrote {GOLDEN}");
    Ok(())
}

/// Has rustdoc describe the crate. Stable compilers do so only when told that the format may change.
fn describe(workspace: &Workspace) -> Result<std::path::PathBuf> {
    let target = workspace.root.join("target/public");
    let status = Command::new("cargo")
        .current_dir(&workspace.root)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", &target)
        .args(["rustdoc", "--quiet", "--package", "uslab", "--lib", "--features", FEATURES, "--"])
        .args(["-Z", "unstable-options", "--output-format", "json", "--cap-lints", "allow"])
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("rustdoc could not describe the crate uslab");
    }
    let json = target.join("doc/uslab.json");
    if !Path::new(&json).is_file() {
        bail!("rustdoc wrote no {}", json.display());
    }
    Ok(json)
}
