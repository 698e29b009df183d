//! Snapshots of processes with thousands of caches: each is listed, before and after the process
//! begins to publish, and in its fork children. A process with few caches pays for none of it.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uslab::internal::layout::{FIRST_RECORDS, Header, Record, SEGMENT_BYTES, STATE_LIVE, record_offset};
use uslab::{CacheBuilder, RawCache, stats};

/// A cache with `n % 7 + 1` objects, whose name tells its number.
struct Used {
    cache: RawCache,
    objects: Vec<NonNull<u8>>,
}

// SAFETY: any thread may use a cache, and free its objects.
unsafe impl Send for Used {}

fn objects_of(n: usize) -> usize {
    n % 7 + 1
}

fn make(range: std::ops::Range<usize>) -> Vec<Used> {
    let make = |n: usize| {
        let cache = CacheBuilder::new(&format!("cache {n}")).build_raw(64 + n % 64 * 16).expect("a cache");
        let objects = (0..objects_of(n)).map(|_| cache.alloc().expect("there is memory")).collect();
        Used { cache, objects }
    };
    range.map(make).collect()
}

fn word(bytes: &[u8], at: usize) -> i64 {
    i64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Objects in use of each live cache called `cache N`, by N, as the file has them.
fn listed(file: &File) -> Vec<Option<i64>> {
    let mut header = vec![0; 4096];
    file.read_exact_at(&mut header, 0).expect("a header");
    let used = half(&header, offset_of!(Header, records_used)) as usize;
    let mut found = Vec::new();
    for id in 0..used {
        let mut record = vec![0; size_of::<Record>()];
        file.read_exact_at(&mut record, record_offset(id) as u64).expect("a record");
        let at = offset_of!(Record, name);
        let name = &record[at..at + 48];
        let name = std::str::from_utf8(&name[..name.iter().position(|&byte| byte == 0).unwrap_or(48)]);
        let number = name.ok().and_then(|name| name.strip_prefix("cache ")?.parse::<usize>().ok());
        let Some(number) = number else { continue };
        if half(&record, offset_of!(Record, state)) != STATE_LIVE {
            continue;
        }
        assert_eq!(half(&record, offset_of!(Record, id)), id as u32);
        let slabs = word(&record, offset_of!(Record, slabs));
        let all = slabs * i64::from(half(&record, offset_of!(Record, objects_per_slab)));
        let free =
            word(&record, offset_of!(Record, slab_free)) + word(&record, offset_of!(Record, sheaf_free));
        found.resize(found.len().max(number + 1), None);
        assert_eq!(found[number].replace(all - free), None, "cache {number} is listed twice");
    }
    found
}

/// Asserts that the file lists the caches `0..count` with their objects, and `more` in each.
fn assert_listed(file: &File, count: usize, more: usize) {
    // This counts what the sheaves hold, too.
    let _ = stats::usage();
    let _ = stats::caches().count();
    let listed = listed(file);
    assert_eq!(listed.len(), count);
    for (n, active) in listed.into_iter().enumerate() {
        assert_eq!(active, Some((objects_of(n) + more) as i64), "cache {n}");
    }
}

/// Asserts that the library itself counts the caches, with `more` objects than they had.
fn assert_counted(caches: &[Used], more: usize) {
    // Each call counts what the sheaves of all caches hold.
    for (n, used) in caches.iter().enumerate().step_by(101) {
        let stats = used.cache.stats().expect("it is counted");
        assert_eq!(stats.active_objects, (objects_of(n) + more) as u64, "cache {n}");
    }
    let named = stats::caches().filter(|cache| cache.name.as_str().starts_with("cache ")).count();
    assert_eq!(named, caches.len());
}

fn free(caches: Vec<Used>) {
    for used in caches {
        // SAFETY: allocated from that cache, and freed once.
        used.objects.into_iter().for_each(|object| unsafe { used.cache.free(object) });
        used.cache.destroy().expect("no object is live");
    }
}

/// The mappings of this process's snapshot, in bytes.
fn mapped_bytes() -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let name = format!("/{}", std::process::id());
    let own = maps.lines().filter(|line| line.contains(" rw-s ") && line.ends_with(&name));
    own.map(|line| {
        let (from, to) = line.split_once(' ').expect("a range").0.split_once('-').expect("two ends");
        let address = |text| usize::from_str_radix(text, 16).expect("a number");
        address(to) - address(from)
    })
    .collect()
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("uslab-many-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir(&path).expect("a directory");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).expect("its mode");
    path
}

/// Runs `child` in a fork child, whose status must be 0.
fn in_fork_child(child: impl FnOnce()) {
    // SAFETY: the process has one thread but the library's own and the harness's, which waits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let is_right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
        // SAFETY: no preconditions.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a place for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed");
}

fn own_file(directory: &std::path::Path) -> File {
    File::open(directory.join(std::process::id().to_string())).expect("a snapshot")
}

/// The body of a test, with the directory in which the process publishes.
fn published(name: &str, body: impl FnOnce(PathBuf)) {
    let directory = scratch(name);
    // The file has no count of objects that the background thread has in flight.
    let environment = [("USLAB_SNAPSHOT", directory.to_str().expect("UTF-8")), ("USLAB_REAPER", "0")];
    in_both_modes(name, &environment, || {
        body(std::env::var_os("USLAB_SNAPSHOT").expect("set").into());
    });
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
fn ten_thousand_caches_are_listed() {
    published("ten_thousand_caches_are_listed", |directory| {
        // The library starts, and publishes, at its first use.
        free(make(0..1));
        let file = own_file(&directory);
        for count in [1000, 5000, 10_000] {
            let caches = make(0..count);
            assert_counted(&caches, 0);
            assert_listed(&file, count, 0);
            free(caches);
            assert_eq!(listed(&file).len(), 0);
        }
    });
}

#[test]
fn a_process_with_few_caches_maps_one_segment() {
    published("a_process_with_few_caches_maps_one_segment", |directory| {
        let caches = make(0..10);
        assert_eq!(mapped_bytes(), [SEGMENT_BYTES]);
        let file = own_file(&directory);
        let bytes = file.metadata().expect("its size").blocks() * 512;
        assert!(bytes <= 40 << 10, "the file has {bytes} bytes of memory");
        assert_listed(&file, 10, 0);
        free(caches);
        let caches = make(0..FIRST_RECORDS);
        assert_eq!(mapped_bytes().iter().sum::<usize>(), 2 * SEGMENT_BYTES);
        free(caches);
    });
}

#[test]
fn caches_move_to_the_file_and_new_ones_begin_there() {
    in_both_modes("caches_move_to_the_file_and_new_ones_begin_there", &[], || {
        const BEFORE: usize = 3000;
        const AFTER: usize = 7000;
        let caches = make(0..BEFORE);
        assert_counted(&caches, 0);
        let stop = AtomicBool::new(false);
        let caches = std::thread::scope(|scope| {
            // Caches of both kinds of segment, in use while they move.
            for part in [&caches[..200], &caches[BEFORE - 200..]] {
                let stop = &stop;
                let part: Vec<&RawCache> = part.iter().map(|used| &used.cache).collect();
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        for cache in &part {
                            let objects: Vec<_> = (0..100).filter_map(|_| cache.alloc()).collect();
                            // SAFETY: allocated above.
                            objects.into_iter().for_each(|object| unsafe { cache.free(object) });
                        }
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            stats::publish().expect("the directory can be used");
            let more = make(BEFORE..AFTER);
            stop.store(true, Relaxed);
            more
        });
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        let places = ["/dev/shm", &format!("/run/user/{user}"), "/tmp"];
        let paths = places.map(|place| format!("{place}/uslab-{user}/{}", std::process::id()));
        let path = paths.iter().find(|path| std::fs::exists(path).unwrap_or(false)).expect("a file");
        let file = File::open(path).expect("a snapshot");
        // The background thread's next looks move what threads added to the private figures.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let _ = stats::caches().count();
            let found = listed(&file);
            assert_eq!(found.len(), AFTER);
            let differs = |&n: &usize| found[n] != Some(objects_of(n) as i64);
            let Some(n) = (0..AFTER).find(differs) else { break };
            let is_late = std::time::Instant::now() > end;
            assert!(!is_late, "cache {n}: {:?} of {} objects", found[n], objects_of(n));
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        drop(caches);
        let _ = std::fs::remove_file(path);
    });
}

#[test]
fn a_fork_child_lists_its_own_caches() {
    published("a_fork_child_lists_its_own_caches", |directory| {
        const CACHES: usize = 5000;
        let mut caches = make(0..CACHES);
        let file = own_file(&directory);
        in_fork_child(|| {
            let own = own_file(&directory);
            assert_listed(&own, CACHES, 0);
            for used in &mut caches {
                used.objects.push(used.cache.alloc().expect("there is memory"));
            }
            assert_counted(&caches, 1);
            assert_listed(&own, CACHES, 1);
            let more = make(CACHES..CACHES + 2000);
            assert_eq!(listed(&own).len(), CACHES + 2000);
            free(more);
            // And once more, with its own files.
            in_fork_child(|| assert_listed(&own_file(&directory), CACHES, 1));
        });
        // The child wrote nothing to its parent's file.
        assert_listed(&file, CACHES, 0);
        free(caches);
    });
}

#[test]
fn a_fork_child_without_a_file_counts_for_itself() {
    published("a_fork_child_without_a_file_counts_for_itself", |directory| {
        const CACHES: usize = 3000;
        let mut caches = make(0..CACHES);
        let file = own_file(&directory);
        let aside = directory.with_extension("aside");
        std::fs::rename(&directory, &aside).expect("renamed");
        in_fork_child(|| {
            for used in &mut caches {
                used.objects.push(used.cache.alloc().expect("there is memory"));
            }
            assert_counted(&caches, 1);
            let more = make(CACHES..CACHES + 2000);
            free(more);
            in_fork_child(|| assert_counted(&caches, 1));
        });
        std::fs::rename(&aside, &directory).expect("renamed");
        assert_listed(&file, CACHES, 0);
        free(caches);
    });
}

/// Refuses this thread memory for a segment, in a file and without one.
fn refuse_segments() {
    let step = |code: u32, jt, jf, k: usize| libc::sock_filter { code: code as u16, jt, jf, k: k as u32 };
    let (load, equal, end) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET,
    );
    // The low half of the second argument, a mapping's length.
    let length = offset_of!(libc::seccomp_data, args) + 8 + if cfg!(target_endian = "big") { 4 } else { 0 };
    let mut steps = [
        step(load, 0, 0, 0),
        step(equal, 3, 0, libc::SYS_mremap as usize),
        step(equal, 0, 3, libc::SYS_mmap as usize),
        step(load, 0, 0, length),
        step(equal, 0, 1, SEGMENT_BYTES),
        step(end, 0, 0, (libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32) as usize),
        step(end, 0, 0, libc::SECCOMP_RET_ALLOW as usize),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which is as long as it says.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Makes caches on a thread that has no memory for segments.
fn make_without_segments(range: std::ops::Range<usize>) -> Vec<Used> {
    let make = || {
        refuse_segments();
        make(range)
    };
    std::thread::scope(|scope| scope.spawn(make).join().expect("made"))
}

/// The numbers of the caches that the file lists; each with its objects.
fn listed_numbers(file: &File) -> Vec<usize> {
    let _ = stats::usage();
    let _ = stats::caches().count();
    let found = listed(file).into_iter().enumerate();
    found
        .filter_map(|(n, active)| active.map(|active| assert_eq!(active, objects_of(n) as i64)).map(|()| n))
        .collect()
}

#[test]
fn a_segment_without_memory_is_tried_again() {
    published("a_segment_without_memory_is_tried_again", |directory| {
        // Within the first segment, beyond it, within the third.
        let first = make(0..900);
        let file = own_file(&directory);
        let without = make_without_segments(900..2200);
        let last = &without[without.len() - 1];
        assert!(last.cache.stats().is_none(), "it has no record");
        assert!(first[0].cache.stats().is_some());
        let listed = listed_numbers(&file).len();
        assert!((900..FIRST_RECORDS).contains(&listed), "{listed}");
        // Of the third segment, now mapped, the first ids belong to caches without a record.
        let later = make(2200..5000);
        let all = listed_numbers(&file);
        assert!(all[all.len() - 2800..].iter().copied().eq(2200..5000), "later caches are listed");
        assert_eq!(all.len(), listed + 2800);
        assert!(last.cache.stats().is_none(), "its figures began elsewhere");
        in_fork_child(|| {
            let own = own_file(&directory);
            assert_eq!(listed_numbers(&own).len(), listed + 2800);
            free(make(5000..6000));
        });
        // Ids of the second segment become free, and their next caches have records.
        let id = |used: &Used| used.cache.core().id();
        let used = id(&first[899]);
        free(without);
        assert_eq!(listed_numbers(&file).len(), 900 + 2800);
        let again = make(900..2200);
        assert_eq!(again.iter().map(id).min(), Some(used + 1));
        assert!(listed_numbers(&file).into_iter().eq(0..5000));
        for caches in [first, again, later] {
            free(caches);
        }
        assert_eq!(listed_numbers(&file), []);
    });
}
