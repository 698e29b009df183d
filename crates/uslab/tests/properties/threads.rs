//! Programs of more threads than CPUs: objects of every kind move from thread to thread and are
//! freed there, while another thread shrinks caches and trims.
//!
//! There is no shared oracle, because its lock would serialise the threads. Each object is filled
//! with its own tag, so the freeing thread notices if another object overlapped it.

use super::cases;
use super::oracle::Object;
use proptest::prelude::*;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use uslab::malloc::{free, free_bulk, free_sized, malloc, malloc_bulk, realloc, zeroed};
use uslab::{Cache, CacheBuilder, Flags, Heap, RawCache};

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { uslab::malloc::usable_size(pointer) }
}

const THREADS: usize = 8;
/// Caches beside the typed one.
const RAW: usize = 3;

/// The way in which an object is freed.
#[derive(Clone, Copy, Debug)]
enum Home {
    /// With the requested size.
    Malloc(usize),
    Raw(usize),
    Typed,
    Heap,
}

type Parcel = (Home, Object);

/// A typed object: its size is no power of two and no class's, so its slabs have another geometry.
type Typed = [u64; 13];

/// The state that all threads share.
struct World {
    raw: [RawCache; RAW],
    typed: Cache<Typed>,
    heap: Heap,
}

impl World {
    fn new() -> World {
        let builders = [
            CacheBuilder::new("threads-0"),
            // Small sheaves, so that few operations suffice to reach barn and slabs.
            CacheBuilder::new("threads-1").sheaf_capacity(2).flags(Flags::HWCACHE_ALIGN),
            CacheBuilder::new("threads-2").flags(Flags::NO_CACHING),
        ];
        let raw = builders.map(|builder| builder.build_raw(200).expect("a cache can be made"));
        World { raw, typed: Cache::new("threads-typed"), heap: Heap::new().expect("a heap can be made") }
    }

    /// # Safety
    /// `object` must come from `home`, and must not be used any more.
    unsafe fn free(&self, (home, object): Parcel, sized: bool) {
        let pointer = NonNull::new(object.pointer()).expect("objects are not null");
        // SAFETY: the caller's promise.
        unsafe {
            match home {
                Home::Malloc(bytes) if sized => free_sized(pointer.as_ptr(), bytes),
                Home::Malloc(_) => free(pointer.as_ptr()),
                Home::Raw(cache) => self.raw[cache].free(pointer),
                Home::Typed => self.typed.free(pointer.cast()),
                Home::Heap => self.heap.free(pointer),
            }
        }
    }
}

/// One thread of a program.
struct Actor<'a> {
    world: &'a World,
    others: Vec<Sender<Parcel>>,
    inbox: Receiver<Parcel>,
    held: Vec<Parcel>,
    random: u64,
    tag: u64,
    /// The percentage of released objects that are sent to another thread.
    sent_percent: u64,
}

impl Actor<'_> {
    /// The next pseudo-random number below `end` (xorshift, Marsaglia 2003).
    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % end
    }

    fn hold(&mut self, home: Home, pointer: *mut u8, bytes: usize) {
        assert!(!pointer.is_null(), "there is memory");
        self.tag += 1;
        let object = Object { address: pointer as usize, bytes, tag: self.tag };
        object.fill();
        self.held.push((home, object));
    }

    /// A size, mostly small.
    fn bytes(&mut self) -> usize {
        let end = [64, 300, 300, 2000, 40_000, 150_000][self.below(6) as usize];
        let bytes = self.below(end) as usize;
        if bytes > 3000 && self.below(8) > 0 { bytes % 3000 } else { bytes }
    }

    fn allocate(&mut self) {
        let world = self.world;
        match self.below(12) {
            0..=4 => {
                let bytes = self.bytes();
                let object = malloc(bytes);
                self.hold(Home::Malloc(bytes), object, usable_size(object));
            }
            5 => {
                let bytes = self.bytes();
                let object = zeroed(bytes);
                let zero = Object { address: object as usize, bytes, tag: 0 };
                assert_eq!(zero.nonzero_before(bytes), None, "zeroed memory has a nonzero byte");
                self.hold(Home::Malloc(bytes), object, usable_size(object));
            }
            6 | 7 => {
                let cache = self.below(RAW as u64) as usize;
                let object = world.raw[cache].alloc().expect("there is memory");
                self.hold(Home::Raw(cache), object.as_ptr(), world.raw[cache].usable_bytes());
            }
            8 => {
                let object = world.typed.alloc().expect("there is memory");
                self.hold(Home::Typed, object.as_ptr().cast(), size_of::<Typed>());
            }
            9 => {
                let bytes = self.bytes();
                let object = world.heap.alloc(bytes, 32).expect("there is memory");
                assert_eq!(object.as_ptr() as usize % 32, 0);
                self.hold(Home::Heap, object.as_ptr(), bytes);
            }
            10 => {
                let cache = self.below(RAW as u64) as usize;
                let mut store = world.raw[cache].prefill(20).expect("there is memory");
                for _ in 0..self.below(20) {
                    let object = store.alloc().expect("it was set aside");
                    self.hold(Home::Raw(cache), object.as_ptr(), world.raw[cache].usable_bytes());
                }
            }
            _ => {
                let (bytes, count) = (self.bytes() % 600, self.below(100) as usize);
                let mut objects = vec![ptr::null_mut(); count];
                assert!(malloc_bulk(bytes, &mut objects));
                objects
                    .into_iter()
                    .for_each(|object| self.hold(Home::Malloc(bytes), object, usable_size(object)));
            }
        }
    }

    fn verify((home, object): Parcel) {
        if let Some(at) = object.changed_before(object.bytes) {
            panic!("{home:?} {object:x?}: byte {at} was changed");
        }
    }

    /// Frees an object that another thread sent, or sends or frees one of its own.
    fn let_go(&mut self) {
        while let Ok(parcel) = self.inbox.try_recv() {
            Self::verify(parcel);
            let sized = self.below(2) == 0;
            // SAFETY: its only holder sent it to this thread.
            unsafe { self.world.free(parcel, sized) };
        }
        if self.held.is_empty() {
            return;
        }
        let at = self.below(self.held.len() as u64) as usize;
        let parcel = self.held.swap_remove(at);
        if self.below(100) < self.sent_percent {
            let to = self.below(THREADS as u64) as usize;
            // A thread that has ended receives nothing; the object is freed at the end of the
            // program.
            if let Err(unsent) = self.others[to].send(parcel) {
                self.held.push(unsent.0);
            }
            return;
        }
        Self::verify(parcel);
        match (parcel.0, self.below(4)) {
            (Home::Malloc(_), 0) => {
                let bytes = self.bytes();
                // SAFETY: only this thread uses the object; the old address is not used any more.
                let moved = unsafe { realloc(parcel.1.pointer(), bytes) };
                let common = bytes.min(parcel.1.bytes);
                let kept = Object { address: moved as usize, ..parcel.1 };
                assert_eq!(kept.changed_before(common), None, "realloc changed the contents");
                self.hold(Home::Malloc(bytes), moved, usable_size(moved));
            }
            (_, sized) => {
                // SAFETY: this thread's alone.
                unsafe { self.world.free(parcel, sized == 1) };
            }
        }
    }

    /// Frees many objects of `malloc` in one call.
    fn free_many(&mut self) {
        let (mine, rest) = self.held.drain(..).partition(|(home, _)| matches!(home, Home::Malloc(_)));
        self.held = rest;
        let mine: Vec<Parcel> = mine;
        let objects: Vec<*mut u8> =
            mine.into_iter().inspect(|&p| Self::verify(p)).map(|p| p.1.pointer()).collect();
        // SAFETY: this thread's alone.
        unsafe { free_bulk(&objects) };
    }

    fn play(mut self, steps: usize) -> (Vec<Parcel>, Receiver<Parcel>) {
        for _ in 0..steps {
            match self.below(100) {
                0..=48 => self.allocate(),
                49..=98 => self.let_go(),
                _ => self.free_many(),
            }
            while self.held.len() > 400 {
                self.let_go();
            }
        }
        (self.held, self.inbox)
    }
}

/// Runs one program. At its end all objects left are checked and freed, and the caches must be
/// empty.
fn program(seed: u64, sent_percent: u64, steps: usize) {
    let world = World::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (senders, inboxes): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
        let start = |(id, inbox)| {
            let random = (seed ^ (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
            let tag = (id as u64 + 1) << 48;
            let (world, others) = (&world, senders.clone());
            let actor = Actor { world, others, inbox, held: Vec::new(), random, tag, sent_percent };
            scope.spawn(move || actor.play(steps))
        };
        let actors: Vec<_> = inboxes.into_iter().enumerate().map(start).collect();
        scope.spawn(|| {
            while !done.load(Relaxed) {
                world.raw.iter().for_each(|cache| {
                    cache.shrink();
                });
                world.typed.shrink();
                uslab::trim(0);
                uslab::debug::validate().expect("the structures are whole");
                thread::yield_now();
            }
        });
        let rests: Vec<_> = actors.into_iter().map(|actor| actor.join()).collect();
        done.store(true, Relaxed);
        for (held, inbox) in rests.into_iter().map(|rest| rest.expect("a thread found an error")) {
            for parcel in held.into_iter().chain(inbox.try_iter()) {
                Actor::verify(parcel);
                // SAFETY: the threads have ended; each object has one holder.
                unsafe { world.free(parcel, false) };
            }
        }
    });
    for cache in world.raw {
        cache.destroy().map_err(|(_, busy)| busy).expect("nothing was lost");
    }
    world.typed.destroy().map_err(|(_, busy)| busy).expect("nothing was lost");
    uslab::debug::validate().expect("the structures are whole");
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4, ..cases(12) })]

    #[test]
    fn objects_wander_between_threads_unharmed(seed in any::<u64>(), sent_percent in 0..100u64) {
        program(seed, sent_percent, 4000);
    }
}
