//! The program's own caches as shrinkers, in two ways: two functions and the adaptor's lock, or the
//! `Shrinker` trait itself.
//!
//! `cargo run --release -p uslab --example reclaim_own_cache`

use std::collections::VecDeque;
use std::sync::Mutex;
use uslab::reclaim::adaptors::{EvictColdest, Shared};
use uslab::{Scan, ShrinkControl, Shrinker, ShrinkerOptions, reclaim, register_shrinker};

/// Entries allocate from uslab, so that their memory returns to the system when they are evicted.
#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

/// Sent messages, kept in case a client requests them again; the oldest in front.
struct Sent(VecDeque<Vec<u8>>);

impl EvictColdest for Sent {
    type Evicted = Vec<u8>;

    fn entries(&self) -> usize {
        self.0.len()
    }

    fn evict_coldest(&mut self) -> Option<Vec<u8>> {
        self.0.pop_front()
    }
}

/// Buffers kept for the next request. All are equally cold; an empty pool costs allocations.
struct Buffers(Mutex<Vec<Box<[u8; 8192]>>>);

impl Shrinker for Buffers {
    fn count(&self, _: &ShrinkControl) -> usize {
        self.0.try_lock().map_or(0, |buffers| buffers.len())
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        // Try the lock, never wait for it: this thread may hold it.
        let Ok(mut buffers) = self.0.try_lock() else { return Scan::Stop };
        let keep = buffers.len().saturating_sub(control.nr_to_scan);
        let gone = buffers.split_off(keep);
        drop(buffers);
        // The buffers are dropped here, without the lock.
        Scan::Freed(gone.len())
    }
}

fn main() {
    let sent = Shared::new("sent", Sent(VecDeque::new())).expect("there is memory");
    sent.lock().0.extend((0..4000).map(|message| vec![message as u8; 4096]));

    let buffers = Buffers(Mutex::new((0..1000).map(|_| Box::new([1; 8192])).collect()));
    // A buffer is cheap to make: half of the default seeks.
    let options = ShrinkerOptions { seeks: 1, ..ShrinkerOptions::default() };
    let buffers = register_shrinker("buffers", options, buffers).expect("there is memory");

    let left = || {
        (sent.lock().entries(), buffers.0.lock().expect("no thread panicked while it held the lock").len())
    };
    println!("before: {:?} messages and buffers", left());
    let given = reclaim(2 << 20);
    println!("after 2 MiB were wanted: {:?}; {given} bytes went back", left());
    let (messages, pooled) = left();
    assert!(given >= 2 << 20 && messages > 0 && messages < 4000 && pooled < 1000);
    let given = reclaim(usize::MAX);
    println!("after everything was wanted: {:?}; {given} bytes went back", left());
    assert_eq!(left(), (0, 0));
}
