//! `cargo xtask tidy`: the house rules as a program.
//!
//! A rule that stands only in a document is soon broken. Each rule here is one function from a file
//! to its violations, tested on a sample that breaks it. Each violation names the place, the rule
//! and the reason, so that the reader can fix it without looking the rule up.
//!
//! ```text
//!   layers.rs       which module of the library may use which
//!   boundaries.rs   where assembly and syscalls may stand
//!   cancellation.rs the C library's cancellation points, which the library must not use
//!   text.rs         headers, length, leftovers, whitespace, paths of one machine, inherited lints
//!   voice.rs        the width of prose, and words that name no actor
//!   markdown.rs     links that lead nowhere, and fences within a line
//! ```
//!
//! clippy finds unsafe code without its reason or its `# Safety` section, and macros that postpone
//! work. Every package inherits these lints of the workspace.

mod boundaries;
mod cancellation;
mod layers;
pub mod markdown;
mod source;
mod text;
mod voice;

use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::Command;

/// Arguments of `cargo xtask tidy`.
#[derive(clap::Args)]
pub struct Args {
    /// Print the layer table of the library and stop.
    #[arg(long)]
    layers: bool,
}

/// A text file of the repository.
pub struct File<'a> {
    /// Its path from the root, with forward slashes.
    pub path: &'a str,
    /// Its text.
    pub text: &'a str,
}

impl File<'_> {
    /// The part of the name after the last dot.
    fn extension(&self) -> &str {
        self.path
            .rsplit('/')
            .next()
            .and_then(|name| name.rsplit_once('.'))
            .map_or("", |(_, extension)| extension)
    }

    fn is_rust(&self) -> bool {
        self.extension() == "rs"
    }

    fn is_c(&self) -> bool {
        matches!(self.extension(), "c" | "h" | "cc" | "cpp" | "cxx" | "hh" | "hpp")
    }
}

/// One breach of one rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    why: String,
}

impl Violation {
    fn new(file: &File, line: usize, rule: &'static str, why: impl Into<String>) -> Violation {
        Violation { path: file.path.into(), line, rule, why: why.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.why)
    }
}

/// Checks the whole repository.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if args.layers {
        print!("{}", layers::table());
        return Ok(());
    }
    let paths = files(&workspace.root)?;
    let mut violations = Vec::new();
    let mut checked = 0;
    for path in &paths {
        let bytes = match std::fs::read(workspace.root.join(path)) {
            Ok(bytes) => bytes,
            // Deleted, but not yet from the index; or a directory that is a repository of its own.
            Err(_) => continue,
        };
        let Ok(text) = std::str::from_utf8(&bytes) else { continue };
        if text.contains('\0') {
            continue;
        }
        checked += 1;
        let exists = |target: &str| workspace.root.join(target).exists();
        violations.extend(check(&File { path, text }, &exists));
    }
    violations.sort();
    for violation in &violations {
        eprintln!("{violation}");
    }
    match violations.len() {
        0 => {
            println!("tidy: {checked} files keep the house rules");
            Ok(())
        }
        1 => bail!("tidy: 1 violation"),
        count => bail!("tidy: {count} violations"),
    }
}

/// Every rule on one file. `exists` answers for paths from the repository's root.
fn check(file: &File, exists: &dyn Fn(&str) -> bool) -> Vec<Violation> {
    let (mut source, mut page) = Default::default();
    let mut violations = text::check(file);
    match file.extension() {
        "rs" => {
            source = source::read(file.text);
            violations.extend(layers::check(file, &source));
            violations.extend(boundaries::check(file, &source));
            violations.extend(cancellation::check(file, &source));
            violations.extend(text::check_rust(file, &source));
        }
        "toml" => violations.extend(text::check_manifest(file)),
        "md" => {
            page = markdown::read(file.text);
            violations.extend(markdown::check(file, &page, exists));
        }
        _ => {}
    }
    violations.extend(voice::check(file, &source, &page));
    violations
}

/// The files that are, or would be, in the repository: tracked, and untracked without being
/// ignored. A source archive has no index; there it is every file but the build's.
fn files(root: &Path) -> Result<Vec<String>> {
    let git = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output();
    let output = match git {
        Ok(git) if git.status.success() => git.stdout,
        _ => walk(root)?,
    };
    let output = String::from_utf8(output).context("a file name is not UTF-8")?;
    let paths: BTreeSet<&str> = output.split('\0').filter(|path| !path.is_empty()).collect();
    Ok(paths.into_iter().map(String::from).collect())
}

fn walk(root: &Path) -> Result<Vec<u8>> {
    let mut find = Command::new("find");
    find.current_dir(root)
        .args([".", "(", "-name", ".git", "-o", "-name", "target", "-o", "-name", "out", ")"]);
    find.args(["-prune", "-o", "-type", "f", "-printf", "%P\\0"]);
    Ok(find.output().context("cannot start find")?.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_says_where_which_rule_and_why() {
        let file = File { path: "crates/uslab/src/slab/mod.rs", text: "" };
        let violation = Violation::new(&file, 3, "layers", "because");
        assert_eq!(violation.to_string(), "crates/uslab/src/slab/mod.rs:3: layers: because");
    }

    #[test]
    fn a_good_file_passes_every_rule() {
        let text = "//! Slabs.\n\nuse crate::pages::Run;\n\n/// Frees.\n///\n/// # Safety\n///\n/// `p` is ours.\nunsafe fn free(p: *mut u8) {}\n";
        assert_eq!(check(&File { path: "crates/uslab/src/slab/mod.rs", text }, &|_| true), []);
    }

    #[test]
    fn the_walk_that_stands_in_for_git_sees_this_file_and_no_build() {
        let workspace = Workspace::find().unwrap();
        let paths = String::from_utf8(walk(&workspace.root).unwrap()).unwrap();
        assert!(paths.split('\0').any(|path| path == "xtask/src/tidy/mod.rs"));
        assert!(!paths.split('\0').any(|path| path.starts_with("target/")));
    }
}
