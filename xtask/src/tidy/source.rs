//! Splits Rust into code without comments, and comments without code.
//!
//! proc-macro2 cuts the code into tokens and drops comments; documentation becomes attributes that
//! have the comment's place. Each token has its bytes, so a comment is what lies between two
//! tokens.

use proc_macro2::{TokenStream, TokenTree};
use std::ops::Range;

/// A word, a literal, a lifetime's parts, `::`, or one character of punctuation.
#[derive(Clone, Copy)]
pub struct Token<'a> {
    /// As written.
    pub text: &'a str,
    /// Its first line, from 1.
    pub line: usize,
}

impl Token<'_> {
    /// True for the given word or punctuation.
    pub fn is(&self, text: &str) -> bool {
        self.text == text
    }

    /// True for an identifier, a keyword or a number.
    pub fn is_word(&self) -> bool {
        self.text.chars().all(|c| c.is_alphanumeric() || c == '_')
    }
}

/// A file, cut into pieces. Both parts are empty for text that is no Rust, which rustc reports.
#[derive(Default)]
pub struct Source<'a> {
    /// The code.
    pub code: Vec<Token<'a>>,
    /// Lines of comments, of documentation and others.
    pub comments: Vec<Token<'a>>,
}

/// Cuts a file.
pub fn read(text: &str) -> Source<'_> {
    // proc-macro2 counts bytes from behind a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    let mut ranges = Vec::new();
    if let Ok(stream) = text.parse() {
        flatten(text, stream, &mut ranges);
        ranges.push(text.len()..text.len());
    }
    let mut source = Source::default();
    let (mut end, mut line) = (0, 1);
    for range in ranges {
        for (index, text) in text[end..range.start].split('\n').enumerate() {
            line += usize::from(index > 0);
            if !text.trim().is_empty() {
                source.comments.push(Token { text: text.trim(), line });
            }
        }
        end = range.end;
        let token = Token { text: &text[range.clone()], line };
        line += token.text.matches('\n').count();
        match source.code.last_mut() {
            _ if token.text.is_empty() => {}
            Some(last) if token.is(":") && last.is(":") && text[..range.start].ends_with(':') => {
                last.text = "::";
            }
            _ => source.code.push(token),
        }
    }
    source
}

/// Adds the bytes of every token but those made of documentation.
fn flatten(text: &str, stream: TokenStream, ranges: &mut Vec<Range<usize>>) {
    for tree in stream {
        let bytes = tree.span().byte_range();
        let is_comment = |token: &str| token.starts_with("//") || token.starts_with("/*");
        match tree {
            _ if is_comment(&text[bytes.clone()]) => {}
            TokenTree::Group(group) => {
                ranges.push(bytes.start..bytes.start + 1);
                flatten(text, group.stream(), ranges);
                ranges.push(bytes.end - 1..bytes.end);
            }
            _ => ranges.push(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_strings_and_comments_are_told_apart() {
        let source = read("use a::b; // é\n/// d\n#[x] /* i /* j\n */ */ \"e // f\"\n'g' 0..2 // k");
        let of =
            |tokens: &[Token]| tokens.iter().map(|t| format!("{} {}", t.line, t.text)).collect::<Vec<_>>();
        assert_eq!(of(&source.comments), ["1 // é", "2 /// d", "3 /* i /* j", "4 */ */", "5 // k"]);
        let words = "1 use|1 a|1 ::|1 b|1 ;|3 #|3 [|3 x|3 ]|4 \"e // f\"|5 'g'|5 0|5 .|5 .|5 2";
        assert_eq!(of(&source.code).join("|"), words);
    }

    #[test]
    fn text_that_is_no_rust_is_empty() {
        assert!(read("\"abc").code.is_empty() && read("fn (").comments.is_empty());
        assert_eq!(read("\u{feff}é // é").comments[0].text, "// é");
    }
}
