//! Reads Markdown: finds links without a target and fences within a line, and tells prose from code
//! and tables.
//!
//! Only links to files of the repository are checked. Addresses with a scheme are not the
//! repository's, and an anchor alone is the page's own.

use super::{File, Violation};
use pulldown_cmark::{CodeBlockKind, Event, LinkType, Options, Parser, Tag};
use std::collections::BTreeSet;

/// A Markdown file, parsed.
#[derive(Default)]
pub struct Page {
    /// Targets of links and images, with their lines.
    targets: Vec<(usize, String)>,
    /// Lines with a fence and something else.
    fences: Vec<usize>,
    /// Lines of code blocks.
    pub code: BTreeSet<usize>,
    /// Lines of tables.
    pub tables: BTreeSet<usize>,
}

/// Parses a page.
pub fn read(text: &str) -> Page {
    let mut page = Page::default();
    let line = |at: usize| 1 + text[..at].matches('\n').count();
    let mut parser = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter();
    for (event, bytes) in parser.by_ref() {
        let Event::Start(tag) = event else { continue };
        match tag {
            Tag::CodeBlock(kind) => {
                let first = line(bytes.start);
                page.code.extend(first..=line(bytes.end - 1));
                if let CodeBlockKind::Fenced(word) = kind {
                    page.fences.extend(word.contains(' ').then_some(first));
                    page.fences.extend(fences_within(&text[bytes]).map(|at| first + at));
                }
            }
            Tag::Table(_) => page.tables.extend(line(bytes.start)..=line(bytes.end - 1)),
            Tag::Link { link_type: LinkType::Inline, dest_url, .. } | Tag::Image { dest_url, .. } => {
                page.targets.push((line(bytes.start), dest_url.into_string()));
            }
            _ => {}
        }
    }
    for (_, definition) in parser.reference_definitions().iter() {
        page.targets.push((line(definition.span.start), definition.dest.to_string()));
    }
    page
}

/// The lines between a block's first and last that have its fence: a text that was wrapped as prose
/// has one.
fn fences_within(block: &str) -> impl Iterator<Item = usize> {
    let block = block.trim_start();
    let fence = &block[..block.len() - block.trim_start_matches(['`', '~']).len()];
    let last = block.trim_end().lines().count().saturating_sub(1);
    let has_fence = move |&(at, line): &(usize, &str)| 0 < at && at < last && line.contains(fence);
    block.lines().enumerate().filter(has_fence).map(|(at, _)| at)
}

/// The text of the page `from`, in which links to files that do not exist are their texts alone.
/// `exists` answers for paths from the root.
pub fn without_dead_links(from: &str, text: &str, exists: &dyn Fn(&str) -> bool) -> String {
    let (mut kept, mut end) = (String::with_capacity(text.len()), 0);
    for (event, bytes) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let Event::Start(Tag::Link { link_type: LinkType::Inline, dest_url, .. }) = event else { continue };
        let Some(label) = text[bytes.clone()].rfind("](") else { continue };
        if !leads_somewhere(from, &dest_url, exists) {
            kept.push_str(&text[end..bytes.start]);
            kept.push_str(&text[bytes.start + 1..bytes.start + label]);
            end = bytes.end;
        }
    }
    kept + &text[end..]
}

/// Whether a link's target is a file that exists, or none of ours.
fn leads_somewhere(from: &str, target: &str, exists: &dyn Fn(&str) -> bool) -> bool {
    let path = target.split(['#', '?']).next().unwrap_or_default();
    let is_ours = !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:");
    !is_ours || resolve(from, path).is_some_and(|path| exists(&path))
}

/// Checks the links and the fences. `exists` answers for paths from the repository's root.
pub fn check(file: &File, page: &Page, exists: &dyn Fn(&str) -> bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (line, target) in &page.targets {
        if !leads_somewhere(file.path, target, exists) {
            let why = format!("`{target}` leads to no file of the repository");
            violations.push(Violation::new(file, *line, "link", why));
        }
    }
    let why = "a fence stands on a line of its own, with one word behind it at most";
    violations.extend(page.fences.iter().map(|&line| Violation::new(file, line, "fence", why)));
    violations
}

/// The path from the root of what `path` means in the file `from`; nothing outside the repository.
fn resolve(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    if !path.starts_with('/') {
        parts.extend(from.split('/'));
        parts.pop();
    }
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let exists = |path: &str| matches!(path, "README.md" | "docs/guide/README.md" | "docs");
        check(&File { path, text }, &read(text), &exists).iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn links_are_resolved_from_the_file_they_stand_in() {
        assert_eq!(lines("README.md", "[a](docs/guide/README.md#top) [b](docs/)\n[c](docs/none.md)\n"), [2]);
        assert_eq!(lines("docs/guide/README.md", "[a](../../README.md) [b](../README.md)\n"), [1]);
        assert_eq!(lines("README.md", "[outside](../other/README.md)\n"), [1]);
        assert_eq!(lines("README.md", "see [a]\n\n[a]: docs/none.md\n"), [3]);
        assert_eq!(lines("README.md", "\n![picture](none.svg)\n"), [2]);
    }

    #[test]
    fn the_world_anchors_and_code_are_left_alone() {
        let text = "[a](https://example.org/x) [b](#here) [c](mailto:a@example.org) `[d](none)`\n```\n[e](none)\n```\n";
        assert_eq!(lines("README.md", text), NONE);
        assert_eq!(lines("README.md", "```\n[a](none)\n```\n[b](none)\n"), [4]);
    }

    #[test]
    fn a_block_that_was_wrapped_as_prose_is_found_by_its_fences() {
        assert_eq!(lines("README.md", "```sh\na\n```\n\n````\n```\n````\n"), NONE);
        assert_eq!(lines("README.md", "blocks ```` ```console ````\n"), NONE);
        assert_eq!(lines("README.md", "```sh a\nb ```\n\nprose\n"), [1, 2]);
        assert_eq!(lines("README.md", "a\n\n```sh\na b ```\n\nprose\n```\n"), [4]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_its_text_alone() {
        let exists = |path: &str| path == "docs/b.md";
        let page = "See [`b`](b.md#c), [the d](../d.md#e) and [f](https://f.org).\n| [g](g.rs) |\n`[h](h)`\n";
        let kept = "See [`b`](b.md#c), the d and [f](https://f.org).\n| g |\n`[h](h)`\n";
        assert_eq!(without_dead_links("docs/a.md", page, &exists), kept);
    }

    #[test]
    fn code_and_tables_have_their_lines() {
        let page = read("a\n\n```sh\nb\n```\n\n| c |\n|---|\n| d |\n\ne\n");
        assert_eq!(page.code, (3..=5).collect());
        assert_eq!(page.tables, (7..=9).collect());
    }
}
