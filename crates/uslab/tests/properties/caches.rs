//! Programs over `RawCache` and `Cache<T>`.

use super::cases;
use super::oracle::Oracle;
use proptest::collection::vec;
use proptest::prelude::*;
use std::cell::Cell;
use std::ptr::{self, NonNull};
use uslab::internal::{Constructor, start};
use uslab::{Cache, CacheBox, CacheBuilder, CreateError, Flags, RawCache};

/// The byte with which the constructor fills an object.
const CONSTRUCTED: u8 = 0xc7;

#[derive(Clone, Debug)]
struct Options {
    bytes: usize,
    align: usize,
    flags: u32,
    min_objects: usize,
    orders: (u32, u32),
    sheaf_capacity: usize,
    constructor: bool,
}

impl Options {
    fn build(&self) -> Result<RawCache, CreateError> {
        /// # Safety
        /// `object` must point to `bytes` bytes that no other code uses.
        unsafe fn construct(object: *mut u8, bytes: usize) {
            // SAFETY: the caller's promise.
            unsafe { object.write_bytes(CONSTRUCTED, bytes) };
        }
        let mut builder = CacheBuilder::new("property")
            .align(self.align)
            .flags(Flags(self.flags))
            .min_objects(self.min_objects)
            .min_order(self.orders.0)
            .max_order(self.orders.1)
            .sheaf_capacity(self.sheaf_capacity);
        if self.constructor {
            // SAFETY: `construct` only writes the object.
            builder = unsafe {
                builder.raw_constructor(Constructor { call: construct, data: self.bytes, release: None })
            };
        }
        builder.build_raw(self.bytes)
    }

    /// The guaranteed alignment.
    fn alignment(&self) -> usize {
        let natural = if self.bytes.is_multiple_of(16) { 16 } else { 8 };
        let line = if self.flags & Flags::HWCACHE_ALIGN.0 != 0 {
            self.bytes.next_power_of_two().clamp(8, 64)
        } else {
            1
        };
        natural.max(self.align).max(line)
    }
}

fn options() -> impl Strategy<Value = Options> {
    let bytes = prop_oneof![
        4 => 1..600usize,
        2 => prop_oneof![Just(8), Just(64), Just(256), Just(1024), Just(4096), Just(4097)],
        2 => 600..20_000usize,
        1 => 20_000..=(256usize << 10),
    ];
    let align = prop_oneof![3 => Just(0usize), 2 => (0..=8u32).prop_map(|s| 1 << s), 1 => (9..=18u32).prop_map(|s| 1 << s)];
    let capacity = prop_oneof![3 => Just(0usize), 1 => 1..10usize, 1 => 10..5000usize];
    (bytes, align, 0..8u32, 0..300usize, (0..9u32, 0..10u32), capacity, any::<bool>()).prop_map(
        |(bytes, align, flags, min_objects, orders, sheaf_capacity, constructor)| Options {
            bytes,
            align,
            flags,
            min_objects,
            orders,
            sheaf_capacity,
            constructor,
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Alloc,
    AllocZeroed,
    Free(usize),
    AllocBulk(usize),
    FreeBulk(usize, usize),
    /// Prefills a sheaf and allocates that many objects from it.
    Prefill(usize, usize),
    Shrink,
    ReleaseMemory,
    /// Refused while objects are live.
    Destroy,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bulk = || prop_oneof![3 => 0..70usize, 1 => 70..1000usize, 1 => prop_oneof![Just(0), Just(60), Just(62), Just(2046)]];
    let step = prop_oneof![
        10 => Just(Step::Alloc),
        3 => Just(Step::AllocZeroed),
        9 => any::<usize>().prop_map(Step::Free),
        4 => bulk().prop_map(Step::AllocBulk),
        4 => (any::<usize>(), bulk()).prop_map(|(from, n)| Step::FreeBulk(from, n)),
        1 => (bulk(), 0..100usize).prop_map(|(n, taken)| Step::Prefill(n, taken)),
        1 => Just(Step::Shrink),
        1 => Just(Step::ReleaseMemory),
        1 => Just(Step::Destroy),
    ];
    vec(step, 1..150)
}

/// A cache that a program uses.
struct Run {
    cache: Option<RawCache>,
    options: Options,
    oracle: Oracle,
}

impl Run {
    fn cache(&self) -> &RawCache {
        self.cache.as_ref().expect("destroyed last")
    }

    fn born(&mut self, object: NonNull<u8>) {
        if self.options.constructor {
            // SAFETY: the test owns the object, of that many bytes, constructed when its slab was
            // made.
            let found = unsafe { std::slice::from_raw_parts(object.as_ptr(), self.options.bytes) };
            assert!(found.iter().all(|&b| b == CONSTRUCTED), "a new object is not as constructed");
        }
        let usable = self.cache().usable_bytes();
        assert!(usable >= self.options.bytes);
        // The user of a constructed object owns only the constructed bytes.
        let bytes = if self.options.constructor { self.options.bytes } else { usable };
        self.oracle.born(object.as_ptr(), bytes, self.options.alignment());
    }

    /// Removes an object from the oracle, and restores its constructed bytes.
    fn dies(&mut self, object: *mut u8) {
        self.oracle.dies(object);
        if self.options.constructor {
            // SAFETY: the test owns the object until it is freed.
            unsafe { object.write_bytes(CONSTRUCTED, self.options.bytes) };
        }
    }

    /// Limits bulks: of objects of a quarter of a megabyte they would exhaust the machine.
    fn bounded(&self, n: usize) -> usize {
        n.min((16 << 20) / self.options.bytes)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Alloc => {
                let object = self.cache().alloc().expect("there is memory");
                self.born(object);
            }
            Step::AllocZeroed => match self.cache().alloc_zeroed() {
                Some(object) => {
                    assert!(!self.options.constructor);
                    let (bytes, usable) = (self.options.bytes, self.cache().usable_bytes());
                    self.oracle.born_zeroed(object.as_ptr(), usable, bytes, self.options.alignment());
                }
                None => {
                    assert!(
                        self.options.constructor,
                        "zeroing is refused only where it would undo a constructor"
                    )
                }
            },
            Step::Free(n) => {
                if let Some(object) = self.oracle.nth(n) {
                    self.dies(object.pointer());
                    // SAFETY: allocated by this test, and unused from here on.
                    unsafe {
                        self.cache().free(NonNull::new(object.pointer()).expect("objects are not null"))
                    };
                }
            }
            Step::AllocBulk(n) => {
                let mut objects = vec![ptr::null_mut(); self.bounded(n)];
                assert!(self.cache().alloc_bulk(&mut objects));
                objects.into_iter().for_each(|object| self.born(NonNull::new(object).expect("none is null")));
            }
            Step::FreeBulk(from, n) => {
                let all = self.oracle.objects();
                let from = if all.is_empty() { 0 } else { from % all.len() };
                // Every third object from a random one on: some share a slab, some do not.
                let given: Vec<*mut u8> =
                    all[from..].iter().step_by(1 + n % 3).take(n).map(|o| o.pointer()).collect();
                given.iter().for_each(|&object| self.dies(object));
                // SAFETY: allocated by this test, and unused from here on.
                unsafe { self.cache().free_bulk(&given) };
            }
            Step::Prefill(n, taken) => {
                let n = self.bounded(n);
                let mut store = self.cache().prefill(n).expect("there is memory");
                assert_eq!(store.len(), n);
                let objects: Vec<_> = (0..taken).map_while(|_| store.alloc()).collect();
                assert_eq!((objects.len(), store.len()), (taken.min(n), n - taken.min(n)));
                assert_eq!(store.is_empty(), taken >= n);
                drop(store);
                objects.into_iter().for_each(|object| self.born(object));
            }
            Step::Shrink => {
                self.cache().shrink();
            }
            Step::ReleaseMemory => {
                uslab::trim(0);
            }
            Step::Destroy => self.try_destroy(),
        }
    }

    /// Destroys the cache and creates a new one if no object is live; checks the refusal otherwise.
    fn try_destroy(&mut self) {
        let cache = self.cache.take().expect("destroyed last");
        self.cache = Some(match cache.destroy() {
            Ok(()) => {
                assert_eq!(self.oracle.len(), 0, "a cache with live objects was destroyed");
                self.options.build().expect("it could be made before")
            }
            Err((cache, busy)) => {
                assert_eq!(
                    busy.objects,
                    self.oracle.len(),
                    "the number of live objects differs from the oracle's"
                );
                let named: Vec<_> = busy.first.iter().take_while(|object| !object.is_null()).collect();
                assert_eq!(named.len(), busy.objects.min(busy.first.len()));
                assert!(
                    named.iter().all(|&&object| self.oracle.has(object)),
                    "the refusal lists an object that is not live"
                );
                cache
            }
        });
    }

    fn finish(mut self) {
        self.oracle.check_all();
        for object in self.oracle.objects() {
            self.dies(object.pointer());
            // SAFETY: allocated by this test, and unused from here on.
            unsafe { self.cache().free(NonNull::new(object.pointer()).expect("objects are not null")) };
        }
        uslab::debug::validate().expect("the structures are whole");
        self.cache.take().expect("destroyed last").destroy().expect("nothing was lost");
    }
}

/// Any number, and numbers around the limits of valid sizes and alignments.
fn around_limits() -> impl Strategy<Value = usize> {
    let near = (0..64u32, -1..=1isize).prop_map(|(shift, off)| (1usize << shift).wrapping_add_signed(off));
    prop_oneof![1 => any::<usize>(), 1 => 0..300_000usize, 3 => near]
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn raw_caches_keep_their_promises(options in options(), steps in steps()) {
        let cache = options.build().expect("these options are valid");
        let mut run = Run { cache: Some(cache), options, oracle: Oracle::default() };
        steps.iter().for_each(|step| run.step(step));
        run.finish();
    }

    #[test]
    fn invalid_options_are_refused(bytes in around_limits(), align in around_limits()) {
        assert!(start::ensure());
        let result = CacheBuilder::new("refused").align(align).build_raw(bytes);
        let most = 256 << 10;
        match result.map(drop) {
            Ok(()) => assert!((1..=most).contains(&bytes) && (align == 0 || align.is_power_of_two() && align <= most)),
            Err(CreateError::Invalid) => assert!(bytes == 0 || align != 0 && !align.is_power_of_two()),
            Err(CreateError::TooLarge) => assert!(bytes > most || align > most),
            Err(other) => panic!("{other}"),
        }
    }
}

thread_local! {
    /// Live values of the test's thread.
    static VALUES: Cell<usize> = const { Cell::new(0) };
}

/// A value of `N` words, with an alignment of its own, that counts its live instances.
#[repr(C, align(32))]
struct Counted<const N: usize>([u64; N]);

impl<const N: usize> Counted<N> {
    fn new(word: u64) -> Self {
        VALUES.set(VALUES.get() + 1);
        Counted([word; N])
    }
}

impl<const N: usize> Drop for Counted<N> {
    fn drop(&mut self) {
        assert!(self.0.iter().all(|&word| word == self.0[0]), "a live value was overwritten");
        VALUES.set(VALUES.get() - 1);
    }
}

/// Inserts, moves out, leaks and rebuilds boxes in the order of `choices`, and checks the number of
/// live values.
fn boxes<const N: usize>(choices: &[(u8, usize)]) {
    let cache = Cache::<Counted<N>>::new("boxes");
    let mut held: Vec<(u64, CacheBox<'_, Counted<N>>)> = Vec::new();
    let mut raw: Vec<(u64, NonNull<Counted<N>>)> = Vec::new();
    for (word, &(choice, n)) in (1u64..).zip(choices) {
        let at = |len: usize| if len == 0 { None } else { Some(n % len) };
        match choice {
            0..=3 => held.push((word, cache.insert(Counted::new(word)).ok().expect("there is memory"))),
            4 => drop(at(held.len()).map(|at| held.swap_remove(at))),
            5 => {
                if let Some((word, value)) = at(held.len()).map(|at| held.swap_remove(at)) {
                    assert_eq!(value.into_inner().0, [word; N]);
                }
            }
            6 => raw.extend(at(held.len()).map(|at| held.swap_remove(at)).map(|(w, b)| (w, b.into_raw()))),
            7 => {
                if let Some((word, object)) = at(raw.len()).map(|at| raw.swap_remove(at)) {
                    // SAFETY: from `into_raw` of a box of this cache, passed once.
                    held.push((word, unsafe { CacheBox::from_raw(&cache, object) }));
                }
            }
            8 => {
                cache.shrink();
            }
            _ => {
                // Bulk and prefill share the cache with the boxes.
                let mut objects = vec![ptr::null_mut::<Counted<N>>(); n % 200];
                assert!(cache.alloc_bulk(&mut objects));
                let mut store = cache.prefill(n % 50).expect("there is memory");
                objects.extend(store.alloc().map(NonNull::as_ptr));
                objects.extend(cache.alloc_zeroed().map(NonNull::as_ptr));
                for &object in &objects {
                    assert_eq!(object as usize % align_of::<Counted<N>>(), 0);
                    // SAFETY: allocated by this test, with that size.
                    unsafe { object.cast::<u8>().write_bytes(0xaa, size_of::<Counted<N>>()) };
                }
                // SAFETY: allocated by this test, never initialised, and unused from here on.
                unsafe { cache.free_bulk(&objects) };
            }
        }
        for (word, value) in &held {
            assert_eq!(value.0[N - 1], *word);
        }
    }
    assert_eq!(VALUES.get(), held.len() + raw.len());
    for (_, object) in raw {
        // SAFETY: as above.
        drop(unsafe { CacheBox::from_raw(&cache, object) });
    }
    drop(held);
    assert_eq!(VALUES.get(), 0, "each value is dropped once");
    cache.destroy().map_err(|(_, busy)| busy).expect("nothing was lost");
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn boxes_own_their_values(choices in vec((0..10u8, any::<usize>()), 1..400)) {
        boxes::<1>(&choices);
        boxes::<9>(&choices);
        boxes::<700>(&choices);
    }

    #[test]
    fn constructed_objects_stay_constructed(rounds in vec((1..100usize, any::<bool>()), 1..30)) {
        let cache = CacheBuilder::new("constructed")
            .build_constructed::<[u32; 6]>(|object| object.write([1, 0, 3, 0, 5, 0]))
            .expect("a cache can be made");
        assert!(cache.insert([0; 6]).is_err() && cache.alloc_zeroed().is_none());
        for (count, shrink) in rounds {
            let mut boxes: Vec<_> = (0..count).map(|_| cache.constructed().expect("there is memory")).collect();
            for object in &mut boxes {
                assert_eq!((object[0], object[2], object[4]), (1, 3, 5));
                assert_eq!(object[1], object[3], "a constructed object is not as its last user left it");
                object[1] += 1;
                object[3] += 1;
            }
            drop(boxes);
            if shrink {
                cache.shrink();
            }
        }
        cache.destroy().map_err(|(_, busy)| busy).expect("nothing was lost");
    }
}
