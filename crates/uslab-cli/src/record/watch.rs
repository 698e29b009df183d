//! Takes the samples of a record: the snapshot, the resident bytes, and stalls for memory.
//!
//! A sample costs a handful of reads. It leaves smaps alone, whose walk of page tables costs the
//! process its mapping lock. A process that executed another program has another auxiliary vector.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::format::{CacheFigures, Definition, Frame, ProcessFigures};
use crate::accounts::Division;
use crate::failure::{FAILED, Failure};
use crate::find::{find, find_copy};
use crate::process::{self, auxiliary_vector, kernel_text};
use crate::residence;
use crate::snapshot::{Cache, Snapshot};

/// Times that a torn snapshot is read again at once.
const MAX_RETRIES: usize = 3;
/// Time after an exec for which the new program may stay without a snapshot.
const MAX_SILENCE: Duration = Duration::from_secs(5);

/// A process that is recorded.
pub struct Watch {
    pid: i32,
    /// Which of the library's copies is recorded.
    copy: u32,
    began: Instant,
    /// When the process published what is recorded.
    start_ns: u64,
    auxiliary: Option<Vec<u8>>,
    silent_since: Option<Instant>,
    forks: Forks,
    last: Frame,
    pressure: Option<PathBuf>,
}

/// Whether the program has forked, which the record tells once.
enum Forks {
    /// The children at the last sample. One that is still there at the next one was not forked to
    /// execute a program.
    Seen(Vec<i32>),
    Told,
}

impl Forks {
    /// The event, if there is one.
    fn sample(&mut self, pid: i32) -> Option<String> {
        let Forks::Seen(before) = self else { return None };
        let now = process::fork_children(pid);
        let lasting: Vec<i32> = now.iter().copied().filter(|child| before.contains(child)).collect();
        if lasting.is_empty() {
            *before = now;
            return None;
        }
        *self = Forks::Told;
        Some(format!(
            "process {pid} has forked: its children are not recorded: {}",
            process::first_of(&lasting)
        ))
    }
}

/// What a sample found.
pub enum Seen {
    /// The figures.
    Figures(Frame),
    /// None at the moment.
    Nothing,
    /// There will be none any more; the frame has the last figures, and the reason as its event.
    End(Frame),
}

impl Watch {
    /// Finds the process.
    pub fn start(pid: i32, copy: Option<u32>) -> Result<(Watch, Snapshot), Failure> {
        let auxiliary = auxiliary_vector(pid);
        let snapshot = find_copy(pid, copy)?;
        // Only the walk of its mappings shows whether the process is still the one that wrote this.
        if residence::read(&snapshot).is_some_and(|residence| residence.is_arena_gone) {
            return Err(Failure::new(FAILED, silent(pid)));
        }
        let watch = Watch {
            pid,
            copy: snapshot.copy,
            began: Instant::now(),
            start_ns: snapshot.start_ns,
            auxiliary,
            silent_since: None,
            forks: Forks::Seen(Vec::new()),
            last: Frame::default(),
            pressure: pressure_file(pid),
        };
        Ok((watch, snapshot))
    }

    /// Takes a sample.
    pub fn sample(&mut self) -> Seen {
        let pid = self.pid;
        if !process::runs(pid) {
            return self.end(format!("process {pid} has ended"));
        }
        let now = auxiliary_vector(pid);
        let is_other = now.is_some() && self.auxiliary.is_some() && now != self.auxiliary;
        let snapshot = match whole(pid, self.copy) {
            // The file that the program before wrote.
            Ok(snapshot) if is_other && snapshot.start_ns == self.start_ns => return self.silent(),
            Ok(snapshot) => snapshot,
            Err(_) if is_other => return self.silent(),
            Err(failure) if process::runs(pid) => return self.end(failure.message),
            Err(_) => return self.end(format!("process {pid} has ended")),
        };
        let is_new = snapshot.start_ns != self.start_ns;
        let Some(rss_bytes) = resident(&snapshot) else {
            return self.end(format!("process {pid} has ended"));
        };
        (self.start_ns, self.auxiliary, self.silent_since) = (snapshot.start_ns, now, None);
        let stall_us = self.pressure.as_ref().and_then(stall_us).unwrap_or(0);
        let event = if is_new {
            self.forks = Forks::Seen(Vec::new());
            let command = process::command_name(pid).unwrap_or_else(|| "another program".to_owned());
            Some(format!("process {pid} became {command}: its figures begin anew"))
        } else {
            self.forks.sample(pid)
        };
        self.last = frame(&snapshot, rss_bytes, stall_us, self.at_ms(), event);
        Seen::Figures(self.last.clone())
    }

    fn at_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn silent(&mut self) -> Seen {
        if self.silent_since.get_or_insert_with(Instant::now).elapsed() < MAX_SILENCE {
            return Seen::Nothing;
        }
        self.end(silent(self.pid))
    }

    fn end(&self, reason: String) -> Seen {
        Seen::End(Frame { at_ms: self.at_ms(), event: Some(reason), ..self.last.clone() })
    }
}

fn silent(pid: i32) -> String {
    let command = process::command_name(pid).unwrap_or_else(|| "another program".to_owned());
    format!("process {pid} now runs {command}, which publishes nothing")
}

/// The snapshot, read again where the counters of a cache contradict each other.
fn whole(pid: i32, copy: u32) -> Result<Snapshot, Failure> {
    // After an exec there may be fewer copies.
    let mut snapshot = find_copy(pid, Some(copy)).or_else(|_| find(pid))?;
    for _ in 0..MAX_RETRIES {
        if !snapshot.caches.iter().any(Cache::is_torn) {
            break;
        }
        snapshot = find_copy(pid, Some(snapshot.copy))?;
    }
    Ok(snapshot)
}

fn frame(snapshot: &Snapshot, rss_bytes: u64, stall_us: u64, at_ms: u64, event: Option<String>) -> Frame {
    let process = ProcessFigures {
        rss_bytes,
        used_bytes: snapshot.used_bytes,
        dirty_bytes: snapshot.dirty_bytes,
        committed_bytes: snapshot.committed_bytes,
        metadata_bytes: snapshot.metadata_bytes,
        large_bytes: snapshot.large_bytes,
        large_objects: snapshot.large_objects,
        large_allocs: snapshot.large_allocs,
        purged_bytes: snapshot.purged_bytes,
        stall_us,
        passes: snapshot.passes.values().copied().fold(0, u64::saturating_add),
        passes_bytes: snapshot.passes_bytes,
        shrinker_entries: snapshot
            .shrinkers
            .iter()
            .map(|shrinker| shrinker.freed)
            .fold(0, u64::saturating_add),
    };
    let used = snapshot.live_caches().filter(|cache| cache.was_used());
    let caches: BTreeMap<_, _> = used.map(|cache| (cache.id, figures(cache))).collect();
    Frame { at_ms, process, caches, event }
}

fn figures(cache: &Cache) -> (Definition, CacheFigures) {
    let division = Division::of(cache);
    let figures = CacheFigures {
        slab_bytes: cache.slab_bytes(),
        live_bytes: division.live,
        cached_bytes: division.cached,
        partial_bytes: division.partial,
        empty_bytes: division.empty,
        live_objects: cache.active_objects(),
        slow: cache.alloc_slow.saturating_add(cache.free_slow),
        refills: cache.refills,
        flushes: cache.flushes,
        drains: cache.drains,
        grows: cache.grows,
        shrinks: cache.shrinks,
        failures: cache.failures,
    };
    (Definition { name: cache.name.clone(), user_bytes: cache.user_bytes }, figures)
}

/// The resident bytes of the snapshot's process.
fn resident(snapshot: &Snapshot) -> Option<u64> {
    let statm = kernel_text(format!("{}/statm", process::directory(snapshot.pid))).ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(snapshot.page_bytes.into()))
}

/// The stall accounting of the process's cgroup, or of the system.
fn pressure_file(pid: i32) -> Option<PathBuf> {
    let groups = kernel_text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = own.map(|group| PathBuf::from("/sys/fs/cgroup").join(group).join("memory.pressure"));
    own.into_iter().chain([PathBuf::from("/proc/pressure/memory")]).find(|file| stall_us(file).is_some())
}

/// Microseconds of stalls: `some avg10=0.00 … total=N`.
fn stall_us(file: &PathBuf) -> Option<u64> {
    let text = kernel_text(file).ok()?;
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.rsplit_once("total=")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::Image;

    #[test]
    fn a_frame_has_the_caches_that_were_used() {
        let snapshot = Image::sample().parse().expect("whole");
        let frame = frame(&snapshot, 1 << 20, 5, 0, None);
        let ids: Vec<u32> = frame.caches.keys().copied().collect();
        assert_eq!(ids, [0, 1, 4]);
        let (definition, figures) = &frame.caches[&0];
        assert_eq!((definition.name.as_str(), definition.user_bytes), ("malloc-64", 64));
        assert_eq!((figures.live_objects, figures.slab_bytes), (72_900, 1200 * 4096));
        assert_eq!((frame.process.used_bytes, frame.process.stall_us), (snapshot.used_bytes, 5));
        assert_eq!((frame.process.passes, frame.process.passes_bytes), (2, 9 << 20));
        assert_eq!(frame.process.shrinker_entries, 33);
    }
}
