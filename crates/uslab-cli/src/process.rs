//! Facts about processes, from the system: alive, name, owner, start, environment.
//!
//! Everything here is about processes that may end at any moment and may belong to someone else, so
//! every answer can be "unknown". Without /proc only [`alive`] still works, which is all that
//! cleaning up needs.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};

const NS_PER_S: u64 = 1_000_000_000;
/// Most files of the kernel's fit one.
const PAGE_BYTES: usize = 4096;

/// Whether the process exists; one that has ended and was not yet waited for does.
pub fn alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}

/// Whether the process exists and has not ended. Its first thread may have ended before the others.
pub fn runs(pid: i32) -> bool {
    match state(&format!("/proc/{pid}")) {
        Some('Z') => threads(pid).is_some_and(|threads| threads > 1),
        Some('X') => false,
        Some(_) => true,
        None => alive(pid),
    }
}

/// The letter for the state of a process or thread, by its directory in /proc.
fn state(directory: &str) -> Option<char> {
    let stat = kernel_text(format!("{directory}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The directory in /proc that shows the memory, the environment and the mounts of a process. It is
/// the process's own unless its first thread has ended, which takes these from it. Then it is that
/// of a thread which runs.
pub fn directory(pid: impl Display) -> String {
    let own = format!("/proc/{pid}");
    if state(&own) != Some('Z') {
        return own;
    }
    let threads = fs::read_dir(format!("{own}/task")).into_iter().flatten().flatten();
    let mut threads = threads.filter_map(|thread| thread.path().into_os_string().into_string().ok());
    threads.find(|thread| !matches!(state(thread), None | Some('Z' | 'X'))).unwrap_or(own)
}

/// A text of the kernel's. The names of files and threads in it may be any bytes: those that are
/// not UTF-8 are replaced.
pub fn kernel_text(file: impl AsRef<Path>) -> io::Result<String> {
    let text = String::from_utf8(kernel_bytes(file)?);
    Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// A file of the kernel's. The kernel says that such a file is empty, so `fs::read` would begin
/// with 32 bytes and double them: seven calls for what one reads into a page.
fn kernel_bytes(file: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_whole(File::open(file)?)
}

/// Reads to the end of a kernel's file.
fn read_whole(mut file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(PAGE_BYTES);
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The number of its threads, as far as the kernel tells.
pub fn threads(pid: i32) -> Option<u32> {
    // Each thread is a directory, with a link to the one above it.
    let links = fs::metadata(format!("/proc/{pid}/task")).ok()?.nlink();
    u32::try_from(links.checked_sub(2)?).ok()
}

/// The process's name as the kernel has it (at most 15 bytes), made safe to print.
pub fn command_name(pid: i32) -> Option<String> {
    let name = kernel_text(format!("/proc/{pid}/comm")).ok()?;
    Some(printable(name.trim_end_matches('\n')))
}

/// The process in words: `process 17 (sleep)`.
pub fn described(pid: i32) -> String {
    match command_name(pid) {
        Some(command) => format!("process {pid} ({command})"),
        None => format!("process {pid}"),
    }
}

/// Whether the process has a thread of this name; `None` if that is not known.
pub fn has_thread(pid: i32, name: &str) -> Option<bool> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut names = threads.flatten().filter_map(|thread| kernel_text(thread.path().join("comm")).ok());
    Some(names.any(|found| found.trim_end() == name))
}

/// Whether the process has mapped the file, or one of its name; `None` if its mappings cannot be
/// read. In some filesystems a mapping shows another inode than the file.
pub fn has_mapped(pid: i32, file: &File, name: &str) -> Option<bool> {
    let inode = file.metadata().ok()?.ino().to_string();
    let maps = kernel_text(format!("{}/maps", directory(pid))).ok().filter(|maps| !maps.is_empty())?;
    let is_it = |line: &str| {
        // Addresses, permissions, offset, device, inode, path.
        let mut words = line.split_ascii_whitespace().skip(4);
        words.next() == Some(&inode)
            || words.next().and_then(|path| path.rsplit('/').next()).is_some_and(|last| last == name)
    };
    Some(maps.lines().any(is_it))
}

/// Nanoseconds of `CLOCK_BOOTTIME`.
pub fn boot_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The effective user of the process. The owner of /proc/PID is not it for processes that may not
/// be dumped.
pub fn owner(pid: i32) -> Option<u32> {
    let status = kernel_text(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The inode of the first pid namespace, from which every process can be seen (`PROC_PID_INIT_INO`
/// of the kernel).
pub const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// The inode of the process's pid namespace; `None` if it cannot be read.
pub fn pid_namespace(pid: i32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?.ino())
}

/// The process's id in its own pid namespace, which names its snapshot; the same id unless the
/// process is in a container.
pub fn inner_pid(pid: i32) -> i32 {
    let status = kernel_text(format!("/proc/{pid}/status")).unwrap_or_default();
    innermost(&status).unwrap_or(pid)
}

/// The last id of the line `NSpid`: that of the innermost namespace.
fn innermost(status: &str) -> Option<i32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

/// The user `user` as the process knows it, which may be in a container with users of its own.
pub fn inner_user(pid: i32, user: u32) -> u32 {
    let map = kernel_text(format!("/proc/{pid}/uid_map")).unwrap_or_default();
    inner(&map, user).unwrap_or(user)
}

/// Looks a user up in the kernel's list: the first user inside and outside, and their number.
fn inner(map: &str, user: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map_while(|word| word.parse::<u32>().ok());
        let [inside, outside, count] = [numbers.next()?, numbers.next()?, numbers.next()?];
        let place = user.checked_sub(outside).filter(|&place| place < count)?;
        inside.checked_add(place)
    })
}

/// Whether the process sees other mounts than this one: a path of its own may lead elsewhere here.
pub fn has_other_mounts(pid: i32) -> bool {
    let of = |directory: &str| fs::read_link(format!("{directory}/ns/mnt")).ok();
    of(&directory(pid)).zip(of("/proc/self")).is_some_and(|(theirs, ours)| theirs != ours)
}

/// What the kernel told the program at its start, random bytes' addresses included: it differs
/// from one exec to the next, and a fork child has its parent's.
pub fn auxiliary_vector(pid: i32) -> Option<Vec<u8>> {
    kernel_bytes(format!("{}/auxv", directory(pid))).ok().filter(|bytes| !bytes.is_empty())
}

/// Children that were forked and run the program of their parent, as far as the kernel tells: those
/// of the first [`MAX_THREADS`] threads, and the first [`MAX_CHILDREN`] of them.
pub fn fork_children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.take(MAX_THREADS).filter_map(|task| kernel_text(task.path().join("children")).ok());
    let children: Vec<i32> = lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .take(MAX_CHILDREN)
        .collect();
    if children.is_empty() {
        return children;
    }
    let Some(own) = auxiliary_vector(pid) else { return Vec::new() };
    children.into_iter().filter(|&child| auxiliary_vector(child).as_ref() == Some(&own)).collect()
}

const MAX_THREADS: usize = 64;
const MAX_CHILDREN: usize = 64;

/// Processes in words: the ids of the first few, and how many more there are.
pub fn first_of(pids: &[i32]) -> String {
    let (shown, more) = pids.split_at(pids.len().min(3));
    let shown = shown.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
    if more.is_empty() { shown } else { format!("{shown} and {} more", more.len()) }
}

/// All processes that run.
pub fn all() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// `CLOCK_BOOTTIME` when the process began, in nanoseconds, rounded down to the kernel's tick. exec
/// does not change it.
pub fn start_ns(pid: i32) -> Option<u64> {
    let ticks = start_ticks(&kernel_text(format!("/proc/{pid}/stat")).ok()?)?;
    let ticks_per_s = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()?;
    ticks.checked_mul(NS_PER_S / ticks_per_s.max(1))
}

/// Field 22 of /proc/PID/stat (proc(5)). The name in field 2 may hold blanks and brackets: count
/// from its end.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// A variable of the environment that the process was started with.
pub fn environment_variable(pid: i32, name: &str) -> Option<OsString> {
    // A process chooses what the kernel shows as its environment, and how much.
    let file = File::open(format!("{}/environ", directory(pid))).ok()?;
    let environment = read_whole(file.take(MAX_ENVIRONMENT_BYTES)).ok()?;
    environment.split(|&byte| byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(OsString::from_vec(value.to_vec()))
    })
}

/// As much as the kernel lets a program start with, by default.
const MAX_ENVIRONMENT_BYTES: u64 = 4 << 20;

/// Signals that this process was started with ignored, as a mask (bit 0 is signal 1); 0 when that
/// is not known.
pub fn ignored_signals() -> u64 {
    let mask = own_status("SigIgn:");
    mask.and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0)
}

fn own_status(field: &str) -> Option<String> {
    let status = kernel_text("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix(field)).map(|value| value.trim().to_owned())
}

/// The folder that holds this program.
pub fn own_folder() -> io::Result<PathBuf> {
    let mut path = std::env::current_exe()?;
    path.pop();
    Ok(path)
}

/// Replaces what would move the cursor or change a terminal's state: names come from other people's
/// processes.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
pub mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Child, Command};

    use super::*;

    /// A process whose name, and that of its program's file, is not UTF-8.
    pub struct Strange {
        child: Child,
        _folder: tempfile::TempDir,
    }

    impl Strange {
        pub fn start() -> Strange {
            let folder = tempfile::tempdir().expect("a folder");
            let program = folder.path().join(OsStr::from_bytes(b"sl\xffp"));
            fs::copy("/bin/sleep", &program).expect("copied");
            let child = loop {
                match Command::new(&program).arg("60").spawn() {
                    // A test on another thread forked while this one wrote the program.
                    Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {}
                    child => break child.expect("started"),
                }
            };
            let strange = Strange { child, _folder: folder };
            // The kernel lets the parent go on before it maps the program.
            while !fs::read(format!("/proc/{}/maps", strange.pid()))
                .expect("maps")
                .windows(5)
                .any(|part| part == b"sl\xffp\n")
            {}
            strange
        }

        pub fn pid(&self) -> i32 {
            self.child.id() as i32
        }
    }

    impl Drop for Strange {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[test]
    fn a_name_that_is_not_utf8_hides_nothing() {
        let strange = Strange::start();
        let pid = strange.pid();
        assert_eq!(owner(pid), Some(nix::unistd::geteuid().as_raw()));
        assert_eq!((inner_pid(pid), command_name(pid).as_deref()), (pid, Some("sl\u{fffd}p")));
        assert_eq!(has_thread(pid, "sl\u{fffd}p"), Some(true));
        assert!(runs(pid) && start_ns(pid).is_some());
    }

    #[test]
    fn this_process_is_alive_and_began_before_now() {
        let me = std::process::id() as i32;
        assert!(alive(me) && runs(me));
        assert!(command_name(me).is_some());
        assert_eq!(owner(me), Some(nix::unistd::geteuid().as_raw()));
        let uptime = fs::read_to_string("/proc/uptime").expect("uptime");
        let up_s: f64 = uptime.split(' ').next().and_then(|s| s.parse().ok()).expect("seconds");
        let start_s = start_ns(me).expect("a start") as f64 / 1e9;
        assert!(start_s <= up_s && start_s > 0.0, "{start_s} {up_s}");
    }

    #[test]
    fn start_is_found_behind_a_hostile_name() {
        let fields: Vec<String> = (3..=30).map(|n| n.to_string()).collect();
        assert_eq!(start_ticks(&format!("7 (a) b (c)) {}", fields.join(" "))), Some(22));
        assert_eq!(start_ticks("7 (short) S 1"), None);
        assert_eq!(start_ticks(""), None);
    }

    #[test]
    fn the_innermost_id_is_the_last() {
        assert_eq!(innermost("Name:\tx\nNSpid:\t4711\t17\t3\nx: 1\n"), Some(3));
        assert_eq!(innermost("NSpid:\t4711\n"), Some(4711));
        assert_eq!(innermost("Name:\tx\n"), None);
        let me = std::process::id() as i32;
        assert_eq!(inner_pid(me), me);
        assert!(!has_other_mounts(me) && all().contains(&me));
    }

    #[test]
    fn a_process_that_cannot_be_is_dead() {
        assert!(!alive(i32::MAX) && !runs(i32::MAX));
        assert_eq!(owner(i32::MAX), None);
        assert_eq!(start_ns(i32::MAX), None);
    }

    #[test]
    fn a_child_that_executed_a_program_is_no_fork_child() {
        let _strange = Strange::start();
        let me = std::process::id() as i32;
        assert!(auxiliary_vector(me).is_some());
        assert_eq!(auxiliary_vector(me), auxiliary_vector(me));
        // A child of another test may be on its way from the fork to its program.
        let start = std::time::Instant::now();
        while !fork_children(me).is_empty() {
            assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", fork_children(me));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(fork_children(i32::MAX).is_empty());
        assert_eq!(
            (first_of(&[9]).as_str(), first_of(&[1, 2, 3, 4, 5]).as_str()),
            ("9", "1, 2, 3 and 2 more")
        );
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(printable("größe"), "größe");
    }
}
