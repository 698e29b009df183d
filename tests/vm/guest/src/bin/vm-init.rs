//! The first process of a guest: it sets up the machine, runs the programs that the kernel's
//! command line names, and powers off.
//!
//! The words after `--` on the kernel's command line are its arguments (see `job.rs`). Each program
//! runs in a control group of its own with the limits given for it. This process stays outside, so
//! that no limit slows it. It reads `memory.current` every ten milliseconds, and writes one line
//! for the host after the program has ended,
//!
//! ```text
//!   @vm {"program":"three-caches","exit":0,"signal":0,"seconds":60.1,"peak":…,"oom_kill":0,…}
//! ```
//!
//! and `@vm off` before the power goes. It must never exit: the kernel would panic. Not for any use
//! outside a guest.

#[path = "../group.rs"]
mod group;
#[path = "../job.rs"]
mod job;

use group::{Group, Watch};
use job::Job;
use std::ffi::CString;
use std::io::{Error, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Interval of the samples of the program's memory.
const LOOK: Duration = Duration::from_millis(10);
/// Interval of the lines for a person who watches.
const TELL: Duration = Duration::from_secs(30);

fn main() {
    if std::process::id() != 1 {
        eprintln!("vm-init is the first process of a guest; `cargo xtask vm --help` starts one");
        std::process::exit(2);
    }
    if let Err(error) = prepare() {
        say(&format!(r#"{{"broken":"{error}"}}"#));
        power_off();
    }
    let job = Job::parse(std::env::args().skip(1));
    if let Some(limit) = job.limit {
        // The process that started the guest may have ended by then.
        std::thread::spawn(move || {
            std::thread::sleep(limit);
            say(r#"{"broken":"the guest's own time limit"}"#);
            power_off();
        });
    }
    for (number, step) in job.steps.iter().enumerate() {
        match run(number, step) {
            Ok(line) => say(&line),
            Err(error) => say(&format!(r#"{{"broken":"{}: {error}"}}"#, step.program)),
        }
    }
    power_off();
}

/// Mounts the file systems that programs expect, and enables the memory controller.
fn prepare() -> Result<(), Error> {
    for (kind, place) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/dev/shm"),
        ("tmpfs", "/tmp"),
        ("cgroup2", group::ROOT),
    ] {
        std::fs::create_dir_all(place)?;
        let (kind, place) = (CString::new(kind)?, CString::new(place)?);
        // SAFETY: three valid strings, and no data.
        let done = unsafe { libc::mount(kind.as_ptr(), place.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
        if done != 0 {
            return Err(Error::last_os_error());
        }
    }
    std::fs::write(format!("{}/cgroup.subtree_control", group::ROOT), "+memory")
}

/// Runs one program to its end. Returns the line for the host.
fn run(number: usize, step: &job::Step) -> Result<String, Error> {
    let group = Group::new(&format!("job{number}"), &step.limits)?;
    let procs = CString::new(group.file("cgroup.procs"))?;
    let mut command = Command::new(format!("/bin/{}", step.program));
    command.args(&step.args).env_clear().env("PATH", "/bin").env("HOME", "/tmp").current_dir("/tmp");
    command.envs(step.environment.iter().map(|(name, value)| (name, value)));
    // SAFETY: between fork and exec it only makes system calls.
    unsafe {
        command.pre_exec(move || {
            let file = libc::open(procs.as_ptr(), libc::O_WRONLY);
            // "0" means the writing process.
            let moved = libc::write(file, c"0".as_ptr().cast(), 1);
            libc::close(file);
            if moved == 1 { Ok(()) } else { Err(Error::last_os_error()) }
        });
    }
    let begin = Instant::now();
    let child = command.spawn()?.id();
    let mut watch = Watch::of(&group)?;
    let mut told = begin;
    let status = loop {
        watch.look();
        if told.elapsed() >= TELL {
            told = Instant::now();
            println!("{} after {} s: {}", step.program, begin.elapsed().as_secs(), watch.line());
        }
        if let Some(status) = reap(child) {
            break status;
        }
        std::thread::sleep(LOOK);
    };
    let (exit, signal) =
        if libc::WIFSIGNALED(status) { (-1, libc::WTERMSIG(status)) } else { (libc::WEXITSTATUS(status), 0) };
    let seconds = begin.elapsed().as_secs_f64();
    let events = group.events()?;
    Ok(format!(
        r#"{{"program":"{}","exit":{exit},"signal":{signal},"seconds":{seconds:.1},{},{}}}"#,
        step.program,
        watch.json(),
        events
    ))
}

/// Reaps all ended processes, orphans included. Returns the status of `child` once it is among
/// them.
fn reap(child: u32) -> Option<i32> {
    loop {
        let mut status = 0;
        // SAFETY: a valid place for the status.
        let dead = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
        if dead <= 0 {
            return None;
        }
        if dead as u32 == child {
            return Some(status);
        }
    }
}

/// Writes a line for the host, at the start of a console line even if the program left one
/// unfinished.
fn say(line: &str) {
    let mut console = std::io::stdout().lock();
    // An error of the console cannot be reported.
    let _ = write!(console, "\n@vm {line}\n").and_then(|()| console.flush());
}

fn power_off() -> ! {
    say("off");
    // SAFETY: no preconditions.
    unsafe {
        // Time for the console's last bytes.
        libc::tcdrain(1);
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}
