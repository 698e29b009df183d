//! The listing in the repository: one section a function, with the number of branches that it may
//! have.
//!
//! ```text
//!   compiler 1.95.0
//!
//!   function golden_cache_alloc
//!     branches 1, allowed 1          <- "allowed" is edited by hand; blessing keeps it
//!     instructions 12
//!     sequence: 6 instructions, 1 stores, commit mov
//!       lea rax, [symbol]
//!       ...
//!
//!   elsewhere                        <- sequences of slow paths, each shape once
//!     sequence: ...
//! ```

use super::sequence::Shape;
use super::trace::Path;
use similar::{ChangeTag, TextDiff};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The allowed branches of a function that the file does not list: the test for empty or full.
const ALLOWED_BY_DEFAULT: usize = 1;

const HEADER: &str = "\
# The machine code of the fast path, x86-64, release build: what runs when no conditional branch is taken.
# Written by `cargo xtask golden --bless`; checked by `cargo xtask golden` and by a test.
# Changing this file needs an ADR (docs/adr) that gives the reason and the figures.
# The number after \"allowed\" is the one thing edited by hand. A typed cache asks one thing: empty, or full? malloc asks
# one more: is there a table for this size? free asks three more: is the address in the arena, is the
# object on top of the sheaf already, does an object start there?
";

/// One function of the example.
pub struct Function {
    name: String,
    path: Path,
    /// Its sequences, in order of address.
    pub sequences: Vec<Shape>,
}

impl Function {
    /// A function whose sequences are yet to be added.
    pub fn new(name: &str, path: Path) -> Function {
        Function { name: name.into(), path, sequences: Vec::new() }
    }
}

/// The listing.
#[derive(Default)]
pub struct Listing {
    /// Functions, by name.
    pub functions: Vec<Function>,
    /// Sequences outside them.
    pub elsewhere: Vec<Shape>,
}

impl Listing {
    /// The functions that branch more often than they may.
    pub fn over_allowance(&self, allowed: &BTreeMap<String, usize>) -> Vec<String> {
        self.functions
            .iter()
            .filter_map(|function| {
                let (found, allowed) = (function.path.branches, allowance(allowed, &function.name));
                (found > allowed).then(|| {
                    let path = function.path.text.join("\n    ");
                    format!(
                        "{}: {found} conditional branches, {allowed} allowed (the number is edited by hand, in the \
                         golden file, under `function {0}`):\n    {path}",
                        function.name
                    )
                })
            })
            .collect()
    }

    /// The text of the file.
    pub fn render(&self, compiler: &str, allowed: &BTreeMap<String, usize>) -> String {
        let mut text = format!("{HEADER}\ncompiler {compiler}\n");
        let sequence = |text: &mut String, shape: &Shape| {
            let Shape { instructions, stores, commit } = shape;
            writeln!(text, "  sequence: {instructions} instructions, {stores} stores, commit {commit}")
        };
        let mut write = || -> std::fmt::Result {
            for function in &self.functions {
                let Function { name, path, sequences } = function;
                writeln!(text, "\nfunction {name}")?;
                writeln!(text, "  branches {}, allowed {}", path.branches, allowance(allowed, name))?;
                writeln!(text, "  instructions {}", path.text.len())?;
                sequences.iter().try_for_each(|shape| sequence(&mut text, shape))?;
                path.text.iter().try_for_each(|line| writeln!(text, "    {line}"))?;
            }
            if !self.elsewhere.is_empty() {
                writeln!(text, "\nelsewhere")?;
            }
            self.elsewhere.iter().try_for_each(|shape| sequence(&mut text, shape))
        };
        write().expect("writing to a string");
        text
    }
}

fn allowance(allowed: &BTreeMap<String, usize>, name: &str) -> usize {
    allowed.get(name).copied().unwrap_or(ALLOWED_BY_DEFAULT)
}

/// The allowed branches of each function of a kept listing.
pub fn allowances(kept: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let mut function = None;
    for line in kept.lines() {
        if let Some(name) = line.strip_prefix("function ") {
            function = Some(name);
        } else if let (Some(name), Some((_, number))) = (function, line.split_once(", allowed "))
            && let Ok(number) = number.trim().parse()
        {
            found.insert(name.into(), number);
        }
    }
    found
}

/// The compiler that a kept listing was made with.
pub fn compiler_of(kept: &str) -> &str {
    kept.lines().find_map(|line| line.strip_prefix("compiler ")).unwrap_or("unknown")
}

/// The lines that differ, `-` kept and `+` found, after the name of their function.
pub fn diff(kept: &str, found: &str) -> String {
    let mut text = String::new();
    let (mut heading, mut shown) = ("", "");
    for change in TextDiff::from_lines(kept, found).iter_all_changes() {
        let line = change.value();
        if change.tag() != ChangeTag::Equal {
            if heading != shown {
                (shown, text) = (heading, text + "  " + heading);
            }
            text = text + &change.tag().to_string() + " " + line;
        } else if line.starts_with(|c: char| !c.is_whitespace()) {
            heading = line;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(branches: usize, lines: &[&str]) -> Listing {
        let path = Path { text: lines.iter().map(|line| line.to_string()).collect(), branches };
        let mut function = Function::new("golden_x", path);
        function.sequences.push(Shape { instructions: 5, stores: 1, commit: "mov".into() });
        Listing { functions: vec![function], elsewhere: Vec::new() }
    }

    #[test]
    fn what_is_allowed_survives_a_round_trip() {
        let allowed = BTreeMap::from([("golden_x".to_string(), 3)]);
        let text = listing(2, &["nop", "ret"]).render("1.95.0", &allowed);
        assert_eq!(allowances(&text), allowed);
        assert_eq!(compiler_of(&text), "1.95.0");
        assert!(
            text.contains("  branches 2, allowed 3\n  instructions 2\n  sequence: 5 instructions, 1 stores")
        );
    }

    #[test]
    fn more_branches_than_allowed_are_a_fault_and_blessing_cannot_hide_it() {
        let listing = listing(2, &["je away", "jne away", "ret"]);
        assert_eq!(listing.over_allowance(&BTreeMap::from([("golden_x".to_string(), 2)])).len(), 0);
        let faults = listing.over_allowance(&BTreeMap::new());
        assert!(faults[0].contains("golden_x: 2 conditional branches, 1 allowed"), "{faults:?}");
    }

    #[test]
    fn a_diff_shows_only_what_differs_under_its_function() {
        let allowed = BTreeMap::new();
        let old = listing(1, &["nop", "add rax, 1", "ret"]).render("1.95.0", &allowed);
        let new = listing(1, &["nop", "inc rax", "nop", "ret"]).render("1.95.0", &allowed);
        let expected = "  function golden_x\n-   instructions 3\n+   instructions 4\n-     add rax, 1\n+     inc rax\n+     nop\n";
        assert_eq!(diff(&old, &new), expected);
        assert_eq!(diff(&old, &old), "");
    }
}
