//! Tests of the syntax of `USLAB_DEBUG`.

use super::debugging::*;
use std::string::ToString;

fn letters(text: &str, name: &str) -> u8 {
    Selection::parse(text.as_bytes()).expect(text).letters(text.as_bytes(), name.as_bytes())
}

const ALL: u8 = CHECKS | RED_ZONE | POISON | USERS;

#[test]
fn letters_alone_are_for_all_caches() {
    assert_eq!(letters("FZPU", "malloc-64"), ALL);
    assert_eq!(letters("fzpu", "x"), ALL);
    assert_eq!(letters("T", "x"), TRACE);
    assert_eq!(letters("", "x"), 0);
    assert_eq!(letters("-", "x"), 0);
}

#[test]
fn the_first_block_that_names_a_cache_decides() {
    let text = "FZ;P,session,malloc-*;U,malloc-64;-,quiet";
    assert_eq!(letters(text, "other"), CHECKS | RED_ZONE);
    assert_eq!(letters(text, "session"), POISON);
    assert_eq!(letters(text, "sessions"), CHECKS | RED_ZONE);
    assert_eq!(letters(text, "malloc-64"), POISON);
    assert_eq!(letters(text, "quiet"), 0);
    assert_eq!(letters(",dentry", "dentry"), ALL);
    assert_eq!(letters(",dentry", "inode"), 0);
    assert_eq!(letters(";;F;", "x"), CHECKS);
    assert_eq!(letters("F,*", "x"), CHECKS);
}

#[test]
fn a_fault_is_told_with_its_column() {
    for (text, fault) in [
        ("FZX", "column 3: 'X' is none of the letters F, Z, P, U, T"),
        ("F;A,x", "column 3: 'A' is none of the letters F, Z, P, U, T"),
        ("F Z", "column 2: ' ' is none of the letters F, Z, P, U, T"),
        ("F\u{1}", "column 2: '\\x01' is none of the letters F, Z, P, U, T"),
        ("F-", "column 2: '-' stands alone"),
        ("F,", "column 3: the name of a cache is missing"),
        ("F,a,,b", "column 5: the name of a cache is missing"),
        ("F,a;,", "column 6: the name of a cache is missing"),
        ("F,a*b", "column 4: '*' may stand only at the end of a name"),
        ("F;F;F;F;F;F;F;F;F;F;F;F;F;F;F;F;F", "column 33: there are more than 16 blocks"),
    ] {
        assert_eq!(Selection::parse(text.as_bytes()).expect_err(text).to_string(), fault);
    }
}

#[test]
fn any_text_is_parsed_without_a_panic() {
    let alphabet = b"FZx,;*-\xff";
    let mut text = [0u8; 7];
    for n in 0..8u32.pow(7) {
        if n % 37 != 0 {
            continue;
        }
        text.iter_mut().enumerate().for_each(|(i, byte)| *byte = alphabet[(n >> (3 * i) & 7) as usize]);
        if let Ok(selection) = Selection::parse(&text) {
            selection.letters(&text, b"malloc-64");
        }
    }
}
