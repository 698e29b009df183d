//! Tests of the record of CPUs that threads have used a cache on.

use super::super::used::UsedCpus;
use super::*;
use crate::rseq::Cpu;

#[test]
fn a_fork_visits_the_slots_of_the_cpus_that_a_cache_was_used_on() {
    let (cache, _) = cache(64, 0);
    assert_eq!(cache.used_slots().count(), 0, "a cache that no thread used has no sheaf");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            os::cpu::pin_to_current();
            let objects = alloc(cache, 10);
            free(cache, &objects);
            let visited: Vec<_> = cache.used_slots().map(core::ptr::from_ref).collect();
            let own = Cpu::current().shared(cache.slots()).map(core::ptr::from_ref);
            // On machines of more than 64 CPUs neighbours share a bit.
            assert!(visited.contains(&own.unwrap()) && visited.len() <= cache.slots().len().div_ceil(33));
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

#[test]
fn each_cpu_has_a_bit_that_it_shares_with_few_neighbours() {
    for cpus in [1, 2, 63, 64, 65, 100, 128, 129, 1000, 1024] {
        let all = UsedCpus::none(cpus);
        for cpu in 0..cpus {
            let used = UsedCpus::none(cpus);
            assert!(!used.has(Cpu::of_index(cpu)) && used.ranges().count() == 0);
            used.add(Cpu::of_index(cpu));
            let ranges: Vec<_> = used.ranges().collect();
            assert!(ranges.len() == 1 && ranges[0].contains(&cpu), "{cpu} of {cpus}: {ranges:?}");
            assert!(ranges[0].end <= cpus && ranges[0].len() <= cpus.div_ceil(64).next_power_of_two());
            all.add(Cpu::of_index(cpu));
        }
        assert!(all.ranges().flatten().eq(0..cpus), "{cpus}");
        // CPUs beyond the slots share those of others.
        assert!(all.has(Cpu::of_index(cpus + 3)));
    }
}
