//! Markdown links that lead nowhere.
//!
//! Only links to files of the repository are checked: `[text](path)` and `[name]: path`. Addresses with a
//! scheme are the world's, and an anchor alone is the reader's own page. Code, fenced or between backticks,
//! holds no links.

use super::{File, Violation};

/// Checks one Markdown file. `exists` answers for paths from the repository's root.
pub fn check(file: &File, exists: &dyn Fn(&str) -> bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut fence = None;
    for (index, line) in file.text.lines().enumerate() {
        let marker = line.trim_start().get(..3).filter(|marker| matches!(*marker, "```" | "~~~"));
        match (fence, marker) {
            (None, Some(_)) => fence = marker,
            (Some(open), Some(close)) if open == close => fence = None,
            (None, None) => {
                for target in targets(&without_code(line)) {
                    let Some(path) = resolve(file.path, target) else { continue };
                    if !path.is_some_and(|path| exists(&path)) {
                        let why = format!("`{target}` leads to no file of the repository");
                        violations.push(Violation::new(file, index + 1, "link", why));
                    }
                }
            }
            _ => {}
        }
    }
    violations
}

/// The line with everything between backticks blanked.
fn without_code(line: &str) -> String {
    let mut inside = false;
    line.chars()
        .map(|c| {
            inside ^= c == '`';
            if inside { ' ' } else { c }
        })
        .collect()
}

/// The targets of the links in one line.
fn targets(line: &str) -> Vec<&str> {
    let mut found: Vec<&str> = line
        .match_indices("](")
        .filter_map(|(at, open)| {
            let rest = &line[at + open.len()..];
            rest[..rest.find(')')?].split_whitespace().next()
        })
        .collect();
    if line.trim_start().starts_with('[')
        && let Some((_, target)) = line.split_once("]: ")
    {
        found.extend(target.split_whitespace().next());
    }
    found
}

/// The file that a target means: outer `None` when it means none of ours, inner `None` when it leaves the
/// repository.
fn resolve(from: &str, target: &str) -> Option<Option<String>> {
    let target = target.trim_start_matches('<').trim_end_matches('>');
    let path = target.split(['#', '?']).next().unwrap_or_default();
    if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    if !path.starts_with('/') {
        parts.extend(from.split('/'));
        parts.pop();
    }
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Some(None);
                }
            }
            part => parts.push(part),
        }
    }
    Some(Some(parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let exists = |path: &str| matches!(path, "README.md" | "docs/guide/README.md" | "docs");
        check(&File { path, text }, &exists).iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn links_are_resolved_from_the_file_they_stand_in() {
        assert_eq!(lines("README.md", "[a](docs/guide/README.md#top) [b](docs/)\n[c](docs/none.md)\n"), [2]);
        assert_eq!(lines("docs/guide/README.md", "[a](../../README.md) [b](../README.md)\n"), [1]);
        assert_eq!(lines("README.md", "[outside](../other/README.md)\n"), [1]);
        assert_eq!(lines("README.md", "see [a]\n\n[a]: docs/none.md\n"), [3]);
    }

    #[test]
    fn the_world_anchors_and_code_are_left_alone() {
        let text = "[a](https://example.org/x) [b](#here) [c](mailto:a@example.org) `[d](none)`\n```\n[e](none)\n```\n";
        assert_eq!(lines("README.md", text), NONE);
        assert_eq!(lines("README.md", "```\n[a](none)\n```\n[b](none)\n"), [4]);
    }
}
