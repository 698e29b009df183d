//! `uslab record` and `uslab report` of a process on the real library: the page shows the memory
//! that the process is known to hold, and the record ends with the process.

use super::seen::Seen;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use uslab_tests::harness::{Mode, Scratch, artifacts};

both_modes! {
    record => known_memory_is_on_the_page,
}

fn known_memory_is_on_the_page(mode: Mode) {
    let scratch = Scratch::new("recorded");
    let (Some(seen), Some(command)) = (Seen::start(&scratch, mode, &[]), &artifacts().command) else {
        return;
    };
    let record = scratch.join("seen.record");
    let path = record.to_str().expect("UTF-8");
    let pid = seen.pid();
    let mut recording = Command::new(command);
    recording.args(["record", &pid, "--every", "100ms", "-o", path]).env("USLAB_SNAPSHOT", seen.snapshots());
    let recording = recording.stderr(Stdio::piped()).spawn().expect("started");
    // The file grows with each sample.
    let bytes = || fs::metadata(&record).map_or(0, |file| file.len());
    let start = Instant::now();
    for _ in 0..3 {
        let before = bytes();
        while bytes() <= before {
            assert!(start.elapsed() < Duration::from_secs(60), "in 60 s: samples");
            sleep(Duration::from_millis(10));
        }
    }
    drop(seen);
    let ended = recording.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.contains(&format!("process {pid} has ended")), "{said}");

    let report = Command::new(command).args(["report", path]).output().expect("started");
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let page = fs::read_to_string(scratch.join("seen.record.html")).expect("a page");
    let name = if mode == Mode::Locked { "Mode: locked" } else { "Mode: rseq" };
    // 64 blocks of 2 MiB, and 150 000 objects of 64 bytes in slabs of 200 000.
    for part in [name, "large objects: 128 MiB at the end", "malloc-64: 12.", "has ended"] {
        assert!(page.contains(part), "{part} is missing:\n{page}");
    }
    assert!(!page.contains("NaN"));

    let was = fs::read(&record).expect("a record");
    let refused = Command::new(command).args(["report", path, "-o", path]).output().expect("started");
    assert!(!refused.status.success() && fs::read(&record).expect("a record") == was);
}
