//! Tests of drains without a barrier: a filter refuses `membarrier` to the draining thread.
//!
//! Each test runs on its own thread, pinned to its CPU, and moves the sheaves of that CPU's slot to
//! the slot of another CPU. So the drain meets sheaves of a CPU that it cannot run on.

use super::super::counts::held;
use super::super::sheaf::Owned;
use super::*;
use crate::rseq::{Cpu, Mode, Sheaf, Slot, Which, dummy, is_dummy, mode};
use core::sync::atomic::Ordering::AcqRel;

/// A cache whose free objects are in the slot of another CPU, with that slot and its two sheaves.
struct Elsewhere {
    cache: &'static CpuCache,
    slot: &'static Slot,
    main: *mut Sheaf,
    spare: *mut Sheaf,
}

/// Runs `test` in rseq mode on a machine with another CPU; otherwise there is nothing to test.
fn with_sheaves_elsewhere(test: impl FnOnce(Elsewhere) + Send) {
    let (cache, _) = cache(64, 6);
    let cpus = cache.row(0).len();
    if mode() != Mode::Rseq || cpus < 2 {
        return finish(cache);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            os::cpu::pin_to_current();
            let objects = alloc(cache, 12);
            free(cache, &objects);
            let own = Cpu::current().own(cache.slots()).expect("a possible CPU");
            let other = Cpu::of_index(Cpu::current().next().number() % cpus);
            let slot = other.own(cache.slots()).expect("a possible CPU");
            cache.used.add_cpu(other);
            let [main, spare] = [Which::Main, Which::Spare].map(|which| {
                let sheaf = own.place(which).swap(dummy(), AcqRel);
                slot.place(which).store(sheaf, Relaxed);
                sheaf
            });
            assert!(!is_dummy(main) && !is_dummy(spare), "two sheaves hold the objects");
            test(Elsewhere { cache, slot, main, spare });
        });
    });
}

impl Elsewhere {
    fn main_now(&self) -> *mut Sheaf {
        self.slot.main.load(Relaxed)
    }

    fn spare_now(&self) -> *mut Sheaf {
        self.slot.spare.load(Relaxed)
    }
}

#[test]
fn main_sheaves_of_other_cpus_stay_and_all_else_goes() {
    with_sheaves_elsewhere(|elsewhere| {
        let Elsewhere { cache, slot, main, .. } = elsewhere;
        let objects = alloc(cache, 3);
        free(cache, &objects);
        os::membarrier::refuse();
        os::errno::set(77);
        cache.drain_all();
        assert_eq!(elsewhere.main_now(), main, "the main sheaf was taken without a barrier");
        assert!(is_dummy(elsewhere.spare_now()), "no sequence works on a spare");
        let left: usize = cache.slots().iter().map(held).sum();
        assert_eq!(left, held(slot), "this CPU's slot is drained by its own sequences");
        assert_eq!(os::errno::get(), 77);
        // The sheaf that stays does not make the cache look used for ever.
        let ticks: Vec<bool> = (0..4).map(|_| cache.flush_idle(&mut Drain::of_idle(Keep::Pages))).collect();
        assert_eq!(ticks.last(), Some(&true), "{ticks:?}");
        assert_eq!(elsewhere.main_now(), main);
        // SAFETY: no other thread knows of the cache.
        unsafe { cache.drain_unused() };
        assert!(is_dummy(elsewhere.main_now()), "what no thread uses needs no barrier");
        assert_eq!(cache.slabs().taken(), 0);
        cache.retire();
    });
}

#[test]
fn a_main_sheaf_goes_back_if_its_barrier_is_refused() {
    with_sheaves_elsewhere(|elsewhere| {
        let Elsewhere { cache, main, .. } = elsewhere;
        let mut drain = Drain::of_all();
        cache.drain_slots(&mut drain);
        assert!(is_dummy(elsewhere.main_now()), "the barrier was promised");
        os::membarrier::refuse();
        drop(drain);
        assert_eq!(elsewhere.main_now(), main);
        assert!(is_dummy(elsewhere.spare_now()));
        // SAFETY: no other thread knows of the cache.
        unsafe { cache.drain_unused() };
        assert_eq!(cache.slabs().taken(), 0, "nothing was lost");
        cache.retire();
    });
}

#[test]
fn a_main_sheaf_whose_slot_has_another_one_is_not_looked_into() {
    with_sheaves_elsewhere(|elsewhere| {
        let Elsewhere { cache, slot, main, spare } = elsewhere;
        let objects = Owned(main).count();
        let mut drain = Drain::of_all();
        // Install the spare as main sheaf, as a thread on that CPU would do meanwhile.
        slot.spare.store(dummy(), Relaxed);
        cache.drain_slots(&mut drain);
        slot.main.store(spare, Relaxed);
        os::membarrier::refuse();
        drop(drain);
        assert_eq!(elsewhere.main_now(), spare, "what was installed meanwhile stays");
        assert_eq!(Owned(main).count(), objects, "the sheaf was emptied");
        // SAFETY: no other thread knows of the cache.
        unsafe { cache.drain_unused() };
        assert_eq!(cache.slabs().taken(), objects, "its objects stay taken, and those alone");
        cache.retire();
    });
}
