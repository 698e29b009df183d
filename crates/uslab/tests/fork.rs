//! Forks while other threads allocate.
//!
//! Threads allocate and free as fast as they can, from several caches and by `malloc`, while other
//! threads fork. Each child, with one thread and a copy of the memory, allocates, frees, uses bulk
//! calls, starts a thread, and creates and destroys a cache. Objects of the forking thread must
//! still be in use in the child: unchanged, never allocated again, and accepted by free. A child
//! that hangs fails the test after a time limit.
#![cfg(not(loom))]

#[path = "storm/child.rs"]
mod child;
#[path = "storm/random.rs"]
mod random;
#[path = "storm/stamp.rs"]
mod stamp;

use random::Random;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uslab::{CacheBuilder, RawCache, Uslab};

const SIZES: [usize; 4] = [32, 200, 1024, 5000];
/// Objects of each cache that the forking thread has in use.
const KEPT: usize = 150;
/// The stamp of objects that a child allocates.
const CHILD: u32 = u32::MAX;

/// A few caches, and malloc as the last one.
struct Caches(Vec<RawCache>);

impl Caches {
    fn new() -> Caches {
        Caches(SIZES.iter().map(|&size| CacheBuilder::new("fork").build_raw(size).unwrap()).collect())
    }

    const COUNT: usize = SIZES.len() + 1;

    fn bytes(&self, cache: usize) -> usize {
        SIZES.get(cache).copied().unwrap_or(304)
    }

    fn layout(&self, cache: usize) -> Layout {
        Layout::from_size_align(self.bytes(cache), 16).unwrap()
    }

    fn alloc(&self, cache: usize) -> Option<NonNull<u8>> {
        match self.0.get(cache) {
            Some(cache) => cache.alloc(),
            // SAFETY: the size is not 0.
            None => NonNull::new(unsafe { Uslab.alloc(self.layout(cache)) }),
        }
    }

    fn free(&self, cache: usize, object: NonNull<u8>) {
        // SAFETY: callers free their own objects, once; the stamps check that.
        unsafe {
            match self.0.get(cache) {
                Some(cache) => cache.free(object),
                None => Uslab.dealloc(object.as_ptr(), self.layout(cache)),
            }
        }
    }
}

/// The objects that a thread has in use, each with its cache.
struct Holding<'a> {
    caches: &'a Caches,
    owner: u32,
    objects: Vec<(usize, NonNull<u8>)>,
}

impl<'a> Holding<'a> {
    fn new(caches: &'a Caches, owner: u32) -> Self {
        Holding { caches, owner, objects: Vec::with_capacity(Caches::COUNT * 1000) }
    }

    fn take(&mut self, cache: usize) -> Result<(), &'static str> {
        let object = self.caches.alloc(cache).ok_or("no memory")?;
        self.own(cache, object)
    }

    fn own(&mut self, cache: usize, object: NonNull<u8>) -> Result<(), &'static str> {
        let stamped = stamp::stamp(object, self.caches.bytes(cache), self.owner);
        // In a child, objects of threads that do not exist there may be allocated again, because
        // they were being freed. No other live object may.
        if self.owner != CHILD && stamped.is_err() {
            return Err("an object in use was allocated again");
        }
        if self.owner == CHILD && stamped == Err(CHILD) {
            return Err("an object of the child was allocated twice");
        }
        self.objects.push((cache, object));
        Ok(())
    }

    fn give_back(&mut self, index: usize) -> Result<(), &'static str> {
        let (cache, object) = self.objects.swap_remove(index);
        if !stamp::unstamp(object, self.caches.bytes(cache), self.owner) {
            return Err("an object in use was written to");
        }
        self.caches.free(cache, object);
        Ok(())
    }

    fn give_back_all(&mut self) -> Result<(), &'static str> {
        while !self.objects.is_empty() {
            self.give_back(self.objects.len() - 1)?;
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        let owned = |&(cache, object): &(usize, NonNull<u8>)| {
            stamp::is_owned_by(object, self.caches.bytes(cache), self.owner)
        };
        self.objects.iter().all(owned)
    }
}

/// The work of a child; `kept` are the objects that its one thread had in use before the fork.
fn live_on(kept: &mut Holding) -> Result<(), &'static str> {
    let caches = kept.caches;
    validate()?;
    if !kept.is_whole() {
        return Err("the fork harmed an object in use");
    }
    let mut sorted: Vec<NonNull<u8>> = kept.objects.iter().map(|&(_, object)| object).collect();
    sorted.sort();
    let mut mine = Holding::new(caches, CHILD);
    for cache in 0..Caches::COUNT {
        let before = mine.objects.len();
        (0..200).try_for_each(|_| mine.take(cache))?;
        if let Some(raw) = caches.0.get(cache) {
            let mut objects = [null_mut(); 90];
            if !raw.alloc_bulk(&mut objects) {
                return Err("no memory for bulk");
            }
            objects
                .iter()
                .try_for_each(|&object| mine.own(cache, NonNull::new(object).ok_or("bulk lied")?))?;
        }
        if mine.objects[before..].iter().any(|(_, object)| sorted.binary_search(object).is_ok()) {
            return Err("an object in use was allocated again");
        }
    }
    if !kept.is_whole() {
        return Err("an object in use was written to");
    }
    mine.give_back_all()?;
    kept.give_back_all()?;
    caches.0.iter().for_each(|cache| {
        cache.shrink();
    });
    if !child::on_a_thread(use_caches, (&raw const *caches).cast_mut().cast()) {
        return Err("a thread of the child failed");
    }
    let cache = CacheBuilder::new("child").build_raw(48).map_err(|_| "no cache in the child")?;
    let mut objects = [null_mut(); 300];
    if !cache.alloc_bulk(&mut objects) {
        return Err("no memory in the child's cache");
    }
    // SAFETY: just allocated, and unused.
    unsafe { cache.free_bulk(&objects) };
    cache.destroy().map_err(|_| "the child's cache lost an object")?;
    validate()
}

/// Checks the library's structures; returns the invariant that is violated, if any.
fn validate() -> Result<(), &'static str> {
    uslab::debug::validate().map(drop).map_err(|invalid| invalid.invariant)
}

/// Runs on a thread of a child; returns null on success.
extern "C" fn use_caches(caches: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `live_on` passes its caches, and waits for this thread.
    let caches = unsafe { &*caches.cast::<Caches>() };
    let mut mine = Holding::new(caches, CHILD);
    let worked = (0..Caches::COUNT).try_for_each(|cache| (0..100).try_for_each(|_| mine.take(cache)));
    if worked.and_then(|()| mine.give_back_all()).is_ok() {
        null_mut()
    } else {
        caches.0.as_ptr().cast_mut().cast()
    }
}

/// Forks `forks` times with objects in use, and waits for each child.
fn fork_again_and_again(caches: &Caches, owner: u32, forks: usize) {
    let mut random = Random::new(owner);
    let mut kept = Holding::new(caches, owner);
    for round in 0..forks {
        for cache in 0..Caches::COUNT {
            (0..KEPT).for_each(|_| kept.take(cache).unwrap());
        }
        let child = child::fork(|| live_on(&mut kept));
        child::wait(child).unwrap_or_else(|how| panic!("fork {round}: {how}"));
        assert!(kept.is_whole());
        while kept.objects.len() > KEPT {
            kept.give_back(random.below(kept.objects.len())).unwrap();
        }
    }
    kept.give_back_all().unwrap();
}

/// Allocates and frees until `stop` is set.
fn storm(caches: &Caches, owner: u32, stop: &AtomicBool) {
    let mut random = Random::new(owner);
    let mut mine = Holding::new(caches, owner);
    while !stop.load(Relaxed) {
        if mine.objects.len() < 100 || (mine.objects.len() < 900 && random.below(2) == 0) {
            mine.take(random.below(Caches::COUNT)).unwrap();
        } else {
            mine.give_back(random.below(mine.objects.len())).unwrap();
        }
    }
    mine.give_back_all().unwrap();
}

/// Sets a flag on drop, after a panic too, so that the threads beside stop.
struct StopAtEnd<'a>(&'a AtomicBool);
impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The work of a thread beside the forks, until the flag is set.
type Work<'a> = &'a (dyn Fn(&Caches, &AtomicBool) + Sync);

/// Runs `forkers` threads that fork, with `beside` running throughout. Then checks that no object
/// is lost.
fn forks_beside(forkers: u32, forks: usize, beside: &[Work]) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone: MutexGuard<'_, ()> = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let caches = Caches::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (caches, stop) = (&caches, &stop);
        let _stop = StopAtEnd(stop);
        beside.iter().for_each(|&work| {
            scope.spawn(move || work(caches, stop));
        });
        let threads: Vec<_> = (0..forkers)
            .map(|forker| scope.spawn(move || fork_again_and_again(caches, 1000 + forker, forks)))
            .collect();
        // Beside the storms.
        (0..20).for_each(|_| validate().unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    for cache in caches.0 {
        cache.destroy().expect("an object was lost");
    }
    validate().unwrap();
}

fn storms(caches: &Caches, stop: &AtomicBool) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    storm(caches, NEXT.fetch_add(1, Relaxed), stop);
}

#[test]
fn one_thread_forks_amid_allocation_storms() {
    forks_beside(1, 200, &[&storms, &storms, &storms, &storms, &storms]);
}

#[test]
fn several_threads_fork_at_once() {
    forks_beside(4, 30, &[&storms, &storms]);
}

#[test]
fn forks_meet_drains_and_caches_that_come_and_go() {
    let shrink = |caches: &Caches, stop: &AtomicBool| {
        while !stop.load(Relaxed) {
            caches.0.iter().for_each(|cache| {
                cache.shrink();
            });
        }
    };
    let come_and_go = |_: &Caches, stop: &AtomicBool| {
        while !stop.load(Relaxed) {
            let cache = CacheBuilder::new("brief").build_raw(96).unwrap();
            let mut objects = [null_mut(); 200];
            assert!(cache.alloc_bulk(&mut objects));
            // SAFETY: just allocated, and unused.
            unsafe { cache.free_bulk(&objects) };
            cache.destroy().expect("an object was lost");
        }
    };
    forks_beside(1, 100, &[&storms, &storms, &shrink, &come_and_go]);
}
