//! Programs in C and C++ that are linked with uslab's own libraries, compiled when a suite first
//! needs one.
//!
//! ```text
//!   suites/linked.rs ── calls.c, churn.cpp ── Programs (one compile)
//!                                                │
//!         Library ── ../lib and ../include of an installation,
//!            │       or libuslab_capi.a beside this program, linked as shipped (xtask/src/capi.rs)
//!            ▼
//!   Rounds::lane ◀── one run a row: all lanes in that process; a file of ns, a line a lane
//! ```
//!
//! Other suites call uslab as Rust code of this program. Here calls take the path of C programs'
//! calls, which is a part of their cost. One process measures all lanes of a row, round by round,
//! so that they share its addresses and its disturbances. It runs on the CPU of this program. Where
//! there is no compiler or no library, every lane returns the same error line, and suites print it
//! once.
//!
//! Cargo builds the archive as a package of its own: `cargo build --release` makes it and this
//! program, `cargo build -p uslab-bench` leaves an older archive as it is.
//!
//! Must never: compile while rows are planned; leave a file behind.

#[path = "../../../../xtask/src/capi.rs"]
mod capi;

use crate::measure::{Errand, Lane, Sample};
use crate::process;
use crate::programs::{Place, scratch};
use crate::results::{Role, Scale};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tempfile::TempDir;

/// The source of a suite's programs, and how it is compiled.
pub struct Recipe {
    /// The text and the name of its file.
    pub source: &'static str,
    pub file: &'static str,
    /// The compiler, and Debian's package of it.
    pub compiler: (&'static str, &'static str),
    /// All of a compile's arguments but files and libraries.
    pub flags: &'static [&'static str],
    /// Further arguments, and the shared library that they make of the source beside the programs.
    pub library: Option<(&'static [&'static str], &'static str)>,
}

/// How a program is linked with uslab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Shared,
    Archive,
}

impl Link {
    /// The library's name.
    pub fn file(self) -> &'static str {
        match self {
            Link::Shared => "libuslab.so",
            Link::Archive => "libuslab.a",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Link::Shared => "shared",
            Link::Archive => "static",
        }
    }
}

/// A suite's programs, one a way of linking; compiled at their first run, gone with their last row.
pub struct Programs {
    recipe: Recipe,
    made: OnceCell<Result<Made, String>>,
}

struct Made {
    folder: TempDir,
    library: Library,
    object: PathBuf,
}

/// ns by lane, one a round.
type Lanes = BTreeMap<String, Vec<f64>>;

/// uslab's headers and libraries.
struct Library {
    include: PathBuf,
    lib: PathBuf,
}

impl Programs {
    pub fn new(recipe: Recipe) -> Rc<Self> {
        Rc::new(Self { recipe, made: OnceCell::new() })
    }

    /// Runs the program with these arguments; its measurements.
    fn run(&self, link: Link, arguments: &[String]) -> Result<Lanes, String> {
        let made = self.made.get_or_init(|| Made::of(&self.recipe)).as_ref().map_err(Clone::clone)?;
        let program = made.program(&self.recipe, link)?;
        let out = made.folder.path().join("out");
        let mut command = made.plain(&program.display().to_string(), "")?;
        command.arg(&out).args(arguments);
        process::run(command)?;
        let text = std::fs::read_to_string(&out).map_err(|e| format!("a program left no results: {e}"))?;
        lanes_of(&text)
    }
}

impl Made {
    fn of(recipe: &Recipe) -> Result<Self, String> {
        let folder = scratch()?;
        let object = folder.path().join("program.o");
        let mut made = Self { folder, library: Library::nowhere(), object };
        // The compiler is looked up first, since linking without it would fail less clearly.
        made.plain(recipe.compiler.0, recipe.compiler.1)?;
        made.library = Library::find(made.folder.path())?;
        made.place().write(recipe.file, recipe.source)?;
        let include = format!("-I{}", made.library.include.display());
        made.compile(recipe, &[&include, "-c", recipe.file, "-o", "program.o"])?;
        if let Some((flags, name)) = recipe.library {
            made.compile(recipe, &[flags, &[recipe.file, "-o", name]].concat())?;
        }
        Ok(made)
    }

    fn place(&self) -> Place<'_> {
        Place { folder: self.folder.path(), library: Path::new(""), scale: Scale::Full, settings: &[] }
    }

    /// A program without anything preloaded, in the folder, with uslab's own variables.
    fn plain(&self, program: &str, package: &str) -> Result<std::process::Command, String> {
        self.place().plain(program, package)
    }

    fn compile(&self, recipe: &Recipe, arguments: &[&str]) -> Result<(), String> {
        let mut compiler = self.plain(recipe.compiler.0, recipe.compiler.1)?;
        compiler.args(recipe.flags).args(arguments);
        process::run(compiler).map(drop).map_err(|why| format!("{}: {why}", recipe.file))
    }

    /// The program of that linkage, linked at its first use.
    fn program(&self, recipe: &Recipe, link: Link) -> Result<PathBuf, String> {
        let program = self.folder.path().join(link.program());
        if !program.is_file() {
            let lib = self.library.lib.display().to_string();
            let libraries = match link {
                Link::Shared => vec![format!("-L{lib}"), "-luslab".into(), format!("-Wl,-rpath,{lib}")],
                Link::Archive => vec![format!("{lib}/libuslab.a"), "-lpthread".into(), "-lm".into()],
            };
            let (object, to) = (self.object.display().to_string(), program.display().to_string());
            let mut arguments = vec![object.as_str()];
            arguments.extend(libraries.iter().map(String::as_str));
            arguments.extend(["-ldl", "-o", &to]);
            self.compile(recipe, &arguments)?;
        }
        Ok(program)
    }
}

impl Library {
    fn nowhere() -> Self {
        Self { include: PathBuf::new(), lib: PathBuf::new() }
    }

    /// The library of this installation, or one made below `folder` from the archive beside this
    /// program.
    fn find(folder: &Path) -> Result<Self, String> {
        let program = env::current_exe().unwrap_or_default();
        let mut beside = program.parent().unwrap_or(Path::new("/"));
        if beside.file_name() == Some(&OsString::from("deps")) {
            beside = beside.parent().unwrap_or(beside);
        }
        let installed = Self { include: beside.join("../include"), lib: beside.join("../lib") };
        if installed.include.join("uslab.hpp").is_file() && installed.lib.join(capi::SONAME).is_file() {
            let lib = installed.lib.canonicalize().map_err(|error| error.to_string())?;
            return Ok(Self { lib, ..installed });
        }
        let archive = beside.join("libuslab_capi.a");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        if !archive.is_file() || !root.join("crates/uslab-capi").is_dir() {
            return Err(
                "no libuslab.so in ../lib, and no libuslab_capi.a beside this program to make it of; \
                        cargo build --release -p uslab-capi"
                    .into(),
            );
        }
        let prefix = folder.join("uslab");
        capi::stage(&root, &archive, &prefix, env!("CARGO_PKG_VERSION"), &capi::HOST)?;
        Ok(Self { include: prefix.join("include"), lib: prefix.join("lib") })
    }
}

/// "NAME\tNS NS …", a line a lane.
fn lanes_of(text: &str) -> Result<Lanes, String> {
    let lane = |line: &str| {
        let (name, values) = line.split_once('\t')?;
        let values: Option<Vec<f64>> = values.split(' ').map(|value| value.parse().ok()).collect();
        Some((name.to_owned(), values?))
    };
    text.lines().map(lane).collect::<Option<_>>().ok_or_else(|| "a program's results cannot be read".into())
}

/// A row's run of a program: all its lanes' rounds.
pub struct Rounds {
    programs: Rc<Programs>,
    link: Link,
    arguments: Vec<String>,
    measured: RefCell<Option<Result<Lanes, String>>>,
}

impl Rounds {
    /// A run of the program with `word` and `numbers` as its arguments.
    pub fn new(programs: &Rc<Programs>, link: Link, word: &str, numbers: &[usize]) -> Rc<Self> {
        let arguments = [word.into()].into_iter().chain(numbers.iter().map(ToString::to_string)).collect();
        Rc::new(Self { programs: Rc::clone(programs), link, arguments, measured: RefCell::new(None) })
    }

    /// The lane of that name; the first lane to run starts the program.
    pub fn lane(self: &Rc<Self>, name: &'static str, role: Role) -> Lane<Errand> {
        let (rounds, mut turn) = (Rc::clone(self), 0);
        Lane::of_runs(name, role, move || {
            let mut measured = rounds.measured.borrow_mut();
            let measured =
                measured.get_or_insert_with(|| rounds.programs.run(rounds.link, &rounds.arguments));
            let lanes = measured.as_ref().map_err(Clone::clone)?;
            let value = lanes.get(name).and_then(|values| values.get(turn));
            turn += 1;
            value.map(|&value| Sample::of(value)).ok_or_else(|| format!("the program measured no '{name}'"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_a_line_a_lane() {
        let lanes = lanes_of("a b\t1.5 2\nc\t3\n").unwrap();
        assert_eq!(lanes["a b"], [1.5, 2.0]);
        assert_eq!(lanes["c"], [3.0]);
        for garbage in ["a", "a\t", "a\t1 x"] {
            assert!(lanes_of(garbage).is_err(), "{garbage}");
        }
    }

    #[test]
    fn without_a_compiler_every_row_says_so_and_the_suite_once() {
        let recipe = Recipe {
            source: "",
            file: "a.c",
            compiler: ("no-such-compiler", "some-package"),
            flags: &[],
            library: None,
        };
        let programs = Programs::new(recipe);
        let rounds = Rounds::new(&programs, Link::Shared, "", &[]);
        let whys: Vec<String> =
            ["a", "b"].map(|name| (rounds.lane(name, Role::Peer).work)().unwrap_err()).into();
        assert!(whys[0].contains("some-package") && !whys[0].contains('\n'), "{}", whys[0]);
        assert_eq!(whys[0], whys[1]);
    }

    #[test]
    fn a_source_that_does_not_compile_is_one_line() {
        let recipe =
            Recipe { source: "no C at all", file: "a.c", compiler: ("cc", "gcc"), flags: &[], library: None };
        let why = Programs::new(recipe).run(Link::Shared, &[]).unwrap_err();
        assert!(!why.contains('\n'), "{why}");
    }
}
