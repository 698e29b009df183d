//! Caches with a NUMA policy on a machine of several nodes, which this machine need not be: their
//! objects lie in chunks of that policy alone, no other memory does while these chunks have memory,
//! and afterwards the policy is gone. Where this kernel has memory policies, it is asked too: node
//! 0 exists on every machine.
//!
//! Each test runs in a process of its own: the library learns the CPUs and nodes once.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;

use again::again;
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use uslab::internal::layout::RECORD_NODES;
use uslab::internal::{CHUNK_BYTES, cpu, fake::FakeCpu, home_of, node_of_memory, record};
use uslab::internal::{policy_at, policy_of_memory};
use uslab::malloc::{free, malloc, realloc};
use uslab::{CacheBuilder, CreateError, NumaPolicy, RawCache};

const CPUS: usize = 32;
const NODES: usize = 4;
/// The modes of policies to the kernel.
const MPOL_DEFAULT: i32 = 0;
const MPOL_BIND: i32 = 2;
const MPOL_INTERLEAVE: i32 = 3;

/// Runs the test in a child with each of the environments; false in that child.
fn is_done_by_children(name: &str, environments: &[&[(&str, &str)]]) -> bool {
    let mut is_parent = false;
    for environment in environments {
        let Some(output) = again(name, environment) else { return false };
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{environment:?}: {text}\n{errors}");
        is_parent = true;
    }
    is_parent
}

/// The ways in which caches work: as released, with every call on the slow path, without the
/// kernel's copies of freed addresses. The parent's `USLAB_RSEQ` holds for each.
const WAYS: [&[(&str, &str)]; 3] = [
    &[("USLAB_REAPER", "0")],
    &[("USLAB_REAPER", "0"), ("USLAB_SECURE", "1")],
    &[("USLAB_REAPER", "0"), ("USLAB_DEBUG", "FZPU")],
];

fn raw(name: &str, bytes: usize, policy: NumaPolicy) -> RawCache {
    CacheBuilder::new(name).numa(policy).build_raw(bytes).expect("memory")
}

fn chunk_of(object: NonNull<u8>) -> usize {
    object.addr().get() / CHUNK_BYTES
}

fn policy_of(object: NonNull<u8>) -> NumaPolicy {
    policy_of_memory(object.as_ptr()).expect("memory of the library")
}

/// Allocates on each CPU in turn.
fn fill(cache: &RawCache, fake: &FakeCpu, objects: usize) -> Vec<NonNull<u8>> {
    let on = |n: usize| {
        fake.set(n % CPUS);
        cache.alloc().expect("memory")
    };
    (0..objects).map(on).collect()
}

/// Frees each object on another CPU than the one that allocated it.
fn free_all(cache: &RawCache, fake: &FakeCpu, objects: Vec<NonNull<u8>>) {
    for (n, object) in objects.into_iter().enumerate() {
        fake.set((n + CPUS / NODES) % CPUS);
        // SAFETY: the test allocated it, and frees it once.
        unsafe { cache.free(object) };
    }
}

/// The kernel's policy for the page of an object; `None` if the kernel does not tell it.
fn kernels_mode(object: NonNull<u8>) -> Option<i32> {
    policy_at(object.addr().get()).map(|(mode, _)| mode)
}

#[test]
fn memory_of_a_policy_serves_nothing_else_until_it_is_purged() {
    let name = "memory_of_a_policy_serves_nothing_else_until_it_is_purged";
    if is_done_by_children(name, &WAYS) {
        return;
    }
    cpu::pretend(CPUS, NODES, 0);
    let policies = [NumaPolicy::Bind(0), NumaPolicy::Bind(2), NumaPolicy::Interleave];
    let caches: Vec<_> = policies
        .iter()
        .flat_map(|&policy| [64, 3000, 40_000].map(|bytes| (policy, bytes, raw("placed", bytes, policy))))
        .collect();
    let other = raw("other", 64, NumaPolicy::Local);
    // SAFETY: the library is set up, and this process has one thread.
    let fake = unsafe { FakeCpu::start(0) };
    let is_hardened = std::env::var_os("USLAB_SECURE").is_some();
    let mut placed = HashSet::new();
    for round in 0..3 {
        let mut live = Vec::new();
        for (policy, bytes, cache) in &caches {
            let objects = fill(cache, &fake, (4 << 20) / bytes);
            for &object in &objects {
                assert_eq!(policy_of(object), *policy, "an object of {bytes} bytes in round {round}");
                assert_eq!(home_of(object.as_ptr()), Some(0), "its cache has one home");
                // SAFETY: of as many bytes, and this test's.
                unsafe { object.write_bytes(1, *bytes) };
            }
            placed.extend(objects.iter().map(|&object| chunk_of(object)));
            live.push(objects);
        }
        let first = |at: usize| live[at][0];
        assert_eq!(node_of_memory(first(3).as_ptr()), Some(2));
        assert_eq!(node_of_memory(first(6).as_ptr()), None);
        for (policy, bytes, cache) in &caches {
            let stats = cache.stats().expect("a cache has figures");
            let counted = record(stats.id as u16).node_slabs.each_ref().map(|slabs| slabs.load(Relaxed));
            let mut expected = [0; RECORD_NODES];
            if let NumaPolicy::Bind(node) = policy {
                expected[*node] = stats.slabs as i32;
            }
            assert_eq!(counted, expected, "{bytes} bytes, {policy:?}");
        }
        match kernels_mode(first(0)) {
            None => println!("not asked: the kernel has no memory policies"),
            Some(mode) if mode == MPOL_DEFAULT => println!("not asked: the kernel refuses mbind"),
            Some(mode) => {
                assert_eq!(mode, MPOL_BIND);
                assert_eq!(kernels_mode(first(6)), Some(MPOL_INTERLEAVE));
            }
        }
        uslab::debug::validate().expect("the structures are whole");
        for ((_, _, cache), objects) in caches.iter().zip(live) {
            free_all(cache, &fake, objects);
            let stats = cache.stats().expect("a cache has figures");
            assert_eq!(stats.home_objects, 0, "objects without a home go to none");
        }
        // Some of these go to the page layer now, with their memory.
        caches.iter().for_each(|(_, _, cache)| {
            cache.shrink();
        });
        let others = fill(&other, &fake, 100_000);
        let mut large: Vec<_> = (1..40).map(|n| NonNull::new(malloc(n << 17)).expect("memory")).collect();
        for place in &mut large {
            // SAFETY: the test's.
            *place = NonNull::new(unsafe { realloc(place.as_ptr(), 6 << 20) }).expect("memory");
        }
        let ends = large.iter().flat_map(|&at| (0..6 << 20).step_by(4096).map(move |n| (at, n)));
        // SAFETY: within the object.
        let pages = ends.map(|(at, n)| unsafe { at.byte_add(n) });
        for object in others.iter().copied().chain(pages) {
            assert_eq!(policy_of(object), NumaPolicy::Local);
            // Nothing but objects of the policies was ever written so. A purge clears them, and the
            // kernel brings other memory.
            // SAFETY: 64 bytes of the test's, which the library wrote, or the kernel.
            let bytes = unsafe { object.cast::<[u8; 64]>().read_volatile() };
            assert_ne!(bytes, [1; 64], "memory of a policy serves another one in round {round}");
        }
        uslab::debug::validate().expect("the structures are whole");
        free_all(&other, &fake, others);
        // SAFETY: freed once.
        large.iter().for_each(|object| unsafe { free(object.as_ptr()) });
        if round == 1 {
            uslab::trim(0);
            placed.clear();
        }
    }
    caches.into_iter().for_each(|(_, _, cache)| drop(cache.destroy()));
    uslab::trim(0);
    for chunk in placed {
        let at = NonNull::new(std::ptr::without_provenance_mut(chunk * CHUNK_BYTES)).expect("an address");
        // Hardened caches leave their addresses unused for ever.
        assert!(is_hardened || policy_of(at) == NumaPolicy::Local);
        assert!(is_hardened || kernels_mode(at).is_none_or(|mode| mode == MPOL_DEFAULT));
    }
    drop(fake);
    uslab::debug::validate().expect("the structures are whole");
}

#[test]
fn chunks_that_are_unmapped_lose_their_policy_and_get_it_again() {
    let name = "chunks_that_are_unmapped_lose_their_policy_and_get_it_again";
    if is_done_by_children(name, &[&[("USLAB_REAPER", "0")]]) {
        return;
    }
    // Where a limit counts mapped bytes, free chunks are unmapped.
    let limit = libc::rlimit { rlim_cur: 8 << 30, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a valid limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    cpu::pretend(CPUS, NODES, 0);
    let cache = raw("bound", 4000, NumaPolicy::Bind(0));
    let other = raw("other", 4000, NumaPolicy::Local);
    // SAFETY: the library is set up, and this process has one thread.
    let fake = unsafe { FakeCpu::start(0) };
    for _ in 0..3 {
        let objects = fill(&cache, &fake, 5000);
        let mode = kernels_mode(objects[0]);
        assert!(objects.iter().all(|&object| policy_of(object) == NumaPolicy::Bind(0)));
        assert!(objects.iter().all(|&object| kernels_mode(object) == mode), "all chunks are told alike");
        free_all(&cache, &fake, objects);
        cache.shrink();
        uslab::trim(0);
        let objects = fill(&other, &fake, 5000);
        assert!(objects.iter().all(|&object| policy_of(object) == NumaPolicy::Local));
        assert!(objects.iter().all(|&object| kernels_mode(object).is_none_or(|mode| mode == MPOL_DEFAULT)));
        free_all(&other, &fake, objects);
        uslab::trim(0);
        uslab::debug::validate().expect("the structures are whole");
    }
}

#[test]
fn a_node_that_does_not_exist_is_an_error() {
    if is_done_by_children("a_node_that_does_not_exist_is_an_error", &[&[]]) {
        return;
    }
    cpu::pretend(CPUS, NODES, 0);
    for node in [NODES, 64, usize::MAX] {
        let made = CacheBuilder::new("nowhere").numa(NumaPolicy::Bind(node)).build_raw(64);
        assert_eq!(made.err(), Some(CreateError::NumaRefused));
    }
    assert!(CacheBuilder::new("last").numa(NumaPolicy::Bind(NODES - 1)).build_raw(64).is_ok());
}

#[test]
fn where_nodes_are_not_heeded_a_policy_has_no_effect() {
    let name = "where_nodes_are_not_heeded_a_policy_has_no_effect";
    if is_done_by_children(name, &[&[], &[("USLAB_NUMA", "0")]]) {
        return;
    }
    let is_ignored = std::env::var_os("USLAB_NUMA").is_some();
    cpu::pretend(4, if is_ignored { 4 } else { 1 }, 0);
    for policy in [NumaPolicy::Bind(0), NumaPolicy::Bind(70), NumaPolicy::Interleave] {
        let cache = raw("one", 64, policy);
        let object = cache.alloc().expect("memory");
        assert_eq!(policy_of(object), NumaPolicy::Local);
        assert!(kernels_mode(object).is_none_or(|mode| mode == MPOL_DEFAULT));
        // SAFETY: allocated above.
        unsafe { cache.free(object) };
    }
}

#[test]
fn the_memory_of_a_cache_with_a_policy_serves_one_without() {
    let name = "the_memory_of_a_cache_with_a_policy_serves_one_without";
    if is_done_by_children(name, &[&[("USLAB_REAPER", "0")]]) {
        return;
    }
    // Caches of this many CPUs have several barns a node.
    cpu::pretend(CPUS, NODES, 4);
    // The heap profile gives each cache a row of slots that it leaves to the next one.
    uslab::profile::start(1 << 16).expect("there is memory");
    let mut fake = None;
    for policy in [NumaPolicy::Bind(1), NumaPolicy::Local, NumaPolicy::Interleave, NumaPolicy::Local] {
        let cache = raw("in turn", 200, policy);
        // SAFETY: the library is set up, and this process has one thread.
        let fake = fake.get_or_insert_with(|| unsafe { FakeCpu::start(0) });
        for _ in 0..3 {
            let objects = fill(&cache, fake, 20_000);
            assert!(objects.iter().all(|&object| policy_of(object) == policy));
            free_all(&cache, fake, objects);
        }
        uslab::debug::validate().expect("the structures are whole");
        cache.destroy().expect("no object lives");
    }
    uslab::profile::stop();
    drop(fake);
}

const THREADS: usize = 4;
const ROUNDS: usize = 1500;

#[test]
fn threads_on_all_nodes_share_a_cache_with_a_policy() {
    if is_done_by_children("threads_on_all_nodes_share_a_cache_with_a_policy", &[&[]]) {
        return;
    }
    let cpus = cpu::possible_cpus().expect("a number of CPUs");
    cpu::pretend(cpus, cpus.clamp(2, 8), 0);
    let bound = raw("bound", 96, NumaPolicy::Bind(0));
    let local = raw("local", 96, NumaPolicy::Local);
    // Each thread frees what the one before it put there.
    let handed: Vec<Mutex<Vec<usize>>> = (0..THREADS).map(|_| Mutex::default()).collect();
    let take_back = |objects: Vec<usize>| {
        for object in objects {
            let object = NonNull::new(std::ptr::with_exposed_provenance_mut(object)).expect("an object");
            // SAFETY: freed once, by the thread that took it out.
            unsafe { bound.free(object) };
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (bound, local, handed, take_back) = (&bound, &local, &handed, &take_back);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let objects: Vec<_> = (0..60).map(|_| bound.alloc().expect("memory")).collect();
                    let others: Vec<_> = (0..60).map(|_| local.alloc().expect("memory")).collect();
                    assert!(objects.iter().all(|&object| policy_of(object) == NumaPolicy::Bind(0)));
                    assert!(others.iter().all(|&object| policy_of(object) == NumaPolicy::Local));
                    // SAFETY: freed once.
                    others.into_iter().for_each(|object| unsafe { local.free(object) });
                    take_back(std::mem::take(&mut *handed[thread].lock().unwrap()));
                    let given = objects.iter().map(|object| object.expose_provenance().get());
                    handed[(thread + 1) % THREADS].lock().unwrap().extend(given);
                    if round % 300 == 0 {
                        uslab::trim(0);
                    }
                    if round % 50 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    handed.iter().for_each(|objects| take_back(std::mem::take(&mut *objects.lock().unwrap())));
    uslab::debug::validate().expect("the structures are whole");
    bound.shrink();
    let stats = bound.stats().expect("a cache has figures");
    assert_eq!((stats.active_objects, stats.sheaf_free, stats.slabs), (0, 0, 0));
    assert_eq!(stats.home_objects, 0);
}
