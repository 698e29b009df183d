//! What makes `unsafe` reviewable.
//!
//! That every `unsafe` block carries its reason is clippy's to check (`undocumented_unsafe_blocks`, denied for
//! the workspace); tidy checks that no crate forgets to inherit that. And whoever may call an `unsafe fn` or
//! implement an `unsafe trait` must be told what to keep, whether it is public or not: a `# Safety` section.
//! Functions of a trait implementation are told by the trait, foreign functions by their library.

use super::lex::{self, Kind, Token};
use super::{File, Violation};

/// A package inherits the workspace's lints, or its unsafe blocks go unchecked.
pub fn check_manifest(file: &File) -> Vec<Violation> {
    if !file.path.ends_with("Cargo.toml") || !file.text.lines().any(|line| line.trim() == "[package]") {
        return Vec::new();
    }
    let mut section = "";
    for line in file.text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section == "[lints]" && line.replace(' ', "") == "workspace=true" {
            return Vec::new();
        }
    }
    let why = "a package needs `[lints] workspace = true`: undocumented unsafe blocks are denied there";
    vec![Violation::new(file, 1, "lints", why)]
}

/// What a pair of braces encloses, as far as this rule cares.
#[derive(Clone, Copy, PartialEq)]
enum Braces {
    /// Contracts of functions declared here are stated elsewhere.
    Told,
    /// Anything else.
    Plain,
}

/// Every `unsafe fn` and `unsafe trait` says what its caller or implementor must keep.
pub fn check_functions(file: &File, tokens: &[Token]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut open: Vec<Braces> = Vec::new();
    let told = told_braces(tokens);
    for (at, token) in tokens.iter().enumerate() {
        if token.is("{") {
            open.push(if told.contains(&at) { Braces::Told } else { Braces::Plain });
        } else if token.is("}") {
            open.pop();
        } else if token.is("unsafe")
            && let Some((what, name)) = declared(&lex::code(&tokens[at..tokens.len().min(at + 16)]))
            && open.last() != Some(&Braces::Told)
            && !documented(&tokens[..at])
        {
            let who = if what == "fn" { "callers" } else { "implementors" };
            let why =
                format!("`unsafe {what} {name}` has no `# Safety` section: {who} must be told what to keep");
            violations.push(Violation::new(file, token.line, "safety", why));
        }
    }
    violations
}

/// `fn name` or `trait name` when `code`, which starts at `unsafe`, declares one; a function pointer does not.
fn declared<'a>(code: &[Token<'a>]) -> Option<(&'a str, &'a str)> {
    let mut at = 1;
    if code.get(at)?.is("extern") {
        at += 1;
        if code.get(at)?.kind == Kind::Literal {
            at += 1;
        }
    }
    let (what, name) = (code.get(at)?, code.get(at + 1)?);
    ((what.is("fn") || what.is("trait")) && name.kind == Kind::Word).then_some((what.text, name.text))
}

/// Positions of the braces that open a trait implementation or a foreign block.
fn told_braces(tokens: &[Token]) -> Vec<usize> {
    let mut positions = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let item = tokens[..at].iter().rev().find(|before| !matches!(before.kind, Kind::Doc | Kind::Comment));
        let starts_item = item.is_none_or(|before| {
            ["}", "{", ";", "]", "unsafe", "default"].iter().any(|text| before.is(text))
        });
        if !starts_item || !(token.is("impl") || token.is("extern")) {
            continue;
        }
        let head = &tokens[at..];
        let Some(length) = head.iter().position(|token| token.is("{") || token.is(";")) else { continue };
        if head[length].is(";") {
            continue;
        }
        // `for<'a>` is a bound, not the `for` of an implementation.
        let implements = head[..length].windows(2).any(|pair| pair[0].is("for") && !pair[1].is("<"));
        let foreign = token.is("extern") && !head[..length].iter().any(|token| token.is("fn"));
        if implements || foreign {
            positions.push(at + length);
        }
    }
    positions
}

/// True when the documentation right above, past visibility and attributes, has a `# Safety` section.
fn documented(before: &[Token]) -> bool {
    let mut at = before.len();
    while at > 0 {
        let token = &before[at - 1];
        match token.kind {
            Kind::Doc if token.text.contains("# Safety") => return true,
            Kind::Doc | Kind::Comment => at -= 1,
            Kind::Word if ["pub", "const", "async", "default"].contains(&token.text) => at -= 1,
            // An attribute, or the parentheses of `pub(crate)`: back to where it opens.
            Kind::Mark if token.text == "]" || token.text == ")" => {
                let start = opening(before, at - 1);
                if before[start..at].iter().any(|t| t.kind == Kind::Literal && t.text.contains("# Safety")) {
                    return true;
                }
                at = start;
            }
            Kind::Mark if token.text == "#" => at -= 1,
            _ => return false,
        }
    }
    false
}

/// Position of the bracket that the one at `close` closes.
fn opening(tokens: &[Token], close: usize) -> usize {
    let mut depth = 0;
    for at in (0..=close).rev() {
        if tokens[at].is("]") || tokens[at].is(")") {
            depth += 1;
        } else if tokens[at].is("[") || tokens[at].is("(") {
            depth -= 1;
        }
        if depth == 0 {
            return at;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(text: &str) -> Vec<usize> {
        let file = File { path: "crates/uslab/src/slab/mod.rs", text };
        check_functions(&file, &lex::lex(text)).iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn an_unsafe_function_without_its_contract_is_found() {
        assert_eq!(lines("/// Frees.\npub(crate) unsafe fn free() {}"), [2]);
        assert_eq!(lines("#[inline]\npub unsafe extern \"C\" fn free() {}"), [2]);
        assert_eq!(lines("fn f() {}\nimpl X { unsafe fn g() {} }"), [2]);
        assert_eq!(lines("unsafe trait T {}"), [1]);
        assert_eq!(lines("trait T {\n unsafe fn f();\n}"), [2]);
    }

    #[test]
    fn a_contract_is_found_past_attributes_and_comments() {
        assert_eq!(lines("/// # Safety\n/// x\n#[inline]\n// why\npub(crate) const unsafe fn f() {}"), NONE);
        assert_eq!(lines("#[doc = \"# Safety\"]\nunsafe fn f() {}"), NONE);
        assert_eq!(lines("/** # Safety */ unsafe trait T {}"), NONE);
        assert_eq!(lines("/// # Safety\n/// x\nfn other() {}\nunsafe fn f() {}"), [4]);
    }

    #[test]
    fn contracts_stated_elsewhere_are_not_asked_for_again() {
        assert_eq!(lines("unsafe impl GlobalAlloc for U {\n unsafe fn alloc() {}\n}"), NONE);
        assert_eq!(lines("unsafe extern \"C\" {\n pub unsafe fn mmap();\n}"), NONE);
        assert_eq!(lines("type F = unsafe fn(*mut u8);\nfn f() { unsafe { g() } }"), NONE);
        assert_eq!(lines("impl<F> X<F> where F: for<'a> Fn(&'a u8) {\n unsafe fn f() {}\n}"), [2]);
        assert_eq!(lines("fn f() -> impl Fn() { for x in y { unsafe fn g() {} } }"), [1]);
    }

    #[test]
    fn a_package_inherits_the_lints() {
        let found = |path, text| check_manifest(&File { path, text }).len();
        assert_eq!(found("crates/x/Cargo.toml", "[package]\nname = \"x\"\n"), 1);
        assert_eq!(found("crates/x/Cargo.toml", "[package]\nname = \"x\"\n[lints]\nworkspace = true\n"), 0);
        assert_eq!(found("crates/x/Cargo.toml", "[package]\nversion.workspace = true\n[features]\n"), 1);
        assert_eq!(found("Cargo.toml", "[workspace]\nmembers = []\n"), 0);
    }
}
