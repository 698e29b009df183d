//! The map of the crate `schnellru`, limited by the available memory instead of a guess.
//!
//! `cargo run --release -p uslab --example reclaim_schnellru --features schnellru`

use schnellru::{LruMap, UnlimitedCompact};
use uslab::reclaim;
use uslab::reclaim::adaptors::Shared;

/// Entries allocate from uslab, so that their memory returns to the system when they are evicted.
#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

const BLOCKS: u32 = 10_000;

fn main() {
    // The map keeps its entries in one table of fixed size, so only boxed values return memory.
    let blocks = Shared::new("blocks", LruMap::new(UnlimitedCompact)).expect("there is memory");
    for number in 0..BLOCKS {
        blocks.lock().insert(number, Box::new([number as u8; 2048]));
    }
    println!("before: {} blocks", blocks.lock().len());

    let given = reclaim(4 << 20);
    println!("after 4 MiB were wanted: {} blocks; {given} bytes went back", blocks.lock().len());
    assert!(given >= 4 << 20 && !blocks.lock().is_empty());
    let oldest = blocks.lock().peek_oldest().map(|(&number, _)| number);
    assert_eq!(oldest, Some(blocks.evicted() as u32), "entries must be evicted in the order of their age");

    let given = reclaim(usize::MAX);
    println!("after everything was wanted: {} blocks; {given} bytes went back", blocks.lock().len());
    assert!(blocks.lock().is_empty() && given > 0);
}
