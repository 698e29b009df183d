//! A program whose three caches together need more memory than it may use.
//!
//! Threads share the trace of the simulation (`traffic.rs`) and request its keys from the caches. A
//! missing entry is made again, in a time proportional to its cost: 1, 10 or 100. Requests come at
//! a fixed rate, as for a server. At the end the program prints one line of JSON with the result.
//!
//! ```text
//!   three-caches --seconds 60 --rate 8000      caches that shrink when the library asks them to
//!   three-caches --seconds 60 --own-loop       the same, asked by a loop of this program; as fast as they can
//!   three-caches --seconds 60 --no-reclaim     plain maps that keep everything
//!   three-caches --simulate --operations N     what the simulation says of N steps, with memory for half of all entries
//!                --miss-us 100,1000,10000      the same for caches that take a miss to cost this
//!   three-caches --wanted                      what it takes to hold every entry
//! ```
//!
//! It must never read the limits of its group, except with `--own-loop`: staying below them is
//! under test.

#[path = "../caches.rs"]
mod caches;
#[path = "../own_loop.rs"]
mod own_loop;
#[path = "../../../../../crates/uslab/tests/support/traffic.rs"]
mod traffic;

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

use caches::{Caches, Entry, Plain, Shrinking, entry_bytes};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use traffic::{COSTS, KEYS, Tally, Traffic};

/// Steps of a phase.
const STEPS_A_PHASE: u64 = 200_000;
/// Steps that a thread takes from the trace at once.
const BLOCK: u64 = 64;
/// Most threads sleep, in a miss or between requests.
const THREADS: u64 = 8;
/// The time of one unit of cost.
const UNIT: Duration = Duration::from_micros(100);

#[derive(Default)]
struct Args {
    seconds: u64,
    operations: u64,
    rate: u64,
    no_reclaim: bool,
    own_loop: bool,
    simulate: bool,
    miss_us: Option<[u32; 3]>,
    wanted: bool,
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Args> {
    let mut args = Args { seconds: u64::MAX, operations: u64::MAX, ..Args::default() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => args.seconds = words.next()?.parse().ok()?,
            "--operations" => args.operations = words.next()?.parse().ok()?,
            "--rate" => args.rate = words.next()?.parse().ok()?,
            "--no-reclaim" => args.no_reclaim = true,
            "--own-loop" => args.own_loop = true,
            "--simulate" => args.simulate = true,
            "--miss-us" => {
                let costs: Result<Vec<u32>, _> = words.next()?.split(',').map(str::parse).collect();
                args.miss_us = Some(costs.ok()?.try_into().ok()?);
            }
            "--wanted" => args.wanted = true,
            _ => return None,
        }
    }
    (args.wanted || args.seconds.min(args.operations) < u64::MAX).then_some(args)
}

fn main() -> ExitCode {
    let Some(args) = parse(std::env::args().skip(1)) else {
        eprintln!(
            "three-caches [--seconds N] [--operations N] [--rate N] [--no-reclaim | --own-loop | --simulate [--miss-us A,B,C]] | --wanted"
        );
        return ExitCode::from(2);
    };
    if args.wanted {
        wanted();
        return ExitCode::SUCCESS;
    }
    let traffic = Traffic::new(STEPS_A_PHASE);
    let begin = Instant::now();
    let (tally, held, miss_us) = if args.simulate {
        let trace = (0..args.operations).map(|number| traffic.step(number));
        // As in the library: 10 µs are 2 seeks.
        let seeks = args.miss_us.map_or(COSTS.map(|cost| 2 * cost as u32), |us| us.map(|us| (us / 5).max(1)));
        let tally = traffic::balanced(trace, seeks, all_entries() / 2, entry_bytes);
        (tally, [[0; 2]; 3], [0; 3])
    } else if args.no_reclaim {
        let caches = Plain::default();
        (run(&caches, &traffic, &args), caches.held_and_given_up(), caches.miss_us())
    } else {
        let caches = Shrinking::new().expect("memory for three empty caches");
        let _loop = args.own_loop.then(own_loop::start);
        (run(&caches, &traffic, &args), caches.held_and_given_up(), caches.miss_us())
    };
    println!(
        r#"{{"operations":{},"hits":{},"misses":{},"cost":{},"hit_rate":{:.5},"held_and_given_up":{held:?},"miss_us":{miss_us:?},"seconds":{:.1},"mode":"{}"}}"#,
        tally.operations,
        tally.hits,
        tally.operations - tally.hits,
        tally.cost,
        tally.hits as f64 / tally.operations.max(1) as f64,
        begin.elapsed().as_secs_f64(),
        uslab::mode()
    );
    ExitCode::SUCCESS
}

/// Bytes of all entries of all caches.
fn all_entries() -> usize {
    (0..3).flat_map(|cache| (0..KEYS as u32).map(move |key| entry_bytes(cache, key))).sum()
}

/// Holds every entry once, and prints the memory of the process then.
fn wanted() {
    let caches = Plain::default();
    for cache in 0..3 {
        (0..KEYS as u32).for_each(|key| drop(caches.get(cache, key, || Entry::new(cache, key))));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib =
        anonymous.and_then(|text| text.trim().strip_suffix(" kB")).and_then(|text| text.parse::<u64>().ok());
    println!(r#"{{"bytes":{},"entries":{}}}"#, kib.unwrap_or(0) * 1024, all_entries());
}

/// Runs the trace on `caches` for the time or steps of the arguments.
fn run<C: Caches>(caches: &C, traffic: &Traffic, args: &Args) -> Tally {
    let (next, total) = (AtomicU64::new(0), Mutex::new(Tally::default()));
    let begin = Instant::now();
    // The time between the beginnings of two blocks.
    let pause_us = (BLOCK * 1_000_000).checked_div(args.rate).unwrap_or(0);
    let end = begin.checked_add(Duration::from_secs(args.seconds.min(u64::from(u32::MAX))));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut tally = Tally::default();
                loop {
                    let first = next.fetch_add(BLOCK, Relaxed);
                    let due = begin + Duration::from_micros(pause_us * (first / BLOCK));
                    if first >= args.operations || end.is_some_and(|end| due.max(Instant::now()) >= end) {
                        break;
                    }
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    for number in first..(first + BLOCK).min(args.operations) {
                        let (cache, key) = traffic.step(number);
                        let mut made = false;
                        let entry = caches.get(cache, key, || {
                            made = true;
                            make(cache, key)
                        });
                        assert!(
                            entry.is_of(cache, key),
                            "the entry of key {key} of cache {cache} belongs to another key"
                        );
                        tally.operations += 1;
                        tally.hits += u64::from(!made);
                        tally.cost += if made { COSTS[cache] } else { 0 };
                    }
                }
                let mut total = total.lock().expect("no thread panics while it holds the lock");
                total.operations += tally.operations;
                total.hits += tally.hits;
                total.cost += tally.cost;
            });
        }
    });
    total.into_inner().expect("no thread panics while it holds the lock")
}

/// Waits for the time of a miss, and returns the entry.
fn make(cache: usize, key: u32) -> Entry {
    // Sleeps, as if for a disk or a network: eight spinning emulated CPUs would starve the rest of
    // the guest.
    std::thread::sleep(UNIT * COSTS[cache] as u32);
    Entry::new(cache, key)
}
