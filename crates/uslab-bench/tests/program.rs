//! The program as its users start it: every suite for function, its JSON, and what it says to a
//! wrong command line. Nothing here looks at a time.

use serde_json::Value;
use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uslab-bench")).args(args).output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_suite_runs_in_both_modes_and_json_stands_alone() {
    let output = bench(&["all", "--check", "--json", "--both-modes"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("standard output is JSON alone");
    assert_eq!(report["tool"], "uslab-bench");
    assert_eq!(report["schema"], 2);
    let runs = report["runs"].as_array().expect("runs");
    let (first, second) = runs.split_at(runs.len() / 2);
    assert_eq!(first.len(), second.len(), "every suite in two modes");
    assert!(second.iter().all(|run| run["mode"] == "locked"));
    assert!(first.iter().all(|run| run["mode"] == first[0]["mode"]), "a process has one mode");
    for run in runs {
        assert_eq!(run["complete"], true);
        let rows = run["rows"].as_array().expect("rows");
        assert!(!rows.is_empty());
        for row in rows {
            assert_eq!(row["verdict"], "none", "a run for function judges nothing");
            let figures = row["figures"].as_array().expect("figures");
            assert!(figures.iter().all(|figure| figure["value"]["min"].as_f64().is_some_and(|ns| ns > 0.0)));
        }
    }
}

#[test]
fn tables_name_everybody() {
    let output = bench(&["pair", "--check", "--only", "live64", "--order", "random", "--touch"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    for name in
        ["uslab", "mimalloc v3", "jemalloc", "snmalloc", "rpmalloc", "glibc", "256 B, 64 live", "method"]
    {
        assert!(text.contains(name), "no {name} in:\n{text}");
    }
}

#[test]
fn an_unknown_suite_gets_one_line_and_status_2() {
    let output = bench(&["pears"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let line = stderr(&output);
    assert_eq!(line.trim_end().lines().count(), 1, "{line}");
    assert!(line.contains("pears") && line.contains("bulk"));
}

#[test]
fn rows_that_do_not_exist_and_cpus_that_are_not_ours_are_said_so() {
    for args in [["pair", "--only", "nothing-like-it"], ["pair", "--cpu", "1023"]] {
        let output = bench(&args);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(stderr(&output).trim_end().lines().count(), 1);
    }
}

#[test]
fn the_list_measures_nothing_and_names_every_row() {
    let output = bench(&["--list"]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    for id in [
        "cache/256/live1",
        "malloc/1024/live4096",
        "sized/16/live64",
        "pair/cache/256/bulk",
        "medium/33k",
        "medium/3m/beside20000",
        "heaps/many/4g",
        "heaps/one/alone",
        "rss/spaced/500/idle95",
        "sheaf/256/live64",
        "bulk/256/n4096",
        "program/python-malloc/cpu",
        "locality/mixed/reused",
        "fork/bursts/p99",
    ] {
        assert!(text.contains(id), "no {id} in:\n{text}");
    }
}
