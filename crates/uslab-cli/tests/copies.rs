//! Processes that contain the library several times: each copy has a file of its own.

mod support;

use std::fs;

use serde_json::Value;
use support::{Sandbox, outcome};

/// Offset of `Header::used_bytes` in a snapshot.
const USED_BYTES: usize = 72;

#[test]
fn the_copy_with_the_most_memory_is_shown_unless_one_is_chosen() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let pid = running.pid();
    let mut bytes = fs::read(sandbox.snapshots.join(&pid)).expect("a snapshot");
    bytes[USED_BYTES..][..8].copy_from_slice(&(7_u64 << 20).to_ne_bytes());
    fs::write(sandbox.snapshots.join(format!("{pid}.2")), &bytes).expect("written");
    // Left by an earlier process with the id: it began before this one did.
    bytes[48..56].copy_from_slice(&1_u64.to_ne_bytes());
    fs::write(sandbox.snapshots.join(format!("{pid}.3")), &bytes).expect("written");

    let figures = |arguments: &[&str]| {
        let (code, out, err) = outcome(&mut sandbox.uslab(&[&["info", "--json", &pid], arguments].concat()));
        assert_eq!(code, 0, "{err}");
        let value: Value = serde_json::from_str(&out).expect("JSON");
        ([&value["used_bytes"], &value["copy"], &value["copies"]].map(|n| n.as_u64()), err)
    };
    let (shown, err) = figures(&[]);
    assert_eq!(shown, [Some(7 << 20), Some(2), Some(2)]);
    assert!(err.contains("contains 2 copies of the library; this is copy 2"), "{err}");
    assert_eq!(figures(&["--copy", "1"]), ([Some(5 << 20), None, Some(2)], String::new()));

    let (code, _, err) = outcome(&mut sandbox.uslab(&["info", &pid, "--copy", "3"]));
    assert!(code == 1 && err.contains("contains 2 copies of the library: none is number 3"), "{err}");
    let (_, out, _) = outcome(&mut sandbox.uslab(&["top", &pid, "--once", "-i", "0.05"]));
    assert!(out.contains("copy 2 of 2"), "{out}");
    let (_, out, _) = outcome(&mut sandbox.uslab(&["info"]));
    assert_eq!(out.lines().filter(|line| line.trim_start().starts_with(&pid)).count(), 1, "{out}");
    let (_, out, _) = outcome(&mut sandbox.uslab(&["metrics", &pid]));
    for (copy, bytes) in [(1, 5 << 20), (2, 7 << 20)] {
        let line = format!("uslab_active_bytes{{command=\"sleep\",pid=\"{pid}\",copy=\"{copy}\"}} {bytes}\n");
        assert!(out.contains(&line), "{line}{out}");
    }
}
