//! A Rust lexer just good enough for the house rules.
//!
//! The rules look at code, or at comments, never at both, and a word in a string literal is neither. So a
//! file is cut into tokens once and every rule reads those. It accepts anything: on text that is no Rust it
//! gives useless tokens, not an error, because rustc is there to complain about that.

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Identifier or keyword.
    Word,
    /// String, byte string, C string or character literal, quotes included.
    Literal,
    /// Number or lifetime.
    Other,
    /// `::` or one character of punctuation.
    Mark,
    /// `///`, `//!`, `/** */` or `/*! */`.
    Doc,
    /// Any other comment.
    Comment,
}

/// One token.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its text as written.
    pub text: &'a str,
    /// Its first line, from 1.
    pub line: usize,
}

impl Token<'_> {
    /// True for the given word or punctuation in code.
    pub fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Mark) && self.text == text
    }
}

/// Cuts a file into tokens.
pub fn lex(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let (kind, length) = if first.is_whitespace() {
            (None, first.len_utf8())
        } else {
            let (kind, length) = token(rest, first);
            (Some(kind), length)
        };
        let text = &rest[..length];
        if let Some(kind) = kind {
            tokens.push(Token { kind, text, line });
        }
        line += text.matches('\n').count();
        at += length;
    }
    tokens
}

/// The same without comments: what rules about code read.
pub fn code<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    tokens.iter().filter(|token| !matches!(token.kind, Kind::Doc | Kind::Comment)).copied().collect()
}

/// Kind and length of the token that `rest` starts with.
fn token(rest: &str, first: char) -> (Kind, usize) {
    if rest.starts_with("//") {
        let doc = (rest.starts_with("///") && !rest.starts_with("////")) || rest.starts_with("//!");
        let length = rest.find('\n').unwrap_or(rest.len());
        return (if doc { Kind::Doc } else { Kind::Comment }, length);
    }
    if rest.starts_with("/*") {
        let doc = (rest.starts_with("/**") && !rest.starts_with("/**/")) || rest.starts_with("/*!");
        return (if doc { Kind::Doc } else { Kind::Comment }, block_comment(rest));
    }
    if let Some(length) = string(rest) {
        return (Kind::Literal, length);
    }
    if first == '\'' {
        return quote(rest);
    }
    if first.is_ascii_digit() {
        return (Kind::Other, number(rest));
    }
    if first.is_alphanumeric() || first == '_' {
        return (Kind::Word, word(rest));
    }
    (Kind::Mark, if rest.starts_with("::") { 2 } else { first.len_utf8() })
}

fn word(rest: &str) -> usize {
    rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
}

/// A number, without the dots of `0..n` and the method of `1.max(2)`.
fn number(rest: &str) -> usize {
    let whole = word(rest);
    let fraction =
        rest[whole..].strip_prefix('.').filter(|tail| tail.starts_with(|c: char| c.is_ascii_digit()));
    fraction.map_or(whole, |tail| whole + 1 + word(tail))
}

/// Block comments nest.
fn block_comment(rest: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < rest.len() {
        let step = &rest.as_bytes()[at..];
        match step {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Length of a string literal with its prefix (`b`, `c`, `r`, `br`, `cr` and hashes), if there is one here.
fn string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|tail| {
            let tail = if prefix.ends_with('r') { tail.trim_start_matches('#') } else { tail };
            tail.starts_with('"')
        })
    })?;
    let tail = &rest[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = tail.len() - tail.trim_start_matches('#').len();
        let close = format!("\"{}", &tail[..hashes]);
        let body = prefix.len() + hashes + 1;
        return Some(rest[body..].find(&close).map_or(rest.len(), |end| body + end + close.len()));
    }
    Some(prefix.len() + closing(tail, b'"'))
}

/// Length up to and with the closing quote of a literal that starts with one; backslashes escape.
fn closing(text: &str, quote: u8) -> usize {
    let mut at = 1;
    while let Some(&byte) = text.as_bytes().get(at) {
        match byte {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// A character literal or a lifetime.
fn quote(rest: &str) -> (Kind, usize) {
    let mut after = rest[1..].chars();
    let (first, second) = (after.next(), after.next());
    match (first, second) {
        (Some('\\'), _) => (Kind::Literal, closing(rest, b'\'')),
        (Some(c), Some('\'')) => (Kind::Literal, 2 + c.len_utf8()),
        _ => (Kind::Other, 1 + word(&rest[1..])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        lex(source).iter().map(|token| token.text).collect()
    }

    #[test]
    fn code_strings_and_comments_are_told_apart() {
        let kinds: Vec<Kind> = lex("use a::b; // c\n/// d\n\"e // f\" 'g' 'h: 1.5 0..2 /* i /* j */ */")
            .iter()
            .map(|t| t.kind)
            .collect();
        use Kind::*;
        let expected = [
            Word, Word, Mark, Word, Mark, Comment, Doc, Literal, Literal, Other, Mark, Other, Other, Mark,
            Mark, Other, Comment,
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn raw_and_escaped_strings_end_where_rust_ends_them() {
        assert_eq!(texts(r###"r#"a "b" c"# x"###), [r###"r#"a "b" c"#"###, "x"]);
        assert_eq!(texts(r#"b"\"" y"#), [r#"b"\"""#, "y"]);
        assert_eq!(texts(r"'\'' z"), [r"'\''", "z"]);
        assert_eq!(texts("crate_r br"), ["crate_r", "br"]);
    }

    #[test]
    fn lines_are_counted_through_every_kind_of_token() {
        let lines: Vec<usize> = lex("a\n/* \n */ b\n\"\n\" c").iter().map(|t| t.line).collect();
        assert_eq!(lines, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn unfinished_text_is_survived() {
        for source in ["\"abc", "r#\"abc", "/* abc", "'", "'\\", "b\"\\", "é", "'é'"] {
            lex(source);
        }
    }
}
