//! `cargo xtask golden`: checks the machine code of the fast path, and compares it with the kept
//! listing.
//!
//! The design promises a path without a call, a locked instruction, or a branch but the test for
//! empty or full. One committing store ends each restartable sequence. No test of behaviour detects
//! a breach. So this reads the release build of `crates/uslab/examples/fast_path.rs`, whose
//! `golden_*` functions each hold one operation.
//!
//! ```text
//!   image.rs      the executable: code, symbols, sequence descriptors with their relocations
//!   trace.rs      the hot path of a function: what runs when no conditional branch is taken
//!   sequence.rs   what every restartable sequence must look like
//!   listing.rs    the text that is kept, its comparison with what was found
//! ```
//!
//! The rules hold for any compiler. The listing itself is compared only for the compiler it was
//! made with: another one may order instructions differently without anything being wrong.

mod image;
mod listing;
mod sequence;
mod trace;

use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, bail};
use image::Image;
use listing::{Function, Listing};
use std::path::Path;
use std::process::Command;

/// The accepted listing.
const GOLDEN: &str = "xtask/golden/x86_64.txt";
/// The program whose functions are read, and its source.
const EXAMPLE: &str = "fast_path";
const EXAMPLE_SOURCE: &str = "crates/uslab/examples/fast_path.rs";
/// Functions whose names start so are read.
const PREFIX: &str = "golden_";

/// Arguments of `cargo xtask golden`.
#[derive(clap::Args)]
pub struct Args {
    /// Accept what was found as the new listing. Needs a record in docs/adr with the reason and the
    /// figures.
    #[arg(long)]
    bless: bool,
    /// Print what was found.
    #[arg(long)]
    print: bool,
    /// Read this executable instead of building the example.
    #[arg(long, value_name = "FILE")]
    image: Option<std::path::PathBuf>,
}

/// Builds the example, reads it, and compares.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) && args.image.is_none() {
        println!("golden: the listing is for x86-64 Linux; nothing to compare on this machine");
        return Ok(());
    }
    let image = match &args.image {
        Some(path) => path.clone(),
        None => build(workspace)?,
    };
    let bytes = std::fs::read(&image).with_context(|| format!("cannot read {}", image.display()))?;
    let image =
        Image::parse(&bytes).with_context(|| format!("{} is not what we can read", image.display()))?;
    let mut faults = Vec::new();
    let found = read(&image, &mut faults);

    let path = workspace.root.join(GOLDEN);
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let allowed = listing::allowances(&kept);
    faults.extend(found.over_allowance(&allowed));
    let compiler = compiler()?;
    let text = found.render(&compiler, &allowed);
    if args.print {
        print!("{text}");
    }
    if !faults.is_empty() {
        for fault in &faults {
            eprintln!("golden: {fault}");
        }
        bail!("golden: the fast path breaks {} of its promises (DESIGN: \"The fast path\")", faults.len());
    }
    if args.bless {
        return bless(&path, &kept, &text);
    }
    compare(&kept, &text, &compiler)
}

fn bless(path: &Path, kept: &str, text: &str) -> Result<()> {
    if kept == text {
        println!("golden: {GOLDEN} is already so");
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(path, text)?;
    println!("{}", listing::diff(kept, text));
    println!(
        "golden: wrote {GOLDEN}; changing this file needs an ADR (docs/adr) with the reason and the figures"
    );
    Ok(())
}

fn compare(kept: &str, text: &str, compiler: &str) -> Result<()> {
    if kept.is_empty() {
        bail!("{GOLDEN} is missing; `cargo xtask golden --bless` writes it");
    }
    if kept == text {
        println!("golden: the fast path is as kept in {GOLDEN}");
        return Ok(());
    }
    let made_with = listing::compiler_of(kept);
    println!("{}", listing::diff(kept, text));
    if made_with != compiler {
        println!(
            "golden: the listing was made with rustc {made_with}, this is {compiler}: the differences above are \
             shown, not judged; every rule holds"
        );
        return Ok(());
    }
    bail!(
        "the machine code of the fast path differs from {GOLDEN} (- kept, + found). If that is meant: changing \
         this file needs an ADR; then `cargo xtask golden --bless`"
    )
}

/// The listing of an image; breaches of rules go to `faults`.
fn read(image: &Image, faults: &mut Vec<String>) -> Listing {
    let mut listing = Listing::default();
    let functions = image.functions(PREFIX);
    if functions.is_empty() {
        faults.push(format!("no function named {PREFIX}* in the image: is it stripped, or are they unused?"));
    }
    if image.sequences.is_empty() {
        faults.push("no descriptor in section __rseq_cs: the build holds no restartable sequence".into());
    }
    for symbol in &functions {
        let (path, problems) = trace::hot_path(image, symbol);
        faults.extend(problems.into_iter().map(|problem| format!("{}: {problem}", symbol.name)));
        listing.functions.push(Function::new(&symbol.name, path));
    }
    for descriptor in &image.sequences {
        let home = functions.iter().position(|symbol| symbol.range.contains(&descriptor.start));
        let name = home.map_or_else(|| image.name_at(descriptor.start), |home| functions[home].name.clone());
        match sequence::check(image, descriptor) {
            Ok(shape) => match home {
                Some(home) => listing.functions[home].sequences.push(shape),
                None => listing.elsewhere.push(shape),
            },
            Err(problems) => {
                let at = descriptor.start;
                faults.extend(
                    problems.into_iter().map(|problem| format!("sequence at {at:#x} in {name}: {problem}")),
                );
            }
        }
    }
    listing.elsewhere.sort();
    listing.elsewhere.dedup();
    listing
}

/// Builds the example as it is released: without flags of the environment, which would change the
/// code.
fn build(workspace: &Workspace) -> Result<std::path::PathBuf> {
    if !workspace.root.join(EXAMPLE_SOURCE).is_file() {
        bail!("{EXAMPLE_SOURCE} is missing: it holds the functions whose code is checked");
    }
    let mut cargo = workspace.cargo(&["build", "--release", "--package", "uslab", "--example", EXAMPLE]);
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS"] {
        cargo.env_remove(name);
    }
    // Under `cargo test` we are given the settings of our own package, which are not the example's.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_")) {
        cargo.env_remove(name);
    }
    workspace::check(&mut cargo)?;
    Ok(workspace.release_dir().join("examples").join(EXAMPLE))
}

/// The release of the compiler, such as `1.95.0`.
fn compiler() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().nth(1).map(String::from).context("rustc does not say its version")
}

#[cfg(test)]
mod tests {
    use super::image::{Descriptor, Symbol};
    use super::*;

    /// One function that holds one sequence: arm; [load; store count]; ret.
    fn sample(sequence: &[u8]) -> Image {
        let mut code = vec![0x48, 0x89, 0x07]; // mov [rdi], rax
        let start = code.len() as u64;
        code.extend(sequence);
        let length = sequence.len() as u64;
        code.push(0xc3); // ret
        let end = code.len() as u64;
        code.extend(0x5305_3053_u32.to_le_bytes());
        code.extend([0xeb, 0x00]); // abort: jmp
        Image {
            code: vec![(0, code)],
            symbols: vec![Symbol { name: "golden_pop".into(), range: 0..end }],
            sequences: vec![Descriptor { version: 0, flags: 0, start, length, abort: end + 4 }],
        }
    }

    #[test]
    fn a_good_image_gives_a_listing_and_no_fault() {
        let mut faults = Vec::new();
        let listing = read(&sample(&[0x8b, 0x01, 0x89, 0x01]), &mut faults);
        assert_eq!(faults, Vec::<String>::new());
        let text = listing.render("1.95.0", &Default::default());
        assert!(text.contains("function golden_pop"), "{text}");
        assert!(text.contains("instructions 4"), "{text}");
        assert!(compare(&text, &text, "1.95.0").is_ok());
    }

    #[test]
    fn a_change_is_refused_for_the_same_compiler_and_shown_for_another() {
        let render =
            |sequence| read(&sample(sequence), &mut Vec::new()).render("1.95.0", &Default::default());
        let (old, new) = (render(&[0x8b, 0x01, 0x89, 0x01]), render(&[0x8b, 0x01, 0x90, 0x89, 0x01]));
        let error = compare(&old, &new, "1.95.0").unwrap_err().to_string();
        assert!(error.contains("needs an ADR"), "{error}");
        assert!(compare(&old, &new, "1.96.0").is_ok());
        assert!(compare("", &new, "1.95.0").is_err());
    }

    #[test]
    fn broken_promises_are_named_with_their_function() {
        let mut faults = Vec::new();
        read(&sample(&[0x89, 0x01, 0x8b, 0x01]), &mut faults);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].contains("golden_pop") && faults[0].contains("last instruction"), "{faults:?}");

        let mut faults = Vec::new();
        read(&Image { code: vec![], symbols: vec![], sequences: vec![] }, &mut faults);
        assert_eq!(faults.len(), 2);
    }
}
