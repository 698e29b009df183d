//! Tests of the parsers and of the memory calls' contracts.

use super::memory::Moved;
use super::*;

#[test]
fn cpu_lists_are_parsed() {
    let mut seen = [(0, 0); 4];
    let mut n = 0;
    cpu::parse_ranges(b"0-3,8,10-11\n", &mut |a, b| {
        seen[n] = (a, b);
        n += 1;
    });
    assert_eq!((&seen[..3], n), (&[(0, 3), (8, 8), (10, 11)][..], 3));
}

#[test]
fn broken_cpu_lists_yield_nothing() {
    cpu::parse_ranges(b"x,-,3-1,\n", &mut |_, _| panic!("parsed a range from invalid text"));
}

/// Highest CPU of a list, as `possible_cpus` finds it.
fn highest(list: &[u8]) -> Option<usize> {
    let mut highest = None;
    cpu::parse_ranges(list, &mut |_, last| highest = Some(highest.unwrap_or(0).max(last)));
    highest
}

#[test]
fn sparse_ids_and_huge_ones_keep_their_numbers() {
    assert_eq!(highest(b"0-3,8-11\n"), Some(11));
    assert_eq!(highest(b"8,0-1\n"), Some(8));
    assert_eq!(highest(b"0-18446744073709551615\n"), Some(usize::MAX));
    assert_eq!(highest(b"0-18446744073709551616,2\n"), Some(2));
    assert_eq!(highest(b""), None);
}

#[test]
fn implausible_numbers_of_cpus_are_rejected() {
    let believed = [
        // Both sources agree; offline CPUs and sparse ids are in the list.
        ((Some(12), Some(64), 3), Some(12)),
        // No sysfs, or something else in its place.
        ((None, Some(64), 3), Some(64)),
        // No answer to the call, because of a filter.
        ((Some(4), None, 3), Some(4)),
        // A list without the thread's own CPU, and one beyond the kernel's masks.
        ((Some(3), Some(64), 3), Some(64)),
        ((Some(65), Some(64), 3), Some(64)),
        // A mask too short for the thread's own CPU.
        ((Some(128), Some(64), 64), Some(128)),
        ((None, Some(64), 64), None),
        ((Some(3), None, 3), None),
        ((None, None, 0), None),
    ];
    for ((listed, bound, current), expected) in believed {
        let found = cpu::believable(listed, bound, current);
        assert_eq!(found, expected, "listed {listed:?}, bound {bound:?}, on {current}");
    }
}

#[test]
fn the_list_of_one_cache_tells_all_groups() {
    let parts = |cpus, period| Some(sharing::Parts { cpus, period });
    for (list, online, expected) in [
        ("0-7,128-135\n", "0-255\n", parts(8, 128)),
        ("0-7\n", "0-63\n", parts(8, 64)),
        ("0-31,64-95\n", "0-127\n", parts(32, 64)),
        // Two sockets whose CPUs take turns.
        ("0,2,4,6,8,10,12,14\n", "0-15\n", parts(1, 2)),
        // One cache for all, also where some CPUs are not there; a cache of one core; no list.
        ("0-63\n", "0-63\n", None),
        ("0-3\n", "0-3\n", None),
        ("0-3,8-11\n", "0-3,8-11\n", None),
        ("0,64\n", "0-127\n", None),
        ("\n", "0-127\n", None),
        ("0-7\n", "", None),
        ("0-7,4-11\n", "0-127\n", None),
        // CPUs 1 to 3 are offline, so that the list does not show how many share a cache.
        ("0,4-7\n", "0,4-15\n", None),
        ("0-7,32-38\n", "0-38,40-63\n", parts(8, 32)),
        ("0-18446744073709551615\n", "0-127\n", None),
    ] {
        let found = sharing::Parts::of(list.as_bytes(), online.as_bytes());
        assert_eq!(found, expected, "{list:?} of {online:?}");
    }
}

#[test]
fn the_machine_has_cpus_and_nodes() {
    assert!(cpu::possible_cpus().unwrap() > cpu::current());
    assert!(cpu::nodes() >= 1);
}

/// Fresh memory for this test. Other tests map too, so the place found free may be taken meanwhile.
fn mapped(bytes: usize) -> *mut u8 {
    let place = (0..100).find_map(|_| {
        let start = memory::next_address(bytes)?;
        (memory::map_at(start, bytes) == memory::Placed::Mapped).then_some(start)
    });
    place.expect("there is room") as *mut u8
}

#[test]
fn nothing_is_mapped_over_another_mapping() {
    let page = memory::page_bytes();
    let start = mapped(2 * page);
    // SAFETY: the range is ours alone.
    unsafe {
        start.add(page).write(7);
        assert_eq!(memory::map_at(start as usize, 2 * page), memory::Placed::Taken);
        assert_eq!(memory::look_at(start as usize - page, 2 * page), memory::Placed::Taken);
        assert_eq!(start.add(page).read(), 7);
        assert!(memory::unmap(start, 2 * page));
    }
    assert_ne!(memory::map_at((usize::MAX / 2) & !(page - 1), page), memory::Placed::Mapped);
}

#[test]
fn purged_pages_read_as_zero() {
    let bytes = 4 * memory::page_bytes();
    let start = mapped(bytes);
    // SAFETY: the range is ours alone.
    unsafe {
        start.write(7);
        assert!(memory::purge(start, bytes));
        assert_eq!(start.read(), 0);
        memory::unmap(start, bytes);
    }
}

#[test]
fn locked_pages_stay_unless_purge_locked_is_called() {
    let page = memory::page_bytes();
    let start = mapped(2 * page);
    // SAFETY: the range is ours alone.
    unsafe {
        start.write(7);
        if libc::mlock(start.cast(), page) != 0 {
            return;
        }
        assert!(!memory::purge(start, 2 * page));
        assert_eq!(start.read(), 7);
        let moved = memory::move_pages(start.add(page), start, page);
        assert_eq!(moved, Moved::Refused, "the kernel would unlock pages");
        let gone = memory::purge_locked(start, 2 * page);
        assert_eq!(start.read(), if gone { 0 } else { 7 });
        memory::unmap(start, 2 * page);
    }
}

/// Moves pages between the halves of a range, after `advise` of the first half.
fn move_half(page: usize, pages: usize, advise: impl Fn(*mut u8)) {
    let start = mapped(2 * pages * page);
    let each = |half: usize, work: &dyn Fn(*mut u8)| {
        (half * pages..(half + 1) * pages).for_each(|n| work(start.wrapping_add(n * page)));
    };
    // SAFETY: this test alone uses the range; the two halves do not overlap.
    unsafe {
        advise(start);
        each(0, &|page| page.write(7));
        each(1, &|page| page.write(8));
        let moved = memory::move_pages(start, start.add(pages * page), pages * page);
        assert_eq!(moved, Moved::Done { is_old_fresh: true });
        each(0, &|page| assert_eq!(page.read(), 0));
        each(1, &|page| assert_eq!(page.read(), 7));
        memory::unmap(start, 2 * pages * page);
    }
}

#[test]
fn moved_pages_keep_their_contents_and_leave_zeroes() {
    move_half(memory::page_bytes(), 4, |_| {});
    // Beyond the pieces of which each is moved by a call of its own.
    move_half(1 << 20, 9, |_| {});
}

#[test]
fn pages_of_several_mappings_are_moved() {
    let page = memory::page_bytes();
    // SAFETY: advice about forks, for pages of this test.
    let divide = |start: *mut u8| unsafe {
        assert_eq!(libc::madvise(start.add(2 * page).cast(), 2 * page, libc::MADV_DONTFORK), 0);
    };
    move_half(page, 5, divide);
    move_half(1 << 20, 9, divide);
}

#[test]
#[should_panic(expected = "a lock that is let go of is held")]
fn a_free_lock_that_is_let_go_of_ends_the_process() {
    Lock::new(crate::sync::Rank::Fork, ()).release_after_fork();
}

#[test]
#[should_panic(expected = "lock order: the thread takes Barn")]
fn a_lock_out_of_order_ends_the_process() {
    let (lower, higher) = (Lock::new(crate::sync::Rank::Barn, ()), Lock::new(crate::sync::Rank::Pages, ()));
    let _held = higher.lock();
    drop(lower.lock());
}

#[test]
fn no_sleep_begins_once_the_first_thread_has_ended() {
    // In a child: the sleep of this process may be its background thread's.
    assert!(fork::holds_in_child(|| {
        const MS: u64 = 10_000;
        process::THREADS.first_has_ended.store(true, core::sync::atomic::Ordering::SeqCst);
        let start_ms = clock::coarse_ms();
        sleep::for_ms(MS);
        clock::coarse_ms() - start_ms < MS / 2
    }));
}

#[test]
fn a_text_is_found_wherever_reads_divide_it() {
    let found = |text: &[u8]| file::Reader::open(c"/proc/self/status").unwrap().contains(text);
    assert!(found(b"Name:"), "at the start");
    assert!(found(b"nonvoluntary_ctxt_switches:"), "in the last lines, some reads later");
    assert!(!found(b"no such line"));
}

#[test]
fn a_file_is_replaced_by_a_new_one_whatever_stands_there() {
    use std::os::unix::ffi::OsStrExt;
    let folder = std::env::temp_dir().join(std::format!("uslab-replace-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let place = |name: &str| folder.join(name);
    let text = |name: &str| std::ffi::CString::new(place(name).as_os_str().as_bytes()).unwrap();
    let replace = |bytes: &[u8]| {
        super::file::replace(&text("file.new"), &text("file"), |fd| super::file::write_all(fd, bytes))
    };
    std::fs::write(place("precious"), "precious").unwrap();
    for name in ["file", "file.new"] {
        std::os::unix::fs::symlink(place("precious"), place(name)).unwrap();
    }
    assert_eq!(super::file::own_file_changed_ms(&text("file")), None, "a link is no file");
    let before_ms = super::clock::unix_ms();
    assert_eq!(replace(b"one"), Ok(()));
    assert!(std::fs::symlink_metadata(place("file")).unwrap().is_file());
    assert!(super::file::own_file_changed_ms(&text("file")).unwrap() + 1000 > before_ms);
    assert_eq!(replace(b"two"), Ok(()));
    let failing = super::file::replace(&text("file.new"), &text("file"), |_| Err(libc::ENOSPC));
    assert_eq!(failing, Err(libc::ENOSPC));
    assert_eq!(std::fs::read(place("file")).unwrap(), b"two");
    assert_eq!(std::fs::read(place("precious")).unwrap(), b"precious");
    assert!(!place("file.new").exists());
    std::fs::remove_dir_all(&folder).unwrap();
}
