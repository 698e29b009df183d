//! The heap profile of private heaps against an exact trace: bare slabs, caches, large objects,
//! ends of heaps, frees after the profile, forks.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;
#[path = "support/sites.rs"]
mod sites;

use modes::in_both_modes;
use sites::{PERIOD, SITE_BYTES, Site, is_close, profile};
use std::ptr::NonNull;
use uslab::{Heap, profile};

fn site(name: &str) -> Site {
    profile().1.get(name).cloned().unwrap_or_default()
}

fn object(heap: &Heap, bytes: usize) -> NonNull<u8> {
    heap.alloc(bytes, 8).expect("there is memory")
}

fn end() {
    profile::stop();
    uslab::debug::validate().expect("the library's structures are whole");
}

/// Classes of the sizes that tests ask for: 48 bytes is one itself.
const BYTES: usize = 48;

#[test]
fn objects_of_small_heaps_are_counted_and_end_with_them() {
    in_both_modes("objects_of_small_heaps_are_counted_and_end_with_them", &[], || {
        // So few that no class gets a cache.
        const OBJECTS: usize = 50;
        let heaps = SITE_BYTES / BYTES / OBJECTS;
        profile::start(PERIOD).expect("there is memory");
        for n in 0..heaps {
            let heap = Heap::named("small").expect("there is memory");
            let objects: Vec<_> = (0..OBJECTS).map(|_| object(&heap, BYTES)).collect();
            if n % 2 == 0 {
                // SAFETY: allocated from this heap.
                objects.into_iter().for_each(|object| unsafe { heap.free(object) });
            }
        }
        let seen = site("small");
        is_close("small", seen.alloc_bytes, (heaps * OBJECTS * BYTES) as f64);
        is_close("small", seen.alloc_objects, (heaps * OBJECTS) as f64);
        assert_eq!(seen.live_samples, 0, "{seen:?}");

        let held: Vec<_> = (0..heaps)
            .map(|_| {
                let heap = Heap::named("held").expect("there is memory");
                (0..OBJECTS).for_each(|_| _ = object(&heap, BYTES));
                heap
            })
            .collect();
        let seen = site("held");
        is_close("held", seen.inuse_bytes, (heaps * OBJECTS * BYTES) as f64);
        profile::stop();
        let all = held.len();
        drop(held.into_iter().take(all / 2).collect::<Vec<_>>());
        assert_eq!(site("held").live_samples, 0);
        end();
    });
}

/// A server may name a heap for each request. Names stay in the profile for ever, so heaps get half
/// of the room.
#[test]
fn many_names_of_heaps_leave_room_for_caches() {
    in_both_modes("many_names_of_heaps_leave_room_for_caches", &[], || {
        profile::start(1).expect("there is memory");
        for n in 0..3000 {
            let heap = Heap::named(&format!("request {n}")).expect("there is memory");
            let _ = object(&heap, BYTES);
        }
        let cache = uslab::CacheBuilder::new("made later").build_raw(BYTES).expect("there is memory");
        let made = cache.alloc().expect("there is memory");
        assert_eq!(site("made later").live_samples, 1);
        assert!(site("heap").samples > 500, "later heaps share a label");
        // SAFETY: allocated above.
        unsafe { cache.free(made) };
        end();
    });
}

#[test]
fn pairs_in_busy_classes_are_each_estimated_within_5_percent() {
    in_both_modes("pairs_in_busy_classes_are_each_estimated_within_5_percent", &[], || {
        let heap = Heap::named("busy before").expect("there is memory");
        // These classes serve from sheaves before the profile starts.
        for bytes in [16, 64, 256] {
            let early: Vec<_> = (0..1000).map(|_| object(&heap, bytes)).collect();
            // SAFETY: allocated above.
            early.into_iter().for_each(|object| unsafe { heap.free(object) });
        }
        profile::start(PERIOD).expect("there is memory");
        let mut exact = 0;
        for bytes in [16, 64, 256, 1024, 8192, 32 << 10] {
            for _ in 0..SITE_BYTES / bytes {
                let object = std::hint::black_box(object(&heap, bytes));
                // SAFETY: allocated above.
                unsafe { heap.free(object) };
            }
            exact += SITE_BYTES / bytes * bytes;
            is_close("busy", site("busy before").alloc_bytes, exact as f64);
        }
        assert_eq!(site("busy before").live_samples, 0);
        end();
    });
}

#[test]
fn objects_in_use_end_by_free_during_and_after_the_profile_and_with_the_heap() {
    let name = "objects_in_use_end_by_free_during_and_after_the_profile_and_with_the_heap";
    in_both_modes(name, &[], || {
        let count = SITE_BYTES / BYTES;
        let heap = Heap::named("kept").expect("there is memory");
        profile::start(PERIOD).expect("there is memory");
        let objects: Vec<_> = (0..count).map(|_| object(&heap, BYTES)).collect();
        is_close("kept", site("kept").inuse_bytes, (count * BYTES) as f64);
        for object in &objects[..count / 4] {
            // SAFETY: allocated above; any free may free it.
            unsafe { uslab::malloc::free(object.as_ptr()) };
        }
        is_close("three quarters", site("kept").inuse_objects, (count - count / 4) as f64);
        profile::stop();
        for &object in &objects[count / 4..count / 2] {
            // SAFETY: allocated above.
            unsafe { heap.free(object) };
        }
        is_close("half", site("kept").inuse_objects, (count - count / 2) as f64);
        let samples = site("kept").samples;
        (0..count / 4).for_each(|_| _ = object(&heap, BYTES));
        assert_eq!(site("kept").samples, samples, "nothing is sampled after the profile");

        // SAFETY: the child uses this library and the C library alone, and ends without handlers.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            drop(heap);
            let is_right = site("kept").live_samples == 0 && uslab::debug::validate().is_ok();
            // SAFETY: no preconditions.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: `status` is a place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        is_close("half", site("kept").inuse_objects, (count - count / 2) as f64);
        drop(heap);
        assert_eq!(site("kept").live_samples, 0);

        // The memory of the heap's cache serves a cache that no profile follows.
        let cache = uslab::CacheBuilder::new("next").build_raw(BYTES).expect("there is memory");
        let object = cache.alloc().expect("there is memory");
        // SAFETY: just allocated.
        unsafe { cache.free(object) };
        assert_eq!(site("next").samples, 0);
        end();
    });
}

#[test]
fn large_objects_of_heaps_are_counted() {
    in_both_modes("large_objects_of_heaps_are_counted", &[], || {
        const LARGE: usize = 100 << 10;
        const ROUNDS: usize = 2000;
        profile::start(LARGE).expect("there is memory");
        let before = site("large objects");
        for n in 0..ROUNDS {
            let heap = Heap::new().expect("there is memory");
            let objects = [0; 4].map(|_| object(&heap, LARGE));
            if n % 2 == 0 {
                // SAFETY: allocated above.
                objects.into_iter().for_each(|object| unsafe { heap.free(object) });
            }
        }
        let after = site("large objects");
        is_close("large", after.alloc_bytes - before.alloc_bytes, (ROUNDS * 4 * LARGE) as f64);
        assert_eq!(after.live_samples, before.live_samples);
        end();
    });
}

#[test]
fn threads_free_for_each_other_while_profiles_begin_and_end() {
    in_both_modes("threads_free_for_each_other_while_profiles_begin_and_end", &[], || {
        let (send, receive) = std::sync::mpsc::sync_channel::<(std::sync::Arc<Heap>, Vec<usize>)>(8);
        let other = std::thread::spawn(move || {
            for (heap, objects) in receive {
                for address in objects {
                    let object = NonNull::new(address as *mut u8).expect("not null");
                    // SAFETY: allocated by the other thread from this heap.
                    unsafe { heap.free(object) };
                }
            }
        });
        for round in 0..400 {
            match round % 4 {
                0 => profile::start(PERIOD).expect("there is memory"),
                2 => profile::stop(),
                _ => {}
            }
            let heap = std::sync::Arc::new(Heap::named("shared").expect("there is memory"));
            let objects = (0..500).map(|n| object(&heap, 16 + n % 300).as_ptr() as usize).collect::<Vec<_>>();
            send.send((heap, objects)).expect("the thread lives");
        }
        drop(send);
        other.join().expect("no panic");
        assert_eq!(site("shared").live_samples, 0);
        assert!(site("shared").samples > 1000);
        end();
    });
}

/// Ends a thousand heaps, of 48 objects each, and prints the time that each takes.
fn end_a_thousand(what: &str) {
    let heaps: Vec<_> = (0..1000)
        .map(|_| {
            let heap = Heap::named("ended").expect("there is memory");
            (0..48).for_each(|_| _ = object(&heap, BYTES));
            heap
        })
        .collect();
    let start = std::time::Instant::now();
    drop(heaps);
    println!("{what}: a heap ends in {:?}", start.elapsed() / 1000);
}

#[test]
fn the_end_of_a_heap_finds_its_samples_among_all() {
    in_both_modes("the_end_of_a_heap_finds_its_samples_among_all", &[], || {
        end_a_thousand("without a profile");
        profile::start(1).expect("there is memory");
        end_a_thousand("each object a sample");
        assert!(site("ended").samples > 45_000 && site("ended").live_samples == 0);
        let kept = Heap::named("kept").expect("there is memory");
        (0..45_000).for_each(|_| _ = object(&kept, BYTES));
        profile::start(2000).expect("there is memory");
        let kept_samples = site("kept").live_samples;
        end_a_thousand("one sample, beside 45 000 that stay");
        assert_eq!((site("kept").live_samples, site("ended").live_samples), (kept_samples, 0));
        end();
    });
}
