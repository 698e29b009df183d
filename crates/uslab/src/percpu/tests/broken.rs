//! Tests that break sheaves, barns, slots and capacities on purpose: each kind of check must find
//! its fault.

use super::*;
use crate::os::invariant::Invalid;
use crate::percpu::ownership;
use crate::percpu::sheaf::Owned;
use crate::rseq::{Sheaf, Slot, dummy};

/// A sheaf for 14 objects that belongs to no cache.
fn sheaf() -> &'static Sheaf {
    set_up!();
    let sheaf = sheaf::alloc(Size(2), 0);
    assert!(!sheaf.is_null());
    // SAFETY: the test's own, leaked.
    unsafe { &*sheaf }
}

fn address(sheaf: &Sheaf) -> *mut Sheaf {
    core::ptr::from_ref(sheaf).cast_mut()
}

/// Returns the violation that a check of a sheaf reports after `break_it`.
fn found(break_it: impl FnOnce(&Sheaf)) -> Invalid {
    let sheaf = sheaf();
    assert_eq!(ownership::check(address(sheaf)), Ok(()));
    break_it(sheaf);
    ownership::check(address(sheaf)).expect_err("the check finds it")
}

#[test]
fn a_sheaf_that_is_broken_is_found() {
    let invalid = found(|sheaf| sheaf.count.store(15, Relaxed));
    assert_eq!(invalid.invariant, "a sheaf holds no more objects than its capacity");
    assert_eq!((invalid.expected, invalid.found), (14, 15));
    let invalid = found(|sheaf| sheaf.sentinel.store(8, Relaxed));
    assert_eq!(invalid.invariant, "the place before a sheaf's first object is NULL");
    let invalid = found(|sheaf| sheaf.capacity.store(30, Relaxed));
    assert_eq!(invalid.invariant, "a sheaf lies in the slabs of its capacity");
    let invalid = found(|sheaf| sheaf.capacity.store(15, Relaxed));
    assert_eq!(invalid.invariant, "a sheaf lies in the slabs of its capacity");
}

/// Invariant 8.
#[test]
#[should_panic(expected = "a sheaf has one owner")]
fn a_sheaf_taken_out_by_two_ends_the_process() {
    let sheaf = address(sheaf());
    ownership::claim(sheaf);
    ownership::release(sheaf);
    ownership::claim(sheaf);
    ownership::claim(sheaf);
}

/// The same fault through a drain: it takes a sheaf that stands in two places out of both.
#[test]
#[should_panic(expected = "a sheaf has one owner")]
fn a_sheaf_in_two_places_ends_the_process() {
    let (cache, _) = cache(64, 0);
    let sheaf = address(sheaf());
    cache.used.add_cpu(crate::rseq::Cpu::of_index(0));
    cache.used_slots().for_each(|slot| {
        slot.main.store(sheaf, Relaxed);
        slot.spare.store(sheaf, Relaxed);
    });
    cache.drain_all();
}

#[test]
fn two_threads_that_claim_one_sheaf_at_once_do_not_both_get_it() {
    // Other sheaves take and leave places of the table meanwhile.
    let sheaves: Vec<usize> = (0..4).map(|_| address(sheaf()) as usize).collect();
    std::thread::scope(|scope| {
        for &mine in &sheaves {
            scope.spawn(move || {
                for _ in 0..2000 {
                    ownership::claim(mine as *mut Sheaf);
                    ownership::release(mine as *mut Sheaf);
                }
            });
        }
    });
}

#[test]
fn a_barn_that_is_broken_is_found() {
    set_up!();
    let no_check = |_: *mut Sheaf| Ok(());
    let barn = Barn::new(Barn::full_bytes_for(0));
    let (full, empty) = (address(sheaf()), address(sheaf()));
    Owned(full).push_from(&[core::ptr::dangling_mut()]);
    assert!(barn.put_full(full, 64) && barn.put_empty(empty));
    assert_eq!(barn.check(no_check), Ok(2));

    Owned(full).set_count(0);
    assert_eq!(barn.check(no_check).unwrap_err().invariant, "a full sheaf has an object");
    Owned(full).set_count(1);
    Owned(empty).set_count(1);
    assert_eq!(barn.check(no_check).unwrap_err().invariant, "an empty sheaf has no object");
    Owned(empty).set_count(0);
    // One change in 64 checks all sheaves, and then ends here.
    let put = || barn.put_empty(empty);
    if let Ok(is_put) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(put)) {
        assert!(is_put);
        assert_eq!(barn.check(no_check).unwrap_err().invariant, "a sheaf stands in a barn once");
    }
}

#[test]
#[should_panic(expected = "a sheaf has one owner")]
fn a_sheaf_that_stands_in_two_barns_ends_the_process() {
    set_up!();
    // Two barns: in one, the sampled check would sometimes find the sheaf's second place first.
    let barns = [Barn::new(Barn::full_bytes_for(0)), Barn::new(Barn::full_bytes_for(0))];
    let sheaf = address(sheaf());
    assert!(barns.iter().all(|barn| barn.put_empty(sheaf)));
    for barn in &barns {
        barn.take_empty();
    }
}

#[test]
fn a_slot_that_is_broken_is_found() {
    set_up!();
    let slot = Slot::holding(dummy());
    assert_eq!(super::super::valid::check_slot(&slot), Ok(()));
    slot.spare.store(core::ptr::null_mut(), Relaxed);
    let invalid = super::super::valid::check_slot(&slot).unwrap_err();
    assert_eq!(invalid.invariant, "a slot has a sheaf or the dummy in each place");
    slot.spare.store((&raw const slot).cast_mut().cast(), Relaxed);
    let invalid = super::super::valid::check_slot(&slot).unwrap_err();
    assert_eq!(invalid.invariant, "the sheaf of a slot lies in the arena");
    slot.spare.store(address(sheaf()).wrapping_byte_add(8), Relaxed);
    let invalid = super::super::valid::check_slot(&slot).unwrap_err();
    assert_eq!(invalid.invariant, "the sheaf of a slot starts on a cache line");
}

#[test]
fn a_cache_whose_slots_are_broken_is_found() {
    let (cache, _) = cache(64, 0);
    let slot = &cache.slots()[0];
    assert!(cache.check().is_ok());
    slot.parked[1].store(dummy(), Relaxed);
    let invariant = cache.check().unwrap_err().invariant;
    assert_eq!(invariant, "a sheaf is parked only while a fork copies the memory");
    slot.parked[1].store(core::ptr::null_mut(), Relaxed);
    slot.start_test[2].fetch_add(1, Relaxed);
    assert_eq!(cache.check().unwrap_err().invariant, "each slot has the start test of its cache");
    slot.start_test[2].fetch_sub(1, Relaxed);
    assert!(cache.check().is_ok());
    finish(cache);
}

#[test]
fn a_foreign_object_in_a_barn_is_found() {
    let (cache, _) = cache(64, 0);
    let objects = alloc(cache, 500);
    free(cache, &objects[..400]);
    let barn = &cache.barns()[0];
    let sheaf = barn.take_full(&mut core::ptr::null_mut()).expect("there is a full one");
    let object = core::mem::replace(&mut Owned(sheaf).objects()[0], core::ptr::dangling_mut());
    assert!(barn.put_full(sheaf, 64));
    let invalid = cache.check().unwrap_err();
    assert_eq!(invalid.invariant, "an object lies in a slab of its cache");
    Owned(sheaf).objects()[0] = object;
    assert!(cache.check().is_ok_and(|walked| walked.sheaves > 0));
    free(cache, &objects[400..]);
    finish(cache);
}

#[test]
fn a_ring_that_is_broken_is_found() {
    set_up!();
    assert!(adapt::check().is_ok());
    let broken = adapt::check_broken(|used| used + 64).unwrap_err();
    assert_eq!(broken.invariant, "the charges of caches are summed up");
    assert!(adapt::check().is_ok());
}

#[test]
#[should_panic(expected = "a sheaf holds no more objects than its capacity")]
fn a_count_beyond_the_capacity_ends_the_process() {
    Owned(address(sheaf())).set_count(15);
}

#[test]
#[should_panic(expected = "the dummy is never freed")]
fn the_dummy_that_is_freed_ends_the_process() {
    // SAFETY: it ends before anything is done.
    unsafe { sheaf::free(dummy()) };
}

#[test]
#[should_panic(expected = "a slot's lock that is let go of is held")]
fn a_slot_that_another_unlocked_ends_the_process() {
    let slot = Slot::holding(dummy());
    let locked = rseq::locked::LockedSlot::try_lock(&slot).expect("it is free");
    slot.lock.store(0, Relaxed);
    drop(locked);
}

#[test]
#[should_panic(expected = "a sheaf has room for what it holds")]
fn a_push_onto_a_broken_sheaf_ends_the_process() {
    let sheaf = sheaf();
    sheaf.count.store(15, Relaxed);
    let slot = Slot::holding(address(sheaf));
    let locked = rseq::locked::LockedSlot::try_lock(&slot).expect("it is free");
    // SAFETY: it ends before anything is written.
    unsafe { locked.push(core::ptr::dangling_mut()) };
}
