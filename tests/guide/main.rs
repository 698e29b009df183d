//! The guide's examples: each block ```` ```console ```` of docs/guide runs, and its output has the
//! shape that the page shows.
//!
//! ```text
//!   $ command          one line, or several that end in a backslash; one shell a page
//!   output             compared without numbers, units, addresses and the width of columns
//!   ...                any number of lines
//! ```
//!
//! Of a sum (`RSS 3 MiB = live 2 MiB + metadata 1 MiB`) the first part alone is compared: the
//! others are those that the moment has. It may go on in lines that begin with `+`.
//!
//! A command finds `uslab` on its path, as after an installation. `USLAB_GUIDE=write cargo test -p
//! uslab-tests --test guide` writes the outputs of this machine into the pages.

mod page;
mod shape;

use page::{Page, REST};
use shape::shape;
use std::path::{Path, PathBuf};
use uslab_tests::harness::{Mode, Program, Scratch, artifacts, tool};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide")
}

/// Runs the commands of a page in one shell; returns the lines that each wrote.
fn outputs(name: &str, page: &Page) -> Vec<Vec<String>> {
    let scratch = Scratch::new(&format!("guide-{name}"));
    let lib = artifacts().library.parent().expect("a folder").to_path_buf();
    // Standard error in order, and a mark behind each command.
    let script: String = std::iter::once("exec 2>&1\n".to_owned())
        .chain(page.commands().map(|command| format!("{command}\nprintf '\\n@@end\\n'\n")))
        .collect();
    let path = format!("{}:{}", lib.display(), std::env::var("PATH").unwrap_or_default());
    let outcome = Program::new(tool("bash", "bash"))
        .arg(scratch.write("script", &script))
        .env("PATH", path)
        .env("LC_ALL", "C.UTF-8")
        .limit_s(60)
        .run(&scratch, Mode::Plain);
    let stdout = outcome.stdout();
    let parts: Vec<&str> = stdout.split("\n@@end\n").collect();
    assert_eq!(parts.len(), page.commands().count() + 1, "{name}: a command ended the shell:\n{stdout}");
    let lines = |part: &str| part.trim_end_matches('\n').lines().map(str::to_owned).collect();
    parts[..parts.len() - 1].iter().map(|part| lines(part)).collect()
}

/// Whether `found` has the shape of `shown`, in which [`REST`] stands for any lines.
fn fits(shown: &[String], found: &[String]) -> bool {
    // A sum takes three lines at most, of which those that it does not need are empty.
    let is_of_sum = |line: &&String| line.is_empty() || line.starts_with("+ ") || line.starts_with("- ");
    let rest_of_sum = |lines: &[String]| lines.iter().take_while(is_of_sum).count();
    let (shown, found) = (&shown[rest_of_sum(shown)..], &found[rest_of_sum(found)..]);
    match shown.split_first() {
        None => found.is_empty(),
        Some((line, rest)) if line.trim() == REST => (0..=found.len()).any(|skip| fits(rest, &found[skip..])),
        Some((line, rest)) => found
            .split_first()
            .is_some_and(|(first, others)| shape(line) == shape(first) && fits(rest, others)),
    }
}

fn check(name: &str) {
    let file = folder().join(format!("{name}.md"));
    let text = std::fs::read_to_string(&file).expect("the page");
    let page = Page::parse(&text);
    assert!(page.commands().count() > 0, "{name} has no example");
    let found = outputs(name, &page);
    if std::env::var_os("USLAB_GUIDE").is_some_and(|value| value == "write") {
        std::fs::write(&file, page.with(&found)).expect("the page, written");
        return;
    }
    for (step, found) in page.steps().zip(&found) {
        assert!(
            fits(&step.output, found),
            "{}: `{}` wrote\n{}\nThe page shows\n{}\nUSLAB_GUIDE=write writes the page",
            file.display(),
            step.command,
            found.join("\n"),
            step.output.join("\n"),
        );
    }
}

/// A test for each page with examples.
macro_rules! pages {
    ($($test:ident: $name:literal),+ $(,)?) => {
        const PAGES: &[&str] = &[$($name),+];
        $(#[test]
        fn $test() {
            check($name);
        })+
    };
}

pages! {
    seeing_inside: "seeing-inside",
    tracing: "tracing",
    containers: "containers",
    choosing: "choosing",
    from_jemalloc: "from-jemalloc",
}

#[test]
fn each_page_with_examples_has_a_test() {
    for entry in std::fs::read_dir(folder()).expect("docs/guide") {
        let path = entry.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("a page");
        let name = path.file_stem().expect("a name").to_string_lossy();
        let has_test = PAGES.contains(&&*name);
        assert_eq!(Page::parse(&text).commands().count() > 0, has_test, "{name}");
    }
}

#[test]
fn lines_fit_by_their_shape() {
    let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    let shown = lines("malloc-64   12 live\n...\ntotal 3.5 MiB");
    assert!(fits(&shown, &lines("malloc-64 7 live\ntotal 12 KiB")));
    assert!(fits(&shown, &lines("malloc-64 7 live\na\nb\ntotal 12 KiB")));
    assert!(!fits(&shown, &lines("malloc-64 7 live\ntotal 12 KiB\nmore")));
    assert!(!fits(&shown, &lines("malloc-64 7 dead\ntotal 12 KiB")));
    let sum = lines("RSS 3 MiB = live 2 MiB + metadata 1 MiB\n\nend");
    assert!(fits(&sum, &lines("RSS 4 MiB = live 1 MiB + slack 2 MiB\n+ not ours 1 MiB\n\nend")));
    assert!(!fits(&sum, &lines("RSS 4 MiB = slack 2 MiB + live 1 MiB\n\nend")));
    assert!(fits(&sum, &lines("RSS 4 MiB = live 1 MiB + slack 2 MiB\n\n\nend")));
    assert!(fits(&sum, &lines("RSS 4 MiB = live 1 MiB + slack 2 MiB\n+ dirty 1 MiB\n- absent 1 MiB\nend")));
}
