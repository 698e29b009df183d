//! The heap profile of the program's caches against an exact trace: typed and raw ones, pairs,
//! objects in use, bulk, sheaves of threads, threads, forks.

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;
#[path = "support/sites.rs"]
mod sites;

use modes::in_both_modes;
use sites::{PERIOD, SITE_BYTES, Site, is_close, profile};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use uslab::{Cache, CacheBuilder, RawCache, profile};

fn site(cache: &str) -> Site {
    profile().1.get(cache).cloned().unwrap_or_default()
}

fn raw(name: &str, bytes: usize) -> RawCache {
    CacheBuilder::new(name).build_raw(bytes).expect("memory")
}

/// # Safety
/// The objects must be live ones of the cache.
unsafe fn free_all(cache: &RawCache, objects: impl IntoIterator<Item = NonNull<u8>>) {
    // SAFETY: the caller's promise.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

fn end() {
    profile::stop();
    uslab::debug::validate().expect("the library's structures are whole");
}

/// Allocates and frees one object after the other.
fn pairs<T>(cache: &Cache<T>, count: usize) {
    for _ in 0..count {
        let object = cache.alloc().expect("memory");
        // SAFETY: just allocated.
        unsafe { cache.free(std::hint::black_box(object)) };
    }
}

macro_rules! sites_of_pairs {
    ($($bytes:literal $name:literal),*) => {$({
        static CACHE: Cache<[u8; $bytes]> = Cache::new($name);
        // Half of them serve from the fast path before the profile starts.
        let before = site($name);
        pairs(&CACHE, SITE_BYTES / $bytes);
        let after = site($name);
        is_close($name, after.alloc_bytes - before.alloc_bytes, (SITE_BYTES / $bytes * $bytes) as f64);
        is_close($name, after.alloc_objects - before.alloc_objects, (SITE_BYTES / $bytes) as f64);
        assert_eq!(after.live_samples, 0, "{after:?}");
    })*};
}

#[test]
fn ten_sites_of_pairs_in_typed_caches_are_each_estimated_within_5_percent() {
    in_both_modes("ten_sites_of_pairs_in_typed_caches_are_each_estimated_within_5_percent", &[], || {
        profile::start(PERIOD).expect("there is memory");
        sites_of_pairs!(
            16 "sixteen", 40 "forty", 64 "sixty-four", 100 "hundred", 256 "quarter", 600 "six hundred",
            1000 "thousand", 3000 "three thousand", 8000 "eight thousand", 30_000 "thirty thousand"
        );
        end();
    });
}

#[test]
fn objects_in_use_are_estimated_and_freed_during_and_after_the_profile() {
    in_both_modes("objects_in_use_are_estimated_and_freed_during_and_after_the_profile", &[], || {
        let cache = raw("kept", 96);
        let count = SITE_BYTES / 96;
        // These are from before, and in sheaves of the fast path.
        let early: Vec<_> = (0..1000).map(|_| cache.alloc().expect("memory")).collect();
        // SAFETY: just allocated.
        unsafe { free_all(&cache, early.into_iter().take(900)) };
        profile::start(PERIOD).expect("there is memory");
        let objects: Vec<_> = (0..count).map(|_| cache.alloc().expect("memory")).collect();
        let held = site("kept");
        is_close("kept", held.inuse_bytes, (count * 96) as f64);
        is_close("kept", held.inuse_objects, count as f64);
        assert!(held.live_samples > 8_000, "{held:?}");
        // SAFETY: allocated above.
        unsafe { free_all(&cache, objects[..count / 2].iter().copied()) };
        is_close("half of it", site("kept").inuse_objects, (count - count / 2) as f64);
        profile::stop();
        // Nothing is sampled now.
        let sampled = site("kept").samples;
        let others: Vec<_> = (0..count / 4).map(|_| cache.alloc().expect("memory")).collect();
        // SAFETY: allocated above.
        unsafe { free_all(&cache, others) };
        let half = site("kept");
        assert_eq!(half.samples, sampled);
        is_close("half of it, later", half.inuse_objects, (count - count / 2) as f64);
        // SAFETY: allocated above.
        unsafe { free_all(&cache, objects[count / 2..].iter().copied()) };
        assert_eq!(site("kept").live_samples, 0);
        // A second profile goes on.
        profile::start(PERIOD).expect("there is memory");
        let objects: Vec<_> = (0..count).map(|_| cache.alloc().expect("memory")).collect();
        is_close("again", site("kept").inuse_bytes, (count * 96) as f64);
        // SAFETY: allocated above.
        unsafe { free_all(&cache, objects) };
        end();
    });
}

#[test]
fn bulk_calls_and_prefilled_sheaves_are_counted_by_the_object() {
    in_both_modes("bulk_calls_and_prefilled_sheaves_are_counted_by_the_object", &[], || {
        let cache = raw("bulk", 128);
        profile::start(PERIOD).expect("there is memory");
        let rounds = SITE_BYTES / 128 / 64;
        let mut objects = [std::ptr::null_mut(); 64];
        for _ in 0..rounds {
            assert!(cache.alloc_bulk(&mut objects));
            // SAFETY: just allocated.
            unsafe { cache.free_bulk(&objects) };
        }
        is_close("bulk", site("bulk").alloc_objects, (64 * rounds) as f64);
        assert_eq!(site("bulk").live_samples, 0);
        let before = site("bulk").alloc_objects;
        for _ in 0..rounds {
            let mut sheaf = cache.prefill(64).expect("memory");
            let object = sheaf.alloc().expect("prefilled");
            // SAFETY: just allocated.
            unsafe { cache.free(object) };
        }
        is_close("prefilled", site("bulk").alloc_objects - before, (64 * rounds) as f64);
        assert_eq!(site("bulk").live_samples, 0);
        end();
    });
}

#[test]
fn sheaves_of_threads_are_counted_from_their_next_refill_on() {
    in_both_modes("sheaves_of_threads_are_counted_from_their_next_refill_on", &[], || {
        let cache = raw("local", 200);
        let early = cache.local().expect("memory");
        let object = early.alloc().expect("memory");
        // SAFETY: just allocated.
        unsafe { early.free(object) };
        profile::start(PERIOD).expect("there is memory");
        let held = early.held();
        let objects: Vec<_> = (0..held + 1).map(|_| early.alloc().expect("memory")).collect();
        // SAFETY: just allocated. The sheaf is given up at the refill.
        objects.into_iter().for_each(|object| unsafe { early.free(object) });
        assert_eq!(early.held(), 0);
        let late = cache.local().expect("memory");
        let count = SITE_BYTES / 200;
        for local in [&early, &late] {
            let before = site("local").alloc_objects;
            for _ in 0..count {
                let object = local.alloc().expect("memory");
                // SAFETY: just allocated.
                unsafe { local.free(object) };
            }
            is_close("local", site("local").alloc_objects - before, count as f64);
        }
        assert_eq!(site("local").live_samples, 0);
        profile::stop();
        let object = late.alloc().expect("memory");
        // SAFETY: just allocated.
        unsafe { late.free(object) };
        assert!(late.held() > 0, "sheaves of threads are back");
        drop((early, late));
        uslab::debug::validate().expect("the library's structures are whole");
    });
}

#[test]
fn a_sample_that_a_threads_own_sheaf_took_unseen_ends_when_its_address_is_served_again() {
    in_both_modes(
        "a_sample_that_a_threads_own_sheaf_took_unseen_ends_when_its_address_is_served_again",
        &[],
        || {
            let cache = raw("unseen", 64);
            let local = cache.local().expect("memory");
            let objects: Vec<_> = (0..8).map(|_| local.alloc().expect("memory")).collect();
            // Each allocation is a sample.
            profile::start(1).expect("there is memory");
            let object = cache.alloc().expect("memory");
            assert_eq!(site("unseen").live_samples, 1);
            // SAFETY: allocated above. The sheaf has room: it was filled before the profile began.
            unsafe { local.free(object) };
            assert_eq!(site("unseen").live_samples, 1);
            local.flush();
            let others: Vec<_> = (0..4000).map(|_| cache.alloc().expect("memory")).collect();
            assert!(others.contains(&object));
            assert_eq!(site("unseen").live_samples, 4000);
            // SAFETY: allocated above.
            unsafe { free_all(&cache, others.into_iter().chain(objects)) };
            assert_eq!(site("unseen").live_samples, 0);
            // One more is unseen until its cache ends.
            drop(local);
            let local = cache.local().expect("memory");
            profile::stop();
            let objects: Vec<_> = (0..8).map(|_| local.alloc().expect("memory")).collect();
            profile::start(1).expect("there is memory");
            let object = cache.alloc().expect("memory");
            // SAFETY: allocated above.
            unsafe { local.free(object) };
            local.flush();
            drop(local);
            assert_eq!(site("unseen").live_samples, 1);
            // SAFETY: allocated above.
            unsafe { free_all(&cache, objects) };
            cache.destroy().expect("no object is in use");
            assert_eq!(site("unseen").live_samples, 0);
            end();
        },
    );
}

#[test]
fn caches_of_all_kinds_are_counted_under_their_names() {
    use uslab::Flags;
    in_both_modes("caches_of_all_kinds_are_counted_under_their_names", &[], || {
        let count = SITE_BYTES / 160;
        let count_pairs = |cache: &RawCache, times: usize| {
            for _ in 0..times {
                let object = cache.alloc().expect("memory");
                // SAFETY: just allocated.
                unsafe { cache.free(object) };
            }
        };
        let early = CacheBuilder::new("early debugged")
            .flags(Flags::CONSISTENCY_CHECKS.with(Flags::POISON))
            .build_raw(160);
        let early = early.expect("memory");
        count_pairs(&early, 100);
        profile::start(PERIOD).expect("there is memory");
        let debugged = CacheBuilder::new("debugged")
            .flags(Flags::CONSISTENCY_CHECKS.with(Flags::RED_ZONE))
            .build_raw(160);
        let bare = CacheBuilder::new("no sheaves").flags(Flags::NO_CACHING).build_raw(160);
        let tight = CacheBuilder::new("tight").sheaf_capacity(6).build_raw(160);
        let caches = [early, debugged.expect("memory"), bare.expect("memory"), tight.expect("memory")];
        for cache in &caches {
            count_pairs(cache, count);
            is_close(cache.name(), site(cache.name()).alloc_objects, count as f64);
            assert_eq!(site(cache.name()).live_samples, 0);
        }
        static CONSTRUCTED: AtomicPtr<Cache<[u32; 40]>> = AtomicPtr::new(std::ptr::null_mut());
        let constructed = CacheBuilder::new("constructed").build_constructed(|place| place.write([7; 40]));
        CONSTRUCTED.store(Box::leak(Box::new(constructed.expect("memory"))), Release);
        // SAFETY: just stored, and leaked.
        let cache = unsafe { &*CONSTRUCTED.load(Acquire) };
        for _ in 0..count {
            let object = cache.constructed().expect("memory");
            assert!(object.iter().all(|&word| word == 7));
        }
        is_close("constructed", site("constructed").alloc_objects, count as f64);
        // A running cache that becomes debugged is counted as before.
        let late = raw("late", 160);
        count_pairs(&late, count);
        assert_eq!(uslab::debug::switch("F,late"), Ok(1));
        count_pairs(&late, count);
        assert_eq!(uslab::debug::switch("-,late"), Ok(1));
        count_pairs(&late, count);
        is_close("late", site("late").alloc_objects, 3.0 * count as f64);
        assert_eq!(site("late").live_samples, 0);
        end();
    });
}

#[test]
fn caches_that_come_and_go_share_a_label() {
    in_both_modes("caches_that_come_and_go_share_a_label", &[], || {
        profile::start(PERIOD).expect("there is memory");
        let count = SITE_BYTES / 64 / 1000;
        for round in 0..6000 {
            let cache = raw("coming", 64);
            for _ in 0..if round % 6 == 0 { count } else { 0 } {
                let object = cache.alloc().expect("memory");
                // SAFETY: just allocated.
                unsafe { cache.free(object) };
            }
            if round == 17 {
                let object = cache.alloc().expect("memory");
                let (cache, busy) = cache.destroy().expect_err("an object is in use");
                assert_eq!(busy.objects, 1);
                // SAFETY: allocated above.
                unsafe { cache.free(object) };
            }
        }
        is_close("coming", site("coming").alloc_objects, (1000 * count) as f64);
        assert_eq!(profile().0["samples_dropped"], "0");
        // Ten thousand caches, each of which has a sample.
        profile::start(1).expect("there is memory");
        let caches: Vec<_> = (0..2000).map(|_| raw("many", 64)).collect();
        let objects: Vec<_> = caches.iter().map(|cache| cache.alloc().expect("memory")).collect();
        assert_eq!(site("many").live_samples, 2000);
        profile::stop();
        // SAFETY: allocated above.
        caches.iter().zip(objects).for_each(|(cache, object)| unsafe { cache.free(object) });
        assert_eq!(site("many").live_samples, 0);
        uslab::debug::validate().expect("the library's structures are whole");
    });
}

#[test]
fn threads_that_free_for_each_other_are_counted_exactly() {
    in_both_modes("threads_that_free_for_each_other_are_counted_exactly", &[], || {
        static CACHE: Cache<[u64; 25]> = Cache::new("handed over");
        profile::start(PERIOD).expect("there is memory");
        let batches = 2 * SITE_BYTES / 200 / 100;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (give, take) = std::sync::mpsc::sync_channel::<Vec<usize>>(4);
                scope.spawn(move || {
                    for _ in 0..batches / 2 {
                        let one = || CACHE.alloc().expect("memory").as_ptr().expose_provenance();
                        give.send((0..100).map(|_| one()).collect()).expect("the other thread takes it");
                    }
                });
                scope.spawn(move || {
                    for address in take.into_iter().flatten() {
                        let object = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
                        // SAFETY: the other thread allocated it and gave it away.
                        unsafe { CACHE.free(object.expect("an object")) };
                    }
                });
            }
        });
        let after = site("handed over");
        is_close("handed over", after.alloc_objects, (batches / 2 * 200) as f64);
        assert_eq!(after.live_samples, 0);
        end();
    });
}

/// On a machine of several nodes, handles and the page map name different rows.
#[test]
fn objects_of_several_nodes_are_counted_and_go_home() {
    use uslab::internal::cpu;
    in_both_modes("objects_of_several_nodes_are_counted_and_go_home", &[], || {
        let cpus = cpu::possible_cpus().expect("a number of CPUs");
        cpu::pretend(cpus, cpus.clamp(2, 8), 0);
        let cache = raw("of nodes", 96);
        let kept: Vec<_> = (0..1000).map(|_| cache.alloc().expect("memory")).collect();
        for round in 1..3 {
            profile::start(PERIOD).expect("there is memory");
            let count = SITE_BYTES / 96 / 100;
            std::thread::scope(|scope| {
                let (give, take) = std::sync::mpsc::sync_channel::<Vec<usize>>(4);
                let cache = &cache;
                scope.spawn(move || {
                    for _ in 0..count {
                        let one = || cache.alloc().expect("memory").as_ptr().expose_provenance();
                        give.send((0..100).map(|_| one()).collect()).expect("the other thread takes it");
                    }
                });
                scope.spawn(move || {
                    for address in take.into_iter().flatten() {
                        let object = std::ptr::with_exposed_provenance_mut::<u8>(address);
                        // SAFETY: the other thread allocated it and gave it away. Either way finds
                        // the cache.
                        unsafe {
                            match address & 96 {
                                0 => uslab::malloc::free(object),
                                _ => cache.free(NonNull::new(object).expect("an object")),
                            }
                        }
                    }
                });
            });
            is_close("of nodes", site("of nodes").alloc_objects, (round * count * 100) as f64);
            assert_eq!(site("of nodes").live_samples, 0);
            profile::stop();
        }
        // SAFETY: allocated above.
        unsafe { free_all(&cache, kept) };
        cache.shrink();
        let stats = cache.stats().expect("a cache has figures");
        assert_eq!((stats.active_objects, stats.sheaf_free, stats.slabs), (0, 0, 0));
        end();
    });
}

#[test]
fn profiles_start_and_stop_beside_caches_at_work() {
    in_both_modes("profiles_start_and_stop_beside_caches_at_work", &[], || {
        let is_over = AtomicBool::new(false);
        let caches = [raw("one", 48), raw("two", 320)];
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (is_over, cache) = (&is_over, &caches[number % 2]);
                scope.spawn(move || {
                    let mut live = [None::<NonNull<u8>>; 32];
                    let mut at = 0;
                    while !is_over.load(Relaxed) {
                        let object = cache.alloc().expect("memory");
                        // SAFETY: it has 48 bytes at least, as has the one before, freed once.
                        unsafe {
                            object.write_bytes(0xa5, 48);
                            if let Some(before) = live[at].replace(object) {
                                assert_eq!(before.read(), 0xa5);
                                before.write(0);
                                cache.free(before);
                            }
                        }
                        at = (at + 1) % live.len();
                    }
                    // SAFETY: of this cache, freed once.
                    unsafe { free_all(cache, live.into_iter().flatten()) };
                });
            }
            for _ in 0..200 {
                profile::start(PERIOD).expect("memory");
                std::thread::sleep(std::time::Duration::from_micros(500));
                profile::stop();
            }
            is_over.store(true, Relaxed);
        });
        let [one, two] = caches;
        let live = site("one").live_samples + site("two").live_samples;
        assert!(live <= 8, "{live} samples were freed in the moments when a profile began");
        one.destroy().expect("no object is in use");
        two.destroy().expect("no object is in use");
        assert_eq!(site("one").live_samples + site("two").live_samples, 0);
        uslab::debug::validate().expect("the library's structures are whole");
    });
}

#[test]
fn a_fork_child_goes_on_with_the_samples_of_caches() {
    in_both_modes("a_fork_child_goes_on_with_the_samples_of_caches", &[], || {
        let cache = raw("forked", 448);
        profile::start(PERIOD).expect("there is memory");
        let objects: Vec<_> = (0..20_000).map(|_| cache.alloc().expect("memory")).collect();
        let held = site("forked").live_samples;
        // SAFETY: the child uses this library and the C library alone, and ends without handlers.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: allocated above; the child has its own copies.
            unsafe { free_all(&cache, objects.iter().copied()) };
            let is_empty = site("forked").live_samples == 0;
            let mine: Vec<_> = (0..20_000).filter_map(|_| cache.alloc()).collect();
            let after = site("forked");
            let is_right =
                after.live_samples > held / 2 && after.samples > 3 * held / 2 && mine.len() == 20_000;
            let is_whole = uslab::debug::validate().is_ok();
            // SAFETY: no preconditions.
            unsafe { libc::_exit(i32::from(!(is_empty && is_right && is_whole))) };
        }
        let mut status = 0;
        // SAFETY: the child of above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(site("forked").live_samples, held, "the parent's samples are its own");
        // SAFETY: allocated above.
        unsafe { free_all(&cache, objects) };
        end();
    });
}

/// The least time of 50 runs, in nanoseconds a call.
fn least_ns(calls: usize, mut run: impl FnMut()) -> f64 {
    let times = (0..50).map(|_| {
        let start = std::time::Instant::now();
        run();
        start.elapsed().as_nanos() as f64 / calls as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

/// Prints the times without a profile, while one runs, and after it; and the times of a start and a
/// stop with 10 000 caches.
#[test]
fn calls_are_fast_again_after_the_profile() {
    in_both_modes("calls_are_fast_again_after_the_profile", &[], || {
        static CACHE: Cache<[u64; 8]> = Cache::new("timed");
        let (mut many, mut bulk) = (Vec::with_capacity(10_000), [std::ptr::null_mut(); 32]);
        let mut times = |when: &str| {
            let pair = least_ns(10_000, || pairs(&CACHE, 10_000));
            let batch = least_ns(10_000, || {
                many.extend((0..10_000).map(|_| CACHE.alloc().expect("memory")));
                // SAFETY: just allocated.
                many.drain(..).for_each(|object| unsafe { CACHE.free(object) });
            });
            let bulk = least_ns(32 * 300, || {
                for _ in 0..300 {
                    assert!(CACHE.alloc_bulk(&mut bulk));
                    // SAFETY: just allocated.
                    unsafe { CACHE.free_bulk(&bulk) };
                }
            });
            println!("{when}: {pair:.1} ns a pair, {batch:.1} ns of 10 000 at once, {bulk:.2} ns in bulk");
        };
        times("before the profile");
        profile::start(0).expect("there is memory");
        times("under a profile");
        profile::stop();
        times("after the profile");
        let slow = || CACHE.stats().expect("the cache was used").alloc_slow;
        let before = slow();
        pairs(&CACHE, 10_000);
        let taken = slow() - before;
        assert!(taken < 1000 || uslab::mode() == uslab::Mode::Locked, "{taken} slow paths");

        let caches: Vec<_> = (0..10_000).map(|_| raw("many", 64)).collect();
        for cache in &caches {
            // SAFETY: just allocated.
            unsafe { cache.free(cache.alloc().expect("memory")) };
        }
        let start = std::time::Instant::now();
        profile::start(0).expect("there is memory");
        let started = start.elapsed();
        profile::stop();
        let stopped = start.elapsed() - started;
        println!("with 10 000 caches: {started:?} to start, {stopped:?} to stop");
        end();
    });
}
