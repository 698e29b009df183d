//! `cargo xtask tidy`: the house rules as a program.
//!
//! A rule that lives only in a document is kept until the first hurry. Each rule here is one function from a
//! file to its violations, tested on a sample that breaks it, and each violation says where, which rule and
//! why, so that the reader can fix it without looking the rule up.
//!
//! ```text
//!   layers.rs       which module of the library may use which
//!   boundaries.rs   where assembly and syscalls may stand
//!   safety.rs       the lints every crate inherits; `# Safety` on what is unsafe to call
//!   text.rs         headers, length, leftovers, whitespace, paths of one machine
//!   links.rs        Markdown links that lead nowhere
//! ```

mod boundaries;
mod layers;
mod lex;
mod links;
mod safety;
mod text;

use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
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
    let mut violations = text::check(file);
    if file.is_rust() {
        let tokens = lex::lex(file.text);
        violations.extend(layers::check(file, &tokens));
        violations.extend(boundaries::check(file, &tokens));
        violations.extend(safety::check_functions(file, &tokens));
        violations.extend(text::check_leftovers(file, &tokens));
    }
    match file.extension() {
        "toml" => violations.extend(safety::check_manifest(file)),
        "md" => violations.extend(links::check(file, exists)),
        _ => {}
    }
    violations
}

/// The files that are, or would be, in the repository: tracked, and untracked without being ignored. A source
/// archive has no index; there it is every file but the build's.
fn files(root: &Path) -> Result<Vec<String>> {
    let git = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output();
    let mut paths = match git {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout)
            .context("a file name is not UTF-8")?
            .split('\0')
            .filter(|path| !path.is_empty())
            .map(String::from)
            .collect(),
        _ => {
            let mut paths = Vec::new();
            walk(root, "", &mut paths)?;
            paths
        }
    };
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn walk(root: &Path, below: &str, paths: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a file name is not UTF-8")?;
        if matches!(name.as_str(), ".git" | "target" | "out") {
            continue;
        }
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() {
            walk(root, &path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
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
        let mut paths = Vec::new();
        walk(&workspace.root, "", &mut paths).unwrap();
        assert!(paths.iter().any(|path| path == "xtask/src/tidy/mod.rs"));
        assert!(!paths.iter().any(|path| path.starts_with("target/")));
    }
}
