//! A proc file system and a tree of control groups made of plain files, for tests of pressure
//! sources.
//!
//! The process is in `/outer/own` of a hierarchy mounted at `cgroup`. Plain files never signal an
//! event; the library only reads them. The directory is removed on drop.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use uslab::internal::sources::{Environment, Reason, Sources};
use uslab::reclaim::PressureChoice;

/// The trigger that the library writes to a PSI file.
pub const TRIGGER: &[u8] = b"some 150000 2000000\0";

/// A variable's value, or why there is none.
pub type Value<'a> = Result<&'a [u8], Reason>;
pub const UNSET: Value = Err(Reason::NotSet);

pub struct Fake {
    root: PathBuf,
}

impl Fake {
    /// A tree in which no control group has files and there is no PSI.
    pub fn new() -> Fake {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("uslab-sources-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let fake = Fake { root: std::env::temp_dir().join(name) };
        for directory in ["proc/self", "proc/pressure", "cgroup/outer/own"] {
            fs::create_dir_all(fake.root.join(directory)).unwrap();
        }
        fake.mount(&fake.path("cgroup"));
        fake.stand_in("/outer/own");
        fake
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn mount(&self, point: &Path) {
        let line =
            "23 1 8:1 / / rw shared:1 - ext4 /dev/root rw\n31 23 0:30 / /v1 rw - cgroup cgroup rw,memory\n";
        let line =
            format!("{line}42 23 0:38 / {} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n", point.display());
        self.put("proc/self/mountinfo", line);
    }

    pub fn stand_in(&self, way: &str) {
        self.put("proc/self/cgroup", format!("4:memory:/elsewhere\n0::{way}\n"));
    }

    /// Writes a file through a temporary one, so that no reader sees half of it.
    pub fn put(&self, name: &str, contents: impl AsRef<[u8]>) {
        let whole = self.path("whole");
        fs::write(&whole, contents).unwrap();
        fs::rename(whole, self.path(name)).unwrap();
    }

    /// Writes a file of a control group; `level` 0 is the process's own group.
    pub fn set(&self, level: usize, name: &str, contents: impl ToString) {
        let directory = ["cgroup/outer/own", "cgroup/outer", "cgroup"][level];
        self.put(&format!("{directory}/memory.{name}"), contents.to_string() + "\n");
    }

    /// Adds PSI files for the own group, the outer one, and the system.
    pub fn with_psi(self) -> Fake {
        for name in
            ["cgroup/outer/own/memory.pressure", "cgroup/outer/memory.pressure", "proc/pressure/memory"]
        {
            self.put(name, "");
        }
        self
    }

    /// Sources on this tree, without environment variables.
    pub fn detect(&self, choice: PressureChoice) -> Sources {
        self.told(choice, UNSET, UNSET)
    }

    /// Sources on this tree, with `MEMORY_PRESSURE_WATCH` set to `watch`.
    pub fn watching(&self, watch: &Path, write: &[u8]) -> Sources {
        let write = if write.is_empty() { UNSET } else { Ok(write) };
        self.told(PressureChoice::default(), Ok(watch.as_os_str().as_bytes()), write)
    }

    pub fn told(&self, choice: PressureChoice, watch: Value, write: Value) -> Sources {
        let proc = self.path("proc");
        let proc = proc.as_os_str().as_bytes();
        Sources::detect_in(&choice, &Environment { proc, watch, write, is_privileged: false })
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The line about `source` in the description of `sources`.
pub fn line(sources: &Sources, source: &str) -> String {
    let mut found = None;
    sources.describe(&mut |line| {
        let line = line.to_string();
        if let Some(rest) = line.strip_prefix(&format!("pressure: {source}: ")) {
            assert!(found.replace(rest.to_string()).is_none(), "a source has two lines");
        }
    });
    found.expect("the source has no line")
}
