//! The sheaf protocols on one CPU's slot: pop, push, take and install by its users, drain and fork
//! from another CPU.
//!
//! The code follows `rseq` (the sequences, step by step) and `percpu` (refill, flush, install,
//! drain, park and unpark), with sheaves of two objects. Sheaf memory is read and written with
//! relaxed atomics, as the sequences do with plain instructions, so a missing barrier appears as an
//! object that is lost or has two owners.

use super::cpu::{Aborted, Cpu, Sequence};
use super::ledger::Ledger;
use super::{explore, mistake_in};
use loom::sync::atomic::{
    AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};
use loom::sync::{Arc, Mutex};
use loom::thread;

const CAPACITY: usize = 2;
const OBJECTS: usize = 4;
/// Sheaf 0 is the dummy.
const DUMMY: usize = 0;
const SHEAVES: usize = 4;
const MAIN: usize = 0;
const SPARE: usize = 1;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mistake {
    None,
    /// Take and install load and store instead of exchanging.
    PlainExchange,
    /// The drainer reads a sheaf before it restarted the sheaf's users.
    DrainWithoutBarrier,
    /// The fork parks the slots before it restarted the threads that saw the gate open.
    GateWithoutBarrier,
    /// The fork copies before it restarted the threads that use a sheaf.
    ParkWithoutBarrier,
    /// Sequences are not restarted.
    NoRestart,
    /// A drain whose barrier is refused puts the main sheaf back over any sheaf in its place.
    PutBackOverAnother,
    /// Such a drain puts the main sheaf into the spare place, from which drains take sheaves
    /// without a barrier.
    PutBackAsSpare,
    /// A user marks the slot as used after it put a sheaf there.
    MarkAfterwards,
}

struct Sheaf {
    count: AtomicUsize,
    capacity: usize,
    objects: [AtomicUsize; CAPACITY],
}

impl Sheaf {
    fn objects(&self) -> Vec<usize> {
        self.objects[..self.count.load(Relaxed)].iter().map(|object| object.load(Relaxed)).collect()
    }

    fn fill(&self, objects: &[usize]) {
        objects.iter().zip(&self.objects).for_each(|(&object, place)| place.store(object, Relaxed));
        self.count.store(objects.len(), Relaxed);
    }
}

/// The memory behind the slot: barn and slabs in one.
struct Depot {
    objects: Vec<usize>,
    sheaves: Vec<usize>,
}

struct World {
    cpu: Cpu,
    slot: [AtomicUsize; 2],
    sheaves: [Sheaf; SHEAVES],
    depot: Mutex<Depot>,
    gate: AtomicUsize,
    fork: Mutex<()>,
    /// Not 0 once a user may have put a sheaf into the slot. A fork leaves the slot alone before.
    mark: AtomicUsize,
    marks: Mutex<()>,
    /// Objects that users hold.
    held: Ledger,
    /// Sheaves that a thread holds.
    in_flight: Ledger,
    /// Sheaves that no thread may read any more; only the final check does.
    lost: std::sync::Mutex<Vec<usize>>,
    mistake: Mistake,
}

impl World {
    /// Sheaf 1 is main and sheaf 2 spare, if they get objects; all other sheaves and objects are in
    /// the depot.
    fn new(main: Option<&[usize]>, spare: Option<&[usize]>, mistake: Mistake) -> Arc<World> {
        let world = World {
            cpu: Cpu::new(mistake == Mistake::NoRestart),
            slot: [main.map_or(DUMMY, |_| 1), spare.map_or(DUMMY, |_| 2)].map(AtomicUsize::new),
            sheaves: std::array::from_fn(|sheaf| Sheaf {
                count: AtomicUsize::new(0),
                capacity: if sheaf == DUMMY { 0 } else { CAPACITY },
                objects: std::array::from_fn(|_| AtomicUsize::new(usize::MAX)),
            }),
            depot: Mutex::new(Depot { objects: Vec::new(), sheaves: vec![3] }),
            gate: AtomicUsize::new(0),
            fork: Mutex::new(()),
            mark: AtomicUsize::new(usize::from(main.or(spare).is_some())),
            marks: Mutex::new(()),
            held: Ledger::new("object", OBJECTS),
            in_flight: Ledger::new("sheaf", SHEAVES),
            lost: std::sync::Mutex::default(),
            mistake,
        };
        for (sheaf, objects) in [(1, main), (2, spare)] {
            match objects {
                Some(objects) => world.sheaves[sheaf].fill(objects),
                None => world.depot.lock().unwrap().sheaves.push(sheaf),
            }
        }
        let placed = |object: &usize| [main, spare].iter().flatten().any(|objects| objects.contains(object));
        world.depot.lock().unwrap().objects = (0..OBJECTS).filter(|object| !placed(object)).collect();
        Arc::new(world)
    }

    /// `sheaf := slot.main`. Acquire represents the address dependency of the following accesses.
    fn load_main(&self, sequence: &Sequence) -> Result<&Sheaf, Aborted> {
        Ok(&self.sheaves[sequence.step(|| self.slot[MAIN].load(Acquire))?])
    }

    fn pop(&self) -> Option<usize> {
        self.cpu.run(|sequence| {
            let sheaf = self.load_main(sequence)?;
            let n = sequence.step(|| sheaf.count.load(Relaxed))?;
            let object = match n {
                0 => None,
                n => Some(sequence.step(|| sheaf.objects[n - 1].load(Relaxed))?),
            };
            sequence.step(|| sheaf.count.store(n.saturating_sub(1), Relaxed))?;
            Ok(object)
        })
    }

    fn push(&self, object: usize) -> bool {
        self.cpu.run(|sequence| {
            let sheaf = self.load_main(sequence)?;
            let n = sequence.step(|| sheaf.count.load(Relaxed))?;
            if n >= sheaf.capacity {
                return Ok(false);
            }
            sequence.step(|| sheaf.objects[n].store(object, Relaxed))?;
            sequence.step(|| sheaf.count.store(n + 1, Relaxed))?;
            Ok(true)
        })
    }

    /// `None`: the gate is closed. `thread_id` owns the sheaf that comes out, and no longer the one
    /// that goes in.
    fn exchange(&self, which: usize, new: usize, thread_id: usize) -> Option<usize> {
        let place = &self.slot[which];
        if new != DUMMY {
            self.in_flight.let_go(new, thread_id);
        }
        let old = self.cpu.run(|sequence| {
            if sequence.step(|| self.gate.load(Relaxed))? != 0 {
                return Ok(None);
            }
            if self.mistake == Mistake::PlainExchange {
                let old = sequence.step(|| place.load(Acquire))?;
                sequence.step(|| place.store(new, Release))?;
                return Ok(Some(old));
            }
            sequence.step(|| place.swap(new, AcqRel)).map(Some)
        });
        match old {
            Some(DUMMY) => {}
            Some(old) => self.in_flight.seize(old, thread_id),
            None if new != DUMMY => self.in_flight.seize(new, thread_id),
            None => {}
        }
        old
    }

    fn take_out(&self, which: usize, thread_id: usize) -> usize {
        loop {
            match self.exchange(which, DUMMY, thread_id) {
                Some(old) => return old,
                None => drop(self.fork.lock().unwrap()),
            }
        }
    }

    /// Marks the slot as used; the model's users never leave their CPU.
    fn mark(&self) {
        if self.mark.load(Relaxed) == 0 {
            let _held = self.marks.lock().unwrap();
            self.mark.store(1, Relaxed);
        }
    }

    fn install(&self, sheaf: usize, thread_id: usize) {
        if self.mistake != Mistake::MarkAfterwards {
            self.mark();
        }
        self.install_marked(sheaf, thread_id);
        self.mark();
    }

    fn install_marked(&self, sheaf: usize, thread_id: usize) {
        let mut in_flight = sheaf;
        for which in [MAIN, SPARE] {
            match self.exchange(which, in_flight, thread_id) {
                Some(DUMMY) => return,
                Some(old) => in_flight = old,
                None => break,
            }
        }
        self.flush_and_free(in_flight, thread_id);
    }

    fn flush_and_free(&self, sheaf: usize, thread_id: usize) {
        let mut depot = self.depot.lock().unwrap();
        depot.objects.extend(self.sheaves[sheaf].objects());
        self.sheaves[sheaf].fill(&[]);
        self.in_flight.let_go(sheaf, thread_id);
        depot.sheaves.push(sheaf);
    }

    fn alloc(&self, thread_id: usize) -> usize {
        let object = loop {
            if let Some(object) = self.pop().or_else(|| self.refill(thread_id)) {
                break object;
            }
            // Other threads hold everything. The library would make a slab here.
            thread::yield_now();
        };
        self.held.seize(object, thread_id);
        object
    }

    fn refill(&self, thread_id: usize) -> Option<usize> {
        let mut source = self.take_out(SPARE, thread_id);
        if source == DUMMY || self.sheaves[source].count.load(Relaxed) == 0 {
            let mut depot = self.depot.lock().unwrap();
            let sheaf = if source == DUMMY { depot.sheaves.pop() } else { Some(source) };
            let Some(sheaf) = sheaf else { return depot.objects.pop() };
            if source == DUMMY {
                self.in_flight.seize(sheaf, thread_id);
            }
            let rest = depot.objects.len().saturating_sub(CAPACITY);
            self.sheaves[sheaf].fill(&depot.objects.split_off(rest));
            source = sheaf;
        }
        let mut objects = self.sheaves[source].objects();
        let object = objects.pop();
        self.sheaves[source].fill(&objects);
        self.install(source, thread_id);
        object
    }

    fn free(&self, object: usize, thread_id: usize) {
        self.held.let_go(object, thread_id);
        if !self.push(object) {
            self.flush(object, thread_id);
        }
    }

    fn flush(&self, object: usize, thread_id: usize) {
        let spare = self.take_out(SPARE, thread_id);
        let mut depot = self.depot.lock().unwrap();
        let sheaf = if spare == DUMMY { depot.sheaves.pop() } else { Some(spare) };
        let Some(sheaf) = sheaf else { return depot.objects.push(object) };
        if spare == DUMMY {
            self.in_flight.seize(sheaf, thread_id);
        }
        let mut objects = self.sheaves[sheaf].objects();
        if objects.len() == CAPACITY {
            depot.objects.append(&mut objects);
        }
        drop(depot);
        objects.push(object);
        self.sheaves[sheaf].fill(&objects);
        self.install(sheaf, thread_id);
    }

    /// From another CPU.
    fn drain(&self, thread_id: usize) {
        let taken = self.slot.each_ref().map(|place| self.swap_from_outside(place, DUMMY, thread_id));
        if self.mistake != Mistake::DrainWithoutBarrier {
            self.cpu.restart();
        }
        taken
            .into_iter()
            .filter(|&sheaf| sheaf != DUMMY)
            .for_each(|sheaf| self.flush_and_free(sheaf, thread_id));
    }

    /// From another CPU, by a thread whose barriers are refused: drains spare sheaves only, which
    /// need none.
    fn drain_spare(&self, thread_id: usize) {
        let spare = self.swap_from_outside(&self.slot[SPARE], DUMMY, thread_id);
        if spare != DUMMY {
            self.flush_and_free(spare, thread_id);
        }
    }

    /// From another CPU: the barrier is refused after the sheaves were taken. Then another drain,
    /// which knows that.
    fn drain_refused_late(&self, thread_id: usize) {
        let [main, spare] = self.slot.each_ref().map(|place| self.swap_from_outside(place, DUMMY, thread_id));
        if main != DUMMY {
            self.put_back(main, thread_id);
        }
        if spare != DUMMY {
            self.flush_and_free(spare, thread_id);
        }
        self.drain_spare(thread_id);
    }

    fn put_back(&self, main: usize, thread_id: usize) {
        let place = match self.mistake {
            Mistake::PutBackAsSpare => &self.slot[SPARE],
            _ => &self.slot[MAIN],
        };
        self.in_flight.let_go(main, thread_id);
        if self.mistake == Mistake::PutBackOverAnother {
            place.store(main, Release);
        } else if place.compare_exchange(DUMMY, main, Release, Relaxed).is_err() {
            self.lost.lock().unwrap().push(main);
        }
    }

    fn swap_from_outside(&self, place: &AtomicUsize, new: usize, thread_id: usize) -> usize {
        let old = place.swap(new, AcqRel);
        if old != DUMMY {
            self.in_flight.seize(old, thread_id);
        }
        old
    }

    /// From another CPU: the sheaves must not change while the fork copies them.
    fn fork(&self, thread_id: usize) {
        let _excluded = self.fork.lock().unwrap();
        let _marks = self.marks.lock().unwrap();
        self.gate.store(1, SeqCst);
        if self.mistake != Mistake::GateWithoutBarrier {
            self.cpu.restart();
        }
        if self.mark.load(Relaxed) == 0 {
            let is_empty = || self.slot.iter().all(|place| place.load(Relaxed) == DUMMY);
            assert!(is_empty(), "a slot without a mark has a sheaf");
            thread::yield_now();
            assert!(is_empty(), "a slot without a mark got a sheaf while the gate was closed");
            return self.gate.store(0, SeqCst);
        }
        let parked = self.slot.each_ref().map(|place| self.swap_from_outside(place, DUMMY, thread_id));
        if self.mistake != Mistake::ParkWithoutBarrier {
            self.cpu.restart();
        }
        let copy = || parked.map(|sheaf| self.sheaves[sheaf].objects());
        let before = copy();
        thread::yield_now();
        assert_eq!(before, copy(), "a sheaf changed while it was copied");
        for (place, sheaf) in self.slot.iter().zip(parked) {
            if sheaf != DUMMY {
                self.in_flight.let_go(sheaf, thread_id);
            }
            let there = place.swap(sheaf, AcqRel);
            assert_eq!(there, DUMMY, "a sheaf got into the slot while the gate was closed");
        }
        self.gate.store(0, SeqCst);
    }

    /// After all threads ended: every object and every sheaf must be in exactly one place.
    fn judge(&self) {
        let depot = self.depot.lock().unwrap();
        assert_eq!(self.in_flight.owned(), []);
        let slot = self.slot.each_ref().map(|place| place.load(Acquire));
        let mut sheaves: Vec<usize> = slot.into_iter().filter(|&sheaf| sheaf != DUMMY).collect();
        let in_slot = sheaves.iter().flat_map(|&sheaf| self.sheaves[sheaf].objects());
        let mut objects: Vec<usize> = in_slot.chain(self.held.owned()).collect();
        objects.extend(&depot.objects);
        sheaves.extend(&depot.sheaves);
        let lost = self.lost.lock().unwrap();
        objects.extend(lost.iter().flat_map(|&sheaf| self.sheaves[sheaf].objects()));
        sheaves.extend(lost.iter());
        objects.sort();
        sheaves.sort();
        assert_eq!(objects, Vec::from_iter(0..OBJECTS), "objects are lost or doubled");
        assert_eq!(sheaves, Vec::from_iter(1..SHEAVES), "sheaves are lost or doubled");
    }
}

/// Threads that allocate and free on the CPU, and `outside` on another CPU.
fn users_and(users: usize, outside: fn(&World, usize), world: Arc<World>) {
    let threads: Vec<_> = (1..=users)
        .map(|thread_id| {
            let world = world.clone();
            thread::spawn(move || world.free(world.alloc(thread_id), thread_id))
        })
        .collect();
    outside(&world, users + 1);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    world.judge();
}

fn drained_while_in_use(mistake: Mistake) {
    users_and(2, World::drain, World::new(Some(&[0, 1]), None, mistake));
}

fn drained_while_sheaves_move(mistake: Mistake) {
    users_and(2, World::drain, World::new(Some(&[]), Some(&[0]), mistake));
}

/// A drain that learns late that it must not take main sheaves, and one that knows. With one user
/// only, because the drains have many steps.
fn drained_without_barriers(mistake: Mistake) {
    users_and(1, World::drain_refused_late, World::new(Some(&[0, 1]), None, mistake));
}

fn drained_without_barriers_while_sheaves_move(mistake: Mistake) {
    users_and(1, World::drain_refused_late, World::new(Some(&[]), Some(&[0]), mistake));
}

fn forked_while_in_use(mistake: Mistake) {
    users_and(2, World::fork, World::new(Some(&[0, 1]), None, mistake));
}

/// With one user only, because the fork has many steps.
fn forked_while_sheaves_move(mistake: Mistake) {
    users_and(1, World::fork, World::new(None, Some(&[0]), mistake));
}

/// The first user's sheaf comes while the fork begins.
fn forked_at_first_use(mistake: Mistake) {
    users_and(1, World::fork, World::new(None, None, mistake));
}

#[test]
fn pop_and_push_meet_a_drain() {
    explore(|| drained_while_in_use(Mistake::None));
}

#[test]
fn take_and_install_meet_a_drain() {
    explore(|| drained_while_sheaves_move(Mistake::None));
}

#[test]
fn take_and_install_meet_a_drain_of_spares() {
    explore(|| users_and(2, World::drain_spare, World::new(Some(&[]), Some(&[0]), Mistake::None)));
}

#[test]
fn pop_and_push_meet_a_drain_whose_barrier_is_refused() {
    explore(|| drained_without_barriers(Mistake::None));
}

#[test]
fn take_and_install_meet_a_drain_whose_barrier_is_refused() {
    explore(|| drained_without_barriers_while_sheaves_move(Mistake::None));
}

#[test]
fn a_main_sheaf_put_back_over_another_one_is_found() {
    let found = mistake_in(|| drained_without_barriers_while_sheaves_move(Mistake::PutBackOverAnother));
    assert!(found.contains("lost or doubled"), "{found}");
}

#[test]
fn a_main_sheaf_put_back_as_a_spare_is_found() {
    let found = mistake_in(|| drained_without_barriers(Mistake::PutBackAsSpare));
    assert!(found.contains("two owners") || found.contains("lost or doubled"), "{found}");
}

#[test]
fn pop_and_push_meet_a_fork() {
    explore(|| forked_while_in_use(Mistake::None));
}

#[test]
fn take_and_install_meet_a_fork() {
    explore(|| forked_while_sheaves_move(Mistake::None));
}

#[test]
fn a_take_by_plain_load_and_store_is_found() {
    let found = mistake_in(|| drained_while_sheaves_move(Mistake::PlainExchange));
    assert!(found.contains("two owners"), "{found}");
}

#[test]
fn a_drain_without_a_barrier_is_found() {
    let found = mistake_in(|| drained_while_in_use(Mistake::DrainWithoutBarrier));
    assert!(found.contains("two owners") || found.contains("lost or doubled"), "{found}");
}

#[test]
fn sequences_that_are_not_restarted_are_found() {
    let found = mistake_in(|| drained_while_in_use(Mistake::NoRestart));
    assert!(found.contains("two owners") || found.contains("lost or doubled"), "{found}");
}

#[test]
fn a_gate_without_a_barrier_is_found() {
    let found = mistake_in(|| forked_while_sheaves_move(Mistake::GateWithoutBarrier));
    assert!(found.contains("got into the slot"), "{found}");
}

#[test]
fn parking_without_a_barrier_is_found() {
    let found = mistake_in(|| forked_while_in_use(Mistake::ParkWithoutBarrier));
    assert!(found.contains("changed while it was copied"), "{found}");
}

#[test]
fn a_first_install_meets_a_fork() {
    explore(|| forked_at_first_use(Mistake::None));
}

#[test]
fn a_mark_after_the_install_is_found() {
    let found = mistake_in(|| forked_at_first_use(Mistake::MarkAfterwards));
    assert!(found.contains("a slot without a mark has a sheaf"), "{found}");
}
