//! The figures that a program's own metrics have: the whole is the sum of the caches and of large
//! objects.

use uslab::CacheBuilder;

/// The sum of a family's samples.
fn sum(text: &str, family: &str) -> u64 {
    let of_family = |line: &&str| line.strip_prefix(family).is_some_and(|rest| rest.starts_with([' ', '{']));
    let values = text.lines().filter(of_family).filter_map(|line| line.rsplit_once(' '));
    values.map(|(_, value)| value.parse::<u64>().expect("a number")).sum()
}

#[test]
fn allocated_bytes_are_those_of_the_caches_and_large_objects() {
    // Room for all text, so that nothing is allocated while it is written.
    let mut text = String::with_capacity(1 << 20);
    let cache = CacheBuilder::new("exported").build_raw(100).expect("memory for a cache");
    let sizes = cache.stats().expect("the cache has counters");
    assert!(sizes.object_bytes > sizes.user_bytes, "sizes differ, so that the wrong one is seen");
    let objects: Vec<_> = (0..1000).map(|_| cache.alloc().expect("memory for an object")).collect();
    uslab::stats::write_openmetrics(&mut text).expect("a string takes everything");
    let allocated = sum(&text, "uslab_allocated_bytes");
    assert!(allocated >= 100 * 1000);
    assert_eq!(allocated, sum(&text, "uslab_cache_active_bytes") + sum(&text, "uslab_large_bytes"));
    for object in objects {
        // SAFETY: allocated above, and freed once.
        unsafe { cache.free(object) };
    }
}
