//! The proof that a program really ran on the allocator, in the mode asked for.
//!
//! A library that cannot be preloaded is no error to the dynamic loader: it warns and goes on without, and every
//! program then passes. Three things are looked at, therefore:
//!
//! 1. the loader's warnings in standard error,
//! 2. the allocator's own reports there (a double free ends only the process that did it, perhaps a child whose
//!    end its parent takes for normal),
//! 3. the snapshots that each process under the allocator leaves in `USLAB_SNAPSHOT`: at least one, of the right
//!    mode. Their layout is the library's own file, compiled in by path as the command does.

use std::path::Path;

use super::{Mode, artifacts};

#[allow(dead_code)]
#[path = "../../crates/uslab/src/stats/layout.rs"]
mod layout;

/// Offsets of `layout::Header`'s first fields, so that a file need not be mapped to be read.
const MODE_AT: usize = std::mem::offset_of!(layout::Header, mode);
const REASON_AT: usize = std::mem::offset_of!(layout::Header, mode_reason);
const VERSION_AT: usize = std::mem::offset_of!(layout::Header, version);

/// `Err` says what is missing.
pub(super) fn check(mode: Mode, stderr: &str, snapshots: &Path) -> Result<(), String> {
    if mode == Mode::Plain {
        return Ok(());
    }
    if let Some(line) = stderr.lines().find(|l| l.contains("cannot be preloaded")) {
        return Err(format!("the allocator was not loaded: {line}"));
    }
    if let Some(line) = stderr.lines().find(|l| complaint(l)) {
        return Err(format!("the allocator complained: {line}"));
    }
    if artifacts().control { Ok(()) } else { modes(mode, snapshots) }
}

/// A line that the allocator writes when it finds something wrong.
fn complaint(line: &str) -> bool {
    let bad = ["double free", "foreign", "invalid free", "corrupt", "panicked", "not allocated"];
    line.contains("uslab") && bad.iter().any(|b| line.contains(b))
}

/// Every snapshot names the mode asked for, and there is one.
fn modes(mode: Mode, snapshots: &Path) -> Result<(), String> {
    let wanted = if mode == Mode::Rseq { layout::MODE_RSEQ } else { layout::MODE_LOCKED };
    let mut seen = 0;
    for entry in std::fs::read_dir(snapshots).map_err(|e| e.to_string())?.flatten() {
        let header = read_header(&entry.path()).map_err(|e| format!("{}: {e}", entry.path().display()))?;
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let magic = u64::from_ne_bytes(header[..8].try_into().expect("eight bytes"));
        // A process that was killed while it made the file leaves it without the magic, by design.
        if magic != layout::MAGIC {
            continue;
        }
        if word(VERSION_AT) != layout::VERSION {
            return Err(format!("a snapshot has layout version {}", word(VERSION_AT)));
        }
        if word(MODE_AT) != wanted {
            let (mode, reason) = (word(MODE_AT), word(REASON_AT));
            return Err(format!(
                "a process ran in mode {mode} (reason {reason}) and not in {wanted}, as its snapshot {} says",
                entry.path().display()
            ));
        }
        seen += 1;
    }
    if seen == 0 {
        return Err(format!(
            "no process left a snapshot in {}: was the allocator there?",
            snapshots.display()
        ));
    }
    Ok(())
}

fn read_header(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut header = vec![0; size_of::<layout::Header>()];
    std::fs::File::open(path)?.read_exact(&mut header)?;
    Ok(header)
}
