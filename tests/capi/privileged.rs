//! Programs that gain privileges at their start ignore the environment of the unprivileged user.
//!
//! Only root can make such programs; under another user the tests check the rest, and print that.

use super::MODES;
use super::library::{Link, program};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use uslab_tests::harness::Scratch;

/// A user without privileges.
const NOBODY: u32 = 65534;

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .expect("permissions of an own file");
}

fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// A copy of the program that any user can reach.
fn copy(scratch: &Scratch) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| program("privileged", "tests/capi/privileged.c", "c11", Link::Static));
    let copy = scratch.join("privileged");
    std::fs::copy(built, &copy).expect("a copy of the program");
    set_mode(&copy, 0o755);
    set_mode(scratch.path(), 0o755);
    copy
}

/// Runs the program through a shell, which may first create a file under the process's id. Returns
/// the lines of its output.
fn run(program: &Path, snapshots: &Path, plant: &str, user: Option<u32>, rseq: &str) -> Vec<String> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("{plant}\nexec \"$0\" \"$1\"")]).arg(program).arg(snapshots);
    command.env_clear().env("USLAB_SNAPSHOT", snapshots).env("USLAB_ON_MISUSE", "report");
    command.env("USLAB_RSEQ", rseq).env("PATH", "/usr/bin:/bin").current_dir("/");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = command.output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.ends_with("ok\n"), "{}\n{text}\n{errors}", output.status);
    text.lines().map(String::from).collect()
}

#[test]
fn an_ordinary_program_heeds_its_environment() {
    let scratch = Scratch::new("ordinary");
    let (program, snapshots) = (copy(&scratch), scratch.private_dir("snapshots"));
    for rseq in MODES {
        let lines = run(&program, &snapshots, "", None, rseq);
        assert_eq!(lines, ["secure 0", "snapshot PID", "misuse goes on", "ok"]);
        assert_eq!(std::fs::read_dir(&snapshots).unwrap().count(), 0, "the process must remove its file");
    }
}

/// Checks a privileged program for a user who owns the directory and created a file under the
/// process's id.
fn takes_no_orders(program: &Path, scratch: &Scratch) {
    let snapshots = scratch.private_dir("theirs");
    chown(&snapshots, Some(NOBODY), Some(NOBODY)).expect("root gives a directory away");
    for rseq in MODES {
        for (plant, planted) in [
            ("", None),
            ("echo mine > \"$1/$$\"", Some("other PID")),
            ("ln -s /etc/passwd \"$1/$$\"", Some("other PID")),
        ] {
            let lines = run(program, &snapshots, plant, Some(NOBODY), rseq);
            if lines[0] == "secure 0" {
                println!("skipped: this file system grants no privileges");
                return;
            }
            let expected = ["secure 1"].into_iter().chain(planted).chain(["misuse aborts", "ok"]);
            assert_eq!(lines, expected.collect::<Vec<_>>(), "{plant}");
            for left in std::fs::read_dir(&snapshots).unwrap().flatten() {
                std::fs::remove_file(left.path()).expect("what was planted");
            }
        }
    }
}

#[test]
fn a_set_user_id_program_takes_no_orders_from_its_user() {
    if !is_root() {
        return println!("skipped: not root");
    }
    let scratch = Scratch::new("setuid");
    let program = copy(&scratch);
    chown(&program, Some(0), Some(0)).expect("root keeps a file");
    set_mode(&program, 0o4755);
    takes_no_orders(&program, &scratch);
}

#[test]
fn a_program_with_file_capabilities_takes_no_orders_from_its_user() {
    if !is_root() {
        return println!("skipped: not root");
    }
    let scratch = Scratch::new("capable");
    let program = copy(&scratch);
    let path = CString::new(program.as_os_str().as_bytes()).expect("a path");
    // Revision 2, effective at once: CAP_NET_BIND_SERVICE permitted, nothing inheritable
    // (linux/capability.h).
    let value: Vec<u8> =
        [0x0200_0001u32, 1 << 10, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    // SAFETY: two strings, and a value of that length.
    let set = unsafe {
        let name = c"security.capability".as_ptr();
        libc::setxattr(path.as_ptr(), name, value.as_ptr().cast(), value.len(), 0)
    };
    if set != 0 {
        return println!("skipped: {}", std::io::Error::last_os_error());
    }
    takes_no_orders(&program, &scratch);
}

#[test]
fn a_directory_that_other_users_can_change_is_not_used() {
    let scratch = Scratch::new("unsafe");
    let program = copy(&scratch);
    let refused = |snapshots: &Path| {
        for rseq in MODES {
            let lines = run(&program, snapshots, "", None, rseq);
            assert_eq!(lines, ["secure 0", "misuse goes on", "ok"], "{}", snapshots.display());
        }
    };
    let snapshots = scratch.private_dir("snapshots");
    for mode in [0o770, 0o777, 0o1777] {
        set_mode(&snapshots, mode);
        refused(&snapshots);
    }
    set_mode(&snapshots, 0o700);
    let link = scratch.join("link");
    symlink(&snapshots, &link).expect("a link");
    refused(&link);
    refused(&scratch.join("link/"));
    if is_root() {
        chown(&snapshots, Some(NOBODY), None).expect("root gives a directory away");
        refused(&snapshots);
    }
}

#[test]
fn a_link_under_the_processs_id_is_neither_followed_nor_removed() {
    let scratch = Scratch::new("link");
    let (program, snapshots) = (copy(&scratch), scratch.private_dir("snapshots"));
    let precious = scratch.write("precious", "precious");
    for rseq in MODES {
        let plant = format!("ln -s {} \"$1/$$\"", precious.display());
        let lines = run(&program, &snapshots, &plant, None, rseq);
        assert_eq!(lines, ["secure 0", "other PID", "misuse goes on", "ok"]);
        let plant = "mkdir \"$1/$$\"";
        let lines = run(&program, &snapshots, plant, None, rseq);
        assert!(lines.contains(&"other PID".to_string()), "{lines:?}");
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        let left = std::fs::read_dir(&snapshots).unwrap().flatten().map(|entry| entry.path());
        let (links, directories): (Vec<_>, Vec<_>) = left.partition(|path| path.is_symlink());
        assert_eq!((links.len(), directories.len()), (1, 1), "the link and the directory must still exist");
        links.iter().for_each(|path| std::fs::remove_file(path).expect("the link"));
        directories.iter().for_each(|path| std::fs::remove_dir(path).expect("the directory"));
    }
}

#[test]
fn a_file_left_by_an_earlier_process_is_replaced() {
    let scratch = Scratch::new("left");
    let (program, snapshots) = (copy(&scratch), scratch.private_dir("snapshots"));
    for rseq in MODES {
        let lines = run(&program, &snapshots, "echo old > \"$1/$$\"", None, rseq);
        assert_eq!(lines, ["secure 0", "snapshot PID", "misuse goes on", "ok"]);
    }
}
