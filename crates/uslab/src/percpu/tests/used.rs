//! Tests of the marks of CPUs and groups that threads have used a cache on.

use super::super::used::VISITS;
use super::*;
use crate::percpu::drain::{Drain, Keep};
use crate::rseq::Cpu;
use crate::sync::{Marks, Rank};

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

/// The slots that `work` has this thread visit.
fn visits_of(work: impl FnOnce()) -> usize {
    let before = VISITS.get();
    work();
    VISITS.get() - before
}

#[test]
fn drains_and_idle_flushes_visit_the_slots_of_the_cpus_in_use() {
    const CPUS: usize = 1024;
    let (cache, _) = cache_on(CPUS, 1, 64, 0);
    let tick = || _ = cache.flush_idle(&mut Drain::of_idle(Keep::Pages));
    assert_eq!(visits_of(|| cache.drain_all()), 0, "no thread used the cache");
    assert_eq!(visits_of(tick), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            os::cpu::pin_to_current();
            let objects = alloc(cache, 10);
            free(cache, &objects);
            // One CPU, and those that share its mark.
            let most = CPUS / 64;
            let seen = visits_of(tick);
            assert!((1..=most).contains(&seen), "a tick visits {seen} slots");
            // The second tick drains the slot, which it visits once more.
            let seen = visits_of(tick);
            assert!((2..=most + 1).contains(&seen), "a tick that drains visits {seen} slots");
            let objects = alloc(cache, 10);
            free(cache, &objects);
            let seen = visits_of(|| cache.drain_all());
            assert!((1..=most).contains(&seen), "a drain visits {seen} slots");
            assert!(cache.slabs().tallies().count() <= most + 1, "its counts are on a few lines");
        });
    });
    finish(cache);
}

#[test]
fn each_entry_has_a_mark_that_it_shares_with_few_neighbours() {
    let lock = os::Lock::new(Rank::Marks, ());
    for entries in [1, 2, 63, 64, 65, 100, 128, 129, 1000, 1024] {
        let all = Marks::none(entries);
        for index in 0..entries {
            let marks = Marks::none(entries);
            assert!(!marks.has(index) && marks.ranges().count() == 0);
            marks.add(index, &lock);
            let ranges: Vec<_> = marks.ranges().collect();
            assert!(ranges.len() == 1 && ranges[0].contains(&index), "{index} of {entries}: {ranges:?}");
            let most = entries.div_ceil(64).next_power_of_two();
            assert!(ranges[0].end <= entries && ranges[0].len() <= most, "{index} of {entries}");
            all.add(index, &lock);
        }
        assert!(all.ranges().flatten().eq(0..entries), "{entries}");
        assert!(all.has(entries + 3), "entries beyond the table share those of others");
        assert_eq!(all.of(&[7; 5]).count(), entries.min(5), "a shorter table has fewer");
    }
}
