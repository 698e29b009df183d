//! The program as it starts itself: one measurement in a process of its own, as JSON, or one line.

use serde_json::Value;
use std::process::{Command, Output};

fn child(task: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_uslab-bench");
    Command::new(program).args(["--child", task]).output().expect("the program starts")
}

fn rss(contestant: &str) -> String {
    format!(
        r#"{{"rss":{{"contestant":"{contestant}","load":{{"live_bytes":1000000,"smallest_bytes":16,
            "largest_bytes":64,"freed_percent":90,"idle_ms":1}}}}}}"#
    )
}

#[test]
fn a_child_prints_a_sample_and_nothing_else() {
    for contestant in ["uslab malloc", "uslab cache", "glibc"] {
        let output = child(&rss(contestant));
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let sample: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
        assert!(sample["value"].as_f64().is_some());
        assert!(sample["extra"]["live_bytes"].as_f64().is_some_and(|bytes| bytes >= 1e6));
        assert!(sample["series"]["resident_bytes_by_s"].as_array().is_some_and(|course| !course.is_empty()));
    }
}

#[test]
fn what_it_cannot_do_is_one_line() {
    for (task, word) in [("nonsense", "no such task"), (&rss("nobody's malloc"), "nobody's malloc")] {
        let output = child(task);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(line.contains(word) && line.trim_end().lines().count() == 1, "{line}");
    }
}
