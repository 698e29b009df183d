//! Forks on a machine of many CPUs, few of which a process has used.
//!
//! One thread acts on each CPU in turn. Handlers of a fork visit the slots, barns and page lists
//! that were in use alone. The child must find the others as they were made, and may use them.
//!
//! One test in a program of its own, because no other thread may use the library meanwhile.
#![cfg(not(loom))]

#[allow(dead_code, reason = "its children start no threads")]
#[path = "storm/child.rs"]
mod child;

use std::collections::HashSet;
use std::ptr::NonNull;
use uslab::internal::fake::FakeCpu;
use uslab::{CacheBuilder, RawCache};

const CPUS: usize = 256;
const NODES: usize = 2;
const CPUS_OF_CACHE: usize = 8;

/// Takes 600 objects on a CPU and frees 500, so that sheaves and the barn of its group have some;
/// returns the others.
fn work_on(fake: &FakeCpu, cpu: usize, cache: &RawCache) -> Vec<NonNull<u8>> {
    fake.set(cpu);
    let mut objects: Vec<_> = (0..600).map(|_| cache.alloc().expect("memory")).collect();
    // SAFETY: allocated above, and freed once.
    objects.drain(100..).for_each(|object| unsafe { cache.free(object) });
    objects
}

fn all_differ(objects: &[NonNull<u8>]) -> bool {
    objects.iter().collect::<HashSet<_>>().len() == objects.len()
}

fn validate() -> Result<(), &'static str> {
    uslab::debug::validate().map(drop).map_err(|invalid| invalid.invariant)
}

#[test]
fn a_child_has_what_its_parent_used_and_can_use_every_other_cpu() {
    uslab::internal::cpu::pretend(CPUS, NODES, CPUS_OF_CACHE);
    let caches: Vec<RawCache> =
        [64, 700, 5000].map(|bytes| CacheBuilder::new("many-cpus").build_raw(bytes).expect("memory")).into();
    // SAFETY: this is the only thread that uses the library, and the library is set up.
    let fake = unsafe { FakeCpu::start(0) };
    let mut kept: Vec<Vec<NonNull<u8>>> = vec![Vec::new(); caches.len()];
    // Each round uses CPUs that no thread had used before its fork.
    for used in [[3, 130], [4, 255], [3, 77]] {
        for (cache, kept) in caches.iter().zip(&mut kept) {
            used.iter().for_each(|&cpu| kept.extend(work_on(&fake, cpu, cache)));
            assert!(all_differ(kept));
        }
        let child = child::fork(|| {
            validate()?;
            for (cache, kept) in caches.iter().zip(&kept) {
                let mut all = kept.clone();
                for cpu in [3, 4, 5, 77, 130, 200, 255] {
                    all.extend(work_on(&fake, cpu, cache));
                }
                if !all_differ(&all) {
                    return Err("an object in use was allocated again");
                }
                // SAFETY: allocated above or by the parent, and freed once.
                all.into_iter().for_each(|object| unsafe { cache.free(object) });
                cache.shrink();
            }
            validate()
        });
        child::wait(child).unwrap();
        validate().unwrap();
    }
    for (cache, kept) in caches.into_iter().zip(kept) {
        // SAFETY: allocated above, and freed once.
        kept.into_iter().for_each(|object| unsafe { cache.free(object) });
        cache.destroy().expect("an object was lost");
    }
}
