//! The resident memory of a program over its run: a thread reads that of the process and of its
//! descendants every 20 ms, and the mean is weighted by time.
//!
//! ```text
//!   Watch::start(pid) ─ every 20 ms ─ /proc/PID/statm of the tree ─ Mean::add(s, bytes)
//!   Watch::mean_bytes() ── ends the thread
//! ```
//!
//! A peak says what a machine must have for a moment, the mean says what a program occupies for as
//! long as it runs. Pages that processes share count in each of them, the same for every allocator.
//! The counter of statm is behind by at most some tens of pages a thread; the walk of all page
//! tables that smaps_rollup makes would disturb the program instead.
//!
//! Must never: outlive the run; take more than a hundredth of a CPU.

use crate::machine::page_size_bytes;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the watching thread reads.
const EVERY: Duration = Duration::from_millis(20);

/// A run shorter than this may end before the watching thread, which may be late, reads it once.
pub const SHORT: Duration = EVERY.saturating_mul(5);

/// The most processes of a tree that are read; a build has some tens.
const MAX_PROCESSES: usize = 256;

/// A thread that reads the memory of a process and its descendants.
pub struct Watch {
    end: Sender<()>,
    thread: JoinHandle<Mean>,
}

impl Watch {
    pub fn start(pid: u32) -> Self {
        let (end, ended) = channel();
        let thread = thread::spawn(move || {
            let (mut mean, mut last) = (Mean::default(), Instant::now());
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let now = Instant::now();
                mean.add((now - last).as_secs_f64(), tree_bytes(pid));
                last = now;
            }
            mean
        });
        Self { end, thread }
    }

    /// The mean since the start; `None` for a run too short to be read once.
    pub fn mean_bytes(self) -> Option<f64> {
        // The thread waits for this alone, and ends at once.
        let _ = self.end.send(());
        self.thread.join().ok()?.bytes()
    }
}

/// A mean weighted by time.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    seconds: f64,
    byte_seconds: f64,
}

impl Mean {
    /// So many bytes for so long. A process that is gone has none, and does not count.
    fn add(&mut self, seconds: f64, bytes: f64) {
        if bytes > 0.0 {
            self.seconds += seconds;
            self.byte_seconds += seconds * bytes;
        }
    }

    fn bytes(self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.byte_seconds / self.seconds)
    }
}

/// What the process and its descendants have resident now.
fn tree_bytes(root: u32) -> f64 {
    tree(root).into_iter().map(resident_bytes).sum()
}

fn resident_bytes(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: f64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    pages * page_size_bytes() as f64
}

/// The process and its descendants, as far as the kernel tells them.
fn tree(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let mut next = 0;
    while next < all.len() && all.len() < MAX_PROCESSES {
        all.extend(children(all[next]));
        next += 1;
    }
    all
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    threads
        .flat_map(|thread| of(thread).split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_mean_is_weighted_by_time_and_leaves_out_what_is_gone() {
        let mut mean = Mean::default();
        assert_eq!(mean.bytes(), None);
        for (seconds, bytes) in [(1.0, 100.0), (3.0, 200.0), (5.0, 0.0)] {
            mean.add(seconds, bytes);
        }
        assert_eq!(mean.bytes(), Some(175.0));
    }

    #[test]
    fn a_tree_has_the_children_of_children() {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", "sh -c 'sleep 1000 & wait' & wait"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        while tree(shell.id()).len() < 3 {
            thread::yield_now();
        }
        let all = tree(shell.id());
        assert!(tree_bytes(shell.id()) > resident_bytes(shell.id()));
        for pid in &all[1..] {
            // SAFETY: a descendant of this test's own child, which has not been reaped.
            unsafe { libc::kill(*pid as libc::pid_t, libc::SIGKILL) };
        }
        shell.wait().unwrap();
        assert_eq!(tree_bytes(shell.id()), 0.0);
    }

    #[test]
    fn a_watch_reads_this_process() {
        let watch = Watch::start(std::process::id());
        thread::sleep(4 * EVERY);
        assert!(watch.mean_bytes().is_some_and(|bytes| bytes > 0.0));
    }
}
