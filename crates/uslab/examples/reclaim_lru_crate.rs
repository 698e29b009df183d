//! The cache of the crate `lru`, with a registration to go with the lock that the program has around it anyway.
//!
//! `cargo run --release -p uslab --example reclaim_lru_crate --features lru`

use lru::LruCache;
use std::sync::{Arc, Mutex};
use uslab::reclaim;
use uslab::reclaim::adaptors::{Locked, Shared};

/// Makes what entries own come from uslab, so that it goes back to the system when they go.
#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

const ROWS: u64 = 10_000;

fn row(id: u64) -> String {
    format!("{id:04000}")
}

fn main() {
    // A program that has its cache behind a mutex registers it; nothing else changes.
    let rows = Arc::new(Mutex::new(LruCache::unbounded()));
    let registration = Locked::register("rows", Arc::clone(&rows)).expect("there is memory");
    // A row comes from a database, in 200 µs.
    registration.set_miss_cost_ns(200_000);

    // Or the adaptor brings the mutex along. What is here is parsed again, in 2 µs.
    let parsed = Shared::new("parsed", LruCache::unbounded()).expect("there is memory");
    parsed.set_miss_cost_ns(2_000);

    (0..ROWS).for_each(|id| {
        rows.lock().expect("nobody panicked").put(id, row(id));
    });
    (0..ROWS).for_each(|id| {
        parsed.lock().put(id, row(id));
    });
    println!("before: {} rows, {} parsed", ROWS, parsed.lock().len());

    // Little is wanted: what is cheap to make again goes first.
    let given = reclaim(4 << 20);
    println!(
        "after 4 MiB were wanted: {} rows and {} parsed gone; {given} bytes went back",
        registration.evicted(),
        parsed.evicted()
    );
    assert!(given >= 4 << 20 && parsed.evicted() > 5 * registration.evicted());
    assert!(parsed.lock().peek(&(ROWS - 1)).is_some() && parsed.lock().peek(&0).is_none(), "the oldest went");

    // While somebody is in the cache it is passed by: reclaim waits for no lock.
    let busy = rows.lock().expect("nobody panicked");
    reclaim(usize::MAX);
    println!(
        "after everything was wanted, with the rows locked: {} rows, {} parsed",
        busy.len(),
        parsed.lock().len()
    );
    assert!(busy.len() > 5000 && parsed.lock().is_empty());
    drop(busy);
    let given = reclaim(usize::MAX);
    let left = rows.lock().expect("nobody panicked").len();
    println!("after everything was wanted: {left} rows; {given} bytes went back");
    assert!(left < ROWS as usize && given > 0, "even then the dear ones go bit by bit, call by call");
}
