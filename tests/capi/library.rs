//! The library under test, built and staged as by `cargo xtask dist`, and programs compiled against
//! the stage.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Program, Scratch, tool};

#[path = "../../xtask/src/capi.rs"]
pub mod capi;

/// The version of the stage.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Compiler flags of every program. `-fno-builtin` is not needed: uslab's names are no builtins.
const FLAGS: [&str; 7] = ["-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"];

/// The way in which a program is linked with the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// The shared library, found by the path in the program.
    Shared,
    /// The archive, without any other library.
    Static,
    /// The shared library of Cargo's debug build, with its checks of lock ranks and its assertions.
    Checked,
    /// The archive, in a wholly static program.
    Whole,
    /// Not at all.
    None,
}

/// The workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace root")
}

/// The directory of the staged interface. It lies below the test executable's directory, so that
/// `cargo clean` removes it.
pub fn prefix() -> &'static Path {
    static STAGED: OnceLock<PathBuf> = OnceLock::new();
    STAGED.get_or_init(|| stage("prefix", &["--release"], "release"))
}

/// The directory of the staged debug build.
fn checked_prefix() -> &'static Path {
    static STAGED: OnceLock<PathBuf> = OnceLock::new();
    STAGED.get_or_init(|| stage("prefix-debug", &[], "debug"))
}

fn stage(name: &str, profile: &[&str], built_in: &str) -> PathBuf {
    let prefix = build_directory().join(name);
    let archive = build(profile).join(built_in).join("libuslab_capi.a");
    capi::stage(root(), &archive, &prefix, VERSION, &capi::HOST)
        .unwrap_or_else(|error| panic!("staging: {error}"));
    prefix
}

/// The directory for all builds of this test. Locked for the life of the process, because two
/// concurrent runs would overwrite each other's files.
fn build_directory() -> &'static Path {
    static MADE: OnceLock<(PathBuf, std::fs::File)> = OnceLock::new();
    &MADE
        .get_or_init(|| {
            let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
            std::fs::create_dir_all(&directory).expect("a directory to build in");
            let lock = std::fs::File::create(directory.join("lock")).expect("a file to lock");
            lock.lock().expect("a lock on the directory");
            (directory, lock)
        })
        .0
}

/// Builds the archive in the target directory of the running test. With the command, because alone
/// the library would have fewer features, and a build of its own.
fn build(profile: &[&str]) -> PathBuf {
    cargo_build(&[&["-p", "uslab-capi", "-p", "uslab-cli"], profile].concat())
}

/// A plug-in in Rust, whose global allocator is uslab.
pub fn rust_plugin() -> PathBuf {
    cargo_build(&["--release", "-p", "uslab", "--example", "plugin"]).join("release/examples/libplugin.so")
}

/// Builds in the target directory of the running test, `TARGET/debug/deps/NAME`.
fn cargo_build(what: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test executable");
    let target = test.ancestors().nth(3).expect("a target directory above the test executable").to_path_buf();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // Cargo sets variables of the test's package; a build started from here must not inherit them.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_"))
    {
        command.env_remove(name);
    }
    let output = command
        .arg("build")
        .args(what)
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(root())
        .output()
        .expect("cargo");
    assert!(output.status.success(), "cargo build failed:\n{}", String::from_utf8_lossy(&output.stderr));
    target
}

/// Runs a compiler, which must succeed without a message.
pub fn compile(compiler: &str, package: &str, args: &[String]) {
    let scratch = Scratch::new("cc");
    let program = Program::new(tool(compiler, package)).args(args).dir(root()).limit_s(300);
    let outcome = program.run_clean(&scratch, Mode::Plain);
    outcome.expect(outcome.stderr().is_empty(), "the compiler wrote to standard error");
}

/// Compiles the C or C++ file at `source`, relative to the workspace's root, under the standard
/// `std`. Each test must use its own `name`.
pub fn program(name: &str, source: &str, std: &str, link: Link) -> PathBuf {
    program_with(name, source, std, link, &[])
}

/// [`program`] with more flags for the compiler.
pub fn program_with(name: &str, source: &str, std: &str, link: Link, flags: &[&str]) -> PathBuf {
    let program = build_directory().join(name);
    let prefix = if link == Link::Checked { checked_prefix() } else { prefix() };
    let include = format!("-I{}", prefix.join("include").display());
    let lib = prefix.join("lib");
    let is_cxx = std.contains("++");
    let mut args: Vec<String> = FLAGS.map(String::from).into();
    args.extend(flags.iter().map(|&flag| flag.to_owned()));
    // Compiles a C file as C++ if the standard is a C++ one.
    let language = if is_cxx { ["-x", "c++"] } else { ["-x", "c"] };
    args.extend(language.map(String::from));
    args.extend([
        format!("-std={std}"),
        format!("-DUSLAB_TEST_VERSION=\"{VERSION}\""),
        "-D_POSIX_C_SOURCE=200809L".into(),
        include,
        source.into(),
        "-o".into(),
        program.display().to_string(),
    ]);
    args.extend(["-x".into(), "none".into()]);
    match link {
        Link::Shared | Link::Checked => args.extend([
            format!("-L{}", lib.display()),
            "-luslab".into(),
            format!("-Wl,-rpath,{}", lib.display()),
        ]),
        Link::Static => args.push(lib.join("libuslab.a").display().to_string()),
        Link::Whole => args.extend(["-static".into(), lib.join("libuslab.a").display().to_string()]),
        Link::None => {}
    }
    if is_cxx {
        compile("c++", "g++", &args)
    } else {
        compile("cc", "gcc", &args)
    }
    program
}
