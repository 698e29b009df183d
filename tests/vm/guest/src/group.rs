//! A control group of version 2: its limits, and the memory use of a program in it, measured from
//! outside.
//!
//! The files are documented in the kernel's `admin-guide/cgroup-v2`. Only the first process uses
//! this module. It must never be charged to the group that it watches, or the group's limit would
//! delay the measurement.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The mount point of the hierarchy.
pub const ROOT: &str = "/sys/fs/cgroup";

/// One group.
pub struct Group {
    dir: String,
}

impl Group {
    /// Creates the group `name` and writes its limits, pairs of file and text.
    pub fn new(name: &str, limits: &[(String, String)]) -> Result<Group, Error> {
        let group = Group { dir: format!("{ROOT}/{name}") };
        std::fs::create_dir(&group.dir)?;
        for (file, text) in limits {
            std::fs::write(group.file(file), text)
                .map_err(|error| Error::new(error.kind(), format!("{file}={text}: {error}")))?;
        }
        Ok(group)
    }

    /// The path of one of its files.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    /// `memory.events` and `memory.peak` as members of a JSON object.
    pub fn events(&self) -> Result<String, Error> {
        let events = std::fs::read_to_string(self.file("memory.events"))?;
        let members = events
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, count)| format!(r#""{name}":{count}"#));
        let peak = std::fs::read_to_string(self.file("memory.peak"))?;
        Ok(members.chain([format!(r#""memory_peak":{}"#, peak.trim())]).collect::<Vec<_>>().join(","))
    }
}

/// The program's memory use over time, sampled.
pub struct Watch {
    file: File,
    high: u64,
    current: u64,
    peak: u64,
    above_since: Option<Instant>,
    breaches: u64,
    longest: Duration,
}

impl Watch {
    /// Begins to watch.
    pub fn of(group: &Group) -> Result<Watch, Error> {
        let high = std::fs::read_to_string(group.file("memory.high"))?;
        let file = File::open(group.file("memory.current"))?;
        // "max" is no limit.
        let high = high.trim().parse().unwrap_or(u64::MAX);
        let mut watch = Watch {
            file,
            high,
            current: 0,
            peak: 0,
            above_since: None,
            breaches: 0,
            longest: Duration::ZERO,
        };
        if watch.look().is_none() {
            return Err(Error::new(ErrorKind::InvalidData, "memory.current is no number"));
        }
        Ok(watch)
    }

    /// Takes one sample.
    pub fn look(&mut self) -> Option<()> {
        let mut text = [0; 32];
        let bytes = self.file.read_at(&mut text, 0).ok()?;
        let current: u64 = std::str::from_utf8(&text[..bytes]).ok()?.trim().parse().ok()?;
        self.see(current, Instant::now());
        Some(())
    }

    fn see(&mut self, current: u64, now: Instant) {
        self.current = current;
        self.peak = self.peak.max(current);
        if current <= self.high {
            self.above_since = None;
            return;
        }
        if self.above_since.is_none() {
            self.breaches += 1;
        }
        let since = *self.above_since.get_or_insert(now);
        self.longest = self.longest.max(now - since);
    }

    /// The current figures, for a person.
    pub fn line(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (now, peak) = (mib(self.current), mib(self.peak));
        format!("{now:.1} MiB, {peak:.1} at most, above memory.high {} times", self.breaches)
    }

    /// The result as members of a JSON object: the highest use, the number of times it rose above
    /// `memory.high`, and the longest time it stayed there.
    pub fn json(&self) -> String {
        let longest_ms = self.longest.as_millis();
        format!(r#""peak":{},"breaches":{},"longest_above_ms":{longest_ms}"#, self.peak, self.breaches)
    }
}
