//! Tests of pages that are charged, and go back, one by one.

use super::*;
use crate::slab::lists::List;

/// # Safety
/// None.
unsafe fn leave_as_it_is(_: *mut u8, _: usize) {}
const CONSTRUCTOR: Constructor = Constructor { call: leave_as_it_is, data: 0, release: None };

fn charged(slabs: &Slabs) -> usize {
    slabs.charged.load(Relaxed)
}

/// Bytes that the process has in memory within the slab that `object` lies in.
fn resident_bytes(slabs: &Slabs, object: *mut u8) -> usize {
    let bytes = slabs.geometry().pages() * PAGE_BYTES;
    let start = object as usize & !(bytes - 1);
    let pages = (start..start + bytes).step_by(PAGE_BYTES);
    pages.filter(|&page| os::memory::is_resident(page)).count() * PAGE_BYTES
}

fn fill(objects: &[*mut u8], bytes: usize) {
    for &object in objects {
        // SAFETY: the test's own object of so many bytes.
        unsafe { object.write_bytes(0xa5, bytes) };
    }
}

#[test]
fn a_page_is_charged_when_its_first_object_is_taken() {
    let (slabs, _) = slabs_of_order(4, 1024, None);
    crate::pages::purge_all();
    let first = take(slabs, 1);
    let (before, most) = (charged(slabs), slabs.geometry().pages());
    assert!((1..=most).contains(&before));
    let more = take(slabs, slabs.geometry().objects - 1);
    assert_eq!(charged(slabs), most, "a slab in use is charged as a whole");
    free(slabs, &more);
    free(slabs, &first);
    slabs.shrink();
    assert_eq!(charged(slabs), 0);
}

#[test]
fn a_shrink_counts_the_pages_that_had_memory() {
    let (slabs, _) = slabs_of_order(5, 4096, None);
    let objects = take(slabs, 70);
    let bytes = charged(slabs) * PAGE_BYTES;
    assert!((70 * PAGE_BYTES..=3 * slabs.slab_bytes()).contains(&bytes));
    free(slabs, &objects);
    let freed_already = bytes - charged(slabs) * PAGE_BYTES;
    assert_eq!(slabs.shrink() + freed_already, bytes);
}

#[test]
fn what_a_constructor_made_is_not_purged_nor_counted_as_free() {
    let (slabs, _) = slabs_of_order(5, 4096, Some(CONSTRUCTOR));
    let objects = take(slabs, 2);
    free(slabs, &objects[..1]);
    assert_eq!(slabs.free_bytes_inside(), 0);
}

#[test]
fn free_pages_of_a_slab_in_use_go_back_and_serve_again() {
    // Objects that end at page boundaries, that straddle them, and that span several pages.
    for bytes in [64, 1024, 1000, 3000, 4096, 6000, 10240, 20000] {
        go_back_and_serve_again(5, bytes);
    }
}

#[test]
fn free_pages_of_a_slab_of_few_pages_go_back_and_serve_again() {
    for (order, bytes) in [(1, 64), (1, 1000), (2, 3000), (3, 1024), (3, 4096), (3, 10240)] {
        go_back_and_serve_again(order, bytes);
    }
}

fn go_back_and_serve_again(order: u32, bytes: usize) {
    let (slabs, _) = slabs_of_order(order, bytes, None);
    let objects: Vec<_> = take(slabs, slabs.geometry().objects).into_iter().rev().collect();
    fill(&objects, bytes);
    let kept = objects[objects.len() / 2];
    let freed: Vec<_> = objects.iter().copied().filter(|&object| object != kept).collect();
    free(slabs, &freed);
    let page = |address: usize| address / PAGE_BYTES;
    let live_pages = page(kept as usize + bytes - 1) - page(kept as usize) + 1;
    let before = charged(slabs);
    let purged_bytes = slabs.purge_all_inside();
    assert_eq!(charged(slabs), before - purged_bytes / PAGE_BYTES);
    assert_eq!(charged(slabs), live_pages, "objects of {bytes}");
    assert_eq!(resident_bytes(slabs, kept), live_pages * PAGE_BYTES, "objects of {bytes}");
    assert_eq!(slabs.purge_all_inside(), 0, "nothing is left");
    // SAFETY: the object is the test's own.
    assert!(unsafe { core::slice::from_raw_parts(kept, bytes) }.iter().all(|&byte| byte == 0xa5));
    assert!(slabs.check().is_ok());

    let mut again = take(slabs, freed.len());
    again.sort_unstable();
    assert_eq!(again, freed, "every object serves again, once");
    assert_eq!(charged(slabs), (objects.len() * bytes).div_ceil(PAGE_BYTES));
    fill(&again, bytes);
    free(slabs, &again);
    free(slabs, &[kept]);
    slabs.shrink();
    assert_eq!(charged(slabs), 0);
}

#[test]
fn pages_rest_between_two_looks_before_they_go() {
    let (slabs, _) = slabs_of_order(4, 512, None);
    let objects: Vec<_> = take(slabs, slabs.geometry().objects).into_iter().rev().collect();
    fill(&objects, 512);
    free(slabs, &objects[16..]);
    let before = charged(slabs);
    assert!(!slabs.purge_rested(), "the first walk only notes what it sees");
    assert_eq!(charged(slabs), before);
    assert!(!slabs.purge_rested(), "the second one purges");
    assert_eq!(charged(slabs), 2);
    assert!(slabs.purge_rested(), "the third one finds nothing to do");
    free(slabs, &objects[8..16]);
    assert!(!slabs.purge_rested());
    assert!(!slabs.purge_rested());
    assert_eq!(charged(slabs), 1);
    free(slabs, &objects[..8]);
    slabs.shrink();
}

#[test]
fn the_decay_decides_whether_pages_need_rest_and_whether_they_go() {
    let (slabs, _) = slabs_of_order(4, 512, None);
    let objects: Vec<_> = take(slabs, slabs.geometry().objects).into_iter().rev().collect();
    fill(&objects, 512);
    free(slabs, &objects[16..]);
    let before = charged(slabs);
    // In a child, which has a decay of its own.
    assert!(os::fork::holds_in_child(|| {
        crate::pages::decay::set_ms(None);
        let stays = (0..3).all(|_| slabs.purge_rested() && charged(slabs) == before);
        crate::pages::decay::set_ms(Some(0));
        stays && !slabs.purge_rested() && charged(slabs) == 2
    }));
    free(slabs, &objects[..16]);
    slabs.shrink();
}

#[test]
fn pages_of_a_slab_that_served_between_two_looks_stay() {
    let (slabs, _) = slabs_of_order(4, 512, None);
    let objects: Vec<_> = take(slabs, slabs.geometry().objects).into_iter().rev().collect();
    fill(&objects, 512);
    free(slabs, &objects[16..]);
    let before = charged(slabs);
    for _ in 0..3 {
        slabs.purge_rested();
        // A burst that leaves the count as it was.
        let burst = take(slabs, 50);
        free(slabs, &burst);
        assert!(!slabs.is_steady());
        assert_eq!(charged(slabs), before);
    }
    slabs.purge_rested();
    slabs.purge_rested();
    assert_eq!(charged(slabs), 2);
    free(slabs, &objects[..16]);
    slabs.shrink();
}

#[test]
fn slabs_of_which_none_has_free_objects_are_steady_after_a_walk() {
    let (slabs, _) = slabs_of_order(4, 512, None);
    let objects = take(slabs, slabs.geometry().objects);
    free(slabs, &objects[..1]);
    let again = take(slabs, 1);
    assert!(!slabs.is_steady(), "an object was freed since the last walk");
    slabs.purge_rested();
    assert!(slabs.is_steady(), "all slabs are full");
    free(slabs, &objects[1..]);
    free(slabs, &again);
    slabs.shrink();
    slabs.purge_rested();
    assert!(slabs.is_steady(), "no slab is left");
}

#[test]
fn a_walk_looks_at_each_slab_once() {
    // More than a part of a walk visits, in one list, and a few in another.
    let (slabs, _) = slabs_of_order(4, 4096, None);
    let (in_slab, all) = (slabs.geometry().objects, 100 * slabs.geometry().objects);
    let objects = take(slabs, all);
    fill(&objects, 4096);
    let is_kept = |index: usize| index % in_slab < if index < 10 * in_slab { 1 } else { in_slab / 2 };
    let (kept, freed): (Vec<_>, Vec<_>) = objects.iter().enumerate().partition(|&(index, _)| is_kept(index));
    let of = |part: Vec<(usize, &*mut u8)>| part.into_iter().map(|(_, &object)| object).collect::<Vec<_>>();
    let (kept, freed) = (of(kept), of(freed));
    free(slabs, &freed);
    let before = charged(slabs);
    slabs.purge_rested();
    assert_eq!(charged(slabs), before, "the first walk only notes what it sees");
    slabs.purge_rested();
    assert_eq!(charged(slabs), kept.len());
    free(slabs, &kept);
    slabs.shrink();
}

#[test]
fn a_pass_spares_the_slab_that_serves_next() {
    let (slabs, _) = slabs_of_order(4, 512, None);
    let objects: Vec<_> = take(slabs, 3 * slabs.geometry().objects).into_iter().rev().collect();
    fill(&objects, 512);
    let freed: Vec<_> =
        objects.iter().copied().filter(|object| *object as usize / PAGE_BYTES % 16 != 3).collect();
    let before = charged(slabs);
    free(slabs, &freed);
    let slab_bytes = slabs.geometry().pages() * PAGE_BYTES;
    assert_eq!(slabs.purge_inside(usize::MAX), 2 * (slab_bytes - PAGE_BYTES));
    assert_eq!(charged(slabs), before - 2 * 15);
    assert_eq!(slabs.purge_inside(1), 0, "too little is free to search for");
    assert_eq!(slabs.purge_all_inside(), slab_bytes - PAGE_BYTES);
    let again = take(slabs, freed.len());
    free(slabs, &again);
    free(slabs, &objects.into_iter().filter(|object| !freed.contains(object)).collect::<Vec<_>>());
    slabs.shrink();
}

#[test]
fn pages_behind_the_last_object_go_with_another_page() {
    // Twelve objects of ten KiB leave two pages of 32.
    let bytes = 10 << 10;
    let (slabs, _) = slabs_of_order(5, bytes, None);
    let objects: Vec<_> = take(slabs, 12).into_iter().rev().collect();
    fill(&objects, bytes);
    let (first, page) = (objects[0] as usize, crate::pages::page_of(objects[0]).expect("in the arena"));
    let word = super::super::one::Slab(page);
    let resident = word.resident(slabs.geometry()).expect("a slab of 32 pages has the word");
    // As if the run had come with memory on its last pages.
    assert!(crate::pages::charge(page, (!resident.load(Relaxed) & 0b11 << 30).count_ones() as usize));
    slabs.charged.fetch_add((!resident.load(Relaxed) & 0b11 << 30).count_ones() as usize, Relaxed);
    resident.fetch_or(0b11 << 30, Relaxed);
    // The objects of pages 0 to 4: page 2 has the end of the first and the start of the second.
    free(slabs, &objects[..1]);
    assert_eq!(first % (32 * PAGE_BYTES), 0);
    assert_eq!(slabs.purge_all_inside(), 4 * PAGE_BYTES, "two pages of the object, and the last two");
    take(slabs, 1);
    resident.fetch_or(0b11 << 30, Relaxed);
    assert!(crate::pages::charge(page, 2));
    slabs.charged.fetch_add(2, Relaxed);
    free(slabs, &objects[11..]);
    let half = take(slabs, 1);
    assert_eq!(slabs.purge_all_inside(), 0, "no object can be claimed for the last two pages");
    free(slabs, &half);
    free(slabs, &objects[..11]);
    slabs.shrink();
    assert_eq!(charged(slabs), 0);
}

#[test]
fn at_a_limit_charged_pages_serve_object_by_object() {
    let (slabs, _) = slabs_of_order(4, 1024, None);
    let objects: Vec<_> = take(slabs, slabs.geometry().objects).into_iter().rev().collect();
    free(slabs, &objects[5..]);
    slabs.purge_all_inside();
    assert_eq!(charged(slabs), 2, "five objects of which the last lies on a page with room for three");
    let mut out = [core::ptr::null_mut(); 5];
    assert_eq!(slabs.take_charged(&mut slabs.groups()[0].lock(), &mut out), 3);
    out[2..].sort_unstable();
    assert_eq!(out[2..], objects[5..8]);
    assert_eq!(charged(slabs), 2);
    let mut group = slabs.groups()[0].lock();
    assert_eq!(slabs.take_charged(&mut group, &mut out[..1]), 0, "all charged pages are in use");
    drop(group);
    assert!(slabs.check().is_ok());
    // Taken without the count of a take.
    slabs.set_taken(8);
    free(slabs, &objects[..8]);
    slabs.shrink();
}

#[test]
fn at_a_limit_a_take_looks_at_some_slabs_and_the_next_one_goes_on_behind_them() {
    // Slabs of two pages with four objects each, of which the second page is free and purged.
    const SLABS: usize = 300;
    let (slabs, _) = slabs_of_order(1, 1024, None);
    let objects = take(slabs, SLABS * slabs.geometry().objects);
    let is_kept = |object: &*mut u8| (*object as usize / PAGE_BYTES).is_multiple_of(2);
    let (kept, freed): (Vec<_>, Vec<_>) = objects.into_iter().partition(is_kept);
    assert_eq!(slabs.all_bytes(), SLABS * slabs.slab_bytes());
    free(slabs, &freed);
    slabs.purge_all_inside();
    assert_eq!(charged(slabs), SLABS);
    let last = slabs.groups()[0].lock().last(List::Partial).expect("all are partial").address();
    free(slabs, &[last]);
    let mut out = [core::ptr::null_mut(); 2];
    let mut group = slabs.groups()[0].lock();
    assert_eq!(slabs.take_charged(&mut group, &mut out), 0, "it did not come to the last slab");
    assert_eq!(slabs.take_charged(&mut group, &mut out), 1);
    assert_eq!(out[1], last);
    drop(group);
    assert!(slabs.check().is_ok());
    // Taken without the count of a take.
    slabs.set_taken(kept.len() as i64);
    free(slabs, &kept);
    slabs.shrink();
}

#[test]
fn walks_take_the_objects_that_a_purge_has_for_free() {
    let (slabs, _) = slabs_of_order(4, 1024, None);
    let objects = take(slabs, slabs.geometry().objects);
    let slab = slabs.groups()[0].lock().all().next().expect("a slab");
    // As if a purge had claimed the objects of two pages.
    slabs.claimed.begin(slab, 0b110);
    let (mut under_lock, mut without) = (0, 0);
    slabs.for_each_taken(|_| {
        under_lock += 1;
        true
    });
    slabs.visit_taken(
        |_| true,
        |_| {
            without += 1;
            true
        },
    );
    slabs.claimed.end();
    assert_eq!([under_lock, without], [objects.len() - 8; 2]);
    free(slabs, &objects);
    slabs.shrink();
}

#[test]
fn constructed_objects_stay() {
    fn construct(object: *mut u8, value: usize) {
        // SAFETY: an object of the cache.
        unsafe { object.write(value as u8) };
    }
    let (slabs, _) = slabs_of_order(4, 1024, Some(Constructor { call: construct, data: 7, release: None }));
    let objects = take(slabs, slabs.geometry().objects);
    free(slabs, &objects[1..]);
    assert_eq!(slabs.purge_all_inside(), 0);
    let again = take(slabs, objects.len() - 1);
    // SAFETY: the test's own objects.
    assert!(again.iter().all(|&object| unsafe { object.read() } == 7));
    free(slabs, &again);
    free(slabs, &objects[..1]);
    slabs.shrink();
}

#[test]
fn frees_meet_purges() {
    let (slabs, _) = slabs_of_order(4, 256, None);
    let done = core::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                slabs.purge_all_inside();
            }
        });
        for round in 0..if cfg!(miri) { 2 } else { 200 } {
            let objects = take(slabs, 2000);
            fill(&objects, 256);
            let (some, rest) = objects.split_at(objects.len() * (round % 7) / 7);
            free(slabs, some);
            // SAFETY: objects in use.
            assert!(rest.iter().all(|&object| unsafe { object.read() } == 0xa5));
            free(slabs, rest);
        }
        done.store(true, Relaxed);
    });
    assert_eq!(slabs.taken(), 0);
    slabs.shrink();
    assert_eq!(charged(slabs), 0);
    assert!(slabs.check().is_ok());
}
