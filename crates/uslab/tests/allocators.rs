//! Collections on uslab's allocators, by both versions of the `Allocator` trait.
#![cfg(not(loom))]

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box as CacheBox;
use allocator_api2::vec::Vec as NewVec;
use core::alloc::Layout;
use core::ops::ControlFlow;
use core::ptr::NonNull;
use hashbrown_memory::vec::Vec as OldVec;
use uslab::{Cache, CacheBuilder, Heap, Uslab};

#[test]
fn vectors_of_both_versions_live_in_a_heap_and_in_uslab() {
    let heap = Heap::named("vectors").unwrap();
    let (mut old, mut new, mut general) =
        (OldVec::new_in(&heap), NewVec::new_in(&heap), NewVec::new_in(Uslab));
    for n in 0..20_000_u32 {
        old.push(n);
        new.push(n);
        general.push(n);
    }
    assert!(old.iter().eq(new.iter()) && new.iter().eq(general.iter()));
    general.truncate(10);
    general.shrink_to_fit();
    assert_eq!(general[..], (0..10).collect::<Vec<u32>>());
    let stats = heap.stats();
    assert_eq!((stats.objects, stats.large_objects), (0, 2));
    drop((old, new));
    assert_eq!(heap.stats().large_objects, 0);
}

#[test]
fn a_hash_table_lives_in_a_heap() {
    let heap = Heap::new().unwrap();
    let mut table = hashbrown::HashTable::new_in(&heap);
    for n in 0..1000_u64 {
        table.insert_unique(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n, |n| {
            n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
    }
    assert_eq!(table.len(), 1000);
    let stats = heap.stats();
    assert_eq!(stats.objects + stats.large_objects, 1);
}

#[test]
fn boxes_live_in_a_typed_cache_that_refuses_other_layouts() {
    static CACHE: Cache<[u64; 5]> = Cache::new("boxes");
    let one = CacheBox::new_in([7; 5], &CACHE);
    assert_eq!(CACHE.stats().unwrap().active_objects, 1);
    assert!((&CACHE).allocate(Layout::new::<[u64; 6]>()).is_err());
    assert!((&CACHE).allocate(Layout::from_size_align(8, 16).unwrap()).is_err());
    drop(one);
    assert_eq!(CACHE.stats().unwrap().active_objects, 0);
    let constructed = CacheBuilder::new("boxes").build_constructed::<u64>(|place| place.write(1));
    assert!((&constructed.unwrap()).allocate(Layout::new::<u64>()).is_err());
}

/// Grows a block of `from` bytes to `to`; returns whether it stayed in place.
fn stays(allocator: impl Allocator, from: usize, to: usize) -> bool {
    let layout = |bytes| Layout::from_size_align(bytes, 8).unwrap();
    let block: NonNull<u8> = allocator.allocate(layout(from)).unwrap().cast();
    // SAFETY: a block of this allocator, of these layouts.
    unsafe {
        block.write_bytes(0x5a, from);
        let grown: NonNull<u8> = allocator.grow(block, layout(from), layout(to)).unwrap().cast();
        assert!((0..from).all(|at| grown.add(at).read() == 0x5a));
        let back: NonNull<u8> = allocator.shrink(grown, layout(to), layout(from)).unwrap().cast();
        assert!((0..from).all(|at| back.add(at).read() == 0x5a));
        allocator.deallocate(back, layout(from));
        grown == block
    }
}

#[test]
fn a_block_with_room_grows_in_place() {
    let heap = Heap::new().unwrap();
    let raw = CacheBuilder::new("grow").build_raw(512).unwrap();
    assert!(stays(&heap, 100, 112) && !stays(&heap, 100, 200));
    assert!(stays(Uslab, 100, 112) && !stays(Uslab, 100, 5000));
    assert!(stays(&raw, 100, 512));
    assert!(!stays(&heap, 40_000, 400_000));
}

#[test]
fn the_objects_of_a_heap_are_visited_and_counted() {
    let heap = Heap::named("visited").unwrap();
    assert_eq!(heap.name(), "visited");
    let mut live: Vec<_> = [24, 100, 100, 3000].map(|bytes| heap.alloc(bytes, 8).unwrap()).into();
    // A busy class, with bare slabs and a cache.
    live.extend((0..200).map(|_| heap.alloc(64, 8).unwrap()));
    live.extend([100_000, 3 << 20].map(|bytes| heap.alloc(bytes, 8).unwrap()));
    // SAFETY: from this heap, unused.
    (0..50).for_each(|_| unsafe { heap.free(live.swap_remove(10)) });
    let (mut seen, mut sum) = (Vec::new(), 0);
    heap.for_each_live(|object, bytes| {
        seen.push(object);
        sum += bytes;
        // The visitor may use the heap.
        let other = heap.alloc(2000, 8).unwrap();
        // SAFETY: as above.
        unsafe { heap.free(other) };
        ControlFlow::Continue(())
    });
    let stats = heap.stats();
    assert_eq!(stats.objects + stats.large_objects, live.len());
    assert_eq!(stats.object_bytes + stats.large_bytes, sum);
    assert!(stats.slab_bytes >= stats.object_bytes);
    seen.sort_unstable();
    live.sort_unstable();
    assert_eq!(seen, live);
    let mut visits = 0;
    heap.for_each_live(|_, _| {
        visits += 1;
        if visits == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(visits, 3);
}

#[test]
fn the_classes_of_a_named_heap_show_its_name() {
    let heap = Heap::named("a name that is longer than the forty-seven bytes kept").unwrap();
    (0..100).for_each(|_| assert!(heap.alloc(64, 8).is_some()));
    assert_eq!(heap.name().len(), 47);
    assert!(uslab::stats::caches().any(|cache| cache.name.as_str() == heap.name()));
}
