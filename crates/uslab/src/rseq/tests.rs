//! Tests of the sequences against their contract, on the CPU that the test runs on.

use super::*;
use core::sync::atomic::Ordering::Relaxed;

extern crate std;
use std::boxed::Box;
use std::vec::Vec;

/// A sheaf in ordinary memory, which the test leaks.
fn sheaf(capacity: u32, objects: &[usize]) -> *mut Sheaf {
    let words = Box::leak(std::vec![0usize; 2 + capacity as usize].into_boxed_slice());
    let sheaf = words.as_mut_ptr().cast::<Sheaf>();
    // SAFETY: the words are at least a header, zeroed, and the objects fit behind it.
    unsafe {
        (*sheaf).capacity.store(capacity, Relaxed);
        (*sheaf).count.store(objects.len() as u32, Relaxed);
        for (i, &object) in objects.iter().enumerate() {
            Sheaf::object(sheaf, i + 1).write(object as *mut u8);
        }
    }
    sheaf
}

fn slots(mut main: impl FnMut(usize) -> *mut Sheaf) -> &'static [Slot] {
    let cpus = crate::os::cpu::possible_cpus().unwrap();
    let before = (0..LEAD).map(|_| Slot::holding(dummy()));
    let own = (0..area_numbers(cpus)).map(|cpu| {
        let slot = Slot::holding(dummy());
        slot.main.store(main(cpu), Relaxed);
        slot
    });
    let slots: Vec<Slot> = before.chain(own).collect();
    &Box::leak(slots.into_boxed_slice())[LEAD..]
}

/// In locked mode the sequences use the first slot throughout, so the tests hold there too.
fn set_up() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let wish = match std::env::var("USLAB_RSEQ").as_deref() {
            Ok("0") => Wish::Locked,
            Ok("own") => Wish::Own,
            _ => Wish::Usual,
        };
        init(wish, crate::os::cpu::possible_cpus());
    });
}

/// Runs a test of the sequences on one CPU; does nothing where there are no sequences.
fn alone(test: impl FnOnce()) {
    set_up();
    if !super::arch::SUPPORTED {
        return;
    }
    if mode() == Mode::Locked {
        // A thread may have the control block of one that ended.
        super::arch::hint_words().iter().for_each(|word| word.store(0, Relaxed));
    }
    // Has the thread registered. It stays on one CPU, so the sequences use one slot throughout.
    Cpu::current();
    let cpu = crate::os::cpu::pin_to_current();
    test();
    crate::os::cpu::unpin(cpu);
}

#[test]
fn pop_takes_the_top_and_then_null() {
    alone(|| {
        let slots = slots(|_| sheaf(4, &[16, 32]));
        // SAFETY: the slots are valid, and the "objects" are never followed.
        let popped = [(); 4].map(|()| unsafe { pop(slots.as_ptr()) } as usize);
        assert_eq!(popped, [32, 16, 0, 0]);
    });
}

#[test]
fn push_fills_and_then_refuses() {
    alone(|| {
        let slots = slots(|_| sheaf(2, &[]));
        // SAFETY: as above.
        let pushed = [16, 32, 48].map(|object| unsafe { push(slots.as_ptr(), object as *mut u8) });
        assert_eq!(pushed, [true, true, false]);
    });
}

#[test]
fn the_tested_push_refuses_the_top_object_and_addresses_inside_objects() {
    alone(|| {
        let slots = slots(|_| sheaf(3, &[]));
        // Objects of 48 bytes in slabs of 4096, with the words that `slab::Geometry` computes.
        let reciprocal = ((1u64 << 32) / 48 + 1) as u32;
        let excess = (u64::from(reciprocal) * 48 - (1 << 32)) as u32;
        let test = StartTest { mask: 4095, reciprocal, last: 84 * excess };
        slots.iter().for_each(|slot| slot.set_start_test(test));
        // SAFETY: as above.
        let push = |address: usize| unsafe { push_tested(slots.as_ptr(), address as *mut u8) };
        assert_eq!([8, 24, 4080, 4095].map(push), [Pushed::Slow; 4], "between objects, and behind the last");
        assert_eq!([4096, 4096, 4096 + 48, 8192 + 4032].map(push), {
            [Pushed::Done, Pushed::Twice, Pushed::Done, Pushed::Done]
        });
        assert_eq!(
            [4096, 8192 + 4032].map(push),
            [Pushed::Slow, Pushed::Twice],
            "full, or on top of the full"
        );
        // SAFETY: as above.
        let popped = [(); 4].map(|()| unsafe { pop(slots.as_ptr()) } as usize);
        assert_eq!(popped, [8192 + 4032, 4096 + 48, 4096, 0]);
        // SAFETY: the dummy slots are valid for every CPU after `init`.
        assert_eq!(unsafe { push_tested(dummy_slots(), 16 as *mut u8) }, Pushed::Slow);
    });
}

#[test]
fn the_dummy_is_empty_and_full() {
    alone(|| {
        // SAFETY: the dummy slots are valid for every CPU after `init`.
        unsafe {
            assert!(pop(dummy_slots()).is_null());
            assert!(!push(dummy_slots(), 16 as *mut u8));
            let mut out = [core::ptr::null_mut(); 2];
            assert_eq!(pop_bulk(dummy_slots(), 2, out.as_mut_ptr()), 0);
            assert_eq!(push_bulk(dummy_slots(), 2, out.as_ptr()), 0);
        }
    });
}

#[test]
fn bulk_moves_every_count_exactly() {
    alone(|| {
        for have in 0..40usize {
            for want in 0..40usize {
                let objects: Vec<usize> = (1..=have).map(|i| i * 16).collect();
                let slots = slots(|_| sheaf(40, &objects));
                let mut out = [core::ptr::null_mut::<u8>(); 41];
                // SAFETY: as above; `out` has room for 40.
                let taken = unsafe { pop_bulk(slots.as_ptr(), want, out.as_mut_ptr()) };
                assert_eq!(taken, have.min(want));
                let expected = &objects[have - taken..];
                assert!(out[..taken].iter().map(|&p| p as usize).eq(expected.iter().copied()));
                assert!(out[taken].is_null());
                // SAFETY: the objects go back to where they came from.
                let put = unsafe { push_bulk(slots.as_ptr(), taken, out.as_ptr()) };
                assert_eq!(put, taken);
                let cpu = slots.iter().position(|s| s.main.load(Relaxed) != dummy()).unwrap();
                // SAFETY: no other thread changes the sheaf.
                let now = unsafe { Sheaf::objects(slots[cpu].main.load(Relaxed)) };
                assert!(now.iter().map(|&p| p as usize).eq(objects.iter().copied()));
            }
        }
    });
}

#[test]
fn exchange_returns_the_old_sheaf() {
    alone(|| {
        let first = sheaf(2, &[16]);
        let slots = slots(|_| first);
        let cpu = super::arch::area_cpu() as usize;
        // SAFETY: as above.
        unsafe {
            assert_eq!(exchange(slots.as_ptr(), Which::Main, dummy(), cpu), Exchanged::Old(first));
            assert_eq!(exchange(slots.as_ptr(), Which::Spare, first, cpu), Exchanged::Old(dummy()));
            assert_eq!(exchange(slots.as_ptr(), Which::Spare, dummy(), cpu), Exchanged::Old(first));
        }
    });
}

#[test]
fn an_exchange_for_another_cpu_changes_nothing() {
    alone(|| {
        let first = sheaf(2, &[16]);
        let slots = slots(|_| first);
        let cpu = super::arch::area_cpu() as usize;
        for other in [cpu + 1, cpu ^ 1, 1 << 40] {
            // SAFETY: as above.
            let exchanged = unsafe { exchange(slots.as_ptr(), Which::Main, dummy(), other) };
            assert_eq!(exchanged, Exchanged::Taken);
        }
        assert!(slots.iter().all(|slot| slot.main.load(Relaxed) == first));
    });
}
