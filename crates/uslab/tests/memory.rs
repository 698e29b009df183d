//! The allocator's own memory: each figure of the "Memory" requirement, measured by the resident
//! size of a process of its own.
//!
//! The test harness allocates from the C library, which is not under test here; the measured parts
//! allocate nothing else. `cargo test --test memory -- --nocapture` prints the figures.

#[path = "support/again.rs"]
mod again;
#[path = "support/alone.rs"]
mod alone;

use again::again;
use alone::{alone, turn};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use std::{ptr, thread};
use uslab::malloc::{free, malloc};
use uslab::reclaim::{PressureChoice, has_reaper, watch_pressure};
use uslab::stats;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// Resident bytes of this process. `smaps_rollup` sums up page tables and is exact; `statm` may lag
/// by a batch a CPU.
fn resident_bytes() -> usize {
    let field = |text: &str| text.split_whitespace().next().and_then(|n| n.parse::<usize>().ok());
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    if let Some(kib) = rollup.lines().find_map(|line| field(line.strip_prefix("Rss:")?)) {
        return kib * 1024;
    }
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let pages = field(statm.split_once(' ').expect("statm has fields").1).expect("and they are numbers");
    pages * uslab::internal::page_bytes()
}

fn mib(bytes: isize) -> f64 {
    bytes as f64 / MIB as f64
}

/// Growth of the resident size since `before`.
fn grown_since(before: usize) -> isize {
    resident_bytes() as isize - before as isize
}

/// Objects of `bytes` each, with all pages touched. They are linked through their first words, so
/// that no table counts.
struct Chain {
    first: *mut u8,
    bytes: usize,
}

impl Chain {
    fn new(bytes: usize, count: usize) -> Chain {
        let mut first = ptr::null_mut::<u8>();
        for _ in 0..count {
            let object = malloc(bytes);
            assert!(!object.is_null(), "there is memory for {count} objects of {bytes} bytes");
            // SAFETY: allocated by this test, with that size, aligned to 16.
            unsafe {
                for page in (0..bytes).step_by(4096) {
                    object.add(page).write(1);
                }
                object.cast::<*mut u8>().write(first);
            }
            first = object;
        }
        Chain { first, bytes }
    }

    fn free(self) {
        let mut at = self.first;
        while !at.is_null() {
            // SAFETY: each was allocated above and contains the next one's address.
            unsafe {
                let next = at.cast::<*mut u8>().read();
                free(at);
                at = next;
            }
        }
        assert!(self.bytes > 0);
    }
}

#[test]
fn start_up_adds_at_most_1_mib() {
    alone("start_up_adds_at_most_1_mib", || {
        resident_bytes();
        let before = resident_bytes();
        let object = malloc(16);
        let grown = grown_since(before);
        assert!(!object.is_null());
        println!("start-up: {:.3} MiB until the first object (limit 1)", mib(grown));
        assert!(grown <= MIB as isize);
    });
}

#[test]
fn a_gib_of_64_byte_objects_costs_at_most_3_percent_more() {
    alone("a_gib_of_64_byte_objects_costs_at_most_3_percent_more", || {
        let before = resident_bytes();
        let chain = Chain::new(64, GIB / 64);
        let grown = grown_since(before);
        println!("1 GiB of 64-byte objects: {:.4} GiB resident (limit 1.03)", mib(grown) / 1024.0);
        assert!(grown as f64 <= 1.03 * GIB as f64);
        chain.free();
        println!("1 GiB of 64-byte objects: {:.2} MiB stay after they are freed", mib(grown_since(before)));
    });
}

/// Resident bytes that no file backs. They exclude the program's code, which is large in a debug
/// build.
fn anonymous_bytes() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("/proc is mounted");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("it has the line");
    line.split_whitespace().next().and_then(|n| n.parse::<usize>().ok()).expect("a number") * 1024
}

/// Compares resident memory outside of slabs and large objects with the pages of these.
#[test]
fn metadata_is_at_most_2_percent_of_the_heap() {
    alone("metadata_is_at_most_2_percent_of_the_heap", || {
        const EACH: usize = 64 * MIB;
        let before = anonymous_bytes();
        let mut used_before = 0;
        for bytes in [16, 64, 200, 1024, 4096, 20_000, 100_000, 3 * MIB] {
            // Held to the end of the process.
            Chain::new(bytes, EACH / bytes);
            let used = stats::usage().used_bytes;
            let beyond = anonymous_bytes() as isize - before as isize - used as isize;
            let percent = 100.0 * beyond as f64 / used as f64;
            println!(
                "metadata: {percent:.2} % of {:.0} MiB, after {EACH} bytes of {bytes}-byte objects (limit 2)",
                mib(used as isize)
            );
            assert!(percent <= 2.0);
            assert!(used - used_before >= EACH / bytes * bytes);
            used_before = used;
        }
    });
}

/// Bytes that each thread allocates and frees.
const THREAD_BYTES: usize = MIB;
const THREADS: usize = 1000;

/// Touches the thread's own memory (its stack, to the depth of the slow paths, and its handle for
/// parking), so that it is resident before the measurement.
#[inline(never)]
fn warm_up_thread() {
    thread::park_timeout(Duration::from_nanos(1));
    let mut pages = [0u8; 32 << 10];
    for at in (0..pages.len()).step_by(1024) {
        // SAFETY: in bounds. Volatile, so that the compiler keeps it.
        unsafe { (&raw mut pages[at]).write_volatile(1) };
    }
}

/// Threads that live at one time: all thousand on a machine with two gigabytes free, fewer
/// otherwise.
fn threads_at_once() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = info.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<usize>().ok()
    });
    if available.is_none_or(|kib| kib * 1024 >= 2 * GIB) { THREADS } else { 100 }
}

/// Runs of a figure that depends on scheduling: on which threads left the last objects in a CPU's
/// sheaves, and on how many slabs those objects keep. Most of them must be within the limit.
const RUNS: usize = 5;

/// Measures the memory left after a thousand threads each allocated a mebibyte in objects of
/// `bytes` and freed it, while they idle.
fn idle_threads(name: &str, bytes: usize) {
    let turn = turn();
    let mut left = Vec::new();
    let are_within = |left: &[isize]| left.iter().filter(|&&bytes| bytes <= LIMIT).count() > RUNS / 2;
    while left.len() < RUNS && !are_within(&left) {
        let Some(output) = again(name, &[]) else { return measure_idle_threads(bytes) };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}\n{text}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let figure = text.split(LEFT).nth(1).and_then(|rest| rest.split_whitespace().next());
        left.push(
            figure.and_then(|figure| figure.parse::<isize>().ok()).expect("the child prints the bytes left"),
        );
    }
    drop(turn);
    let shown: Vec<String> = left.iter().map(|&bytes| format!("{:.2}", mib(bytes))).collect();
    println!(
        "{THREADS} idle threads that freed 1 MiB in {bytes}-byte objects: {} MiB left (limit 8)",
        shown.join(" ")
    );
    assert!(are_within(&left));
}

/// Upper bound on what idle threads leave.
const LIMIT: isize = 8 * MIB as isize;
/// Looks at the resident size, 100 ms apart. A busy machine may keep the background thread waiting,
/// and a process that was stopped goes on where it was.
const MAX_LOOKS: u32 = 600;

/// Precedes the figure in the child's output.
const LEFT: &str = "bytes left: ";

/// The measurement, in a child process.
fn measure_idle_threads(bytes: usize) {
    // Checks of debug builds lengthen the slow paths, and with them what threads leave behind.
    uslab::internal::switch_checks_off();
    // Sets up the library, and creates the class's cache.
    Chain::new(bytes, 1).free();
    // Programs of this size have the background thread. The crate's `malloc` starts none, because
    // its caller may be the C library.
    watch_pressure(PressureChoice::none());
    assert!(has_reaper());
    let together = threads_at_once();
    let steps = Arc::new(Barrier::new(together + 1));
    let mut threads = Vec::new();
    let (mut before, mut peak) = (0, 0);
    for turn in 0..THREADS / together {
        for _ in 0..together {
            let steps = Arc::clone(&steps);
            let run = move || {
                warm_up_thread();
                steps.wait();
                steps.wait();
                let chain = Chain::new(bytes, THREAD_BYTES / bytes);
                steps.wait();
                steps.wait();
                chain.free();
                steps.wait();
                thread::park();
            };
            let builder = thread::Builder::new().stack_size(128 << 10);
            threads.push(builder.spawn(run).expect("there is room for a thread"));
        }
        steps.wait();
        if turn == 0 {
            resident_bytes();
            before = resident_bytes();
        }
        steps.wait();
        steps.wait();
        peak = peak.max(grown_since(before));
        steps.wait();
        steps.wait();
    }
    let mut left = grown_since(before);
    // The last objects lie in sheaves. The background thread releases the free pages around them in
    // their slabs once they have rested for half a second.
    for _ in 0..MAX_LOOKS {
        if left <= LIMIT {
            break;
        }
        thread::sleep(Duration::from_millis(100));
        left = grown_since(before);
    }
    println!(
        "{THREADS} threads, {THREAD_BYTES} bytes each in {bytes}-byte objects, {together} at once: {:.2} MiB left of {:.0} (limit 8)",
        mib(left),
        mib(peak)
    );
    let usage = stats::usage();
    println!(
        "of that: {:.2} MiB in slabs and large objects, {:.2} in free pages",
        mib(usage.used_bytes as isize),
        mib(usage.dirty_bytes as isize)
    );
    println!("{LEFT}{left}");
    // The threads idle until the process ends.
}

#[test]
fn idle_threads_that_freed_one_block_each_leave_little() {
    idle_threads("idle_threads_that_freed_one_block_each_leave_little", MIB);
}

#[test]
fn idle_threads_that_freed_64_byte_objects_leave_little() {
    idle_threads("idle_threads_that_freed_64_byte_objects_leave_little", 64);
}

#[test]
fn idle_threads_that_freed_1_kib_objects_leave_little() {
    idle_threads("idle_threads_that_freed_1_kib_objects_leave_little", 1024);
}
