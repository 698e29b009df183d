//! The real sequences under everything that aborts them: preemption, signals, migration, drains.
//!
//! More threads than CPUs share one cache. They allocate, free, exchange objects and check each
//! object's stamp (`storm/stamp.rs`), while other threads disturb them. At the end no object may be
//! lost: the cache can be destroyed.
//!
//! ```text
//!   USLAB_STRESS_SECONDS=60 RUSTFLAGS="--cfg uslab_inject" cargo test -p uslab --release --test sequences -- --nocapture
//! ```
//!
//! runs each test for a minute, with sequences stretched by the injection loop, and counts the
//! aborts. Without the loop a sequence takes a few nanoseconds, and the number of aborts is
//! unknown. The tests are valid in both modes; in locked mode they exercise the slots' locks.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "storm/machine.rs"]
mod machine;
#[path = "storm/random.rs"]
mod random;
#[path = "storm/stamp.rs"]
mod stamp;
#[path = "storm/weather.rs"]
mod weather;

use again::again;
use random::Random;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uslab::{Cache, CacheBuilder, RawCache};
use weather::Weather;

/// The operations of both kinds of cache.
trait Pool: Sync + Sized {
    const BYTES: usize;
    fn alloc(&self) -> NonNull<u8>;
    fn free(&self, object: NonNull<u8>);
    fn alloc_bulk(&self, objects: &mut [*mut u8]);
    fn free_bulk(&self, objects: &[*mut u8]);
    fn shrink(&self);
    fn destroy(self);
}

struct Raw(RawCache);

impl Pool for Raw {
    const BYTES: usize = 64;
    fn alloc(&self) -> NonNull<u8> {
        self.0.alloc().expect("memory")
    }
    fn free(&self, object: NonNull<u8>) {
        // SAFETY: workers free their own objects, once; the stamps check that.
        unsafe { self.0.free(object) };
    }
    fn alloc_bulk(&self, objects: &mut [*mut u8]) {
        assert!(self.0.alloc_bulk(objects));
    }
    fn free_bulk(&self, objects: &[*mut u8]) {
        // SAFETY: as in `free`.
        unsafe { self.0.free_bulk(objects) };
    }
    fn shrink(&self) {
        self.0.shrink();
    }
    fn destroy(self) {
        self.0.destroy().expect("an object was lost");
    }
}

type Record = [u64; 30];
struct Typed(Cache<Record>);

impl Pool for Typed {
    const BYTES: usize = size_of::<Record>();
    fn alloc(&self) -> NonNull<u8> {
        self.0.alloc().expect("memory").cast()
    }
    fn free(&self, object: NonNull<u8>) {
        // SAFETY: as above.
        unsafe { self.0.free(object.cast()) };
    }
    fn alloc_bulk(&self, objects: &mut [*mut u8]) {
        let mut typed = vec![null_mut::<Record>(); objects.len()];
        assert!(self.0.alloc_bulk(&mut typed));
        objects.iter_mut().zip(typed).for_each(|(place, object)| *place = object.cast());
    }
    fn free_bulk(&self, objects: &[*mut u8]) {
        let typed: Vec<*mut Record> = objects.iter().map(|object| object.cast()).collect();
        // SAFETY: as above.
        unsafe { self.0.free_bulk(&typed) };
    }
    fn shrink(&self) {
        self.0.shrink();
    }
    fn destroy(self) {
        self.0.destroy().expect("an object was lost");
    }
}

/// Most objects that a worker holds.
const HELD: usize = 400;
/// The owner of objects on the market, through which they move from thread to thread.
const MARKET: u32 = u32::MAX;

/// Objects that any thread may take.
struct Market(Mutex<Vec<NonNull<u8>>>);
// SAFETY: an object belongs to the thread that holds it, and changes hands under the lock.
unsafe impl Sync for Market {}

struct Worker<'a, P> {
    pool: &'a P,
    id: u32,
    random: Random,
    mine: Vec<NonNull<u8>>,
}

impl<P: Pool> Worker<'_, P> {
    fn own(&mut self, object: NonNull<u8>) {
        if let Err(owner) = stamp::stamp(object, P::BYTES, self.id) {
            panic!("{object:p} was allocated to {} while {owner} has it", self.id);
        }
        self.mine.push(object);
    }

    fn disown(&mut self) -> Option<NonNull<u8>> {
        let last = self.mine.len().checked_sub(1)?;
        let object = self.mine.swap_remove(self.random.below(last + 1));
        assert!(stamp::unstamp(object, P::BYTES, self.id), "{object:p} of {} was written to", self.id);
        Some(object)
    }

    fn step(&mut self, market: &Market) {
        match self.random.below(64) {
            0 => {
                let mut objects = vec![null_mut(); self.random.below(100)];
                self.pool.alloc_bulk(&mut objects);
                objects
                    .into_iter()
                    .for_each(|object| self.own(NonNull::new(object).expect("all or nothing")));
            }
            1 => {
                let n = self.random.below(100);
                let objects: Vec<*mut u8> =
                    (0..n).map_while(|_| self.disown()).map(NonNull::as_ptr).collect();
                self.pool.free_bulk(&objects);
            }
            2 => {
                let mut market = market.0.lock().unwrap();
                while market.len() < 64
                    && let Some(object) = self.disown()
                {
                    stamp::stamp(object, P::BYTES, MARKET).expect("it was ours");
                    market.push(object);
                }
            }
            3 => {
                let objects = std::mem::take(&mut *market.0.lock().unwrap());
                for object in objects {
                    assert!(stamp::unstamp(object, P::BYTES, MARKET));
                    self.own(object);
                }
            }
            4..34 if self.mine.len() < HELD => self.own(self.pool.alloc()),
            _ => {
                if let Some(object) = self.disown() {
                    self.pool.free(object);
                }
            }
        }
    }
}

/// Runs the workers on `pool` under these disturbances, and destroys the pool.
fn storm<P: Pool>(name: &str, pool: P, weather: Weather) {
    let _alone = one_at_a_time();
    let market = Market(Mutex::new(Vec::new()));
    let stop = AtomicBool::new(false);
    let aborts_before = weather::aborts();
    weather::stretch_sequences(1000);
    let (operations, report) = std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let workers: Vec<_> = (0..machine::crowd() as u32)
            .map(|id| {
                let (pool, market, stop, sender) = (&pool, &market, &stop, sender.clone());
                scope.spawn(move || {
                    sender.send(weather::Thread::this()).unwrap();
                    let mut worker = Worker { pool, id, random: Random::new(id), mine: Vec::new() };
                    let mut operations = 0u64;
                    while !stop.load(Relaxed) {
                        worker.step(market);
                        operations += 1;
                        if operations.is_multiple_of(64) {
                            machine::end_turn();
                        }
                    }
                    while let Some(object) = worker.disown() {
                        pool.free(object);
                    }
                    operations
                })
            })
            .collect();
        let threads: Vec<_> = (0..workers.len()).map(|_| receiver.recv().unwrap()).collect();
        let failed = || workers.iter().any(|worker| worker.is_finished());
        let report = weather::run(weather, &threads, || pool.shrink(), failed);
        stop.store(true, Relaxed);
        // Only now may workers end: until here signals were aimed at them.
        (workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>(), report)
    });
    weather::stretch_sequences(0);
    for object in market.0.into_inner().unwrap() {
        assert!(stamp::unstamp(object, P::BYTES, MARKET));
        pool.free(object);
    }
    pool.destroy();
    uslab::debug::validate().expect("the structures are whole");
    let aborts = weather::aborts() - aborts_before;
    println!("{name}, {}: {operations} operations, {report}, {aborts} aborts", uslab::mode());
    let counted = cfg!(all(uslab_inject, target_arch = "x86_64")) && uslab::mode() == uslab::Mode::Rseq;
    assert!(!counted || aborts > 0, "no sequence was aborted, so the test proves nothing");
}

/// These tests need the machine for themselves.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn raw(name: &str, sheaf_capacity: usize) -> Raw {
    Raw(CacheBuilder::new(name).sheaf_capacity(sheaf_capacity).build_raw(Raw::BYTES).unwrap())
}

#[test]
fn signals() {
    storm("signals", raw("signals", 0), Weather { signals: true, ..Weather::default() });
}

#[test]
fn migration() {
    let cache = CacheBuilder::new("migration").build().unwrap();
    storm("migration", Typed(cache), Weather { migration: true, ..Weather::default() });
}

#[test]
fn drains() {
    storm("drains", raw("drains", 0), Weather { drains: true, ..Weather::default() });
}

#[test]
fn signals_migration_and_drains_at_once() {
    let cache = CacheBuilder::new("everything").build().unwrap();
    storm("everything", Typed(cache), Weather { signals: true, migration: true, drains: true });
}

/// As on a machine where each CPU has a last-level cache of its own: barns and slab lists too.
#[test]
fn each_cpu_has_barns_and_lists_of_its_own() {
    let name = "each_cpu_has_barns_and_lists_of_its_own";
    if let Some(output) = again(name, &[]) {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    // As many groups as a machine may have, and CPUs enough for the ones that threads run on.
    uslab::internal::cpu::pretend(255, 1, 1);
    storm(name, raw("groups", 2), Weather { signals: true, migration: true, drains: true });
}

#[test]
fn sheaves_of_two_objects_move_all_the_time() {
    storm("two objects", raw("two", 2), Weather { signals: true, migration: true, drains: true });
}
