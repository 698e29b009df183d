//! `report` and `summary` as their users start them, and what stands on standard output with
//! `--json`. Nothing here measures.

use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sample.json");

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uslab-bench"));
    command.args(args).stdin(Stdio::null());
    command
}

fn bench(args: &[&str]) -> Output {
    command(args).output().expect("the program starts")
}

/// A path in the tests' own directory; what an earlier run left there is gone.
fn fresh(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if path.is_dir() {
        fs::remove_dir_all(&path).unwrap();
    } else {
        let _ = fs::remove_file(&path);
    }
    path
}

/// Refused: status 2, nothing on standard output, one line on standard error.
fn refused(output: &Output) -> String {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(output.stdout.is_empty(), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("uslab-bench: "), "{line}");
    line
}

#[test]
fn a_page_is_written_where_it_was_asked_for() {
    let page = fresh("page.html");
    let output = bench(&["report", SAMPLE, "-o", page.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    let text = fs::read_to_string(page).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"));
}

#[test]
fn results_come_through_a_pipe_and_from_a_folder_as_well() {
    let named = bench(&["report", SAMPLE, "-o", "-"]);
    assert!(named.status.success());
    let piped = command(&["report", "-o", "-"]).stdin(File::open(SAMPLE).unwrap()).output().unwrap();
    assert_eq!(named.stdout, piped.stdout);
    let folder = fresh("folder");
    fs::create_dir(&folder).unwrap();
    fs::copy(SAMPLE, folder.join("sample.json")).unwrap();
    fs::write(folder.join("README.md"), "no results").unwrap();
    assert_eq!(named.stdout, bench(&["report", folder.to_str().unwrap(), "-o", "-"]).stdout);
}

#[test]
fn a_wrong_file_is_refused_in_one_line_that_names_it() {
    let page = fresh("never.html");
    let report = |file: &Path| {
        let line = refused(&bench(&["report", file.to_str().unwrap(), "-o", page.to_str().unwrap()]));
        assert!(line.contains(file.file_name().unwrap().to_str().unwrap()), "{line}");
        assert_eq!(line.replacen("report", "summary", 1), {
            let line = refused(&bench(&["summary", file.to_str().unwrap()]));
            line.replacen("report", "summary", 1)
        });
        line
    };
    assert!(report(&fresh("missing.json")).contains("No such file"));
    let cases = [
        ("text.json", "N 1\n", "no JSON"),
        ("cut.json", "{\"tool\": \"uslab-bench\",", "no JSON"),
        ("empty.json", "", "empty"),
        ("other.json", "{\"schema\": 2}", "no result of uslab-bench"),
        ("old.json", "{\"tool\": \"uslab-bench\", \"schema\": 1}", "schema 1"),
        ("new.json", "{\"tool\": \"uslab-bench\", \"schema\": 1000}", "newer"),
    ];
    for (name, text, why) in cases {
        let file = fresh(name);
        fs::write(&file, text).unwrap();
        let line = report(&file);
        assert!(line.contains(why), "{line}");
    }
    let folder = fresh("empty-folder");
    fs::create_dir(&folder).unwrap();
    assert!(report(&folder).contains("no *.json"));
    assert!(!page.exists(), "a refused input made a page");
}

#[test]
fn a_result_file_is_not_overwritten_by_its_page() {
    let file = fresh("kept.json");
    fs::copy(SAMPLE, &file).unwrap();
    let name = file.to_str().unwrap();
    assert!(refused(&bench(&["report", name, "-o", name])).contains("another name"));
    assert_eq!(fs::read(&file).unwrap(), fs::read(SAMPLE).unwrap());
}

#[test]
fn a_page_that_cannot_be_written_is_a_failure_in_one_line() {
    let output = bench(&["report", SAMPLE, "-o", "/nonexistent/page.html"]);
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
}

#[test]
fn the_summary_is_a_table_of_the_claims() {
    let output = bench(&["summary", "--facts", SAMPLE]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["| machine | ", "| Typed cache, one at a time | ", "| Bulk of 64 | ", "not measured"] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
}

#[test]
fn json_stands_alone_in_the_list_too() {
    let output = bench(&["--list", "--json"]);
    assert!(output.status.success());
    let list: Value = serde_json::from_slice(&output.stdout).expect("standard output is JSON alone");
    let suites = list["suites"].as_array().expect("suites");
    assert!(suites.iter().any(|suite| suite["name"] == "bulk"));
    assert!(suites.iter().all(|suite| suite["rows"].as_array().is_some_and(|rows| !rows.is_empty())));
}

#[test]
fn what_is_refused_leaves_standard_output_empty_under_json() {
    for args in [
        &["pears", "--json"][..],
        &["pair", "--json", "--only", "nothing-like-it"],
        &["pair", "--json", "--cpu", "1023"],
        &["pair", "--json", "--jason"],
        &["pair", "--json", "--rounds", "many"],
        &["pair", "--json", "--rounds", "0"],
        &["--json"],
        &["pair", "--json", "--check", "--quick"],
        &["report", "--json"],
    ] {
        refused(&bench(args));
    }
}

#[test]
fn help_is_no_refusal() {
    for args in [&["--help"][..], &["report", "--help"], &["summary", "-h"], &["--version"]] {
        let output = bench(args);
        assert!(output.status.success() && output.stderr.is_empty() && !output.stdout.is_empty(), "{args:?}");
    }
}
