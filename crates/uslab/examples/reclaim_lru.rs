//! `LruCache`: it grows without a limit, and evicts its oldest entries when memory is short.
//!
//! `cargo run --release -p uslab --example reclaim_lru`

use uslab::reclaim;
use uslab::reclaim::LruCache;

/// Entries allocate from uslab, so that their memory returns to the system when they are evicted.
#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

const PAGES: u64 = 10_000;

/// An expensive value; the cache measures the time to make one, and weighs its share of pressure by
/// it.
fn render(page: u64) -> Box<[u8]> {
    vec![page as u8; 4096].into_boxed_slice()
}

fn main() {
    let pages = LruCache::new("pages").expect("there is memory");
    for page in 0..PAGES {
        pages.get_or_insert_with(page, || render(page));
    }
    // The first hundred pages are used: they are the newest now.
    for page in 0..100 {
        pages.look(&page, |page| assert_eq!(page.len(), 4096));
    }
    println!("before: {} pages, {} ns to make one", pages.len(), pages.stats().miss_ns);

    // A small goal: some of the oldest pages are evicted.
    let given = reclaim(4 << 20);
    println!("after 4 MiB were wanted: {} pages; {given} bytes went back", pages.len());
    assert!(given >= 4 << 20, "the goal must be met");
    assert!(pages.len() < PAGES as usize && pages.len() > 100, "only a part of the pages may be evicted");
    assert!((0..100).all(|page| pages.look(&page, |_| ()).is_some()), "pages in use must stay");
    assert!(pages.look(&100, |_| ()).is_none(), "the oldest page must be evicted");

    // The goal is everything.
    let given = reclaim(usize::MAX);
    println!("after everything was wanted: {} pages; {given} bytes went back", pages.len());
    assert!(pages.is_empty() && given > 0);
}
