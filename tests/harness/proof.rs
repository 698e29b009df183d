//! The proof that a program ran on the allocator, in the requested mode.
//!
//! If a library cannot be preloaded, the dynamic loader only warns, and every program would then
//! pass. So the harness checks three things:
//!
//! 1. the loader's warnings in standard error,
//! 2. the allocator's own reports there (a double free ends only the process that made it, perhaps
//!    a child whose end its parent ignores),
//! 3. the snapshot that the program leaves in `USLAB_SNAPSHOT`, which contains the mode, and those
//!    of its descendants that did not remove theirs. The layout is the library's own file, included
//!    by path as in the command.

use std::path::Path;

use super::{Mode, artifacts};

#[allow(dead_code)]
#[path = "../../crates/uslab/src/counters/layout.rs"]
mod layout;

/// Offsets of `layout::Header`'s first fields, to read a file without a mapping.
const MODE_AT: usize = std::mem::offset_of!(layout::Header, mode);
const REASON_AT: usize = std::mem::offset_of!(layout::Header, mode_reason);
const VERSION_AT: usize = std::mem::offset_of!(layout::Header, version);

/// `Err` describes the missing proof.
pub(super) fn check(mode: Mode, stderr: &str, snapshots: &Path, pid: u32) -> Result<(), String> {
    if mode == Mode::Plain {
        return Ok(());
    }
    if let Some(line) = stderr.lines().find(|l| l.contains("cannot be preloaded")) {
        return Err(format!("the allocator was not loaded: {line}"));
    }
    if let Some(line) = stderr.lines().find(|l| complaint(l)) {
        return Err(format!("the allocator complained: {line}"));
    }
    if artifacts().control { Ok(()) } else { modes(mode, snapshots, pid) }
}

/// Whether a line is a report of the allocator about an error.
fn complaint(line: &str) -> bool {
    let bad = ["double free", "foreign", "invalid free", "corrupt", "panicked", "not allocated"];
    line.contains("uslab") && bad.iter().any(|b| line.contains(b))
}

/// Checks that the process `pid` left a snapshot, and that every snapshot contains the requested
/// mode.
fn modes(mode: Mode, snapshots: &Path, pid: u32) -> Result<(), String> {
    let wanted = if mode == Mode::Rseq { layout::MODE_RSEQ } else { layout::MODE_LOCKED };
    let mut seen = false;
    for entry in std::fs::read_dir(snapshots).map_err(|e| e.to_string())?.flatten() {
        let path = entry.path();
        // A snapshot that vanishes, or does not have its full size yet, belongs to a process that
        // still runs or was just killed.
        let Ok(header) = read_header(&path) else { continue };
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let magic = u64::from_ne_bytes(header[..8].try_into().expect("eight bytes"));
        // A process that was killed while it created its file leaves the file without the magic, by
        // design.
        if magic != layout::MAGIC {
            continue;
        }
        if word(VERSION_AT) != layout::VERSION {
            return Err(format!("{} has layout version {}", path.display(), word(VERSION_AT)));
        }
        if word(MODE_AT) != wanted {
            let (mode, reason) = (word(MODE_AT), word(REASON_AT));
            return Err(format!("mode {mode} (reason {reason}), not {wanted}, says {}", path.display()));
        }
        seen |= entry.file_name() == *pid.to_string();
    }
    if seen { Ok(()) } else { Err(format!("process {pid} left no snapshot: was the allocator there?")) }
}

/// The process `pid` and its live descendants, itself first.
pub fn family(pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            family.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
        next += 1;
    }
    family
}

/// Checks that the library is mapped into `pid` and all its descendants, at least `processes_min`
/// in all. A process that ends meanwhile does not count.
///
/// # Panics
/// If the library is not mapped into one of them, or there are too few.
pub fn expect_mapped(mode: Mode, pid: u32, processes_min: usize) {
    if mode == Mode::Plain {
        return;
    }
    let name = artifacts().library.file_name().expect("a file name").to_string_lossy().into_owned();
    let mut seen = 0;
    for member in family(pid) {
        let maps = || std::fs::read_to_string(format!("/proc/{member}/maps")).unwrap_or_default();
        // Of a process that ends meanwhile only a part may be read, and nothing the next time.
        let maps = [maps(), maps()];
        let command = std::fs::read_to_string(format!("/proc/{member}/comm")).unwrap_or_default();
        let is_mapped = maps.iter().any(|maps| maps.contains(&name));
        assert!(is_mapped || maps[1].is_empty(), "{name} is not in {member} ({})", command.trim());
        seen += usize::from(!maps[1].is_empty());
    }
    assert!(seen >= processes_min, "only {seen} processes live below {pid}, not {processes_min}");
}

fn read_header(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut header = vec![0; size_of::<layout::Header>()];
    std::fs::File::open(path)?.read_exact(&mut header)?;
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_the_loader_and_reports_of_ours_are_failures() {
        let nowhere = Path::new("/nonexistent");
        let check = |stderr| check(Mode::Rseq, stderr, nowhere, 1).expect_err("a failure");
        let warning =
            "ERROR: ld.so: object 'x.so' from LD_PRELOAD cannot be preloaded (cannot open): ignored.\n";
        assert!(check(warning).starts_with("the allocator was not loaded: ERROR"));
        let report = "fine\nuslab: double free of 0x7f0000001000\n";
        assert!(check(report).starts_with("the allocator complained: uslab: double free"));
        assert_eq!(super::check(Mode::Plain, report, nowhere, 1), Ok(()));
    }

    #[test]
    fn a_snapshot_of_the_process_in_the_right_mode_is_wanted() {
        let scratch = crate::harness::Scratch::new("proof");
        let mut file = vec![0u8; 4096];
        file[..8].copy_from_slice(&layout::MAGIC.to_ne_bytes());
        file[VERSION_AT..VERSION_AT + 4].copy_from_slice(&layout::VERSION.to_ne_bytes());
        file[MODE_AT..MODE_AT + 4].copy_from_slice(&layout::MODE_LOCKED.to_ne_bytes());
        let empty = modes(Mode::Locked, scratch.path(), 17).expect_err("no snapshot exists yet");
        assert!(empty.contains("17 left no snapshot"), "{empty}");
        scratch.write("17", &file);
        assert_eq!(modes(Mode::Locked, scratch.path(), 17), Ok(()));
        assert!(
            modes(Mode::Locked, scratch.path(), 18).is_err(),
            "another process's snapshot proves nothing"
        );
        let other = modes(Mode::Rseq, scratch.path(), 17).expect_err("the wrong mode");
        assert!(other.starts_with("mode 2 (reason 0), not 1"), "{other}");
    }
}
