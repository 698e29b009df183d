//! The heap profile against an exact trace: sizes, short lives, all ways to free, threads, forks.

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;
#[path = "support/sites.rs"]
mod sites;

use modes::in_both_modes;
use sites::{PERIOD, SITE_BYTES, is_close, profile};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uslab::internal::entry::{
    MALLOC, Program, free_bulk, free_sized_tested, malloc_bulk, malloc_for, malloc_noreclaim, realloc_for,
    zeroed_for, zeroed_noreclaim,
};
use uslab::malloc::{free, free_sized, malloc};
use uslab::profile;

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { uslab::malloc::usable_size(pointer) }
}

/// How a test allocates and frees.
#[derive(Clone, Copy, Debug)]
enum Way {
    C,
    CSized,
    Rust,
    Zeroed,
}

fn allocate(way: Way, size: usize) -> *mut u8 {
    let object = match way {
        Way::C | Way::CSized => malloc_for::<Program>(size),
        Way::Rust => malloc(size),
        Way::Zeroed => zeroed_for::<Program>(size),
    };
    assert!(!object.is_null());
    // SAFETY: an object of that size.
    unsafe { object.write(1) };
    object
}

/// # Safety
/// As `free`.
unsafe fn release(way: Way, object: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match way {
            Way::C | Way::Zeroed => free(object),
            Way::CSized => free_sized_tested::<MALLOC>(object, size),
            Way::Rust => free_sized(object, size),
        }
    }
}

/// Ten sizes, each of a class of its own, and the class.
const SIZES: [(usize, &str); 10] = [
    (16, "malloc-16"),
    (41, "malloc-48"),
    (100, "malloc-112"),
    (256, "malloc-256"),
    (1000, "malloc-1k"),
    (3000, "malloc-3k"),
    (8000, "malloc-8k"),
    (30_000, "malloc-32k"),
    (200_000, "malloc-224k"),
    (1 << 20, "malloc-1m"),
];

#[test]
fn ten_sites_of_pairs_are_each_estimated_within_5_percent() {
    in_both_modes("ten_sites_of_pairs_are_each_estimated_within_5_percent", &[], || {
        profile::start(PERIOD).expect("there is memory");
        for (n, (size, cache)) in SIZES.into_iter().enumerate() {
            let way = [Way::C, Way::CSized, Way::Rust][n % 3];
            let before = profile().1.get(cache).cloned().unwrap_or_default();
            let count = SITE_BYTES / size;
            for _ in 0..count {
                let object = allocate(way, size);
                // SAFETY: just allocated, with this size.
                unsafe { release(way, object, size) };
            }
            let after = &profile().1[cache];
            is_close(cache, after.alloc_bytes - before.alloc_bytes, (count * size) as f64);
            is_close(cache, after.alloc_objects - before.alloc_objects, count as f64);
            assert!(after.live_samples <= 2, "{cache}: {after:?}");
        }
        profile::stop();
        uslab::debug::validate().expect("the library's structures are whole");
    });
}

#[test]
fn allocations_without_reclaim_and_in_bulk_are_estimated_within_5_percent() {
    const NAME: &str = "allocations_without_reclaim_and_in_bulk_are_estimated_within_5_percent";
    in_both_modes(NAME, &[], || {
        profile::start(PERIOD).expect("there is memory");
        let estimate = |cache: &str| profile().1.get(cache).map_or(0.0, |site| site.alloc_bytes);
        let zeroed = |size| zeroed_noreclaim(16, size);
        let ways: [fn(usize) -> *mut u8; 2] = [malloc_noreclaim, zeroed];
        for (way, size, cache) in [
            (0, 512, "malloc-512"),
            (1, 1000, "malloc-1k"),
            (0, 200_000, "malloc-224k"),
            (1, 120_000, "malloc-128k"),
        ] {
            let (before, count) = (estimate(cache), SITE_BYTES / size);
            for _ in 0..count {
                let object = ways[way](size);
                assert!(!object.is_null());
                // SAFETY: just allocated.
                unsafe { free(object) };
            }
            is_close(cache, estimate(cache) - before, (count * size) as f64);
        }
        let (before, rounds) = (estimate("malloc-320"), SITE_BYTES / 32_000);
        for _ in 0..rounds {
            let mut objects = [std::ptr::null_mut(); 100];
            assert!(malloc_bulk(320, &mut objects));
            // SAFETY: just allocated.
            unsafe { free_bulk(&objects) };
        }
        is_close("malloc-320", estimate("malloc-320") - before, (rounds * 32_000) as f64);
        profile::stop();
    });
}

#[test]
fn objects_in_use_are_estimated_for_every_way_to_free() {
    in_both_modes("objects_in_use_are_estimated_for_every_way_to_free", &[], || {
        for (n, way) in [Way::C, Way::CSized, Way::Rust, Way::Zeroed].into_iter().enumerate() {
            profile::start(PERIOD).expect("there is memory");
            let (size, cache) =
                [(64, "malloc-64"), (320, "malloc-320"), (512, "malloc-512"), (96, "malloc-96")][n];
            let count = SITE_BYTES / size;
            let before = profile().1.get(cache).cloned().unwrap_or_default();
            let objects: Vec<_> = (0..count).map(|_| allocate(way, size)).collect();
            let held = &profile().1[cache];
            is_close(cache, held.inuse_bytes - before.inuse_bytes, (count * size) as f64);
            assert!(held.ages[2] < 600_000 && held.live_samples > 8_000, "{held:?}");
            // Half of them while the profile runs, and half afterwards.
            // SAFETY: allocated above, with this size.
            objects[..count / 2].iter().for_each(|&object| unsafe { release(way, object, size) });
            is_close(
                cache,
                profile().1[cache].inuse_objects - before.inuse_objects,
                (count - count / 2) as f64,
            );
            profile::stop();
            assert!(!profile::is_running());
            // SAFETY: as above.
            objects[count / 2..].iter().for_each(|&object| unsafe { release(way, object, size) });
            let site = &profile().1[cache];
            assert!(site.live_samples <= before.live_samples, "{way:?}: {site:?}");
            let sampled = site.samples;
            // Nothing is sampled now.
            for _ in 0..count {
                let object = allocate(way, size);
                // SAFETY: as above.
                unsafe { release(way, object, size) };
            }
            assert_eq!(profile().1[cache].samples, sampled);
        }
        uslab::debug::validate().expect("the library's structures are whole");
    });
}

#[test]
fn sampled_objects_resize_as_all_others() {
    in_both_modes("sampled_objects_resize_as_all_others", &[], || {
        // Every allocation is a sample.
        profile::start(1).expect("there is memory");
        for size in [1usize, 100, 5_000, 40_000, 300_000, 3 << 20] {
            let object = malloc_for::<Program>(size);
            assert!(object.addr().is_multiple_of(16) && usable_size(object) >= size);
            // SAFETY: an object of that size.
            unsafe { object.write_bytes(7, size) };
            let mut at = object;
            for larger in [size + 1, size + 5_000, 4 * size, 8 * size + 100_000, size] {
                // SAFETY: a live object, of that family.
                at = unsafe { realloc_for::<Program>(at, larger) };
                assert!(usable_size(at) >= larger);
                // SAFETY: the object has at least `size` bytes.
                assert!((0..size).step_by(97).all(|n| unsafe { at.add(n).read() } == 7), "{size} {larger}");
            }
            // SAFETY: unused from here on.
            unsafe { free(at) };
        }
        let live: u64 = profile().1.values().map(|site| site.live_samples).sum();
        assert!(live < 200, "{live}");
        profile::stop();
        uslab::debug::validate().expect("the library's structures are whole");
    });
}

#[test]
fn threads_that_allocate_for_each_other_are_counted_exactly() {
    in_both_modes("threads_that_allocate_for_each_other_are_counted_exactly", &[], || {
        const SIZE: usize = 200;
        const CACHE: &str = "malloc-224";
        profile::start(PERIOD).expect("there is memory");
        let before = profile().1.get(CACHE).cloned().unwrap_or_default();
        let count = 2 * SITE_BYTES / SIZE;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (give, take) = std::sync::mpsc::sync_channel::<Vec<usize>>(4);
                scope.spawn(move || {
                    for _ in 0..count / 2 / 100 {
                        let objects = (0..100).map(|_| allocate(Way::C, SIZE).expose_provenance()).collect();
                        give.send(objects).expect("the other thread takes it");
                    }
                });
                scope.spawn(move || {
                    for object in take.into_iter().flatten() {
                        // SAFETY: the other thread allocated it and gave it away.
                        unsafe { free(std::ptr::with_exposed_provenance_mut(object)) };
                    }
                });
            }
        });
        let after = &profile().1[CACHE];
        is_close(CACHE, after.alloc_objects - before.alloc_objects, (count / 200 * 200) as f64);
        assert!(after.live_samples <= 2, "{after:?}");
    });
}

#[test]
fn profiles_start_and_stop_beside_sized_frees() {
    in_both_modes("profiles_start_and_stop_beside_sized_frees", &[], || {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for size in [16, 64, 64, 320, 1024] {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut live = [std::ptr::null_mut::<u8>(); 32];
                    let mut at = 0;
                    while !is_over.load(Relaxed) {
                        let object = allocate(Way::Rust, size);
                        // A sheaf with a foreign object would hand one out twice, or report it.
                        // SAFETY: it has `size` bytes, as has the one before, which is freed once.
                        unsafe {
                            object.write_bytes(0xa5, size);
                            let before = std::mem::replace(&mut live[at], object);
                            if !before.is_null() {
                                assert_eq!(before.read(), 0xa5);
                                before.write(0);
                                free_sized(before, size);
                            }
                        }
                        at = (at + 1) % live.len();
                    }
                    for object in live.into_iter().filter(|object| !object.is_null()) {
                        // SAFETY: of this size, and freed once.
                        unsafe { free_sized(object, size) };
                    }
                });
            }
            for _ in 0..200 {
                profile::start(PERIOD).expect("memory");
                std::thread::sleep(std::time::Duration::from_micros(500));
                profile::stop();
            }
            is_over.store(true, Relaxed);
        });
    });
}

#[test]
fn a_child_of_a_profiled_process_goes_on() {
    in_both_modes("a_child_of_a_profiled_process_goes_on", &[], || {
        const SIZE: usize = 448;
        const CACHE: &str = "malloc-448";
        profile::start(PERIOD).expect("there is memory");
        let objects: Vec<_> = (0..20_000).map(|_| allocate(Way::C, SIZE)).collect();
        let held = profile().1[CACHE].live_samples;
        // SAFETY: the child uses this library and the C library alone, and ends without handlers.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: allocated above; the child has its own copies.
            objects.iter().for_each(|&object| unsafe { free(object) });
            let mine: Vec<_> = (0..20_000).map(|_| allocate(Way::C, SIZE)).collect();
            let site = &profile().1[CACHE];
            let is_right =
                site.live_samples > held / 2 && site.samples > 3 * held / 2 && mine.len() == 20_000;
            let is_whole = uslab::debug::validate().is_ok();
            // SAFETY: no preconditions.
            unsafe { libc::_exit(i32::from(!(is_right && is_whole))) };
        }
        let mut status = 0;
        // SAFETY: the child of above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(profile().1[CACHE].live_samples, held, "the parent's samples are its own");
        // SAFETY: allocated above.
        objects.iter().for_each(|&object| unsafe { free(object) });
    });
}

/// Asks this process as `uslab profile` does; returns the outcome and the answer.
fn ask(file: &std::path::Path, number: u32, text: &str) -> (u32, String) {
    use std::mem::offset_of;
    use std::os::unix::fs::FileExt;
    use uslab::internal::layout::{self, Answer, Request};
    let file = std::fs::File::options().read(true).write(true).open(file).expect("a snapshot");
    let put = |place: usize, bytes: &[u8]| {
        file.write_all_at(bytes, (layout::REQUEST_OFFSET + place) as u64).expect("written");
    };
    put(offset_of!(Request, verb), &layout::VERB_PROFILE.to_ne_bytes());
    put(offset_of!(Request, deadline_ns), &u64::MAX.to_ne_bytes());
    put(offset_of!(Request, text), format!("{text}\0").as_bytes());
    put(offset_of!(Request, number), &number.to_ne_bytes());
    let word = |place: usize| {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, (layout::ANSWER_OFFSET + place) as u64).expect("read");
        u32::from_ne_bytes(word)
    };
    while word(offset_of!(Answer, answered)) != number {
        // The first request starts the background thread, in the slow path of an allocation.
        let object = allocate(Way::C, 2 << 20);
        // SAFETY: just allocated.
        unsafe { free(object) };
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut answer = [0; 200];
    file.read_exact_at(&mut answer, (layout::ANSWER_OFFSET + offset_of!(Answer, text)) as u64).expect("read");
    let text = answer.split(|&byte| byte == 0).next().unwrap_or_default();
    (word(offset_of!(Answer, outcome)), String::from_utf8_lossy(text).into_owned())
}

#[test]
fn another_process_starts_stops_and_reads_the_profile() {
    use uslab::internal::layout::{OUTCOME_DONE, OUTCOME_REFUSED};
    let directory = std::env::temp_dir().join(format!("uslab-profile-{}", std::process::id()));
    let created = std::fs::DirBuilder::new().recursive(true).create(&directory);
    created.expect("a directory");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).expect("its own");
    let environment = [("USLAB_SNAPSHOT", directory.to_str().expect("UTF-8"))];
    in_both_modes("another_process_starts_stops_and_reads_the_profile", &environment, || {
        let directory = std::path::PathBuf::from(std::env::var_os("USLAB_SNAPSHOT").expect("set above"));
        // SAFETY: just allocated.
        unsafe { free(allocate(Way::C, 4000)) };
        let file = directory.join(std::process::id().to_string());
        let dump = directory.join(format!("{}.profile", std::process::id()));
        assert_eq!(ask(&file, 1, "dump"), (OUTCOME_REFUSED, "no heap profile was started".into()));
        assert_eq!(ask(&file, 2, "begin").0, OUTCOME_REFUSED);
        assert_eq!(ask(&file, 3, "start 4096"), (OUTCOME_DONE, "the profile runs".into()));
        let objects: Vec<_> = (0..5000).map(|_| allocate(Way::C, 4000)).collect();
        for number in [4, 5] {
            assert_eq!(ask(&file, number, "dump"), (OUTCOME_DONE, "the profile is written".into()));
            let text = std::fs::read_to_string(&dump).expect("a dump");
            assert!(
                text.contains("\nperiod_bytes 4096\n") && text.contains("\nsite malloc-4k 4096 "),
                "{text}"
            );
        }
        assert_eq!(ask(&file, 6, "stop"), (OUTCOME_DONE, "the profile is stopped".into()));
        assert!(!profile::is_running());
        let names = std::fs::read_dir(&directory).expect("the directory");
        let drafts =
            names.filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().ends_with(".new"));
        assert_eq!(drafts.count(), 0);
        // SAFETY: allocated above.
        objects.iter().for_each(|&object| unsafe { free(object) });
    });
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn nothing_is_written_before_a_start() {
    in_both_modes("nothing_is_written_before_a_start", &[], || {
        assert_eq!(
            profile::write(&mut |_| panic!("there is no text")),
            Err(profile::ProfileError::NotStarted)
        );
        assert!(!profile::is_running());
        profile::stop();
        profile::start(0).expect("there is memory");
        let (header, _) = profile();
        assert_eq!(header["period_bytes"], (512 << 10).to_string());
        assert_eq!((&*header["samples_dropped"], &*header["pid"]), ("0", &*std::process::id().to_string()));
        assert!(header["command"].contains("profile"), "{header:?}");
        assert!(header["started_ms"].parse::<u64>().unwrap() <= header["written_ms"].parse().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        profile::stop();
        let sampled_ms = || profile().0["sampled_ms"].parse::<u64>().unwrap();
        let before_ms = sampled_ms();
        assert!(before_ms >= 30, "{before_ms}");
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(sampled_ms(), before_ms, "no sample is taken any more");
        // SAFETY: no descriptor has that number.
        let written = unsafe { profile::write_to(-1) };
        assert_eq!(written, Err(profile::ProfileError::Write(libc::EBADF)));
    });
}

/// A sink that panics, and one that blocks in a full pipe, keep no other thread from writing.
#[test]
fn a_writer_that_panics_or_waits_holds_up_no_other() {
    in_both_modes("a_writer_that_panics_or_waits_holds_up_no_other", &[], || {
        profile::start(4096).expect("there is memory");
        let kept: Vec<*mut u8> = (0..1000).map(|_| malloc(3000)).collect();
        let panics = std::panic::catch_unwind(|| profile::write(&mut |_| panic!("a sink")));
        assert!(panics.is_err());
        assert!(profile().1.contains_key("malloc-3k"));
        let mut pipe = [0; 2];
        // SAFETY: a place for two descriptors, which the writer and this thread use.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        // SAFETY: shrinks the pipe, so that the text does not fit.
        unsafe { libc::fcntl(pipe[1], libc::F_SETPIPE_SZ, 4096) };
        // SAFETY: the writer's end, which that thread alone uses.
        let writer = std::thread::spawn(move || unsafe { profile::write_to(pipe[1]) });
        let mut waiting: libc::c_int = 0;
        while waiting == 0 {
            // SAFETY: a descriptor of this process, and a place for the answer.
            unsafe { libc::ioctl(pipe[0], libc::FIONREAD, &mut waiting) };
            std::thread::yield_now();
        }
        assert!(profile().1.contains_key("malloc-3k"), "beside a writer that waits");
        // SAFETY: the reader's end, which this thread alone uses; the writer fails from now on.
        let mut reader = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(pipe[0]) };
        let reads = std::thread::spawn(move || {
            let mut text = Vec::new();
            let mut block = [0; 4096];
            while let Ok(n) = std::io::Read::read(&mut reader, &mut block)
                && n > 0
            {
                text.extend_from_slice(&block[..n]);
            }
            text
        });
        assert_eq!(writer.join().expect("no panic"), Ok(()));
        // SAFETY: no other thread writes any more.
        unsafe { libc::close(pipe[1]) };
        assert!(reads.join().expect("no panic").starts_with(b"uslab-profile 1\n"));
        // SAFETY: allocated above.
        kept.into_iter().for_each(|object| unsafe { free(object) });
        profile::stop();
    });
}
