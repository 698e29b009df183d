//! Huge pages: heaps of small objects get them, tables of which little is touched do not, and their
//! memory goes back.
//!
//! Each test runs in a process of its own, in both modes. Where the system gives no huge pages, the
//! tests that need them show only that the rest holds.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use uslab::HugePages;
use uslab::internal::entry::{Program, malloc_for};
use uslab::malloc::{free, realloc};

const MIB: usize = 1 << 20;
const OBJECT_BYTES: usize = 1000;

/// The sum of a field of `/proc/self/smaps_rollup`, in bytes.
fn rollup_bytes(field: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

fn huge_bytes() -> usize {
    rollup_bytes("AnonHugePages:")
}

fn resident_bytes() -> usize {
    rollup_bytes("Rss:")
}

/// Whether the system gives a mapping huge pages that asks for them.
fn are_available() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|setting| !setting.contains("[never]"))
}

/// How often the kernel had no huge page for a process that asked, since the system started.
fn shortages() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let is_counter = |line: &&str| {
        line.starts_with("thp_fault_fallback ") || line.starts_with("thp_collapse_alloc_failed ")
    };
    let count = |line: &str| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok());
    text.lines().filter(is_counter).filter_map(count).sum()
}

/// [`shortages`] when this process first asked.
static SHORTAGES_BEFORE: LazyLock<u64> = LazyLock::new(shortages);

/// Whether huge pages hold `bytes` of this process, or the system could not give them: it has none,
/// or had none free at some moment of the test.
fn are_huge(bytes: usize) -> bool {
    huge_bytes() >= bytes || !are_available() || shortages() > *SHORTAGES_BEFORE
}

/// Objects of `bytes` bytes in all, each touched.
fn objects(bytes: usize) -> Vec<*mut u8> {
    objects_of(OBJECT_BYTES, OBJECT_BYTES, bytes)
}

/// Objects of `object_bytes` each and `bytes` in all, of which the first `touched_bytes` are
/// touched.
fn objects_of(object_bytes: usize, touched_bytes: usize, bytes: usize) -> Vec<*mut u8> {
    LazyLock::force(&SHORTAGES_BEFORE);
    let one = || {
        let object = malloc_for::<Program>(object_bytes);
        assert!(!object.is_null());
        // SAFETY: allocated above, with at least that size.
        unsafe { object.write_bytes(1, touched_bytes) };
        object
    };
    (0..bytes / object_bytes).map(|_| one()).collect()
}

fn free_all(objects: impl IntoIterator<Item = *mut u8>) {
    // SAFETY: callers pass objects of `objects`, once.
    objects.into_iter().for_each(|object| unsafe { free(object) });
}

/// Waits until `is_met`.
fn until(what: &str, mut is_met: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_met() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}: {} huge bytes", huge_bytes());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_heap_that_grows_gets_huge_pages_and_holds_no_more() {
    in_both_modes("a_heap_that_grows_gets_huge_pages_and_holds_no_more", &[], || {
        let before_bytes = resident_bytes();
        let all = objects(96 * MIB);
        assert!(are_huge(32 * MIB), "{} huge bytes", huge_bytes());
        // The objects and their descriptors; a twentieth more, and the last huge page.
        let most_bytes = 96 * MIB * 103 / 100 + 2 * MIB;
        let list_bytes = all.capacity() * size_of::<*mut u8>();
        let grown_bytes = resident_bytes() - before_bytes - list_bytes;
        assert!(grown_bytes <= most_bytes * 105 / 100 + 2 * MIB, "{grown_bytes} bytes for {most_bytes}");
        uslab::debug::validate().unwrap();
        free_all(all);
        until("free memory goes back", || uslab::stats::usage().dirty_bytes <= MIB);
        uslab::debug::validate().unwrap();
    });
}

/// Whether the kernel collapses memory on request: since Linux 6.1, if it has a huge page free.
fn can_collapse() -> bool {
    // SAFETY: a fresh mapping of this function's own, of which one aligned huge page is used.
    unsafe {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let map = libc::mmap(std::ptr::null_mut(), 4 * MIB, access, kind, -1, 0).cast::<u8>();
        let page = map.wrapping_add(map.align_offset(2 * MIB));
        page.write_bytes(1, 2 * MIB);
        let can = libc::madvise(page.cast(), 2 * MIB, libc::MADV_HUGEPAGE) == 0
            && libc::madvise(page.cast(), 2 * MIB, libc::MADV_COLLAPSE) == 0;
        libc::munmap(map.cast(), 4 * MIB);
        can
    }
}

#[test]
fn chunks_that_were_filled_with_small_pages_get_huge_ones_in_a_large_heap() {
    in_both_modes("chunks_that_were_filled_with_small_pages_get_huge_ones_in_a_large_heap", &[], || {
        let all = objects(64 * MIB);
        if are_available() && can_collapse() {
            until("the first chunks are collapsed", || are_huge(60 * MIB));
        }
        assert!(all.iter().all(|&object| {
            // SAFETY: live objects, filled by `objects`.
            unsafe { std::slice::from_raw_parts(object, OBJECT_BYTES) }.iter().all(|&byte| byte == 1)
        }));
        uslab::debug::validate().unwrap();
        free_all(all);
        until("free memory goes back", || uslab::stats::usage().dirty_bytes <= MIB);
        uslab::debug::validate().unwrap();
    });
}

#[test]
fn a_chunk_whose_pages_the_kernel_uses_gets_its_huge_page_later() {
    in_both_modes("a_chunk_whose_pages_the_kernel_uses_gets_its_huge_page_later", &[], || {
        let mut all = objects(16 * MIB);
        // A page of each chunk waits in a pipe.
        let mut pipe = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let mut chunks: Vec<usize> = all.iter().map(|&object| object as usize & !(2 * MIB - 1)).collect();
        chunks.sort_unstable();
        chunks.dedup();
        for &chunk in &chunks {
            let object = all.iter().find(|&&object| object as usize & !(2 * MIB - 1) == chunk).unwrap();
            let part = libc::iovec { iov_base: object.cast(), iov_len: 1 };
            // SAFETY: a byte of a live object, which is not written to meanwhile.
            assert_eq!(unsafe { libc::vmsplice(pipe[1], &part, 1, 0) }, 1);
        }
        all.extend(objects(48 * MIB));
        let can = are_available() && can_collapse();
        if can {
            let most_bytes = 64 * MIB - chunks.len() * 2 * MIB;
            until("other chunks are collapsed", || are_huge(most_bytes - 4 * MIB));
            std::thread::sleep(Duration::from_millis(500));
            assert!(huge_bytes() <= most_bytes + 4 * MIB, "{} huge bytes", huge_bytes());
        }
        // SAFETY: the pipe of this test.
        unsafe {
            libc::close(pipe[0]);
            libc::close(pipe[1]);
        }
        if can {
            // Searches take place while the process grows.
            until("the chunks are collapsed", || {
                all.extend(objects(5 * MIB));
                std::thread::sleep(Duration::from_millis(100));
                are_huge(all.len() * OBJECT_BYTES - 4 * MIB)
            });
        }
        uslab::debug::validate().unwrap();
        free_all(all);
    });
}

/// What the kernel tells about the mapping at `start`.
fn mapping_at(start: usize) -> String {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let found = text.find(&format!("\n{start:x}-")).expect("a mapping starts there");
    let rest = &text[found + 1..];
    let end = rest.find("VmFlags:").and_then(|flags| rest[flags..].find('\n').map(|line| flags + line));
    rest[..end.expect("flags end the entry")].to_owned()
}

#[test]
fn memory_of_the_programs_own_is_left_alone() {
    in_both_modes("memory_of_the_programs_own_is_left_alone", &[], || {
        let first = objects(10 * MIB);
        let top = *first.iter().max().unwrap() as usize;
        // The first free place behind the heap, which the heap will grow around.
        let (access, bytes) = (libc::PROT_READ | libc::PROT_WRITE, 4 * MIB);
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let own = (1..1000)
            .map(|chunk| (top & !(2 * MIB - 1)) + chunk * 2 * MIB)
            // SAFETY: a fresh mapping, which replaces none.
            .find(|&place| unsafe {
                libc::mmap(place as *mut _, bytes, access, kind, -1, 0) as usize == place
            })
            .expect("a free place");
        // SAFETY: this test's own mapping.
        unsafe {
            libc::madvise(own as *mut _, bytes, libc::MADV_NOHUGEPAGE);
            (own as *mut u8).write_bytes(7, bytes);
        }
        let rest = objects(64 * MIB);
        if are_available() && can_collapse() {
            until("chunks are collapsed", || are_huge(60 * MIB));
        }
        std::thread::sleep(Duration::from_millis(500));
        let found = mapping_at(own);
        assert!(found.contains(" nh") && found.contains("AnonHugePages:         0 kB"), "{found}");
        free_all(first.into_iter().chain(rest));
    });
}

#[test]
fn what_limits_do_not_count_gets_no_memory() {
    use std::os::unix::fs::FileExt;
    const BYTES: usize = 12_000;
    in_both_modes("what_limits_do_not_count_gets_no_memory", &[], || {
        let uncounted = || {
            let usage = uslab::stats::usage();
            resident_bytes().saturating_sub((usage.used_bytes + usage.dirty_bytes) as usize)
        };
        let mut all = objects_of(BYTES, BYTES, 80 * MIB);
        let mut index = 0;
        all.retain(|&object| {
            index += 1;
            let is_kept = index % 4 == 0;
            if !is_kept {
                // SAFETY: allocated by `objects_of`, and forgotten.
                unsafe { free(object) };
            }
            is_kept
        });
        uslab::trim(0);
        // A dump of the memory maps the page of zeroes where there is none.
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let (start, end) = (*all.iter().min().unwrap() as usize, *all.iter().max().unwrap() as usize);
        let mut read = vec![0u8; MIB];
        let before_bytes = uncounted();
        for at in (start..end).step_by(MIB) {
            let _ = memory.read_at(&mut read, at as u64);
        }
        let rest = objects(64 * MIB);
        std::thread::sleep(Duration::from_millis(500));
        let grown_bytes = uncounted().saturating_sub(before_bytes);
        // Descriptors of the new objects' pages, and the lists of this test.
        assert!(grown_bytes <= 4 * MIB, "{grown_bytes} bytes that nothing counts");
        uslab::debug::validate().unwrap();
        free_all(all.into_iter().chain(rest));
    });
}

#[test]
fn memory_that_a_fork_shares_stays_shared() {
    in_both_modes("memory_that_a_fork_shares_stays_shared", &[], || {
        let shared = objects(16 * MIB);
        // SAFETY: the child makes one system call, and none of the allocator.
        let child = unsafe {
            match libc::fork() {
                0 => loop {
                    libc::pause();
                },
                child => child,
            }
        };
        assert!(child > 0);
        let own = objects(64 * MIB);
        if are_available() && can_collapse() {
            until("chunks after the fork are collapsed", || are_huge(48 * MIB));
        }
        // Some looks of the background thread more.
        std::thread::sleep(Duration::from_secs(1));
        let still_shared_bytes = rollup_bytes("Shared_Dirty:");
        // SAFETY: the child of this test.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(still_shared_bytes >= 15 * MIB, "{still_shared_bytes} bytes are still shared");
        free_all(shared.into_iter().chain(own));
    });
}

#[test]
fn collapses_and_purges_at_once_lose_no_memory() {
    in_both_modes("collapses_and_purges_at_once_lose_no_memory", &[], || {
        let before_bytes = resident_bytes();
        let end = Instant::now() + Duration::from_secs(3);
        let churn = |seed: usize| {
            let mut all = objects(20 * MIB);
            let mut state = seed;
            while Instant::now() < end {
                all.retain(|&object| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let is_kept = state >> 33 & 7 != 0;
                    if !is_kept {
                        // SAFETY: allocated by `objects`, and forgotten.
                        unsafe { free(object) };
                    }
                    is_kept
                });
                if state >> 40 & 1 == 0 {
                    uslab::trim(0);
                }
                all.extend(objects(20 * MIB - all.len() * OBJECT_BYTES));
                for &object in &all {
                    // SAFETY: live objects, filled by `objects`.
                    let ends = unsafe { (object.read(), object.add(OBJECT_BYTES - 1).read()) };
                    assert_eq!(ends, (1, 1));
                }
            }
            free_all(all);
        };
        std::thread::scope(|scope| {
            for seed in 1..=3 {
                scope.spawn(move || churn(seed));
            }
        });
        uslab::debug::validate().unwrap();
        until("free memory goes back", || resident_bytes() <= before_bytes + 4 * MIB);
        uslab::debug::validate().unwrap();
    });
}

#[test]
fn memory_of_a_huge_page_that_is_free_in_part_goes_back() {
    in_both_modes("memory_of_a_huge_page_that_is_free_in_part_goes_back", &[], || {
        let before_bytes = resident_bytes();
        let mut all = objects(96 * MIB);
        // Nine of ten pages, more or less, in runs that are shorter than a chunk.
        let mut index = 0;
        all.retain(|&object| {
            index += 1;
            let is_kept = index / 100 % 10 == 0;
            if !is_kept {
                // SAFETY: allocated by `objects`, and forgotten.
                unsafe { free(object) };
            }
            is_kept
        });
        let list_bytes = all.capacity() * size_of::<*mut u8>();
        until("free pages of slabs go back", || {
            resident_bytes() <= before_bytes + list_bytes + 96 * MIB / 10 * 2
        });
        uslab::debug::validate().unwrap();
        assert!(all.iter().all(|&object| {
            // SAFETY: live objects.
            unsafe { object.read() == 1 && object.add(OBJECT_BYTES - 1).read() == 1 }
        }));
        free_all(all);
    });
}

#[test]
fn nothing_gets_huge_pages_where_the_program_or_a_limit_forbids_them() {
    in_both_modes("nothing_gets_huge_pages_where_the_program_or_a_limit_forbids_them", &[], || {
        uslab::set_huge_pages(HugePages::Never);
        free_all(objects(64 * MIB));
        assert_eq!(huge_bytes(), 0);
        uslab::trim(0);
        uslab::set_huge_pages(HugePages::Auto);
        uslab::set_limit(17 * MIB, 0).unwrap();
        free_all(objects(64 * MIB));
        assert_eq!(huge_bytes(), 0);
    });
}

#[test]
fn objects_of_which_little_is_touched_stay_small() {
    in_both_modes("objects_of_which_little_is_touched_stay_small", &[], || {
        let all = objects(64 * MIB);
        let before_bytes = resident_bytes();
        for bytes in [16 << 10, 20_000, 32 << 10, 64 << 10, 128 << 10, MIB, 12 * MIB] {
            // 64 MiB of addresses and a page of each object.
            let count = 64 * MIB / bytes;
            let sparse = objects_of(bytes, 1, 64 * MIB);
            let grown_bytes = resident_bytes().saturating_sub(before_bytes);
            let most_bytes = 2 * count * 4096 + 4 * MIB;
            assert!(grown_bytes <= most_bytes, "{grown_bytes} for {count} of {bytes} bytes");
            free_all(sparse);
            uslab::trim(0);
        }
        free_all(all);
    });
}

#[test]
fn objects_beyond_a_page_that_are_touched_get_huge_pages() {
    in_both_modes("objects_beyond_a_page_that_are_touched_get_huge_pages", &[], || {
        for bytes in [8 << 10, 64 << 10, 256 << 10] {
            let before_bytes = resident_bytes();
            let all = objects_of(bytes, bytes, 128 * MIB);
            // All but the first 20 MiB and the probes, which are at most every second chunk.
            assert!(are_huge(64 * MIB), "{} huge bytes of {bytes} each", huge_bytes());
            let grown_bytes = resident_bytes().saturating_sub(before_bytes);
            assert!(grown_bytes <= 128 * MIB * 105 / 100 + 2 * MIB, "{grown_bytes} bytes of {bytes} each");
            uslab::debug::validate().unwrap();
            free_all(all);
            uslab::trim(0);
        }
    });
}

#[test]
fn a_program_that_stops_touching_its_objects_loses_huge_pages() {
    in_both_modes("a_program_that_stops_touching_its_objects_loses_huge_pages", &[], || {
        let dense = objects_of(64 << 10, 64 << 10, 64 * MIB);
        let before_bytes = resident_bytes();
        let sparse = objects_of(64 << 10, 1, 256 * MIB);
        let grown_bytes = resident_bytes().saturating_sub(before_bytes);
        // A page of each, and two quotas of an eighth of what was in use.
        let most_bytes = 256 * MIB / 16 + 64 * MIB / 4 + 8 * MIB;
        assert!(grown_bytes <= most_bytes, "{grown_bytes} bytes");
        free_all(sparse.into_iter().chain(dense));
    });
}

#[test]
fn an_allocation_that_a_limit_refuses_leaves_nothing_behind() {
    in_both_modes("an_allocation_that_a_limit_refuses_leaves_nothing_behind", &[], || {
        uslab::set_huge_pages(HugePages::Always);
        let all = objects(8 * MIB);
        uslab::trim(0);
        let held_bytes = || {
            let usage = uslab::stats::usage();
            usage.used_bytes + usage.dirty_bytes
        };
        let before_bytes = held_bytes();
        uslab::set_limit(0, before_bytes + 20 * MIB).unwrap();
        for _ in 0..3 {
            assert!(malloc_for::<Program>(21 * MIB).is_null());
            assert!(held_bytes() <= before_bytes, "{} bytes more", held_bytes() - before_bytes);
            uslab::debug::validate().unwrap();
        }
        free_all(all);
    });
}

#[test]
fn from_the_first_page_on_if_the_environment_says_so() {
    let environment = [("USLAB_HUGE_PAGES", "always")];
    in_both_modes("from_the_first_page_on_if_the_environment_says_so", &environment, || {
        let before_bytes = resident_bytes();
        let all = objects(8 * MIB);
        assert!(are_huge(8 * MIB), "{} huge bytes", huge_bytes());
        uslab::debug::validate().unwrap();
        free_all(all);
        uslab::trim(0);
        let left_bytes = resident_bytes().saturating_sub(before_bytes);
        assert!(left_bytes <= 2 * MIB, "{left_bytes} bytes stay");
    });
}

#[test]
fn a_long_run_gets_huge_pages_up_to_an_eighth_from_the_limit() {
    in_both_modes("a_long_run_gets_huge_pages_up_to_an_eighth_from_the_limit", &[], || {
        const LIMIT_BYTES: usize = 128 * MIB;
        uslab::set_huge_pages(HugePages::Always);
        uslab::set_limit(0, LIMIT_BYTES).unwrap();
        let all = objects_of(120 * MIB, 120 * MIB, 120 * MIB);
        let (huge_bytes, most_bytes) = (huge_bytes(), LIMIT_BYTES / 8 * 7);
        assert!(are_huge(most_bytes - 8 * MIB), "{huge_bytes} huge bytes");
        assert!(huge_bytes <= most_bytes, "{huge_bytes} huge bytes");
        uslab::debug::validate().unwrap();
        free_all(all);
    });
}

#[test]
fn a_long_run_that_fits_the_limit_is_not_refused_for_the_rest_of_its_last_huge_page() {
    in_both_modes(
        "a_long_run_that_fits_the_limit_is_not_refused_for_the_rest_of_its_last_huge_page",
        &[],
        || {
            const LIMIT_BYTES: usize = 128 * MIB;
            const TAIL_BYTES: usize = 256 << 10;
            uslab::set_huge_pages(HugePages::Never);
            let mut all = objects(12 * MIB);
            let room_bytes = || {
                let usage = uslab::stats::usage();
                LIMIT_BYTES - usage.used_bytes - usage.dirty_bytes
            };
            // Room for chunks and the tail, but not for the rest of the tail's chunk.
            while !(2 * TAIL_BYTES..MIB).contains(&(room_bytes() % (2 * MIB))) {
                all.extend(objects_of(100_000, 100_000, 100_000));
            }
            uslab::set_huge_pages(HugePages::Always);
            uslab::set_limit(0, LIMIT_BYTES).unwrap();
            let bytes = room_bytes() / (2 * MIB) * 2 * MIB + TAIL_BYTES;
            let run = malloc_for::<Program>(bytes);
            assert!(!run.is_null(), "{bytes} bytes of {}", room_bytes());
            uslab::debug::validate().unwrap();
            free_all(all.into_iter().chain([run]));
        },
    );
}

#[test]
fn a_heap_without_huge_pages_gets_them_when_the_program_chooses_them() {
    in_both_modes("a_heap_without_huge_pages_gets_them_when_the_program_chooses_them", &[], || {
        uslab::set_huge_pages(HugePages::Never);
        free_all(objects(64 * MIB));
        uslab::trim(0);
        uslab::set_huge_pages(HugePages::Always);
        let all = objects(48 * MIB);
        assert!(are_huge(40 * MIB), "{} huge bytes", huge_bytes());
        free_all(all);
    });
}

/// The flags of the mapping that contains `address`.
fn flags_at(address: usize) -> String {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let contains = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16);
        range.is_some_and(|(start, end)| {
            number(start).is_ok_and(|start| start <= address) && number(end).is_ok_and(|end| address < end)
        })
    };
    let mut lines = text.lines().skip_while(|line| !contains(line));
    lines.find(|line| line.starts_with("VmFlags:")).expect("flags end the entry").to_owned()
}

#[test]
fn moved_memory_loses_its_advice_when_a_part_of_it_goes_back() {
    in_both_modes("moved_memory_loses_its_advice_when_a_part_of_it_goes_back", &[], || {
        uslab::set_huge_pages(HugePages::Always);
        let all = objects_of(8 * MIB, 8 * MIB, 16 * MIB);
        // The second one stands behind the first, which must move.
        // SAFETY: allocated above; only the result is used from here on.
        let moved = unsafe { realloc(all[0], 16 * MIB) };
        assert!(!moved.is_null() && moved != all[0]);
        // Linux 5.7 and newer move the advice along.
        println!("moved: {}", flags_at(moved as usize));
        // SAFETY: as above.
        let shrunk = unsafe { realloc(moved, 5 * MIB) };
        assert_eq!(shrunk, moved, "it shrinks where it stands");
        uslab::trim(0);
        let flags = flags_at(moved as usize + 4 * MIB);
        assert!(!flags.contains(" hg"), "{flags}");
        uslab::debug::validate().unwrap();
        free_all([all[1], moved]);
    });
}
