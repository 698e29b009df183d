//! `git gc --aggressive` of a repository that is generated: text files that change a little from
//! commit to commit, so that deltas are searched for. One thread, because the order in which
//! several find deltas changes what they allocate.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;
use std::fmt::Write;

pub const GC: Workload = Workload { name: "git-gc", title, run };

/// Commits, and files that they change.
fn history(scale: Scale) -> (u32, u32) {
    scale.pick((3, 3), (200, 60), (800, 120))
}

/// Files that a commit changes, and their lines.
const CHANGED: u32 = 8;
const LINES: u32 = 80;

fn title(scale: Scale) -> String {
    let (commits, files) = history(scale);
    format!("git gc --aggressive: {commits} commits over {files} files")
}

fn run(place: &Place) -> Result<Usage, String> {
    let (commits, files) = history(place.scale);
    place.write("import", &import(commits, files))?;
    let mut init = place.plain("git", "git")?;
    init.args(["init", "--quiet", "repository"]);
    process::run(init)?;
    // Its input has no other way in.
    let mut fill = place.plain("sh", "dash")?;
    fill.args(["-c", "git -C repository fast-import --quiet < import"]);
    process::run(fill)?;
    let mut gc = place.measured("git", "git")?;
    gc.args(["-C", "repository", "-c", "pack.threads=1", "-c", "gc.aggressiveWindow=50"]);
    gc.args(["gc", "--quiet", "--aggressive", "--prune=now"]);
    process::run_watched(gc)
}

/// The history as git's fast-import reads it.
fn import(commits: u32, files: u32) -> String {
    let mut text = String::new();
    for commit in 0..commits {
        let _ = write!(
            text,
            "commit refs/heads/main\ncommitter A <a@example.org> {} +0000\ndata 2\nx\n",
            1_700_000_000 + commit * 60
        );
        for change in 0..CHANGED {
            let file = (commit * 7 + change * 13) % files;
            let lines = content(commit, file);
            let _ = write!(text, "M 100644 inline d{}/f{file}\ndata {}\n{lines}\n", file % 10, lines.len());
        }
    }
    text
}

/// A file after a commit: some of its lines differ from those of the commit before.
fn content(commit: u32, file: u32) -> String {
    let mut text = String::new();
    for line in 0..LINES {
        let changes = if line % 17 == commit % 17 { commit } else { 0 };
        let number = (u64::from(line) * 2_654_435_761 + u64::from(file * 97 + changes)) * 40_503 % 1_000_003;
        let _ = writeln!(text, "line {line} of file {file}: {number}");
    }
    text
}
