//! The library's threads are ordinary threads of the process, even if a real-time thread started
//! them; and a process without them behaves alike.
//!
//! Each test is a process of its own, in both modes.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;
#[path = "support/pinned.rs"]
mod pinned;

use again::again;
use modes::in_both_modes;
use pinned::stay_on_this_cpu;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use uslab::internal::entry::{Program, calloc_for, malloc_for, realloc_for};
use uslab::malloc::{free, malloc};
use uslab::{CacheBuilder, Scan, ShrinkControl, Shrinker, ShrinkerOptions, register_shrinker, set_limit};

const MIB: usize = 1 << 20;

/// The scheduling of a thread, as the kernel reports it.
#[derive(Debug, PartialEq, Eq)]
struct Scheduling {
    policy: i32,
    nice: i32,
    cpus: Vec<usize>,
    memory_mode: i32,
}

fn scheduling() -> Scheduling {
    // SAFETY: a zeroed set is empty; the set and the mode are valid places to write to.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        let (mut memory_mode, nothing) = (-1, std::ptr::null::<u64>());
        libc::syscall(libc::SYS_get_mempolicy, &raw mut memory_mode, nothing, 0, nothing, 0);
        Scheduling {
            policy: libc::sched_getscheduler(0),
            nice: libc::getpriority(libc::PRIO_PROCESS, 0),
            cpus: (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect(),
            memory_mode,
        }
    }
}

static SEEN: OnceLock<(Scheduling, String)> = OnceLock::new();

/// Records the scheduling of the thread on which it is called.
struct Recorder;

impl Shrinker for Recorder {
    fn count(&self, _: &ShrinkControl) -> usize {
        1000
    }

    fn scan(&self, _: &ShrinkControl) -> Scan {
        let name = || std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
        SEEN.get_or_init(|| (scheduling(), name()));
        Scan::Stop
    }
}

#[test]
fn callbacks_run_on_ordinary_threads_even_if_a_special_one_started_them() {
    in_both_modes("callbacks_run_on_ordinary_threads_even_if_a_special_one_started_them", &[], || {
        // Starts the library on this thread, before the test changes the thread's scheduling.
        let first = uslab::malloc::malloc(1);
        let at_start = scheduling();
        stay_on_this_cpu();
        // SAFETY: a mask of one word. For a user other than root the kernel refuses some of these
        // calls, and there is less to reset.
        unsafe {
            let node = 1u64;
            libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, &raw const node, 64);
            libc::setpriority(libc::PRIO_PROCESS, 0, -5);
            let parameter = libc::sched_param { sched_priority: 10 };
            libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter);
        }
        let changed = scheduling();
        println!("started by: {:?}, nice {}, memory {}", changed.policy, changed.nice, changed.memory_mode);
        let _looks = register_shrinker("looks", ShrinkerOptions::default(), Recorder).unwrap();
        // SAFETY: as above; the only parameter of this policy.
        unsafe {
            let parameter = libc::sched_param { sched_priority: 0 };
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &parameter);
        }
        let blocks: Vec<*mut u8> = (0..8 * MIB / 4000).map(|_| malloc(4000)).collect();
        set_limit(4 * MIB, 0).unwrap();
        let start = Instant::now();
        while SEEN.get().is_none() {
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "the background thread does not call the shrinker"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let (seen, name) = SEEN.get().unwrap();
        assert_eq!(name, "uslab-shrink\n");
        assert_eq!(seen, &Scheduling { nice: at_start.nice.max(0), ..at_start });
        // SAFETY: allocated by this test, freed once.
        blocks.into_iter().chain([first]).for_each(|block| unsafe { free(block) });
    });
}

/// A fixed amount of work on one thread; prints its figures, one a line.
fn work() {
    stay_on_this_cpu();
    let show = |name: &str, value: usize| println!("figure {name} {value}");
    let cache = CacheBuilder::new("work").build_raw(200).unwrap();
    let mut blocks: Vec<*mut u8> = Vec::new();
    for round in 0..60_000usize {
        let block = match round % 4 {
            0 => malloc_for::<Program>(16 + round % 900),
            1 => calloc_for::<Program>(1 + round % 100, 10),
            2 if round % 1000 == 2 => malloc_for::<Program>(40_000 + round),
            // SAFETY: the newest block; its new address replaces the old one in the list.
            2 => unsafe { realloc_for::<Program>(blocks.pop().unwrap(), 1500) },
            _ => malloc(700),
        };
        blocks.push(block);
    }
    let objects: Vec<_> = (0..10_000).map(|_| cache.alloc().unwrap()).collect();
    let usage = uslab::stats::usage();
    show("allocated_bytes", usage.allocated_bytes);
    show("large_objects", usage.large_objects);
    show("large_bytes", usage.large_bytes);
    assert!(blocks.iter().all(|block| !block.is_null()));
    // SAFETY: allocated by this test, each freed once.
    unsafe {
        objects.into_iter().for_each(|object| cache.free(object));
        blocks.drain(..).for_each(|block| free(block));
    }
    uslab::trim(0);
    show("allocated_bytes_at_the_end", uslab::stats::usage().allocated_bytes);
    set_limit(0, 48 * MIB).unwrap();
    loop {
        let block = malloc_for::<Program>(100_000);
        if block.is_null() {
            break;
        }
        blocks.push(block);
    }
    show("blocks_below_the_hard_limit", blocks.len());
    // SAFETY: allocated by this test, each freed once.
    blocks.into_iter().for_each(|block| unsafe { free(block) });
    set_limit(0, 0).unwrap();
    println!("figure has_reaper_beside {}", usize::from(uslab::reclaim::has_reaper()));
}

/// The figures of [`work`] in a process of its own.
fn figures(name: &str, rseq: &str, reaper: &str) -> Option<BTreeMap<String, usize>> {
    let output = again(name, &[("USLAB_RSEQ", rseq), ("USLAB_REAPER", reaper)])?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let figure = |line: &str| -> Option<(String, usize)> {
        let (name, value) = line.split_once("figure ")?.1.split_once(' ')?;
        Some((name.to_owned(), value.parse().expect("a number")))
    };
    Some(text.lines().filter_map(figure).collect())
}

#[test]
fn forbidding_the_thread_changes_nothing_else() {
    let name = "forbidding_the_thread_changes_nothing_else";
    for rseq in ["1", "0"] {
        let (Some(mut with), Some(mut without)) = (figures(name, rseq, "1"), figures(name, rseq, "0")) else {
            return work();
        };
        assert_eq!(with.remove("has_reaper_beside"), Some(1));
        assert_eq!(without.remove("has_reaper_beside"), Some(0));
        assert_eq!(with.len(), 5);
        assert_eq!(with, without, "USLAB_RSEQ={rseq}");
    }
}
