//! Tests of the parsers and of the memory calls' contracts.

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
    cpu::parse_ranges(b"x,-,3-1,\n", &mut |_, _| panic!("a range out of nonsense"));
}

#[test]
fn the_machine_has_cpus_and_nodes() {
    assert!(cpu::possible_cpus() > cpu::current());
    assert!(cpu::nodes() >= 1);
}

#[test]
fn purged_pages_read_as_zero() {
    let bytes = 4 * memory::page_bytes();
    let start = memory::reserve(bytes).unwrap();
    // SAFETY: the range is ours alone.
    unsafe {
        assert!(memory::commit(start, bytes));
        start.write(7);
        assert!(memory::purge(start, bytes));
        assert_eq!(start.read(), 0);
        memory::unreserve(start, bytes);
    }
}

#[test]
fn moved_pages_keep_their_contents_and_leave_zeroes() {
    let page = memory::page_bytes();
    let start = memory::reserve(8 * page).unwrap();
    // SAFETY: the range is ours alone; the two halves do not overlap.
    unsafe {
        assert!(memory::commit(start, 8 * page));
        start.write(7);
        assert!(memory::move_pages(start, start.add(4 * page), 4 * page));
        assert_eq!((start.read(), start.add(4 * page).read()), (0, 7));
        memory::unreserve(start, 8 * page);
    }
}
