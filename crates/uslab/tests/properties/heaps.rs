//! Programs over private heaps, `Uslab` as Rust's global allocator, and collections on heaps and
//! caches.

use super::cases;
use super::malloc::sizes;
use super::oracle::{Object, Oracle};
use allocator_api2::boxed::Box as HeapBox;
use allocator_api2::vec::Vec as HeapVec;
use proptest::collection::vec;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashMap;
use std::ptr::NonNull;
use uslab::{CacheBuilder, Heap, Uslab};

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { uslab::malloc::usable_size(pointer) }
}

#[derive(Clone, Debug)]
enum HeapStep {
    Alloc(usize, usize, u32),
    Free(usize, usize),
    /// By the plain `free`, which accepts any object.
    PlainFree(usize, usize),
    /// Drops the heap with its objects, and creates a new one in its place.
    DropWhole(usize),
    ReleaseMemory,
}

const HEAPS: usize = 3;

fn heap_steps() -> impl Strategy<Value = Vec<HeapStep>> {
    let step = prop_oneof![
        12 => (0..HEAPS, sizes(), 0..14u32).prop_map(|(heap, size, shift)| HeapStep::Alloc(heap, size, shift)),
        4 => (0..HEAPS, any::<usize>()).prop_map(|(heap, n)| HeapStep::Free(heap, n)),
        2 => (0..HEAPS, any::<usize>()).prop_map(|(heap, n)| HeapStep::PlainFree(heap, n)),
        1 => (0..HEAPS).prop_map(HeapStep::DropWhole),
        1 => Just(HeapStep::ReleaseMemory),
    ];
    vec(step, 1..100)
}

/// Heaps, and the heap of each of the oracle's objects.
struct Heaps {
    heaps: [Heap; HEAPS],
    owned: [Vec<Object>; HEAPS],
    oracle: Oracle,
}

impl Heaps {
    fn new() -> Heaps {
        let heaps = std::array::from_fn(|_| Heap::new().expect("a heap can be made"));
        Heaps { heaps, owned: Default::default(), oracle: Oracle::default() }
    }

    fn take(&mut self, heap: usize, n: usize) -> Option<NonNull<u8>> {
        let owned = &mut self.owned[heap];
        let object = (!owned.is_empty()).then(|| owned.swap_remove(n % owned.len()))?;
        self.oracle.dies(object.pointer());
        NonNull::new(object.pointer())
    }

    fn step(&mut self, step: &HeapStep) {
        match *step {
            HeapStep::Alloc(heap, size, shift) => {
                let object = self.heaps[heap].alloc(size, 1 << shift).expect("there is memory");
                let bytes = usable_size(object.as_ptr());
                assert!(bytes >= size);
                self.owned[heap].push(self.oracle.born(object.as_ptr(), bytes, 1 << shift));
            }
            HeapStep::Free(heap, n) => {
                if let Some(object) = self.take(heap, n) {
                    // SAFETY: from that heap, and unused from here on.
                    unsafe { self.heaps[heap].free(object) };
                }
            }
            HeapStep::PlainFree(heap, n) => {
                if let Some(object) = self.take(heap, n) {
                    // SAFETY: allocated by this test, and unused from here on.
                    unsafe { uslab::malloc::free(object.as_ptr()) };
                }
            }
            HeapStep::DropWhole(heap) => {
                for object in self.owned[heap].drain(..) {
                    self.oracle.dies(object.pointer());
                }
                self.heaps[heap] = Heap::new().expect("a heap can be made");
            }
            HeapStep::ReleaseMemory => {
                uslab::trim(0);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn a_dropped_heap_frees_its_own_objects_only(steps in heap_steps()) {
        let mut heaps = Heaps::new();
        let bystander = heaps.oracle.born(uslab::malloc::malloc(777), 777, 16);
        steps.iter().for_each(|step| heaps.step(step));
        heaps.oracle.check_all();
        for heap in 0..HEAPS {
            heaps.step(&HeapStep::DropWhole(heap));
            heaps.oracle.check_all();
        }
        heaps.oracle.dies(bystander.pointer());
        assert_eq!(heaps.oracle.len(), 0);
        // SAFETY: allocated by this test, and unused from here on.
        unsafe { uslab::malloc::free(bystander.pointer()) };
        uslab::debug::validate().expect("the structures are whole");
    }
}

#[derive(Clone, Debug)]
enum GlobalStep {
    Alloc(usize, u32),
    AllocZeroed(usize, u32),
    Realloc(usize, usize),
    Dealloc(usize),
}

fn global_steps() -> impl Strategy<Value = Vec<GlobalStep>> {
    // Rust never requests 0 bytes.
    let bytes = || sizes().prop_map(|size| size.max(1));
    let shift = || prop_oneof![3 => 0..5u32, 1 => 5..16u32];
    let step = prop_oneof![
        6 => (bytes(), shift()).prop_map(|(size, shift)| GlobalStep::Alloc(size, shift)),
        3 => (bytes(), shift()).prop_map(|(size, shift)| GlobalStep::AllocZeroed(size, shift)),
        6 => (any::<usize>(), bytes()).prop_map(|(n, size)| GlobalStep::Realloc(n, size)),
        5 => any::<usize>().prop_map(GlobalStep::Dealloc),
    ];
    vec(step, 1..120)
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).expect("sizes and alignments are small")
}

fn global_program(steps: &[GlobalStep]) {
    let mut oracle = Oracle::default();
    let mut layouts = HashMap::new();
    for step in steps {
        match *step {
            GlobalStep::Alloc(size, shift) => {
                let layout = layout(size, 1 << shift);
                // SAFETY: the size is not 0.
                let object = unsafe { Uslab.alloc(layout) };
                oracle.born(object, size, layout.align());
                layouts.insert(object as usize, layout);
            }
            GlobalStep::AllocZeroed(size, shift) => {
                let layout = layout(size, 1 << shift);
                // SAFETY: the size is not 0.
                let object = unsafe { Uslab.alloc_zeroed(layout) };
                oracle.born_zeroed(object, size, size, layout.align());
                layouts.insert(object as usize, layout);
            }
            GlobalStep::Realloc(n, size) => {
                let Some(old) = oracle.nth(n) else { continue };
                oracle.dies(old.pointer());
                let align = layouts.remove(&old.address).expect("recorded at its allocation");
                // SAFETY: allocated by this test with that layout; the size is not 0.
                let moved = unsafe { Uslab.realloc(old.pointer(), align, size) };
                oracle.resized(old, moved, (size, size), align.align());
                layouts.insert(moved as usize, layout(size, align.align()));
            }
            GlobalStep::Dealloc(n) => {
                let Some(object) = oracle.nth(n) else { continue };
                oracle.dies(object.pointer());
                let layout = layouts.remove(&object.address).expect("recorded at its allocation");
                // SAFETY: allocated by this test with that layout, and unused from here on.
                unsafe { Uslab.dealloc(object.pointer(), layout) };
            }
        }
    }
    oracle.check_all();
    for object in oracle.objects() {
        oracle.dies(object.pointer());
        // SAFETY: allocated by this test with that layout, and unused from here on.
        unsafe { Uslab.dealloc(object.pointer(), layouts[&object.address]) };
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn the_global_allocator_keeps_its_promises(steps in global_steps()) {
        global_program(&steps);
    }

    #[test]
    fn collections_live_on_heaps_and_caches(values in vec(any::<u64>(), 0..3000), cut in any::<usize>()) {
        let heap = Heap::new().expect("a heap can be made");
        let mut numbers = HeapVec::new_in(&heap);
        let mut boxes = HeapVec::new_in(&heap);
        for &value in &values {
            numbers.push(value);
            boxes.push(HeapBox::new_in([value; 5], &heap));
        }
        numbers.truncate(cut % (values.len() + 1));
        numbers.shrink_to_fit();
        boxes.drain(..values.len() / 2).for_each(drop);
        assert_eq!(numbers.as_slice(), &values[..numbers.len()]);
        assert!(boxes.iter().zip(&values[values.len() / 2..]).all(|(boxed, value)| **boxed == [*value; 5]));

        let cache = CacheBuilder::new("node").build_raw(size_of::<[u64; 4]>()).expect("a cache can be made");
        let nodes: Vec<_> = values.iter().map(|&value| HeapBox::new_in([value; 4], &cache)).collect();
        assert!(nodes.iter().zip(&values).all(|(node, value)| **node == [*value; 4]));
        // A layout that does not fit an object is refused.
        assert!(HeapBox::try_new_in([0u8; 100], &cache).is_err());
        let mut small = HeapVec::new_in(&cache);
        assert!(small.try_reserve_exact(4).is_ok() && small.try_reserve_exact(5).is_err());
        small.push(1u64);
        drop((nodes, small));
        cache.destroy().map_err(|(_, busy)| busy).expect("nothing was lost");
    }
}
