//! Tests of the marks of CPUs and groups that threads have used a cache on.

use super::*;
use crate::rseq::Cpu;

#[test]
fn a_fork_visits_the_slots_of_the_cpus_that_a_cache_was_used_on() {
    let (cache, _) = cache(64, 0);
    let visits = || (cache.used_slots().count(), cache.used_barns().count());
    assert_eq!(visits(), (0, 0), "a cache that no thread used has no sheaf");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            os::cpu::pin_to_current();
            let objects = alloc(cache, 10);
            free(cache, &objects);
            let visited: Vec<_> = cache.used_slots().map(core::ptr::from_ref).collect();
            let own = Cpu::current().shared(cache.slots()).map(core::ptr::from_ref);
            // On machines of more than 64 CPUs neighbours share a mark.
            assert!(visited.contains(&own.unwrap()) && visited.len() <= cache.slots().len().div_ceil(33));
            assert!(cache.used_barns().any(|barn| core::ptr::eq(barn, &cache.barns()[0])));
            cache.check_heads().unwrap();
        });
    });
    finish(cache);
}

#[test]
fn a_fork_visits_each_row_of_a_machine_of_several_nodes() {
    let (cache, _) = cache_of(3, 64, 0);
    let objects = alloc(cache, 10);
    free(cache, &objects);
    let (cpus, visited) = (cache.slots().len() / 3, cache.used_slots().count());
    let counted = cache.counted_slots().len() / cpus;
    assert!(visited > 0 && visited.is_multiple_of(3 + counted), "{visited}");
    finish(cache);
}
