//! CPUs come and go while threads allocate: no object may have two owners.
//!
//! Every second CPU goes offline before the program that is tested starts, so that the kernel can
//! report more CPUs than it finds, and with gaps between them. Then CPUs go and come while threads
//! take, stamp and free objects and the main thread drains all caches. One line of JSON has the
//! figures. It must never be run outside a guest.

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

use std::io::Error;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use uslab::malloc::{free, malloc};

const CPUS: usize = 8;
const THREADS: usize = 6;
/// Objects that a thread holds at a time.
const OBJECTS: usize = 24;
const SIZES: [usize; 3] = [64, 192, 1024];
const RUN: Duration = Duration::from_secs(15);
/// On a busy host a change takes seconds.
const MIN_TOGGLES: usize = 10;

fn main() -> ExitCode {
    let done = match std::env::args().nth(1) {
        None => start_with_few_cpus(),
        Some(_) => run(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn set_online(cpu: usize, is_online: bool) -> Result<(), Error> {
    std::fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), if is_online { "1" } else { "0" })
}

fn start_with_few_cpus() -> Result<bool, Error> {
    for cpu in (1..CPUS).step_by(2) {
        set_online(cpu, false)?;
    }
    let status = Command::new(std::env::current_exe()?).arg("threads").status()?;
    for cpu in 1..CPUS {
        set_online(cpu, true)?;
    }
    Ok(status.success())
}

fn run() -> Result<bool, Error> {
    let (stop, doubled) = (AtomicBool::new(false), AtomicUsize::new(0));
    let toggles = std::thread::scope(|scope| {
        for thread in 1..=THREADS {
            let (stop, doubled) = (&stop, &doubled);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    for bytes in SIZES {
                        doubled.fetch_add(own(bytes, thread), Relaxed);
                    }
                }
            });
        }
        let toggles = toggle();
        stop.store(true, Relaxed);
        toggles
    });
    let (toggles, doubled) = (toggles?, doubled.load(Relaxed));
    println!(r#"{{"toggles":{toggles},"doubled":{doubled},"mode":"{}"}}"#, uslab::mode());
    Ok(doubled == 0)
}

/// Takes objects, stamps them, and returns how many have lost the stamp when they are freed.
fn own(bytes: usize, thread: usize) -> usize {
    let objects: [*mut u8; OBJECTS] = std::array::from_fn(|_| malloc(bytes));
    let stamp = |object: *mut u8| [thread, object.addr()];
    for object in objects {
        assert!(!object.is_null(), "there is memory");
        // SAFETY: of `bytes` bytes, aligned to 16, and this thread's until it is freed.
        unsafe { object.cast::<[usize; 2]>().write_volatile(stamp(object)) };
    }
    objects.into_iter().fold(0, |lost, object| {
        // SAFETY: as above; freed once.
        let found = unsafe { object.cast::<[usize; 2]>().read_volatile() };
        // SAFETY: as above.
        unsafe { free(object) };
        lost + usize::from(found != stamp(object))
    })
}

/// Takes CPUs offline and online in turn, and drains after each; returns the number of changes.
fn toggle() -> Result<usize, Error> {
    let begin = Instant::now();
    let mut is_online: [bool; CPUS] = std::array::from_fn(|cpu| cpu % 2 == 0);
    let mut toggles = 0;
    while begin.elapsed() < RUN || toggles < MIN_TOGGLES {
        // The first one cannot go.
        let cpu = 1 + toggles * 5 % (CPUS - 1);
        is_online[cpu] = !is_online[cpu];
        set_online(cpu, is_online[cpu])?;
        toggles += 1;
        uslab::trim(0);
    }
    Ok(toggles)
}
