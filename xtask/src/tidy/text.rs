//! Rules about the form of a file: its header, its length, what must not be left in it.

use super::source::Source;
use super::{File, Violation};

/// A longer file has more than one subject. The aim is 100 to 400 lines.
const MAX_LINES: usize = 600;

/// Files that are written by programs, or that only ever grow.
const ANY_LENGTH: &[&str] = &["Cargo.lock", "CHANGELOG.md", "LICENSE-APACHE"];

/// Words that postpone work.
const LEFTOVERS: &[&str] = &["TODO", "FIXME", "XXX"];

/// Directories of developers' machines. Written in halves so that this file keeps its own rule.
const MACHINE: &[&str] = &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];

/// Checks every text file.
pub fn check(file: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    violations.extend(header(file));
    let count = file.text.lines().count();
    if count > MAX_LINES && !ANY_LENGTH.iter().any(|name| file.path.ends_with(name)) && !generated(file) {
        let why = format!("{count} lines; past {MAX_LINES} a file has more than one subject: split it");
        violations.push(Violation::new(file, MAX_LINES + 1, "length", why));
    }
    for (index, line) in file.text.split('\n').enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            let why = "whitespace at the end of the line";
            violations.push(Violation::new(file, index + 1, "whitespace", why));
        }
        if let Some(path) = machine_path(line) {
            let why = format!("`{path}` is a path of one machine; the repository must work on any");
            violations.push(Violation::new(file, index + 1, "path", why));
        }
        if !file.is_rust() && is_source(file) {
            violations.extend(leftover_word(line).map(|word| leftover(file, index + 1, word)));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        violations.push(Violation::new(file, count, "whitespace", "the last line does not end"));
    } else if file.text.ends_with("\n\n") {
        violations.push(Violation::new(file, count, "whitespace", "empty lines at the end of the file"));
    }
    violations
}

/// Checks Rust for leftovers: postponed work in comments, tests switched off. clippy finds macros
/// that postpone work (`todo` and `unimplemented`, denied for the workspace).
pub fn check_rust(file: &File, source: &Source) -> Vec<Violation> {
    let mut violations = Vec::new();
    for comment in &source.comments {
        violations.extend(leftover_word(comment.text).map(|word| leftover(file, comment.line, word)));
    }
    for three in source.code.windows(3) {
        if three[0].is("#") && three[1].is("[") && three[2].is("ignore") {
            let why = "a test that is switched off tests nothing: make it pass, or delete it";
            violations.push(Violation::new(file, three[0].line, "leftover", why));
        }
    }
    violations
}

/// A package inherits the workspace's lints: clippy's share of the house rules is denied there.
pub fn check_manifest(file: &File) -> Vec<Violation> {
    let text = file.text.replace(' ', "");
    let inherits = text.contains("\n[lints]\nworkspace=true\n");
    let why = "a package needs `[lints] workspace = true`: undocumented unsafe code is denied there";
    let is_package = file.path.ends_with("Cargo.toml") && text.contains("[package]\n");
    if is_package && !inherits { vec![Violation::new(file, 1, "lints", why)] } else { Vec::new() }
}

fn leftover(file: &File, line: usize, word: &str) -> Violation {
    let why = format!("`{word}`: do it now, or file an issue and name it");
    Violation::new(file, line, "leftover", why)
}

/// The first word of the line that postpones work. Part of a longer word (a mkstemp template) is
/// not one.
fn leftover_word(line: &str) -> Option<&'static str> {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.flat_map(|word| LEFTOVERS.iter().find(|leftover| **leftover == word)).next().copied()
}

/// The module comment comes first: what it is for, before how it does it.
fn header(file: &File) -> Option<Violation> {
    let (good, want) = if file.is_rust() {
        (file.text.starts_with("//!"), "`//!`")
    } else if file.is_c() {
        (file.text.starts_with("/*") || file.text.starts_with("//"), "a comment")
    } else {
        return None;
    };
    let why = format!("the file must start with {want} that says what it is for");
    (!good).then(|| Violation::new(file, 1, "header", why))
}

fn is_source(file: &File) -> bool {
    file.is_c()
        || matches!(file.extension(), "sh" | "py" | "js" | "toml" | "pl")
        || file.text.starts_with("#!")
}

fn generated(file: &File) -> bool {
    file.path.starts_with("xtask/golden/") || matches!(file.extension(), "json" | "csv")
}

/// A developer's directory, when an absolute path in the line starts with one.
fn machine_path(line: &str) -> Option<&str> {
    MACHINE.iter().find_map(|directory| {
        line.match_indices(directory).find_map(|(at, _)| {
            let before = line[..at].chars().next_back();
            let inside_a_path = before.is_some_and(|c| c.is_alphanumeric() || "/._-$}*])>".contains(c));
            let name = &line[at + directory.len()..];
            let length =
                name.find(|c: char| !c.is_alphanumeric() && !"._-".contains(c)).unwrap_or(name.len());
            (!inside_a_path && length > 0).then(|| &line[at..at + directory.len() + length])
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let file = File { path, text };
        let mut violations = check(&file);
        if file.is_rust() {
            violations.extend(check_rust(&file, &source::read(text)));
        }
        violations.iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn a_source_file_starts_with_its_comment() {
        assert_eq!(rules("a.rs", "use x;\n"), [(1, "header")]);
        assert_eq!(rules("a.rs", "\n//! Late.\n"), [(1, "header")]);
        assert_eq!(rules("a.rs", "//! Good.\n"), []);
        assert_eq!(rules("a.cpp", "int x;\n"), [(1, "header")]);
        assert_eq!(rules("a.h", "/* Good. */\n"), []);
        assert_eq!(rules("a.md", "Anything.\n"), []);
    }

    #[test]
    fn a_long_file_is_found() {
        let text = format!("//! Long.\n{}", "fn f() {}\n".repeat(MAX_LINES));
        assert_eq!(rules("a.rs", &text), [(MAX_LINES + 1, "length")]);
        assert_eq!(rules("Cargo.lock", &text), []);
    }

    #[test]
    fn postponed_work_is_found_in_comments_and_not_in_strings() {
        for word in LEFTOVERS {
            assert_eq!(rules("a.rs", &format!("//! A.\nfn f() {{}} // {word}: later\n")), [(2, "leftover")]);
            assert_eq!(rules("a.rs", &format!("//! A.\nconst S: &str = \"{word}\";\n")), []);
            assert_eq!(rules("a.c", &format!("/* A. */\n/* {word} */\n")), [(2, "leftover")]);
            assert_eq!(rules("a.rs", &format!("//! A.\n// template {word}{word}\n")), []);
        }
    }

    #[test]
    fn a_test_that_is_switched_off_is_found() {
        assert_eq!(rules("a.rs", "//! A.\n#[test]\n#[ignore = \"slow\"]\nfn f() {}\n"), [(3, "leftover")]);
        assert_eq!(rules("a.rs", "//! A.\nfn ignore() {}\n"), []);
    }

    #[test]
    fn stray_whitespace_is_found() {
        assert_eq!(rules("a.md", "a \nb"), [(1, "whitespace"), (2, "whitespace")]);
        assert_eq!(rules("a.md", "a\r\n"), [(1, "whitespace")]);
        assert_eq!(rules("a.md", "a\n\n"), [(2, "whitespace")]);
        assert_eq!(rules("a.md", ""), []);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for directory in MACHINE {
            assert_eq!(rules("a.md", &format!("see {directory}someone/x\n")), [(1, "path")]);
            assert_eq!(rules("a.md", &format!("(\"{directory}x\")\n")), [(1, "path")]);
            assert_eq!(rules("a.md", &format!("example.org{directory}x and $HOME{directory}x\n")), []);
            assert_eq!(rules("a.md", &format!("{directory} alone\n")), []);
        }
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
