//! The heap profile in pprof's format, as the tool that others use reads it: `go tool pprof`.

use super::profile::{SITE_BYTES, program};
use super::*;
use std::collections::HashMap;

/// The bytes of each function of a profile, by `go tool pprof -top`: what the function allocated
/// itself, without the functions that it called.
fn top(scratch: &Scratch, profile: &Path, values: &str) -> HashMap<String, f64> {
    let shown = Program::new(tool("go", "golang-go"))
        // Names come from the file alone, and every line is printed.
        .args(["tool", "pprof", "-top", "-symbolize=none", "-unit=B", "-nodefraction=0", "-nodecount=1000"])
        .arg(format!("-sample_index={values}"))
        .arg(profile)
        // Go from 1.25 on builds this tool at its first call.
        .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"))
        .env("GOTOOLCHAIN", "local")
        .env("PPROF_TMPDIR", scratch.path())
        .limit_s(300)
        .run_clean(scratch, Mode::Plain);
    let text = shown.stdout();
    shown.expect(text.contains(&format!("Type: {values}\n")), "the values that were asked for");
    let (_, rows) = text.split_once("flat%").expect("a table");
    let row = |row: &str| {
        let words: Vec<&str> = row.split_whitespace().collect();
        let bytes = words[0].trim_end_matches('B').parse().expect("bytes");
        (words[5..].join(" "), bytes)
    };
    rows.lines().skip(1).map(row).collect()
}

/// Each of the ten sites has its name and its bytes, within 5 %.
fn go_shows_the_ten_sites(mode: Mode) {
    let Some(uslab) = &artifacts().command else { return };
    let scratch = Scratch::new("pprof");
    let running = Program::new(program()).arg("wait").env("USLAB_PROFILE", "1024").start(&scratch, mode);
    let running =
        running.wait_until("ten sites", |running| running.stdout().split_whitespace().count() == 10);
    let file = scratch.join("heap.pb.gz");
    let written = Program::new(uslab)
        .args(["profile", &running.pid().to_string(), "-o"])
        .arg(&file)
        .env("USLAB_SNAPSHOT", running.snapshots())
        .run_clean(&scratch, Mode::Plain);
    written.expect(written.stderr().is_empty() && written.stdout().is_empty(), "nothing is reported");
    let [allocated, live] = ["alloc_space", "inuse_space"].map(|values| top(&scratch, &file, values));
    for site in 0..10 {
        let of = |found: &HashMap<String, f64>| found.get(&format!("site_{site}")).copied().unwrap_or(0.0);
        let is_close = |bytes: f64| (bytes / SITE_BYTES - 1.0).abs() < 0.05;
        assert!(is_close(of(&allocated)), "site {site}: {allocated:?}");
        // Those with odd numbers keep what they get.
        let is_right = if site % 2 == 1 { is_close(of(&live)) } else { of(&live) < 0.01 * SITE_BYTES };
        assert!(is_right, "site {site}: {live:?}");
    }
    let is_ours =
        |name: &&String| name.contains("uslab") || *name == "malloc" || name.contains("operator new");
    assert_eq!(allocated.keys().find(is_ours), None, "the allocator's own frames are dropped");
}

both_modes! {
    top => go_shows_the_ten_sites,
}
