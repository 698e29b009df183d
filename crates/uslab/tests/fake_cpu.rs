//! Random programs over several CPUs on one thread, compared with a naive oracle.
//!
//! With a fake CPU id, one thread acts on each CPU in turn. Objects move between slots, sheaves
//! overflow on one CPU and underflow on another, and drains find slots in every state. The oracle
//! is a table of live objects and their bytes. It knows how many objects are live, and checks that
//! no two overlap.
//!
//! Once on this machine, and once on one that is said to have three nodes.
//!
//! One test in a program of its own, because no other thread may use the library meanwhile.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;

use again::again;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;
use std::ptr::{NonNull, null_mut};
use uslab::internal::fake::FakeCpu;
use uslab::{CacheBuilder, Flags, RawCache};

/// One step of a program; its numbers select among the live objects or the CPUs.
#[derive(Clone, Debug)]
enum Step {
    MoveTo(usize),
    Use(usize),
    Alloc,
    AllocZeroed,
    AllocBulk(usize),
    Prefill(usize, usize),
    Free(usize),
    FreeBulk(usize, usize),
    Shrink,
    /// Refused with the live objects if there are any; otherwise a new cache replaces the destroyed
    /// one.
    Destroy,
    ReleaseMemory,
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<usize>;
    prop_oneof![
        4 => any().prop_map(Step::MoveTo),
        2 => any().prop_map(Step::Use),
        10 => Just(Step::Alloc),
        1 => Just(Step::AllocZeroed),
        4 => (0usize..200).prop_map(Step::AllocBulk),
        1 => (0usize..100, any()).prop_map(|(n, used)| Step::Prefill(n, used)),
        12 => any().prop_map(Step::Free),
        4 => (any(), 0usize..200).prop_map(|(from, n)| Step::FreeBulk(from, n)),
        1 => Just(Step::Shrink),
        1 => Just(Step::Destroy),
        1 => Just(Step::ReleaseMemory),
    ]
}

/// The options of a cache.
#[derive(Clone, Copy, Debug)]
struct Shape {
    size: usize,
    align: usize,
    sheaf_capacity: usize,
    caching: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let size = prop_oneof![1usize..300, Just(4096usize), 300usize..10_000];
    let align = prop_oneof![3 => Just(0usize), 1 => (3u32..9).prop_map(|shift| 1 << shift)];
    let capacity = prop_oneof![Just(0usize), Just(2), Just(6), Just(30)];
    (size, align, capacity, prop::bool::weighted(0.9))
        .prop_map(|(size, align, sheaf_capacity, caching)| Shape { size, align, sheaf_capacity, caching })
}

/// A cache and its live objects: the address, and the byte that fills the object.
struct Checked {
    cache: Option<RawCache>,
    shape: Shape,
    live: BTreeMap<usize, u8>,
    next: u8,
}

impl Checked {
    fn new(shape: Shape) -> Checked {
        let mut builder =
            CacheBuilder::new("fake cpu").align(shape.align).sheaf_capacity(shape.sheaf_capacity);
        if !shape.caching {
            builder = builder.flags(Flags::NO_CACHING);
        }
        Checked { cache: Some(builder.build_raw(shape.size).unwrap()), shape, live: BTreeMap::new(), next: 0 }
    }

    fn cache(&self) -> &RawCache {
        self.cache.as_ref().unwrap()
    }

    fn own(&mut self, object: NonNull<u8>) {
        let at = object.addr().get();
        assert_eq!(at % self.shape.align.max(8), 0, "{object:p} is not aligned");
        let end = at + self.shape.size;
        if let Some((&other, _)) = self.live.range(..end).next_back() {
            assert!(other + self.shape.size <= at, "{object:p} overlaps {other:#x}");
        }
        self.next = self.next.wrapping_add(1);
        // SAFETY: the test owns the object, of that many bytes.
        unsafe { object.write_bytes(self.next, self.shape.size) };
        self.live.insert(at, self.next);
    }

    /// Removes the live object number `n` (modulo their number) from the table.
    fn disown(&mut self, n: usize) -> Option<NonNull<u8>> {
        let n = n.checked_rem(self.live.len())?;
        let (&at, &byte) = self.live.iter().nth(n).unwrap();
        self.live.remove(&at);
        let object = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(at)).unwrap();
        // SAFETY: the test owns the object, of that many bytes, all written.
        let bytes = unsafe { std::slice::from_raw_parts(object.as_ptr(), self.shape.size) };
        assert!(bytes.iter().all(|&b| b == byte), "{object:p} was written to while in use");
        Some(object)
    }

    fn free(&mut self, n: usize) {
        if let Some(object) = self.disown(n) {
            // SAFETY: from this cache, and no longer in the table.
            unsafe { self.cache().free(object) };
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Alloc => {
                let object = self.cache().alloc().unwrap();
                self.own(object);
            }
            Step::AllocZeroed => {
                let object = self.cache().alloc_zeroed().unwrap();
                // SAFETY: the test owns the object, of that many bytes.
                let bytes = unsafe { std::slice::from_raw_parts(object.as_ptr(), self.shape.size) };
                assert!(bytes.iter().all(|&byte| byte == 0));
                self.own(object);
            }
            Step::AllocBulk(n) => {
                let mut objects = vec![null_mut(); n];
                assert!(self.cache().alloc_bulk(&mut objects));
                objects.into_iter().for_each(|object| self.own(NonNull::new(object).unwrap()));
            }
            Step::Prefill(n, used) => {
                let mut store = self.cache().prefill(n).unwrap();
                assert_eq!(store.len(), n);
                let objects: Vec<_> = (0..used % (n + 1)).map(|_| store.alloc().unwrap()).collect();
                drop(store);
                objects.into_iter().for_each(|object| self.own(object));
            }
            Step::Free(n) => self.free(n),
            Step::FreeBulk(from, n) => {
                let objects: Vec<*mut u8> =
                    (0..n).map_while(|_| self.disown(from)).map(NonNull::as_ptr).collect();
                // SAFETY: as in `free`.
                unsafe { self.cache().free_bulk(&objects) };
            }
            Step::Shrink => {
                self.cache().shrink();
            }
            Step::Destroy => self.destroy(),
            Step::ReleaseMemory => {
                uslab::trim(0);
            }
            Step::MoveTo(_) | Step::Use(_) => {}
        }
    }

    fn destroy(&mut self) {
        match self.cache.take().unwrap().destroy() {
            Ok(()) => {
                assert!(self.live.is_empty(), "destroyed with objects in use");
                *self = Checked::new(self.shape);
            }
            Err((cache, busy)) => {
                assert_eq!(
                    busy.objects,
                    self.live.len(),
                    "the number of live objects differs from the oracle's"
                );
                let named = busy.first.iter().take_while(|object| !object.is_null());
                assert_eq!(named.clone().count(), self.live.len().min(busy.first.len()));
                named.for_each(|object| assert!(self.live.contains_key(&object.addr())));
                self.cache = Some(cache);
            }
        }
    }
}

#[test]
fn random_programs_over_fake_cpus_agree_with_the_oracle() {
    // Not even the library's own thread may use it.
    let name = "random_programs_over_fake_cpus_agree_with_the_oracle";
    for nodes in ["1", "3"] {
        let Some(output) = again(name, &[("USLAB_REAPER", "0"), (NODES, nodes)]) else {
            let nodes = std::env::var(NODES).unwrap().parse().unwrap();
            return agree_with_the_oracle(nodes);
        };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Environment variable that names, in the child, the number of nodes.
const NODES: &str = "USLAB_TEST_NODES";

fn agree_with_the_oracle(nodes: usize) {
    if nodes > 1 {
        uslab::internal::cpu::pretend(6, nodes, 0);
    }
    let cpus = uslab::internal::cpu::possible_cpus().unwrap().min(uslab::internal::MAX_CPUS);
    // Locked mode must cope with more CPUs than slots.
    let cpus = if uslab::mode() == uslab::Mode::Locked { 3 * cpus + 1 } else { cpus };
    let first = CacheBuilder::new("first").build_raw(8).unwrap();
    // SAFETY: the library is set up, this is the one test of the program, and the guard stays on
    // this thread.
    let cpu = unsafe { FakeCpu::start(0) };
    let programs = (shape(), shape(), prop::collection::vec(step(), 1..400));
    let mut runner =
        TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(300 / nodes as u32) });
    let outcome = runner.run(&programs, |(one, two, program)| {
        let mut caches = [Checked::new(one), Checked::new(two)];
        let mut used = 0;
        for step in &program {
            match *step {
                Step::MoveTo(to) => cpu.set(to % cpus),
                Step::Use(which) => used = which % caches.len(),
                _ => caches[used].take(step),
            }
        }
        for cache in &mut caches {
            while !cache.live.is_empty() {
                cache.free(0);
            }
            cache.destroy();
        }
        Ok(())
    });
    drop(cpu);
    drop(first);
    outcome.unwrap();
}
