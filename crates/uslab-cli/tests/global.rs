//! A Rust program whose global allocator is the library is seen, without `uslab run`.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Running, Sandbox, outcome};

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

/// Set in the process that is looked at: this test, started again.
const IN_CHILD: &str = "USLAB_TEST_GLOBAL";
const OBJECTS: u64 = 50_000;

/// Holds objects until its input ends.
#[test]
fn program() {
    if std::env::var_os(IN_CHILD).is_none() {
        return;
    }
    let kept: Vec<Box<[u8; 200]>> = (0..OBJECTS).map(|n| Box::new([n as u8; 200])).collect();
    // The harness of tests keeps standard output.
    eprintln!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    drop(kept);
}

#[test]
fn the_caches_of_a_global_allocator_are_seen() {
    ["1", "0"].into_iter().for_each(caches_are_seen);
}

fn caches_are_seen(rseq: &str) {
    let sandbox = Sandbox::new();
    let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
    command.args(["--exact", "program", "--nocapture", "--test-threads=1"]);
    command.env("USLAB_SNAPSHOT", &sandbox.snapshots).env(IN_CHILD, "1").env("USLAB_RSEQ", rseq);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().expect("started"));
    let mut errors = BufReader::new(running.0.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while line != "ready\n" {
        line.clear();
        assert!(errors.read_line(&mut line).expect("readable") > 0, "the program ended");
    }
    let pid = running.pid();
    let (code, out, err) = outcome(&mut sandbox.uslab(&["info", &pid, "--json"]));
    assert_eq!((code, err.as_str()), (0, ""));
    let process: Value = serde_json::from_str(&out).expect("JSON");
    let number = |cache: &Value, name: &str| cache[name].as_u64().expect("a number");
    let caches = process["caches"].as_array().expect("caches");
    let cache = caches.iter().max_by_key(|cache| number(cache, "active_objects")).expect("a cache");
    let active = number(cache, "active_objects");
    assert!((200..=256).contains(&number(cache, "user_bytes")), "{cache}");
    // The figures lag by some sheaves.
    assert!(active.abs_diff(OBJECTS) < OBJECTS / 10, "{cache}");
    let name = cache["name"].as_str().expect("a name");
    let (code, out, err) = outcome(&mut sandbox.uslab(&["top", &pid, "--once", "-i", "0.1"]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains(&format!("\n{name} ")) && out.contains("= live "), "{out}");
}
