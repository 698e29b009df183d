//! Programs over the malloc family, and the refusal of impossible requests.

use super::cases;
use super::oracle::{Object, Oracle};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;
use std::ptr;
use uslab::internal::{CHUNK_BYTES, CLASSES, Class, MAX_SMALL_BYTES, PAGE_BYTES, errno};
use uslab::malloc::{
    ALIGN, aligned_alloc, calloc, free, free_aligned_sized, free_bulk, free_sized, malloc, malloc_bulk,
    realloc, zeroed,
};

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { uslab::malloc::usable_size(pointer) }
}

const MIB: usize = 1 << 20;

/// Sizes that programs often request, and sizes around the limits of classes.
pub fn sizes() -> impl Strategy<Value = usize> {
    let near = |centre: usize| centre - 1..=centre + 1;
    let class = (0..CLASSES).prop_map(|index| Class::at(index).map_or(0, Class::bytes));
    prop_oneof![
        2 => Just(0usize),
        12 => 0..=1024usize,
        6 => (class, -1..=1isize).prop_map(|(bytes, off)| bytes.saturating_add_signed(off)),
        6 => 1024..=MAX_SMALL_BYTES,
        3 => near(MAX_SMALL_BYTES),
        3 => MAX_SMALL_BYTES..=40 * PAGE_BYTES,
        2 => (9..600usize, -1..=1isize).prop_map(|(pages, off)| (pages * PAGE_BYTES).saturating_add_signed(off)),
        2 => near(CHUNK_BYTES),
        1 => near(2 * CHUNK_BYTES),
        1 => 4 * MIB..=64 * MIB,
    ]
}

fn alignments() -> impl Strategy<Value = usize> {
    // 4 MiB is two chunks.
    prop_oneof![4 => 0..=12u32, 2 => 13..=22u32].prop_map(|shift| 1 << shift)
}

#[derive(Clone, Debug)]
enum Step {
    Malloc(usize),
    Calloc(usize, usize),
    Zeroed(usize),
    Aligned(usize, usize),
    Realloc(usize, usize),
    /// By a few bytes, like a growing string.
    Grow(usize, usize),
    Free(usize),
    /// With the requested size of the object.
    FreeSized(usize),
    Bulk(usize, usize),
    /// Objects of any sizes, and nulls between them.
    FreeBulk(usize, usize),
    ReleaseMemory,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => sizes().prop_map(Step::Malloc),
        2 => (0..20usize, 0..5000usize).prop_map(|(n, size)| Step::Calloc(n, size)),
        2 => sizes().prop_map(Step::Zeroed),
        4 => (alignments(), sizes()).prop_map(|(align, size)| Step::Aligned(align, size)),
        6 => (any::<usize>(), sizes()).prop_map(|(n, size)| Step::Realloc(n, size)),
        3 => (any::<usize>(), 0..20_000usize).prop_map(|(n, more)| Step::Grow(n, more)),
        7 => any::<usize>().prop_map(Step::Free),
        5 => any::<usize>().prop_map(Step::FreeSized),
        2 => (sizes(), 0..200usize).prop_map(|(size, n)| Step::Bulk(size, n)),
        2 => (any::<usize>(), 0..200usize).prop_map(|(from, n)| Step::FreeBulk(from, n)),
        1 => Just(Step::ReleaseMemory),
    ];
    vec(step, 1..120)
}

/// The request for an object; without an alignment it was `malloc`.
#[derive(Clone, Copy)]
struct Asked {
    align: Option<usize>,
    bytes: usize,
}

#[derive(Default)]
struct Run {
    oracle: Oracle,
    asked: HashMap<usize, Asked>,
}

impl Run {
    fn born(&mut self, pointer: *mut u8, align: Option<usize>, bytes: usize, zero: bool) {
        let usable = self.usable(pointer, bytes);
        let alignment = align.unwrap_or(1).max(ALIGN);
        if zero {
            self.oracle.born_zeroed(pointer, usable, bytes, alignment);
        } else {
            self.oracle.born(pointer, usable, alignment);
        }
        self.asked.insert(pointer as usize, Asked { align, bytes });
    }

    fn usable(&self, pointer: *mut u8, bytes: usize) -> usize {
        let usable = usable_size(pointer);
        assert!(usable >= bytes, "{usable} usable bytes of {bytes}");
        usable
    }

    fn dies(&mut self, object: Object) -> Asked {
        self.oracle.dies(object.pointer());
        self.asked.remove(&object.address).expect("recorded at its allocation")
    }

    fn resize(&mut self, object: Object, bytes: usize) {
        self.dies(object);
        // SAFETY: allocated by this test; the old address is not used any more.
        let moved = unsafe { realloc(object.pointer(), bytes) };
        let usable = self.usable(moved, bytes);
        self.oracle.resized(object, moved, (bytes, usable), ALIGN);
        self.asked.insert(moved as usize, Asked { align: None, bytes });
    }

    fn free_sized(&mut self, object: Object) {
        let Asked { align, bytes } = self.dies(object);
        // SAFETY: allocated by this test with that size and alignment, and unused from here on.
        unsafe {
            match align {
                Some(align) => free_aligned_sized(object.pointer(), align, bytes),
                None => free_sized(object.pointer(), bytes),
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Malloc(bytes) => self.born(malloc(bytes), None, bytes, false),
            Step::Calloc(count, size) => self.born(calloc(count, size), None, count * size, true),
            Step::Zeroed(bytes) => self.born(zeroed(bytes), None, bytes, true),
            Step::Aligned(align, bytes) => self.born(aligned_alloc(align, bytes), Some(align), bytes, false),
            Step::Realloc(n, bytes) => match self.oracle.nth(n) {
                Some(object) => self.resize(object, bytes),
                // SAFETY: a null pointer is allowed.
                None => self.born(unsafe { realloc(ptr::null_mut(), bytes) }, None, bytes, false),
            },
            Step::Grow(n, more) => {
                if let Some(object) = self.oracle.nth(n) {
                    self.resize(object, object.bytes + more);
                }
            }
            Step::Free(n) => {
                if let Some(object) = self.oracle.nth(n) {
                    self.dies(object);
                    // SAFETY: allocated by this test, and unused from here on.
                    unsafe { free(object.pointer()) };
                }
            }
            Step::FreeSized(n) => {
                if let Some(object) = self.oracle.nth(n) {
                    self.free_sized(object);
                }
            }
            Step::Bulk(bytes, n) => {
                let mut objects = vec![ptr::null_mut(); n.min(64 * MIB / bytes.max(1))];
                assert!(malloc_bulk(bytes, &mut objects));
                objects.into_iter().for_each(|object| self.born(object, None, bytes, false));
            }
            Step::FreeBulk(from, n) => {
                let all = self.oracle.objects();
                let from = if all.is_empty() { 0 } else { from % all.len() };
                let given = all[from..].iter().step_by(1 + n % 2).take(n).copied().collect::<Vec<_>>();
                for &object in &given {
                    self.dies(object);
                }
                let null = (n % 5 == 0).then_some(ptr::null_mut());
                let given: Vec<*mut u8> =
                    null.into_iter().chain(given.iter().map(|o| o.pointer())).chain(null).collect();
                // SAFETY: allocated by this test or null, and unused from here on.
                unsafe { free_bulk(&given) };
            }
            Step::ReleaseMemory => {
                uslab::trim(0);
            }
        }
    }

    fn finish(mut self) {
        self.oracle.check_all();
        for object in self.oracle.objects() {
            self.free_sized(object);
        }
        assert!(self.oracle.len() == 0 && self.asked.is_empty());
        uslab::debug::validate().expect("the structures are whole");
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn the_malloc_family_keeps_its_promises(steps in steps()) {
        let mut run = Run::default();
        steps.iter().for_each(|step| run.step(step));
        run.finish();
    }
}

/// Runs `ask` and checks that it returns null with `errno` set to `expected`.
fn refused(expected: i32, ask: impl FnOnce() -> *mut u8) {
    errno::set(0);
    assert!(ask().is_null());
    assert_eq!(errno::get(), expected);
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn impossible_sizes_are_refused(
        size in prop_oneof![usize::MAX - 70_000..=usize::MAX, isize::MAX as usize - 70_000..=usize::MAX],
        shift in 0..64u32,
        count in 2..=usize::MAX,
    ) {
        refused(libc::ENOMEM, || malloc(size));
        refused(libc::ENOMEM, || zeroed(size));
        refused(libc::ENOMEM, || aligned_alloc(1 << shift, size));
        refused(libc::ENOMEM, || calloc(count, usize::MAX / count + 1));
        refused(libc::ENOMEM, || calloc(usize::MAX / count + 1, count));
        let mut objects = [ptr::null_mut(); 3];
        assert!(!malloc_bulk(size, &mut objects));

        for old in [10, 100_000] {
            let object = malloc(old);
            let mut oracle = Oracle::default();
            oracle.born(object, old, ALIGN);
            // SAFETY: allocated by this test; a refused realloc leaves it unchanged.
            refused(libc::ENOMEM, || unsafe { realloc(object, size) });
            oracle.dies(object);
            // SAFETY: allocated by this test, and unused from here on.
            unsafe { free(object) };
        }
    }

    #[test]
    fn alignments_are_kept_or_refused(align in any::<usize>(), shift in 23..64u32, size in 0..100_000usize) {
        if !align.is_power_of_two() {
            refused(libc::EINVAL, || aligned_alloc(align, size));
        }
        refused(libc::EINVAL, || aligned_alloc(0, size));
        refused(libc::EINVAL, || aligned_alloc((1 << shift) + 1, size));
        if shift > 30 {
            refused(libc::ENOMEM, || aligned_alloc(1 << shift, size));
        } else {
            let object = aligned_alloc(1 << shift, size);
            assert!(!object.is_null() && object.addr().is_multiple_of(1 << shift));
            // SAFETY: allocated by this test, and unused from here on.
            unsafe { free(object) };
        }
    }

    #[test]
    fn frees_keep_errno(size in sizes(), value in 1..100i32) {
        let object = malloc(size);
        errno::set(value);
        // SAFETY: allocated by this test, and unused from here on; null is allowed.
        unsafe {
            free(object);
            free(ptr::null_mut());
        }
        assert_eq!(errno::get(), value);
    }
}
