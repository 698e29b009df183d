//! Programs that walk what they have allocated, compiled when the suite of locality first needs
//! one, and run with an allocator preloaded. The suite of forks compiles and runs its own likewise.
//!
//! ```text
//!   suites/locality.rs ─ Program::run(library) ─ walk.c, containers.cpp ─ measure.h
//!                                │
//!                                └── LD_PRELOAD=library ── "NAME VALUE" lines ── Sample.extra
//! ```
//!
//! The programs time their own phases, count their own page faults and tell where their objects
//! lie, so a run is one process and its figures are of nothing else. Must never: compile while rows
//! are planned; leave a file behind.

use crate::cpu;
use crate::measure::Sample;
use crate::process;
use crate::programs::{Place, scratch};
use crate::results::Scale;
use crate::stop;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// A source with its compiler.
#[derive(Debug)]
pub struct Source {
    pub file: &'static str,
    pub text: &'static str,
    /// The compiler, and Debian's package of it.
    pub compiler: (&'static str, &'static str),
    pub flags: &'static [&'static str],
}

pub const WALK: Source =
    Source { file: "walk.c", text: include_str!("walk.c"), compiler: ("cc", "gcc"), flags: &["-std=gnu11"] };

pub const CONTAINERS: Source = Source {
    file: "containers.cpp",
    text: include_str!("containers.cpp"),
    compiler: ("c++", "g++"),
    flags: &["-std=c++17"],
};

const HEADER: (&str, &str) = ("measure.h", include_str!("measure.h"));

/// Long enough for the slowest machine; it ends a hang.
const LIMIT: Duration = Duration::from_secs(600);

/// A program, compiled at its first run, gone with its last row.
pub struct Program {
    source: &'static Source,
    scale: Scale,
    made: OnceCell<Result<TempDir, String>>,
}

impl Program {
    pub fn new(source: &'static Source, scale: Scale) -> Self {
        Self { source, scale, made: OnceCell::new() }
    }

    /// What the program tells with these arguments under an allocator, as extras by name.
    pub fn run(&self, library: &Path, arguments: &[String]) -> Result<Sample, String> {
        let folder = self.made.get_or_init(|| self.compile()).as_ref().map_err(Clone::clone)?;
        let place = Place { folder: folder.path(), library, scale: self.scale, settings: &[] };
        let mut program = place.measured(&folder.path().join("program").display().to_string(), "")?;
        // Its own group, so that it is ended whole.
        program.args(arguments).process_group(0);
        stop::watch()?;
        let out = cpu::with_cpus_of_start(|| process::start(program))?.output(LIMIT, stop::asked)?;
        let extra = figures(&String::from_utf8_lossy(&out))?;
        Ok(Sample { extra, ..Sample::default() })
    }

    fn compile(&self) -> Result<TempDir, String> {
        let folder = scratch()?;
        let place = Place { folder: folder.path(), library: Path::new(""), scale: self.scale, settings: &[] };
        place.write(HEADER.0, HEADER.1)?;
        place.write(self.source.file, self.source.text)?;
        let mut compiler = place.plain(self.source.compiler.0, self.source.compiler.1)?;
        compiler.args(self.source.flags).arg(self.scale.pick("-O0", "-O2", "-O2"));
        compiler.args([self.source.file, "-o", "program"]);
        process::run(compiler).map_err(|why| format!("{}: {why}", self.source.file))?;
        Ok(folder)
    }
}

/// "NAME VALUE", a line a figure.
fn figures(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let figure = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().map(figure).collect::<Option<_>>().ok_or_else(|| "a program's figures cannot be read".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preload;

    #[test]
    fn figures_are_a_line_each() {
        let read = figures("fresh_walk_ns 1.500\ngrow_faults 12.000\n").unwrap();
        assert_eq!((read["fresh_walk_ns"], read["grow_faults"]), (1.5, 12.0));
        for garbage in ["fresh_walk_ns", "fresh_walk_ns x", " "] {
            assert!(figures(garbage).is_err(), "{garbage}");
        }
    }

    #[test]
    fn objects_one_after_another_change_pages_seldom() {
        let glibc = preload::GLIBC.find().unwrap();
        let program = Program::new(&WALK, Scale::Check);
        let run = |arguments: [&str; 3]| program.run(&glibc, &arguments.map(String::from));
        // Without a compiler there is nothing to see but the reason.
        let sample = match run(["5000", "1", "48"]) {
            Ok(sample) => sample,
            Err(why) => return assert!(why.contains("apt-get install"), "{why}"),
        };
        // glibc's chunks of 64 bytes lie in order: 64 of them in a page.
        assert!((10.0..30.0).contains(&sample.extra["fresh_page_changes_per_1000"]));
        assert!((70.0..90.0).contains(&sample.extra["fresh_distinct_pages"]));
        // Each page is missed once, and follows its neighbour.
        assert!((10.0..30.0).contains(&sample.extra["fresh_tlb_64_misses_per_1000"]));
        assert!(sample.extra["fresh_jumps_per_1000"] < 2.0);
        assert!((60.0..70.0).contains(&sample.extra["fresh_stride_bytes"]));
        assert!(run(["1", "1", "48"]).unwrap_err().contains("two objects"));
        assert!(run(["9", "1", "8"]).unwrap_err().contains("16 bytes"));
    }

    #[test]
    fn every_container_is_measured_whole() {
        let glibc = preload::GLIBC.find().unwrap();
        let program = Program::new(&CONTAINERS, Scale::Check);
        for name in ["list", "map", "unordered", "strings"] {
            let sample = match program.run(&glibc, &[name, "300", "2"].map(String::from)) {
                Ok(sample) => sample,
                Err(why) => return assert!(why.contains("apt-get install"), "{why}"),
            };
            for phase in ["fresh", "reused", "rebuilt"] {
                assert!(sample.extra[&format!("{phase}_walk_ns")] > 0.0, "{name}");
                assert!(sample.extra[&format!("{phase}_distinct_pages")] >= 2.0, "{name}");
            }
        }
    }
}
