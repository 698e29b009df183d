//! Heaps: their cost follows the memory that they own, and only memory limits their number.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};
use uslab::internal::layout::STATE_LIVE;
use uslab::malloc::{free, malloc};
use uslab::{CacheBuilder, Heap, stats};

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { uslab::malloc::usable_size(pointer) }
}

fn heap() -> Heap {
    Heap::new().expect("a heap can be made")
}

/// Allocates an object of `bytes`, and writes its address to its first word.
fn object(heap: &Heap, bytes: usize) -> NonNull<u8> {
    let object = heap.alloc(bytes, 8).expect("there is memory");
    // SAFETY: allocated by this test, with at least 16 bytes.
    unsafe { object.cast::<usize>().write(object.as_ptr() as usize) };
    object
}

/// Whether an object still contains its address; see [`object`].
fn is_whole(object: NonNull<u8>) -> bool {
    // SAFETY: the object belongs to a live heap.
    unsafe { object.cast::<usize>().read() == object.as_ptr() as usize }
}

/// Figures of all heaps together: bytes of slabs, bytes of objects.
fn figures() -> (usize, usize) {
    uslab::internal::account_all();
    let records = uslab::internal::records().filter(|record| {
        let name = record.name[..5].iter().map(|byte| byte.load(Relaxed));
        record.state.load(Relaxed) == STATE_LIVE && name.eq(*b"heap\0")
    });
    records.fold((0, 0), |(slabs, objects), record| {
        let count = record.slabs.load(Relaxed);
        let all = count * i64::from(record.objects_per_slab.load(Relaxed));
        let live = all - record.slab_free.load(Relaxed) - record.sheaf_free.load(Relaxed);
        let pages = count as usize * record.pages_per_slab.load(Relaxed) as usize;
        (slabs + pages * 4096, objects + live.max(0) as usize * record.object_bytes.load(Relaxed) as usize)
    })
}

#[test]
fn more_heaps_live_than_there_are_ids() {
    in_both_modes("more_heaps_live_than_there_are_ids", &[], || {
        const HEAPS: usize = 100_000;
        let before = uslab::internal::boot::used_bytes();
        let mut heaps = Vec::with_capacity(HEAPS);
        for n in 0..HEAPS {
            let heap = heap();
            let object = heap.alloc(16 + n % 7 * 16, 8).unwrap_or_else(|| panic!("heap {n} got no object"));
            heaps.push((heap, object));
        }
        let distinct: HashSet<_> = heaps.iter().map(|&(_, object)| object).collect();
        assert_eq!(distinct.len(), HEAPS);
        // The program can still create caches, and busy heaps get theirs.
        CacheBuilder::new("beside").build_raw(64).expect("ids are left").destroy().expect("it is empty");
        let busy: Vec<_> = (0..5000).map(|_| object(&heaps[7].0, 64)).collect();
        assert!(busy.iter().all(|&object| is_whole(object)));
        let grown = uslab::internal::boot::used_bytes() - before;
        println!("metadata: {} bytes a heap", grown / HEAPS);
        assert!(grown < HEAPS * 100);
        // New heaps reuse the memory of destroyed ones.
        heaps.truncate(HEAPS / 2);
        heaps.extend((0..HEAPS / 2).map(|_| {
            let heap = heap();
            let object = object(&heap, 100);
            (heap, object)
        }));
        let most = uslab::internal::boot::used_bytes() - before;
        assert!(most < grown + (64 << 10), "{most} after {grown}");
        drop(heaps);
        assert_eq!(figures(), (0, 0));
    });
}

#[test]
fn the_cost_of_a_heap_depends_on_its_own_objects_only() {
    in_both_modes("the_cost_of_a_heap_depends_on_its_own_objects_only", &[], || {
        // The best of several runs, to exclude other load on the machine.
        let best = || {
            let once = |_| {
                let start = Instant::now();
                for _ in 0..20 {
                    let heap = heap();
                    for shift in 4..11 {
                        object(&heap, 1 << shift);
                    }
                }
                start.elapsed() / 20
            };
            (0..30).map(once).min().expect("there are some")
        };
        let alone = best();
        let blocks: Vec<_> = (0..3000).map(|_| malloc(1 << 20)).collect();
        assert!(blocks.iter().all(|block| !block.is_null()));
        let beside = best();
        println!("heap of 7 objects: {alone:?} alone, {beside:?} beside 3000 large blocks");
        // A search of every page for objects of the destroyed heap took 700 times as long.
        assert!(beside < 10 * alone + Duration::from_micros(20));
        // SAFETY: allocated by this test, and unused from here on.
        blocks.into_iter().for_each(|block| unsafe { free(block) });
    });
}

#[test]
fn a_heap_that_becomes_busy_keeps_every_object() {
    in_both_modes("a_heap_that_becomes_busy_keeps_every_object", &[], || {
        let heap = heap();
        let mut live: Vec<NonNull<u8>> = Vec::new();
        for round in 0..20_000usize {
            live.push(object(&heap, 16 + round * 7 % 600));
            if round % 3 == 0 {
                let old = live.swap_remove(round * 31 % live.len());
                assert!(is_whole(old) && usable_size(old.as_ptr()) >= 16);
                // SAFETY: from this heap, and unused from here on; both ways to free are allowed.
                unsafe { if round % 2 == 0 { heap.free(old) } else { free(old.as_ptr()) } };
            }
        }
        assert!(live.iter().all(|&object| is_whole(object)));
        assert_eq!(live.iter().collect::<HashSet<_>>().len(), live.len());
        let (slabs, objects) = figures();
        assert!(slabs >= objects && objects >= live.len() * 16);
        drop(heap);
        let (slabs, objects) = figures();
        assert_eq!((slabs, objects), (0, 0));
    });
}

#[test]
fn threads_share_a_heap_while_it_becomes_busy() {
    in_both_modes("threads_share_a_heap_while_it_becomes_busy", &[], || {
        for _ in 0..60 {
            let heap = heap();
            let (start, all) = (Barrier::new(4), Mutex::new(Vec::new()));
            std::thread::scope(|scope| {
                for thread in 0..4usize {
                    let (heap, start, all) = (&heap, &start, &all);
                    scope.spawn(move || {
                        let mut mine = Vec::new();
                        start.wait();
                        for n in 0..400 {
                            mine.push(object(heap, 48));
                            if n % 4 == thread {
                                // SAFETY: from this heap, and unused from here on.
                                unsafe { heap.free(mine.swap_remove(n * 7 % mine.len())) };
                            }
                        }
                        all.lock()
                            .expect("no thread failed")
                            .extend(mine.iter().map(|p| p.as_ptr() as usize));
                    });
                }
            });
            let all = all.into_inner().expect("no thread failed");
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
            assert!(all.iter().all(|&address| NonNull::new(address as *mut u8).is_some_and(is_whole)));
        }
        assert_eq!(figures(), (0, 0));
    });
}

#[test]
fn the_figures_include_small_heaps() {
    in_both_modes("the_figures_include_small_heaps", &[], || {
        let heaps: Vec<_> = (0..1000).map(|_| heap()).collect();
        for heap in &heaps {
            object(heap, 2048);
        }
        let (slabs, objects) = figures();
        assert!(
            (slabs, objects) >= (1000 * 4096, 1000 * 2048) && objects <= 4 * 1000 * 2048,
            "{slabs} {objects}"
        );
        assert!(stats::usage().allocated_bytes >= 1000 * 2048);
        drop(heaps);
        assert_eq!(figures(), (0, 0));
    });
}

#[test]
fn visits_of_large_objects_are_in_order_and_leave_out_what_was_freed_meanwhile() {
    in_both_modes("visits_of_large_objects_are_in_order_and_leave_out_what_was_freed_meanwhile", &[], || {
        let heap = heap();
        let mut objects: Vec<_> = (0..1000).map(|_| heap.alloc(40_000, 8).expect("memory")).collect();
        assert_eq!((heap.stats().large_objects, heap.stats().large_bytes), (1000, 1000 * 40_960));
        objects.sort_unstable();
        let mut visited = Vec::new();
        heap.for_each_live(|object, _| {
            // Each visit frees the object behind the one that it is shown.
            let next = objects.binary_search(&object).expect("an object of this heap") + 1;
            if let Some(&next) = objects.get(next) {
                // SAFETY: from this heap, unused.
                unsafe { heap.free(next) };
            }
            visited.push(object);
            std::ops::ControlFlow::Continue(())
        });
        let expected: Vec<_> = objects.iter().copied().step_by(2).collect();
        assert_eq!(visited, expected);
    });
}

#[test]
fn the_last_object_of_a_slab_frees_its_pages() {
    in_both_modes("the_last_object_of_a_slab_frees_its_pages", &[], || {
        let heaps: Vec<_> = (0..2000).map(|_| heap()).collect();
        let objects: Vec<_> = heaps.iter().map(|heap| object(heap, 128)).collect();
        let most = figures().0;
        // SAFETY: allocated by this test, and unused from here on.
        objects.into_iter().for_each(|object| unsafe { free(object.as_ptr()) });
        let (left, _) = figures();
        println!("slabs of 2000 heaps: {most} bytes with one object each, {left} without");
        assert_eq!(left, 0);
    });
}

#[test]
fn children_use_the_heaps_of_a_process_whose_threads_use_heaps() {
    in_both_modes("children_use_the_heaps_of_a_process_whose_threads_use_heaps", &[], || {
        let kept: Vec<_> = (0..50).map(|_| heap()).collect();
        let objects: Vec<_> = kept.iter().map(|heap| object(heap, 64)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3usize {
                let (stop, kept) = (&stop, &kept);
                scope.spawn(move || {
                    for round in 0.. {
                        if stop.load(Relaxed) {
                            break;
                        }
                        let own = heap();
                        for n in 0..(round % 40) * 10 {
                            let shared = &kept[(n + thread) % kept.len()];
                            let both = [object(&own, 16 + n % 500), object(shared, 16 + n % 300)];
                            assert!(both.into_iter().all(is_whole));
                            // SAFETY: allocated by this test, and unused from here on.
                            unsafe { shared.free(both[1]) };
                        }
                    }
                });
            }
            for _ in 0..60 {
                // SAFETY: the child only uses heaps, and ends by `_exit`.
                let child = unsafe { libc::fork() };
                assert!(child >= 0);
                if child == 0 {
                    // SAFETY: the kernel ends a child that hangs.
                    unsafe { libc::alarm(20) };
                    let own = heap();
                    let served = (0..600).all(|n| {
                        let mine = object(&own, 16 + n % 900);
                        let shared = object(&kept[n % kept.len()], 48);
                        // SAFETY: allocated by this test, and unused from here on.
                        unsafe { free(shared.as_ptr()) };
                        is_whole(mine)
                    });
                    let whole = objects.iter().all(|&object| is_whole(object));
                    drop(own);
                    let valid = uslab::debug::validate().is_ok();
                    // SAFETY: ends the child alone.
                    unsafe { libc::_exit(if served && whole && valid { 0 } else { 1 }) };
                }
                let mut status = 0;
                // SAFETY: a child of this process; `status` is a valid place to write to.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "the child's status");
            }
            stop.store(true, Relaxed);
        });
        uslab::debug::validate().expect("the structures are whole");
    });
}
