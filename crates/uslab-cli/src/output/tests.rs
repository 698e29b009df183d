//! Replaced files and files in place: permissions, links, mounts, procfs, signals.

use super::*;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::process::Command;

use nix::sys::signal::{Signal, raise};

#[test]
fn a_link_is_replaced_and_not_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, target) = (folder.path().join("link"), folder.path().join("target"));
    fs::write(&target, "precious").expect("written");
    symlink(&target, &link).expect("a link");
    replace(&link, b"page", Some(0o640)).expect("replaced");
    assert_eq!(fs::read(&target).expect("there"), b"precious");
    assert_eq!(fs::read(&link).expect("there"), b"page");
    let data = fs::symlink_metadata(&link).expect("there");
    assert!(data.is_file() && data.permissions().mode() & 0o777 == 0o640);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
}
#[test]
fn neither_devices_nor_pipes_nor_folders_are_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name);
    nix::unistd::mkfifo(&place("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    symlink("/dev/null", place("null")).expect("a link");
    fs::create_dir(place("dir")).expect("a folder");
    for name in ["pipe", "null", "dir"] {
        let error = replace(&place(name), b"page", Some(0o644)).expect_err(name).to_string();
        assert!(["it is not a regular file", "is a directory"].contains(&&*error), "{error}");
    }
    assert!(replace(Path::new("/dev/stdout"), b"page", None).is_err());
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3);
    assert!(write(&place("dir"), b"page").is_err());
    write(&place("null"), b"page").expect("the device takes it");
    assert!(fs::symlink_metadata(place("null")).expect("there").is_symlink());
}

#[test]
fn a_file_that_the_user_named_keeps_its_links_and_permissions() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name);
    write(&place("file"), b"old").expect("written");
    fs::set_permissions(place("file"), Permissions::from_mode(0o604)).expect("set");
    symlink("file", place("link")).expect("a link");
    write(&place("link"), b"new").expect("written");
    assert!(fs::symlink_metadata(place("link")).expect("there").is_symlink());
    assert_eq!(fs::metadata(place("file")).expect("there").mode() & 0o777, 0o604);
    fs::hard_link(place("file"), place("name")).expect("a second name");
    write(&place("file"), b"newer").expect("written");
    for name in ["file", "link", "name"] {
        assert_eq!(fs::read(place(name)).expect("there"), b"newer", "{name}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3);
}

#[test]
fn a_name_through_procfs_is_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name);
    let file = File::create(place("file")).expect("made");
    let fd = file.as_raw_fd();
    symlink("/proc/self/root/tmp", place("root")).expect("a link");
    symlink(format!("../../../../proc/self/fd/{fd}"), place("up")).expect("a link");
    symlink("file", place("plain")).expect("a link");
    symlink("loop", place("loop")).expect("a link");
    let through = [
        format!("/proc/self/fd/{fd}"),
        format!("/dev/fd/{fd}"),
        "/proc/self/cwd/x".into(),
        "/proc/self/comm".into(),
    ];
    for file in through.map(PathBuf::from).iter().chain(&[place("root/none"), place("root/../x")]) {
        assert!(leads_through_proc(file), "{}", file.display());
    }
    for file in ["file", "plain", "none", "none/none", "loop"].map(place).iter().chain(&["x".into()]) {
        assert!(!leads_through_proc(file), "{}", file.display());
    }
}

#[test]
fn the_file_of_a_descriptor_is_written_in_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut file = File::create(folder.path().join("file")).expect("made");
    let name = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    write(&name, b"page").expect("written");
    assert!(replace(&name, b"page", None).is_err());
    file.seek(SeekFrom::End(0)).expect("sought");
    file.write_all(b" and more").expect("written");
    assert_eq!(fs::read(folder.path().join("file")).expect("there"), b"page and more");
    // A plain file of procfs, which has no room for another beside it.
    let comm = fs::read("/proc/thread-self/comm").expect("there");
    write(Path::new("/proc/thread-self/comm"), b"named").expect("written");
    assert_eq!(fs::read("/proc/thread-self/comm").expect("there"), b"named\n");
    fs::write("/proc/thread-self/comm", comm).expect("written");
}

#[test]
fn nobody_else_reads_a_file_before_it_is_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    let (made, temporary) = make_beside(&file, 0o600).expect("made");
    assert_eq!(made.metadata().expect("there").mode() & 0o777, 0o600);
    let name = temporary.file_name().expect("it has one").to_string_lossy().into_owned();
    assert_eq!(name, format!("file.{}.uslab-tmp", std::process::id()));
    // As if a command with this number had been killed.
    write(&file, b"page").expect("written");
    assert_eq!(fs::read(&file).expect("there"), b"page");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
}

#[test]
fn a_new_file_has_the_usual_permissions_and_an_old_one_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name);
    let mode = |name: &str| fs::metadata(place(name)).expect("there").mode() & 0o7777;
    fs::write(place("plain"), "").expect("written");
    write(&place("new"), b"page").expect("written");
    replace(&place("replaced"), b"page", None).expect("written");
    assert_eq!((mode("new"), mode("replaced")), (mode("plain"), mode("plain")));
    fs::set_permissions(place("new"), Permissions::from_mode(0o2640)).expect("set");
    // Of another group, where the user may choose one.
    let group = std::os::unix::fs::chown(place("new"), None, Some(12)).map_or(own_group(), |()| 12);
    fs::set_permissions(place("new"), Permissions::from_mode(0o2640)).expect("set");
    write(&place("new"), b"more").expect("written");
    assert_eq!((mode("new"), fs::metadata(place("new")).expect("there").gid()), (0o2640, group));
}

fn own_group() -> u32 {
    nix::unistd::getegid().as_raw()
}

/// Gives a file or folder an access control list, with rights for a further user. False where the
/// file system has none.
#[allow(unsafe_code, reason = "a system call that no crate in use wraps")]
fn set_list(attribute: &std::ffi::CStr, path: &Path) -> bool {
    // acl(5) as the kernel stores it: version 2, then tag, rights and id of each entry.
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 6, none),
        entry(2, 4, 12),
        entry(4, 0, none),
        entry(16, 4, none),
        entry(32, 0, none),
    ];
    let list = entries.concat();
    let name = CString::new(path.as_os_str().as_bytes()).expect("no 0");
    let (name, attribute) = (name.as_ptr(), attribute.as_ptr());
    // SAFETY: both strings end in 0, and the list has so many bytes.
    let is_set = unsafe { libc::setxattr(name, attribute, list.as_ptr().cast(), list.len(), 0) } == 0;
    if !is_set {
        eprintln!("skipped: no access lists here: {}", io::Error::last_os_error());
    }
    is_set
}

#[test]
fn a_new_file_has_the_rights_that_its_folder_gives() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name);
    let mode = |name: &str| fs::metadata(place(name)).expect("there").mode() & 0o7777;
    if set_list(c"system.posix_acl_default", folder.path()) {
        fs::write(place("plain"), "").expect("written");
        write(&place("new"), b"page").expect("written");
        assert_eq!((mode("new"), mode("new") & 0o007), (mode("plain"), 0));
        assert!(has_access_list(&place("new")));
    }
}

#[test]
fn a_file_without_an_access_list_gets_none_from_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "old").expect("written");
    fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("own file");
    if !set_list(c"system.posix_acl_default", folder.path()) {
        return;
    }
    write(&file, b"new").expect("written");
    assert!(!has_access_list(&file));
    assert_eq!(fs::metadata(&file).expect("there").mode() & 0o7777, 0o640);
    replace(&file, b"newer", Some(0o600)).expect("written");
    assert!(!has_access_list(&file));
}

#[test]
fn a_file_with_an_access_list_keeps_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "old").expect("written");
    if !set_list(c"system.posix_acl_access", &file) {
        return;
    }
    write(&file, b"new").expect("written");
    assert!(has_access_list(&file));
    assert_eq!(fs::read(&file).expect("there"), b"new");
}

#[test]
fn a_signal_ends_the_writing_and_nothing_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    let held = Held::new();
    raise(Signal::SIGTERM).expect("raised");
    let written = replace_as(&file, b"page", Access::Usual, &held);
    assert_eq!(written.expect_err("a signal came").kind(), ErrorKind::Interrupted);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    // Its end would end the tests.
    held.forget();
    drop(held);
    assert!(!Held::new().has_signal());
}

#[test]
fn a_file_that_is_mounted_is_written_in_place() {
    if std::env::var_os("USLAB_TEST_MOUNTED").is_some() {
        return write_mounted_files();
    }
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name);
    fs::write(place("behind"), "old").expect("written");
    fs::write(place("file"), "covered").expect("written");
    fs::create_dir(place("locked")).expect("a folder");
    fs::write(place("locked/file"), "old").expect("written");
    let script = "cd \"$1\" && mount --bind behind file && mount --bind locked locked && \
                  mount --bind locked/file locked/file && mount -o remount,bind,ro locked && \
                  exec env USLAB_TEST_MOUNTED=1 \"$0\" --exact \
                  output::tests::a_file_that_is_mounted_is_written_in_place";
    let mut command = Command::new("unshare");
    let tests = std::env::current_exe().expect("known");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(tests).arg(folder.path());
    let output = match command.output() {
        Ok(output) if output.status.success() => output,
        output => return assert_is_forbidden(output),
    };
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    assert_eq!(fs::read(place("behind")).expect("there"), b"new");
    assert_eq!(fs::read(place("file")).expect("there"), b"covered");
    assert_eq!(fs::read(place("locked/file")).expect("there"), b"new");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3);
}

/// Namespaces or mounts are forbidden here: the test has nothing to say.
fn assert_is_forbidden(output: io::Result<std::process::Output>) {
    let Ok(output) = output else { return eprintln!("skipped: no unshare") };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("unshare:") || text.contains("mount:"), "{output:?}");
    eprintln!("skipped: {text}");
}

/// The part of the test above that runs with mounts of its own.
fn write_mounted_files() {
    for file in ["file", "locked/file"] {
        let replaced = replace_as(Path::new(file), b"page", Access::Usual, &Held::new());
        assert!(can_write_in_place(replaced.expect_err("mounted").kind()), "{file}");
        write(Path::new(file), b"new").expect(file);
        assert_eq!(fs::read(file).expect("there"), b"new");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_known_before() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(check(folder.path()).is_err() && check(&folder.path().join("none/file")).is_err());
    for file in [&*folder.path().join("file"), Path::new("file"), Path::new("/dev/null")] {
        check(file).expect("may be written");
    }
}
