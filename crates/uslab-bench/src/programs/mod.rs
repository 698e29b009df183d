//! Whole programs as workloads: each is a [`Workload`], which starts the
//! program with an allocator preloaded and says what it took.
//!
//! ```text
//!   suites/programs.rs, order.rs ── Task::Program(Job) ── child.rs ── Job::run ── redis, python, …
//! ```
//!
//! A program gets a clean environment, so that no user's settings reach one allocator's run only;
//! what begins with USLAB_ is let through, because it chooses uslab's mode, and reports tell what
//! else it sets (machine.rs). Its files are in a folder that goes away with the run.
//!
//! Must never: preload anything into a program that is not the one measured (the client of a
//! server, a shell).

pub mod cpp;
pub mod ghostscript;
pub mod git;
pub mod postgres;
pub mod python;
pub mod redis;
pub mod rocksdb;
pub mod scripts;
pub mod sqlite;
pub mod z3;

use crate::measure::Sample;
use crate::process::Usage;
use crate::results::Scale;
use serde::{Deserialize, Serialize};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub struct Workload {
    /// Unique, and a part of row ids.
    pub name: &'static str,
    pub title: fn(Scale) -> String,
    /// One run. An error is one line.
    run: fn(&Place) -> Result<Usage, String>,
}

pub const WORKLOADS: [&Workload; 15] = [
    &python::MALLOC,
    &python::OWN_ARENAS,
    &scripts::LUA,
    &scripts::NODE,
    &scripts::RUBY,
    &cpp::UNIT,
    &cpp::CLANG,
    &git::GC,
    &sqlite::INDEX,
    &sqlite::THREADS,
    &redis::SERVER,
    &rocksdb::DB_BENCH,
    &z3::SOLVER,
    &ghostscript::PDF,
    &postgres::SERVER,
];

/// Not in the suite of programs: the knobs' suite has it.
pub const BUILD: &Workload = &cpp::PROJECT;

/// Variables, and their values.
pub type Settings = Vec<(String, String)>;

/// A run, as it is sent to a child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub workload: String,
    pub library: PathBuf,
    pub scale: Scale,
    /// Fresh, and used by this run alone.
    pub folder: PathBuf,
    /// Variables of uslab's that differ from the suite's environment, and their values.
    pub settings: Settings,
}

impl Job {
    /// Does it, in this process, which should be a small one (process.rs says why).
    pub fn run(&self) -> Result<Sample, String> {
        let mut all = WORKLOADS.into_iter().chain([BUILD]);
        let workload = all.find(|workload| workload.name == self.workload);
        let workload = workload.ok_or_else(|| format!("no workload is called '{}'", self.workload))?;
        let (library, settings) = (&self.library, &self.settings[..]);
        let place = Place { folder: &self.folder, library, scale: self.scale, settings };
        (workload.run)(&place).map(|usage| usage.sample())
    }
}

/// A folder that goes away when it is dropped.
pub fn scratch() -> Result<TempDir, String> {
    let cannot = |error| format!("cannot make a folder in {}: {error}", env::temp_dir().display());
    tempfile::Builder::new().prefix("uslab-bench-").tempdir().map_err(cannot)
}

/// Where and how a workload runs.
pub struct Place<'a> {
    pub folder: &'a Path,
    pub library: &'a Path,
    pub scale: Scale,
    /// See [`Job::settings`].
    pub settings: &'a [(String, String)],
}

impl Place<'_> {
    /// `program` of Debian's `package`, with the allocator under it and under all that it starts.
    pub fn measured(&self, program: &str, package: &str) -> Result<Command, String> {
        let mut command = self.plain(program, package)?;
        command.env("LD_PRELOAD", self.library);
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// The same without.
    pub fn plain(&self, program: &str, package: &str) -> Result<Command, String> {
        let path = find(program)
            .ok_or_else(|| format!("{program} is not installed; on Debian: apt-get install {package}"))?;
        let ours = env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("USLAB_"));
        let mut command = Command::new(path);
        command.env_clear().envs(ours).current_dir(self.folder);
        command.env("PATH", SYSTEM_PATH).env("LANG", "C.UTF-8");
        command.env("HOME", self.folder).env("TMPDIR", self.folder);
        Ok(command)
    }

    pub fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}

const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The system's own first: what a user's PATH has before it may be a script that starts the
/// program.
fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(SYSTEM_PATH).chain(env::split_paths(&path)).collect::<Vec<_>>();
    folders.into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preload;

    #[test]
    fn names_are_unique_and_titles_say_the_size() {
        let mut names: Vec<_> = WORKLOADS.iter().chain([&BUILD]).map(|workload| workload.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), WORKLOADS.len() + 1);
        for workload in WORKLOADS {
            assert!(!(workload.title)(Scale::Full).is_empty());
        }
    }

    #[test]
    fn what_is_not_installed_names_its_package() {
        let place =
            Place { folder: Path::new("/"), library: Path::new("/x.so"), scale: Scale::Check, settings: &[] };
        let why = place.plain("no-such-program", "some-package").unwrap_err();
        assert!(why.contains("some-package") && !why.contains('\n'), "{why}");
    }

    #[test]
    fn every_workload_runs_or_says_what_is_missing() {
        let library = preload::GLIBC.find().unwrap();
        for workload in WORKLOADS.iter().chain([&BUILD]) {
            let folder = tempfile::tempdir().unwrap();
            let job = Job {
                workload: workload.name.into(),
                library: library.clone(),
                scale: Scale::Check,
                folder: folder.path().to_owned(),
                settings: Settings::new(),
            };
            match job.run() {
                Ok(sample) => assert!(sample.value > 0.0 && sample.extra["peak_bytes"] > 0.0),
                Err(why) => assert!(why.contains("apt-get install"), "{}: {why}", workload.name),
            }
        }
    }
}
