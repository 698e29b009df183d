//! The cache of the crate `lru`, registered together with the program's own lock around it.
//!
//! `cargo run --release -p uslab --example reclaim_lru_crate --features lru`

use lru::LruCache;
use std::sync::{Arc, Mutex};
use uslab::reclaim;
use uslab::reclaim::adaptors::{Locked, Shared};

/// Entries allocate from uslab, so that their memory returns to the system when they are evicted.
#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

const ROWS: u64 = 10_000;

fn row(id: u64) -> String {
    format!("{id:04000}")
}

fn main() {
    // A program with its cache behind a mutex registers the mutex; nothing else changes.
    let rows = Arc::new(Mutex::new(LruCache::unbounded()));
    let registration = Locked::register("rows", Arc::clone(&rows)).expect("there is memory");
    // A row takes 200 µs to read from a database.
    registration.set_miss_cost_ns(200_000);

    // Or the adaptor provides the mutex. An entry of this cache takes 2 µs to parse again.
    let parsed = Shared::new("parsed", LruCache::unbounded()).expect("there is memory");
    parsed.set_miss_cost_ns(2_000);

    (0..ROWS).for_each(|id| {
        rows.lock().expect("no thread panicked while it held the lock").put(id, row(id));
    });
    (0..ROWS).for_each(|id| {
        parsed.lock().put(id, row(id));
    });
    println!("before: {} rows, {} parsed", ROWS, parsed.lock().len());

    // A small goal: entries that are cheap to make again are evicted first.
    let given = reclaim(4 << 20);
    println!(
        "after 4 MiB were wanted: {} rows and {} parsed gone; {given} bytes went back",
        registration.evicted(),
        parsed.evicted()
    );
    assert!(given >= 4 << 20 && parsed.evicted() > 5 * registration.evicted());
    assert!(parsed.lock().peek(&(ROWS - 1)).is_some() && parsed.lock().peek(&0).is_none(), "the oldest went");

    // While a thread holds its lock, reclaim skips the cache: it waits for no lock.
    let busy = rows.lock().expect("no thread panicked while it held the lock");
    reclaim(usize::MAX);
    println!(
        "after everything was wanted, with the rows locked: {} rows, {} parsed",
        busy.len(),
        parsed.lock().len()
    );
    assert!(busy.len() > 5000 && parsed.lock().is_empty());
    drop(busy);
    let given = reclaim(usize::MAX);
    let left = rows.lock().expect("no thread panicked while it held the lock").len();
    println!("after everything was wanted: {left} rows; {given} bytes went back");
    assert!(left < ROWS as usize && given > 0, "expensive entries are evicted gradually, over several calls");
}
