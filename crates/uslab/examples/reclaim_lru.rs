//! The ready-made cache: it grows as it likes and gives its oldest entries up when memory is wanted.
//!
//! `cargo run --release -p uslab --example reclaim_lru`

use uslab::reclaim;
use uslab::reclaim::LruCache;

/// Makes what entries own come from uslab, so that it goes back to the system when they go.
#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

const PAGES: u64 = 10_000;

/// What takes time to make; the cache measures how long, and weighs its share of pressure by it.
fn render(page: u64) -> Box<[u8]> {
    vec![page as u8; 4096].into_boxed_slice()
}

fn main() {
    let pages = LruCache::new("pages").expect("there is memory");
    for page in 0..PAGES {
        pages.get_or_insert_with(page, || render(page));
    }
    // The first hundred are in demand: they are the newest now.
    for page in 0..100 {
        pages.look(&page, |page| assert_eq!(page.len(), 4096));
    }
    println!("before: {} pages, {} ns to make one", pages.len(), pages.stats().miss_ns);

    // Little is wanted: some of the oldest go.
    let given = reclaim(4 << 20);
    println!("after 4 MiB were wanted: {} pages; {given} bytes went back", pages.len());
    assert!(given >= 4 << 20, "what was wanted is there");
    assert!(pages.len() < PAGES as usize && pages.len() > 100, "and not everything went");
    assert!((0..100).all(|page| pages.look(&page, |_| ()).is_some()), "what is in demand stayed");
    assert!(pages.look(&100, |_| ()).is_none(), "the oldest did not");

    // Everything is wanted.
    let given = reclaim(usize::MAX);
    println!("after everything was wanted: {} pages; {given} bytes went back", pages.len());
    assert!(pages.is_empty() && given > 0);
}
