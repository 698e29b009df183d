//! `cargo xtask public`: the names that users write, compared with the lists that are kept.
//!
//! * **Public items of the crate `uslab`.** rustdoc describes the crate as JSON, and `public-api`
//!   turns that into a line for each item. The lines must be those of `xtask/golden/public.txt`. So
//!   no item becomes public, changes its signature or goes away unseen.
//! * **Environment variables.** The guide's table must be the one of `os/config.rs`, and the manual
//!   page must name the same variables.

use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::path::Path;

/// The accepted list.
const GOLDEN: &str = "xtask/golden/public.txt";
/// All features that add public items.
const FEATURES: &str = "allocator-api2,allocator-api2-02,lru,metrics,prometheus-client,schnellru";

/// The guide's table of environment variables stands between these lines.
const GUIDE: &str = "docs/guide/README.md";
const TABLE_BEGINS: &str = "<!-- cargo xtask public --bless writes this table -->\n";
const TABLE_ENDS: &str = "<!-- end of the table -->\n";
/// The manual page that names the variables.
const MANUAL: &str = "docs/man/libuslab_malloc.7";

#[path = "../../crates/uslab/src/os/config.rs"]
#[allow(dead_code, reason = "the library's half of the file")]
mod config;

/// Arguments of `cargo xtask public`.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Accept the public items that were found, and write the table of variables.
    #[arg(long)]
    bless: bool,
}

/// Compares both lists.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    variables(workspace, args.bless)?;
    items(workspace, args.bless)
}

/// The table of `os/config.rs` as the guide has it.
fn table() -> String {
    let mut text =
        String::from("| variable | read by | value | effect | otherwise |\n|---|---|---|---|---|\n");
    for variable in &config::VARIABLES {
        let config::Variable { name, read_by, values, default, doc, .. } = variable;
        text += &format!("| `{name}` | {read_by} | {values} | {doc} | {default} |\n");
    }
    let harmless: Vec<String> = config::VARIABLES
        .iter()
        .filter(|variable| variable.is_harmless && variable.name.starts_with("USLAB_"))
        .map(|variable| format!("`{}`", variable.name))
        .collect();
    text + "\nA program that gained privileges when it was started (set-user-ID, set-group-ID, file\n\
            capabilities) heeds only these, since a user without the privileges set its environment:\n"
        + &harmless.join(",\n")
        + ".\n"
}

fn variables(workspace: &Workspace, bless: bool) -> Result<()> {
    let manual = std::fs::read_to_string(workspace.root.join(MANUAL)).context(MANUAL)?;
    for variable in &config::VARIABLES {
        if !manual.contains(&format!(" {}", variable.name)) {
            bail!("{MANUAL} does not name {}", variable.name);
        }
    }
    let path = workspace.root.join(GUIDE);
    let guide = std::fs::read_to_string(&path).context(GUIDE)?;
    let (head, rest) = guide.split_once(TABLE_BEGINS).context("the guide has no place for the table")?;
    let (kept, tail) = rest.split_once(TABLE_ENDS).context("the guide's table has no end")?;
    if kept == table() {
        println!("public: {} environment variables, as {GUIDE} has them", config::VARIABLES.len());
        return Ok(());
    }
    if !bless {
        bail!("{GUIDE} differs from crates/uslab/src/os/config.rs; `cargo xtask public --bless` writes it");
    }
    std::fs::write(&path, [head, TABLE_BEGINS, &table(), TABLE_ENDS, tail].concat())?;
    println!("public: wrote {GUIDE}");
    Ok(())
}

/// Lists the public items and compares.
fn items(workspace: &Workspace, bless: bool) -> Result<()> {
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
            bail!("not compared: `public-api` does not read what this compiler's rustdoc writes: {error}")
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
    if !bless {
        bail!("the public items differ from {GOLDEN}; `cargo xtask public --bless` accepts them");
    }
    std::fs::write(&path, found).with_context(|| format!("cannot write {}", path.display()))?;
    println!("public: wrote {GOLDEN}");
    Ok(())
}

/// Has rustdoc describe the crate. `RUSTC_BOOTSTRAP` enables the unstable format on stable
/// compilers.
fn describe(workspace: &Workspace) -> Result<std::path::PathBuf> {
    let target = workspace.target.join("public");
    let status = workspace
        .cargo(&["rustdoc", "--quiet", "--package", "uslab", "--lib", "--features", FEATURES, "--"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", &target)
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
