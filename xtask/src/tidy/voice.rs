//! The form of prose, in Markdown and in comments: its width, and words that name no actor.

use super::markdown::Page;
use super::source::Source;
use super::{File, Violation};
use crate::results;
use std::ops::Range;

/// Columns of the widest line of prose. Tables, code and lines with a link may be wider.
const WIDTH: usize = 100;

/// A thread or a piece of code has a name: the caller, the freeing thread, the drainer.
const BANNED: &[&str] = &["nobody", "somebody", "whoever", "in hand"];

/// Pages that programs write: `balance.md`, `scale.md`, and folders whose names are dates.
const WRITTEN: &[&str] = &["docs/results/balance.md", "docs/results/scale.md", "docs/results/2"];

/// A line of prose.
struct Line<'a> {
    number: usize,
    text: &'a str,
    /// The width of the whole line; `None` for tables, code and drawings.
    columns: usize,
}

/// Checks a file.
pub fn check(file: &File, source: &Source, page: &Page) -> Vec<Violation> {
    if WRITTEN.iter().any(|start| file.path.starts_with(start)) {
        return Vec::new();
    }
    let mut violations = Vec::new();
    let written = written_lines(file.text);
    for Line { number, text, columns } in prose(file, source, page) {
        if written.contains(&number) {
            continue;
        }
        if columns > WIDTH && !text.contains("](") && !text.contains("://") {
            let why = format!("{columns} columns; prose has at most {WIDTH}");
            violations.push(Violation::new(file, number, "width", why));
        }
        for word in BANNED.iter().filter(|word| has_word(&text.replace("`nobody`", ""), word)) {
            let why = format!("`{word}` names no actor: the caller, the freeing thread, the reader");
            violations.push(Violation::new(file, number, "voice", why));
        }
    }
    violations
}

/// The lines that `cargo xtask results` writes between its markers; empty if there are none.
fn written_lines(text: &str) -> Range<usize> {
    let line_of = |marker| text.lines().position(|line| line == marker);
    match (line_of(results::BEGIN), line_of(results::END)) {
        (Some(begin), Some(end)) => begin + 2..end + 1,
        _ => 0..0,
    }
}

/// The lines of the file that are prose. Code is none, but in comments.
fn prose<'a>(file: &File<'a>, source: &Source<'a>, page: &Page) -> Vec<Line<'a>> {
    let starts: &[&str] = match file.extension() {
        "md" => &[""],
        "toml" | "sh" | "py" | "map" => &["#"],
        "3" | "7" => &[".\\\""],
        _ if file.is_c() => &["//", "/*", "* ", "*/"],
        _ => &[],
    };
    let lines: Vec<&str> = file.text.lines().collect();
    let found = (1..).zip(&lines).filter(|(number, text)| {
        !page.code.contains(number) && starts.iter().any(|start| text.trim_start().starts_with(start))
    });
    let comments = source.comments.iter().map(|comment| (comment.line, comment.text));
    let (mut previous, mut is_fenced) = (0, false);
    let line = |(number, text): (usize, &'a str)| {
        let content = text.trim_start().trim_start_matches(['/', '!', '*', '#', ' ']);
        is_fenced = (is_fenced && number <= previous + 1) ^ content.starts_with("```");
        previous = number;
        let is_wide = is_fenced || content.starts_with('|') || page.tables.contains(&number);
        let columns = if is_wide { 0 } else { lines[number - 1].chars().count() };
        Line { number, text, columns }
    };
    found.map(|(number, text)| (number, *text)).chain(comments).map(line).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let text = text.to_lowercase();
    let is_end = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    text.match_indices(word).any(|(at, _)| {
        is_end(text[..at].chars().next_back()) && is_end(text[at + word.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::super::{markdown, source};
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let file = File { path, text };
        let page = if path.ends_with(".md") { markdown::read(text) } else { Page::default() };
        let found = check(&file, &source::read(if file.is_rust() { text } else { "" }), &page);
        found.iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn wide_prose_is_found_and_wide_code_tables_and_links_are_not() {
        let wide = "w ".repeat(51);
        assert_eq!(rules("a.md", &format!("a\n{wide}\n")), [(2, "width")]);
        assert_eq!(rules("a.md", &format!("```\n{wide}\n```\n")), []);
        assert_eq!(rules("a.md", &format!("| {wide} |\n|---|\n")), []);
        assert_eq!(rules("a.md", &format!("[{wide}](x.md)\n")), []);
        assert_eq!(
            rules("a.rs", &format!("fn f() {{}}\n    // {wide}\n/// {wide}\n")),
            [(2, "width"), (3, "width")]
        );
        assert_eq!(rules("a.rs", &format!("//! ```text\n//! {wide}\n//! ```\n//! {wide}\n")), [(4, "width")]);
        assert_eq!(rules("a.rs", &format!("fn f() {{ \"{wide}\"; }}\n")), []);
        assert_eq!(rules("a.h", &format!("/* a\n * {wide} */\nint {wide};\n")), [(2, "width")]);
        assert_eq!(rules("a.toml", &format!("# {wide}\n")), [(1, "width")]);
        assert_eq!(rules("a.3", &format!(".\\\" {wide}\n{wide}\n")), [(1, "width")]);
    }

    #[test]
    fn words_that_name_no_actor_are_found_as_whole_words() {
        for word in BANNED {
            assert_eq!(rules("a.md", &format!("So {}.\n", word.to_uppercase())), [(1, "voice")]);
            assert_eq!(rules("a.rs", &format!("fn f() {{}} // ({word})\n")), [(1, "voice")]);
            assert_eq!(rules("a.rs", &format!("const S: &str = \"{word}\"; // x{word}s\n")), []);
            assert_eq!(rules("a.md", &format!("```\n{word}\n```\n")), []);
        }
    }

    #[test]
    fn pages_that_programs_write_and_the_user_of_that_name_are_exempt() {
        let found = |path, text| {
            let file = File { path, text };
            check(&file, &Source::default(), &markdown::read(text)).len()
        };
        let banned = format!("So {}.\n", BANNED[0]);
        assert_eq!(found("docs/results/scale.md", &banned), 0);
        assert_eq!(found("docs/results/2026-11-29/README.md", &banned), 0);
        let written = [&banned, results::BEGIN, "\n", &banned, results::END, "\n", &banned].concat();
        assert_eq!(found("docs/results/README.md", &written), 2);
        assert_eq!(found("docs/a.md", "It runs as `nobody`.\n"), 0);
        assert_eq!(found("docs/a.md", "Nobody.\n"), 1);
    }
}
