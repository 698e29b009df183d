//! Pressure sources on fake files: detection, events, and the loss of a source. Tests of limits are
//! in `headroom.rs`.
//!
//! Deadlines are generous, and lower bounds of time use the library's own clock, so that no test
//! depends on the machine's speed.

#[path = "support/again.rs"]
mod again;
#[path = "support/environment.rs"]
mod environment;

use environment::{Fake, TRIGGER, UNSET, line};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use uslab::internal::CHUNK_BYTES;
use uslab::internal::sources::{Kind, Pressure, Reason, Sources};
use uslab::reclaim::PressureChoice;

const MIB: u64 = 1 << 20;
/// Far longer than any wait that ends.
const LONG_MS: u64 = 60_000;
/// Long enough for the next check, which may come 100 ms after the last.
const LOOK_MS: u64 = 300;

/// A stall asks for a part of the memory, and for a chunk at least; this process holds less.
const STALL: Option<Pressure> = Some(Pressure { kind: Kind::Systemd, bytes: CHUNK_BYTES });

fn bytes(bytes: u64) -> Option<Pressure> {
    Some(Pressure { kind: Kind::Cgroup, bytes: bytes as usize })
}

fn fifo(fake: &Fake) -> PathBuf {
    let path = fake.path("fifo");
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    path
}

fn writer(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place to write to.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The descriptor of this process that is open on `path`.
fn descriptor_of(path: &Path) -> Option<i32> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    // The link's target names a removed file as such.
    let names = [path.to_path_buf(), PathBuf::from(format!("{} (deleted)", path.display()))];
    let found = entries.filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| names.contains(&link)));
    found.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).next()
}

// --- nothing there

#[test]
fn with_nothing_to_watch_waiting_is_sleeping() {
    let fake = Fake::new();
    fs::remove_dir_all(fake.path("proc")).unwrap();
    for mut sources in [Sources::none(), fake.detect(PressureChoice::default())] {
        let started = Instant::now();
        assert_eq!(sources.wait(200), None);
        assert!(started.elapsed() >= Duration::from_millis(190));
        assert_eq!((sources.headroom(), sources.watches_descriptors()), (None, false));
    }
    let sources = fake.detect(PressureChoice::default());
    assert_eq!(line(&sources, "systemd"), "not watched: MEMORY_PRESSURE_WATCH is not set");
    assert_eq!(line(&sources, "psi"), "not watched: it is not there");
    assert_eq!(line(&sources, "cgroup"), "not watched: no cgroup of version 2 was found");
}

#[test]
fn sources_that_are_not_chosen_are_not_watched() {
    let fake = Fake::new().with_psi();
    fake.set(0, "max", 1);
    fake.set(0, "current", 100 * MIB);
    let mut sources = fake.detect(PressureChoice::none());
    assert_eq!((sources.wait(0), sources.headroom(), sources.watches_descriptors()), (None, None, false));
    for source in ["systemd", "psi", "cgroup"] {
        assert_eq!(line(&sources, source), "not watched: not chosen");
    }
    let sources = fake.detect(PressureChoice::none().psi(true));
    assert!(sources.watches_descriptors());
    assert_eq!(line(&sources, "cgroup"), "not watched: not chosen");
}

#[test]
fn a_process_that_is_moved_is_followed() {
    let fake = Fake::new().with_psi();
    fs::create_dir(fake.path("cgroup/new")).unwrap();
    fake.put("cgroup/new/memory.current", "500");
    fake.put("cgroup/new/memory.max", "160");
    fake.put("cgroup/new/memory.pressure", "");
    let mut sources = fake.detect(PressureChoice::default());
    assert_eq!(sources.wait(0), None);
    fake.stand_in("/new");
    assert_eq!(sources.wait(LONG_MS), bytes(360));
    assert!(line(&sources, "psi").ends_with("/cgroup/new/memory.pressure"));
    assert_eq!(fs::read(fake.path("cgroup/new/memory.pressure")).unwrap(), TRIGGER);
    fake.stand_in("/../outside");
    while !line(&sources, "cgroup").starts_with("not watched") {
        thread::sleep(Duration::from_millis(20));
        // The sources follow the process even when no thread waits, and report what happened
        // before.
        assert!([None, bytes(360)].contains(&sources.headroom()));
    }
    assert_eq!(line(&sources, "cgroup"), "not watched: the process's cgroup is outside of what is mounted");
    assert!(line(&sources, "psi").ends_with("/proc/pressure/memory"));
}

// --- stalls

#[test]
fn psi_files_that_vanish_are_replaced_by_the_next_above() {
    let fake = Fake::new().with_psi();
    let mut sources = fake.detect(PressureChoice::default());
    for name in ["cgroup/outer/own/memory.pressure", "cgroup/outer/memory.pressure", "proc/pressure/memory"] {
        let path = fake.path(name);
        assert_eq!(line(&sources, "psi"), format!("watching {}", path.display()));
        assert_eq!(fs::read(&path).unwrap(), TRIGGER);
        assert!(sources.watches_descriptors());
        fs::remove_file(&path).unwrap();
        assert_eq!(sources.wait(0), None);
        assert_eq!(descriptor_of(&path), None);
    }
    assert!(!sources.watches_descriptors());
    assert_eq!(line(&sources, "psi"), "not watched: the file was removed");
    assert_eq!(sources.wait(20), None);
}

#[test]
fn a_pipe_is_heard_and_outlives_its_writers() {
    let fake = Fake::new().with_psi();
    let path = fifo(&fake);
    let mut sources = fake.watching(&path, b"Zm9v");
    assert_eq!(line(&sources, "systemd"), format!("watching {}", path.display()));
    assert_eq!(line(&sources, "psi"), "not watched: systemd's source is used");
    assert_eq!(sources.wait(0), None);
    for _ in 0..3 {
        let mut writer = writer(&path);
        for _ in 0..2 {
            writer.write_all(b"pressure").unwrap();
            assert_eq!(sources.wait(LONG_MS), STALL);
            assert_eq!(sources.wait(LOOK_MS), None, "earlier messages must be discarded");
        }
        drop(writer);
        assert_eq!(sources.wait(LOOK_MS), None);
    }
    // A writer that opens and closes the pipe between two checks is noticed too.
    writer(&path).write_all(b"!").unwrap();
    assert_eq!(sources.wait(LONG_MS), STALL);
}

#[test]
fn a_pipe_without_writers_costs_no_time() {
    let fake = Fake::new();
    let path = fifo(&fake);
    let mut sources = fake.watching(&path, b"");
    drop(writer(&path));
    let before = cpu_time();
    assert_eq!(sources.wait(2000), None);
    assert!(cpu_time() - before < Duration::from_millis(500), "{:?}", cpu_time() - before);
}

#[test]
fn a_pipe_that_is_gone_with_its_writer_is_replaced() {
    let fake = Fake::new().with_psi();
    let path = fifo(&fake);
    let mut sources = fake.watching(&path, b"");
    let last = writer(&path);
    fs::remove_file(&path).unwrap();
    assert_eq!(sources.wait(LOOK_MS), None);
    assert!(
        line(&sources, "systemd").starts_with("watching"),
        "the pipe must stay while its writer has it open"
    );
    drop(last);
    assert_eq!(sources.wait(LOOK_MS), None);
    assert_eq!(line(&sources, "systemd"), "not watched: it is not there");
    assert!(line(&sources, "psi").ends_with("outer/own/memory.pressure"));
}

#[test]
fn a_source_that_fires_without_end_is_heard_ten_times_a_second() {
    let fake = Fake::new();
    let path = fifo(&fake);
    let mut sources = fake.watching(&path, b"");
    let mut endless = writer(&path);
    // The writer ends with the reader: EPIPE.
    let flood = thread::spawn(move || while endless.write_all(&[0; 4096]).is_ok() {});
    let started = Instant::now();
    for _ in 0..5 {
        assert_eq!(sources.wait(LONG_MS), STALL);
    }
    assert!(started.elapsed() >= Duration::from_millis(4 * 89));
    drop(sources);
    flood.join().unwrap();
}

#[test]
fn a_socket_is_told_heard_and_replaced_when_it_ends() {
    let fake = Fake::new().with_psi();
    let path = fake.path("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut sources = fake.watching(&path, b"c29tZSAxIDIA");
    let (mut peer, _) = listener.accept().unwrap();
    let mut message = [0; 9];
    peer.read_exact(&mut message).unwrap();
    assert_eq!(&message, b"some 1 2\0");
    assert_eq!(sources.wait(LOOK_MS), None);
    peer.write_all(b"pressure").unwrap();
    assert_eq!(sources.wait(LONG_MS), STALL);
    // The last message is read before the end of file.
    peer.write_all(b"again").unwrap();
    drop(peer);
    assert_eq!(sources.wait(LONG_MS), STALL);
    assert_eq!(sources.wait(LOOK_MS), None);
    assert_eq!(line(&sources, "systemd"), "not watched: it has ended");
    assert!(line(&sources, "psi").ends_with("outer/own/memory.pressure"));
}

#[test]
fn messages_during_a_lasting_limit_do_not_pile_up() {
    let fake = Fake::new();
    fake.set(0, "max", 160 * MIB);
    fake.set(0, "current", 160 * MIB);
    let path = fifo(&fake);
    let mut sources = fake.watching(&path, b"");
    let mut writer = writer(&path);
    for _ in 0..3 {
        // A pipe holds 64 KiB; without a reader the writer would block for ever.
        writer.write_all(&[0; 48 << 10]).unwrap();
        thread::sleep(Duration::from_millis(150));
        assert_eq!(sources.wait(LONG_MS), bytes(20 * MIB));
    }
}

#[test]
fn a_file_of_the_kernels_without_a_threshold_is_replaced() {
    let watch = Path::new("/proc/pressure/memory");
    if OpenOptions::new().read(true).write(true).open(watch).is_err() {
        eprintln!("skipped: this user may not use stall accounting here");
        return;
    }
    let fake = Fake::new().with_psi();
    let mut sources = fake.watching(watch, b"");
    assert_eq!(line(&sources, "systemd"), "watching /proc/pressure/memory");
    assert_eq!(sources.wait(LOOK_MS), None);
    assert_eq!(line(&sources, "systemd"), "not watched: it has ended");
    assert!(line(&sources, "psi").ends_with("outer/own/memory.pressure"));
    // With its threshold the file stays.
    let mut sources = fake.watching(watch, b"c29tZSAxNTAwMDAgMjAwMDAwMAA=");
    sources.wait(LOOK_MS);
    assert_eq!(line(&sources, "systemd"), "watching /proc/pressure/memory");
}

#[test]
fn the_managers_value_is_written_to_the_file() {
    let fake = Fake::new().with_psi();
    fake.put("watch", "");
    let mut sources = fake.watching(&fake.path("watch"), b"c29tZSAxIDIA");
    assert_eq!(fs::read(fake.path("watch")).unwrap(), b"some 1 2\0");
    assert_eq!(line(&sources, "psi"), "not watched: systemd's source is used");
    assert_eq!(fs::read(fake.path("proc/pressure/memory")).unwrap(), b"");
    fs::remove_file(fake.path("watch")).unwrap();
    assert_eq!(sources.wait(0), None);
    assert_eq!(line(&sources, "systemd"), "not watched: the file was removed");
    assert!(line(&sources, "psi").ends_with("outer/own/memory.pressure"));
}

#[test]
fn the_manager_can_switch_stalls_off_but_not_limits() {
    let fake = Fake::new().with_psi();
    fake.set(0, "max", 160 * MIB);
    fake.set(0, "current", 160 * MIB);
    let mut sources = fake.watching(Path::new("/dev/null"), b"");
    for source in ["systemd", "psi"] {
        assert_eq!(line(&sources, source), "not watched: MEMORY_PRESSURE_WATCH is /dev/null");
    }
    assert_eq!(sources.wait(LONG_MS), bytes(20 * MIB));
    // A user who chooses PSI without the manager's source gets PSI.
    let forced = fake.told(PressureChoice::none().psi(true), Ok(b"/dev/null"), UNSET);
    assert!(line(&forced, "psi").starts_with("watching"));
}

#[test]
fn values_without_sense_leave_the_next_source_to_be_used() {
    let fake = Fake::new().with_psi();
    let good = fifo(&fake);
    let good = Ok(good.as_os_str().as_bytes());
    let directory = fake.path("proc");
    let long_socket = fake.path(&"s".repeat(120));
    let stale = fake.path("socket");
    drop(UnixListener::bind(&stale).unwrap());
    let value = |path: &'static str| Ok(path.as_bytes());
    for (watch, write, why) in [
        (value("run/pressure"), UNSET, "MEMORY_PRESSURE_WATCH is not an absolute path"),
        (Err(Reason::TooLong), UNSET, "the path or value is too long"),
        (good, value("c29tZQ"), "MEMORY_PRESSURE_WRITE is not base64"),
        (good, Err(Reason::TooLong), "the path or value is too long"),
        (value("/nonexistent/pressure"), UNSET, "it is not there"),
        (value("/dev/zero"), UNSET, "it is neither a file, a named pipe nor a socket"),
        (Ok(directory.as_os_str().as_bytes()), UNSET, "it is neither a file, a named pipe nor a socket"),
        (Ok(long_socket.as_os_str().as_bytes()), UNSET, "it is not there"),
        (Ok(stale.as_os_str().as_bytes()), UNSET, "no process listens"),
        (value(""), UNSET, "MEMORY_PRESSURE_WATCH is not set"),
    ] {
        let mut sources = fake.told(PressureChoice::default(), watch, write);
        assert_eq!(line(&sources, "systemd"), format!("not watched: {why}"));
        assert!(line(&sources, "psi").starts_with("watching"));
        assert_eq!(sources.wait(0), None);
    }
}

// --- the program's descriptors

#[test]
fn a_number_that_became_the_programs_is_left_alone() {
    let fake = Fake::new();
    let path = fifo(&fake);
    let mut sources = fake.watching(&path, b"");
    let number = descriptor_of(&path).unwrap();
    assert!(number >= 64, "low numbers belong to the program");
    fake.put("program", "its contents");
    let program = File::open(fake.path("program")).unwrap();
    // SAFETY: `number` is the library's. The program closes all descriptors and opens one of its
    // own there.
    assert_eq!(unsafe { libc::dup2(program.as_raw_fd(), number) }, number);
    assert_eq!(sources.wait(0), None);
    assert_eq!(fs::read_link(format!("/proc/self/fd/{number}")).unwrap(), fake.path("program"));
    // The library opens its file again, and reads it.
    let mut writer = loop {
        assert_eq!(sources.wait(10), None);
        if let Some(again) = descriptor_of(&path) {
            assert_ne!(again, number);
            break writer(&path);
        }
    };
    writer.write_all(b"!").unwrap();
    assert_eq!(sources.wait(LONG_MS), STALL);
    drop(sources);
    assert_eq!(fs::read_link(format!("/proc/self/fd/{number}")).unwrap(), fake.path("program"));
    let mut contents = String::new();
    (&program).read_to_string(&mut contents).unwrap();
    assert_eq!(contents, "its contents", "the library read the program's file");
    // SAFETY: opened above.
    unsafe { libc::close(number) };
}

#[test]
fn a_closed_descriptor_is_opened_again() {
    let fake = Fake::new().with_psi();
    let path = fake.path("cgroup/outer/own/memory.pressure");
    let mut sources = fake.detect(PressureChoice::default());
    // SAFETY: the library's descriptor, closed by the program as `closefrom` would.
    unsafe { libc::close(descriptor_of(&path).unwrap()) };
    while descriptor_of(&path).is_none() {
        assert!(sources.watches_descriptors(), "the sources must have a descriptor to wait for");
        assert_eq!(sources.wait(10), None);
    }
    assert!(sources.watches_descriptors());
    drop(sources);
    assert_eq!(descriptor_of(&path), None, "dropping closes");
}

#[test]
fn a_source_survives_a_time_without_descriptors() {
    let name = "a_source_survives_a_time_without_descriptors";
    if let Some(output) = again::again(name, &[]) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let fake = Fake::new();
    let path = fifo(&fake);
    let mut sources = fake.watching(&path, b"");
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: limits of this process, which runs this test alone, and the library's descriptor,
    // which the program closes.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut before), 0);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 64, ..before }), 0);
        libc::close(descriptor_of(&path).unwrap());
    }
    // The first attempt to open the source again comes a second after it was opened, and fails.
    assert_eq!(sources.wait(1500), None);
    assert!(sources.watches_descriptors());
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &before) }, 0);
    while descriptor_of(&path).is_none() {
        assert_eq!(sources.wait(10), None);
        assert!(sources.watches_descriptors(), "the source is watched again some time");
    }
    writer(&path).write_all(b"!").unwrap();
    assert_eq!(sources.wait(LONG_MS), STALL);
}

// --- the environment and the real kernel

#[test]
fn the_environment_is_read_and_the_log_written() {
    let name = "the_environment_is_read_and_the_log_written";
    if let Some(output) = again::again(
        name,
        &[
            ("USLAB_PRESSURE", "systemd"),
            ("USLAB_PRESSURE_LOG", "1"),
            ("MEMORY_PRESSURE_WATCH", &format!("/{}", "x".repeat(300))),
        ],
    ) {
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        for expected in [
            "uslab: pressure: systemd: not watched: the path or value is too long\n",
            "uslab: pressure: psi: not watched: not chosen\n",
            "uslab: pressure: cgroup: not watched: not chosen\n",
        ] {
            assert!(log.contains(expected), "{log}");
        }
        return;
    }
    let mut sources = Sources::detect(&PressureChoice::default().under_environment());
    assert_eq!(sources.wait(0), None);
}

#[test]
fn losses_are_logged_once() {
    let name = "losses_are_logged_once";
    if let Some(output) = again::again(name, &[("USLAB_PRESSURE_LOG", "1")]) {
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        assert_eq!(log.matches("lost: the file was removed").count(), 1, "{log}");
        return;
    }
    let fake = Fake::new().with_psi();
    let mut sources = fake.detect(PressureChoice::default().under_environment());
    fs::remove_file(fake.path("cgroup/outer/own/memory.pressure")).unwrap();
    for _ in 0..3 {
        assert_eq!(sources.wait(LOOK_MS), None);
    }
}

#[test]
fn a_control_group_of_the_kernels_is_watched_until_it_is_removed() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let hierarchy =
        mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
    let group = hierarchy.map(|point| Path::new(point).join(format!("uslab-test-{}", std::process::id())));
    let Some(group) = group.filter(|group| fs::create_dir(group).is_ok()) else {
        eprintln!("skipped: this user can make no control group of version 2 here");
        return;
    };
    let fake = Fake::new();
    fake.mount(group.parent().unwrap());
    fake.stand_in(&format!("/{}", group.file_name().unwrap().to_str().unwrap()));
    let mut sources = fake.detect(PressureChoice::default());
    let found = line(&sources, "psi");
    let first = sources.wait(LOOK_MS);
    fs::remove_dir(&group).unwrap();
    if !found.starts_with("watching") {
        eprintln!("skipped: the kernel has no stall accounting: {found}");
        return;
    }
    assert_eq!(found, format!("watching {}/memory.pressure", group.display()));
    assert!(first.is_none_or(|pressure| pressure.kind != Kind::Systemd));
    // The kernel's POLLERR wakes the thread; the next group above takes over.
    sources.wait(LOOK_MS);
    let next = line(&sources, "psi");
    assert_ne!(next, found);
}
