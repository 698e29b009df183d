//! Slab lists of a machine with several last-level caches, which this machine need not have: one
//! thread acts on each of 32 CPUs in turn.
//!
//! One test in a program of its own: the library learns the number of CPUs once, and no other
//! thread may use it meanwhile.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashSet;
use std::ptr::NonNull;
use uslab::internal::{cpu, fake::FakeCpu};
use uslab::{CacheBuilder, Flags, RawCache, Uslab};

const CPUS: usize = 32;
const CPUS_OF_CACHE: usize = 8;
const OBJECT_BYTES: usize = 1024;
/// Slabs with free objects from which a group serves others.
const RICH: usize = 2;

struct Test {
    cache: RawCache,
    fake: FakeCpu,
    slab_objects: usize,
}

impl Test {
    fn alloc(&self, on: usize) -> NonNull<u8> {
        self.fake.set(on);
        self.cache.alloc().expect("memory")
    }

    fn free(&self, on: usize, object: NonNull<u8>) {
        self.fake.set(on);
        // SAFETY: the test allocated each object, and frees it once.
        unsafe { self.cache.free(object) };
    }

    /// Slabs, and those with free objects and objects in use.
    fn slabs(&self) -> (u64, u64) {
        uslab::internal::account_all();
        let stats = self.cache.stats().expect("a cache has figures");
        (stats.slabs, stats.partial_slabs)
    }
}

#[test]
fn a_group_serves_itself_then_takes_from_a_rich_one_and_spares_a_poor_one() {
    let name = "a_group_serves_itself_then_takes_from_a_rich_one_and_spares_a_poor_one";
    in_both_modes(name, &[("USLAB_REAPER", "0")], || {
        cpu::pretend(CPUS, 1, CPUS_OF_CACHE);
        // Without sheaves each call reaches the lists.
        let cache = CacheBuilder::new("groups").flags(Flags::NO_CACHING).build_raw(OBJECT_BYTES);
        let cache = cache.expect("memory");
        // SAFETY: the library is set up, and this process has one thread.
        let fake = unsafe { FakeCpu::start(0) };
        let slab_objects = cache.stats().expect("a cache has figures").objects_per_slab as usize;
        let test = Test { cache, fake, slab_objects };
        serves(&test);
        let Test { cache, fake, .. } = test;
        drop(fake);
        uslab::debug::validate().expect("the structures are whole");
        cache.shrink();
        uslab::internal::account_all();
        let stats = cache.stats().expect("a cache has figures");
        assert_eq!((stats.slabs, stats.partial_slabs, stats.empty_slabs), (0, 0, 0));
        cache.destroy().expect("an object was lost");
    });
}

fn serves(test: &Test) {
    // A small process keeps no slab for each group.
    let shared = [0, 9, 17].map(|cpu| test.alloc(cpu));
    assert_eq!(test.slabs(), (1, 1));
    shared.into_iter().for_each(|object| test.free(0, object));
    test.cache.shrink();
    let layout = Layout::from_size_align(64 << 20, 4096).expect("a layout");
    // SAFETY: the layout has a size. The memory stays, and makes the process a large one.
    assert!(!unsafe { Uslab.alloc(layout) }.is_null());

    // CPU 0 fills slabs, and frees one object of each.
    let filled: Vec<_> = (0..RICH * test.slab_objects).map(|_| test.alloc(0)).collect();
    assert_eq!(test.slabs(), (RICH as u64, 0));
    let mut freed = HashSet::new();
    let mut free = |at: usize| {
        let object = filled[at * test.slab_objects];
        freed.insert(object);
        test.free(0, object);
    };
    (0..RICH - 1).for_each(&mut free);

    // CPU 9 has another last-level cache: with few slabs to spare, the group of CPU 0 keeps them.
    let mut far = vec![test.alloc(9)];
    assert_eq!(test.slabs(), (RICH as u64 + 1, RICH as u64));

    // With one slab more it serves CPU 17, up to its last slab. CPU 9 has objects of its own.
    free(RICH - 1);
    far.extend((0..RICH - 1).map(|_| test.alloc(17)));
    assert!(far[1..].iter().all(|object| freed.contains(object)), "CPU 17 takes what CPU 0 freed");
    assert_eq!(test.slabs(), (RICH as u64 + 1, 2));
    far.push(test.alloc(9));
    assert!(!freed.contains(&far[RICH]), "CPU 9 has objects of its own");
    far.push(test.alloc(17));
    assert_eq!(test.slabs().0, RICH as u64 + 2, "the group of CPU 0 keeps its last slab");

    // At the limit every free object of the node serves: all slabs are full then.
    let usage = uslab::stats::usage();
    uslab::set_limit(0, (usage.used_bytes + usage.dirty_bytes) as usize).expect("a limit");
    test.fake.set(25);
    let last: Vec<_> = std::iter::from_fn(|| test.cache.alloc()).collect();
    uslab::set_limit(0, 0).expect("no limit");
    assert_eq!(test.slabs().1, 0, "CPU 25 took {} objects", last.len());
    assert!(last.iter().any(|object| freed.contains(object)), "the last object of CPU 0 serves too");

    // A forked child has all locks, and the same lists.
    // SAFETY: the child uses the cache and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let objects = [0, 9, 17, 25].map(|cpu| {
            test.fake.set(cpu);
            test.cache.alloc()
        });
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(objects.iter().any(Option::is_none))) };
    }
    let mut status = -1;
    // SAFETY: waits for the child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the child allocates on each CPU");

    // Objects go back to the lists of their slabs, wherever they are freed.
    let rest = filled.into_iter().filter(|object| !freed.contains(object));
    rest.chain(far).chain(last).for_each(|object| test.free(25, object));
}
