//! apt-get downloads a package by the method that runs as another user, with and without apt's
//! seccomp filter. The file must equal that of a plain run.
//!
//! The plain run finds out whether a mirror answers; without one the test prints that and ends.

use std::path::PathBuf;
use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Outcome, Program, Scratch, tool};

both_modes!(download => fetches_a_package);

const NAME: &str = "hello";

fn fetches_a_package(mode: Mode) {
    let Some(wanted) = fetched_plainly() else { return };
    let scratch = Scratch::new("apt");
    for seccomp in ["false", "true"] {
        let outcome = download(&scratch, mode, seccomp).expect_clean();
        let got = package(&scratch).and_then(|file| std::fs::read(file).ok());
        outcome.expect(got.as_ref() == Some(wanted), &format!("seccomp {seccomp}: not the package"));
        std::fs::remove_dir_all(scratch.join("d")).expect("the directory goes");
    }
}

/// The package that a run without the allocator fetches.
fn fetched_plainly() -> Option<&'static Vec<u8>> {
    static PACKAGE: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let fetch = || {
        let scratch = Scratch::new("apt");
        let fetched = download(&scratch, Mode::Plain, "false");
        let file = fetched.succeeded().then(|| package(&scratch)).flatten();
        if file.is_none() {
            eprintln!("skipped: no mirror gives {NAME} to apt-get alone:\n{}", fetched.stderr());
        }
        file.map(|file| std::fs::read(file).expect("the package"))
    };
    PACKAGE.get_or_init(fetch).as_ref()
}

/// The file that `apt-get download` wrote.
fn package(scratch: &Scratch) -> Option<PathBuf> {
    let files = std::fs::read_dir(scratch.join("d")).expect("the directory").flatten().map(|e| e.path());
    files.into_iter().find(|f| f.extension().is_some_and(|e| e == "deb"))
}

fn download(scratch: &Scratch, mode: Mode, seccomp: &str) -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    // The user under which apt fetches must be able to write here.
    let dir = scratch.dir("d");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).expect("a directory for all");
    let apt = Program::new(tool("apt-get", "apt")).dir(dir).limit_s(60);
    let apt = apt.args(["-q", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=20", "-o"]);
    let apt = apt.arg(format!("APT::Sandbox::Seccomp={seccomp}"));
    // apt's first run builds its binary caches in the scratch directory: parsing all lists is part
    // of the test.
    let apt = apt.arg("-o").arg(format!("Dir::Cache={}", scratch.dir("cache").display()));
    apt.args(["download", NAME]).run(scratch, mode)
}
