//! glibc's functions for malloc's figures return true figures in glibc's format.

use super::compile;
use uslab_tests::harness::{Mode, Program, Scratch};

both_modes! {
    answers => answers_are_true,
    document => document_is_glibcs,
}

/// `figures.c` checks the figures; the lines of `malloc_stats` are checked here.
fn answers_are_true(mode: Mode) {
    let scratch = Scratch::new("figures");
    let outcome = Program::new(compile(&scratch, "figures", &[])).run_clean(&scratch, mode);
    outcome.expect(outcome.stdout().ends_with("ok\n"), "the program did not print its last line");
    let said = outcome.stderr();
    let names: Vec<&str> = said
        .lines()
        .map(|line| {
            let Some((name, number)) = line.split_once('=') else { return line };
            let is_number = number.len() == 11 && number.trim().parse::<u64>().is_ok();
            outcome.expect(is_number, "malloc_stats prints its numbers in another format");
            name
        })
        .collect();
    let expected = [
        "Arena 0:",
        "system bytes     ",
        "in use bytes     ",
        "Total (incl. mmap):",
        "system bytes     ",
        "in use bytes     ",
        "max mmap regions ",
        "max mmap bytes   ",
    ];
    outcome.expect(names == expected, "malloc_stats prints other lines than glibc");
}

/// The document of `malloc_info` has the elements and attributes of glibc's, in its order.
fn document_is_glibcs(mode: Mode) {
    let scratch = Scratch::new("figures");
    let program = compile(&scratch, "figures", &[]);
    let ask = Program::new(program).arg("xml");
    let theirs = ask.run_clean(&scratch, Mode::Plain);
    let ours = ask.run_clean(&scratch, mode);
    assert_eq!(shape(&ours.stdout()), shape(&theirs.stdout()));
    assert_eq!(value(&ours.stdout(), "<total type=\"mmap\" count=\"", '"'), "1");
    assert_eq!(value(&theirs.stdout(), "<total type=\"mmap\" count=\"", '"'), "1");
}

/// The names of elements and attributes, and the values of `version`, `nr` and `type`. Each run of
/// `size` and `unsorted` elements counts once, because their number depends on the allocator.
fn shape(document: &str) -> Vec<String> {
    let mut shape: Vec<String> = document
        .split('<')
        .skip(1)
        .map(|element| {
            let (inside, after) = element.split_once('>').expect("an element ends");
            assert_eq!(after.trim(), "", "text between elements");
            let words = inside.split_whitespace().map(|word| match word.split_once('=') {
                Some((name @ ("version" | "nr" | "type"), value)) => {
                    format!("{name}={}", value.trim_end_matches('/'))
                }
                Some((name, value)) => {
                    let digits = value.trim_end_matches('/').trim_matches('"');
                    assert!(digits.parse::<u64>().is_ok(), "{name} is {value}");
                    name.to_owned()
                }
                None => word.to_owned(),
            });
            words.collect::<Vec<_>>().join(" ")
        })
        .filter(|element| !element.starts_with("unsorted "))
        .collect();
    shape.dedup_by(|next, last| next == last && next.starts_with("size "));
    shape
}

/// The text between `start` and `end`.
fn value<'a>(document: &'a str, start: &str, end: char) -> &'a str {
    let (_, after) = document.split_once(start).expect("the start");
    after.split(end).next().expect("the end")
}
