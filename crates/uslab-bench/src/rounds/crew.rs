//! Threads that run a round together: they wait between rounds, start together, and are timed by
//! one clock.
//!
//! ```text
//!   Crew      parked threads, kept for all rows of all contestants      short rounds, many of them
//!   fresh     threads made for this one run, ended after it             threads that come and go
//!
//!   each:  prepare ──► start() ────────────────► work ──► stop() ────────────► tidy up
//!                      the last starts the clock          the last stops it
//! ```
//!
//! With no more threads than CPUs each stays on a CPU of its own, and spins while it waits for the
//! start. With more, the scheduler places them, and they sleep. The caller sleeps throughout: its
//! CPU is one of theirs.
//!
//! The patterns' work between start and stop stands in files of their own.
//!
//! Must never: time the making of a thread unless the pattern is about that; leave a thread
//! spinning between rounds or while another could run in its place.

use super::Entry;
use crate::asm::ticks;
use crate::contestants::{Contestant, InThread};
use crate::cpu::{self, Cpus};
use crate::measure::Work;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// The work of every thread of a round, done once.
pub type Job = Arc<dyn Fn(&Seat) + Send + Sync>;

/// The duration of a round, from the common start to the end of the last thread.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub ticks: u64,
    pub ns: f64,
}

/// A point in time, on both clocks.
#[derive(Clone, Copy)]
struct Stamp(u64, Instant);

impl Stamp {
    fn now() -> Self {
        Self(ticks(), Instant::now())
    }
}

/// One round of so many threads.
struct Turn {
    threads: usize,
    /// No more threads than CPUs.
    has_room: bool,
    arrived: AtomicUsize,
    open: AtomicBool,
    opened: (Mutex<()>, Condvar),
    started: OnceLock<Stamp>,
    stopped: AtomicUsize,
    end: OnceLock<Stamp>,
    left: AtomicUsize,
    caller: Thread,
}

/// Polls before a thread with a CPU of its own goes to sleep: about 50 µs.
pub const SPINS: usize = 2_000;

/// The time that threads need to fall asleep after a round.
const GOING_TO_SLEEP: Duration = Duration::from_micros(20);

impl Turn {
    fn new(threads: usize, cpus: usize) -> Arc<Self> {
        Arc::new(Self {
            threads,
            has_room: threads <= cpus,
            arrived: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            opened: (Mutex::new(()), Condvar::new()),
            started: OnceLock::new(),
            stopped: AtomicUsize::new(0),
            end: OnceLock::new(),
            left: AtomicUsize::new(0),
            caller: thread::current(),
        })
    }

    fn start(&self) {
        if self.arrived.fetch_add(1, AcqRel) + 1 == self.threads {
            // Only the last to arrive is here.
            let _ = self.started.set(Stamp::now());
            self.open.store(true, Release);
            // With the lock held, so that no member is between its last look and its sleep.
            drop(self.opened.0.lock().unwrap_or_else(PoisonError::into_inner));
            self.opened.1.notify_all();
            return;
        }
        for _ in 0..if self.has_room { SPINS } else { 0 } {
            if self.open.load(Acquire) {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.opened.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.open.load(Acquire) {
            guard = self.opened.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn stop(&self) {
        if self.stopped.fetch_add(1, AcqRel) + 1 == self.threads {
            let _ = self.end.set(Stamp::now());
        }
    }

    fn leave(&self) {
        if self.left.fetch_add(1, AcqRel) + 1 == self.threads {
            self.caller.unpark();
        }
    }

    /// Sleeps until all have left.
    fn wait(&self) -> Took {
        while self.left.load(Acquire) < self.threads {
            thread::park();
        }
        let stamp = |stamp: &OnceLock<Stamp>| *stamp.get().expect("a job starts and stops once");
        let (start, end) = (stamp(&self.started), stamp(&self.end));
        Took { ticks: end.0.saturating_sub(start.0), ns: end.1.duration_since(start.1).as_nanos() as f64 }
    }
}

/// A thread's place in a round.
#[derive(Clone)]
pub struct Seat {
    /// From 0.
    pub index: usize,
    turn: Arc<Turn>,
}

impl Seat {
    pub fn threads(&self) -> usize {
        self.turn.threads
    }

    /// Whether waiting for another thread may spin for a while.
    pub fn has_room(&self) -> bool {
        self.turn.has_room
    }

    /// Waits for the other threads; then the clock runs. Called once.
    pub fn start(&self) {
        self.turn.start();
    }

    /// Marks this thread's part as done. Called once.
    pub fn stop(&self) {
        self.turn.stop();
    }
}

/// Does `work`, and aborts the process if it panics: the other threads would wait for ever.
pub fn or_abort(work: impl FnOnce()) {
    struct Failed;
    impl Drop for Failed {
        fn drop(&mut self) {
            if thread::panicking() {
                std::process::abort();
            }
        }
    }
    let _failed = Failed;
    work();
}

/// The CPUs in the order in which threads get them: the caller's first, whose disturbances its
/// clock sees.
fn in_order(first: usize) -> Vec<usize> {
    let mut cpus = cpu::of_start();
    cpus.retain(|&cpu| cpu != first);
    cpus.insert(0, first);
    cpus
}

/// Parked threads, made when they are first needed.
pub struct Crew {
    cpus: Cpus,
    hands: Mutex<Vec<Hand>>,
}

struct Hand {
    jobs: Option<Sender<(Job, Seat)>>,
    thread: Option<JoinHandle<()>>,
}

impl Crew {
    pub fn new(cpus: Cpus) -> Self {
        Self { cpus, hands: Mutex::default() }
    }

    /// Runs `job` in a number of threads at once.
    pub fn run(&self, threads: usize, job: &Job) -> Took {
        let turn = self.begin(threads, 0, job);
        let took = turn.wait();
        // The threads have left the round but do not sleep yet; the clock would see a disturbance.
        thread::sleep(GOING_TO_SLEEP);
        took
    }

    /// The same, with the caller in the first seat. It stays awake and on its CPU, where a thread
    /// of the crew sleeps between rounds, and a hypervisor may wake it on another core.
    pub fn run_with_caller(&self, threads: usize, job: &Job) -> Took {
        let turn = self.begin(threads, 1, job);
        let awake_until = |arrived: &dyn Fn() -> bool| {
            (0..).take_while(|_| !arrived()).for_each(|spins: u32| {
                std::hint::spin_loop();
                if spins > 20_000 {
                    thread::yield_now();
                }
            });
        };
        awake_until(&|| turn.arrived.load(Acquire) + 1 == threads);
        job(&Seat { index: 0, turn: Arc::clone(&turn) });
        turn.leave();
        awake_until(&|| turn.left.load(Acquire) == threads);
        turn.wait()
    }

    /// Sends the job to all seats from `first` on.
    fn begin(&self, threads: usize, first: usize, job: &Job) -> Arc<Turn> {
        let mut hands = self.hands.lock().unwrap_or_else(PoisonError::into_inner);
        while hands.len() < threads {
            let hand = Hand::start(hands.len(), in_order(self.cpus.first));
            hands.push(hand);
        }
        let turn = Turn::new(threads, self.cpus.allowed);
        for (index, hand) in hands.iter().enumerate().take(threads).skip(first) {
            let seat = Seat { index, turn: Arc::clone(&turn) };
            let jobs = hand.jobs.as_ref().expect("jobs are sent only before the drop");
            jobs.send((Arc::clone(job), seat)).expect("a thread of the crew runs until the drop");
        }
        turn
    }
}

impl Hand {
    fn start(index: usize, cpus: Vec<usize>) -> Self {
        let (jobs, inbox) = channel::<(Job, Seat)>();
        let body = move || {
            let _in_thread = InThread::enter();
            let mut pinned = None;
            for (job, seat) in inbox {
                if pinned.replace(seat.has_room()) != Some(seat.has_room()) {
                    place(&cpus, index, seat.has_room());
                }
                or_abort(|| job(&seat));
                // The round's memory must be gone before the caller makes the next.
                drop(job);
                seat.turn.leave();
            }
        };
        Self { jobs: Some(jobs), thread: Some(thread::spawn(body)) }
    }
}

/// On a CPU of its own, or wherever the scheduler likes.
fn place(cpus: &[usize], index: usize, has_room: bool) {
    match cpus.get(index).filter(|_| has_room) {
        Some(&cpu) => cpu::pin(cpu),
        None => cpu::pin_to(cpus),
    };
}

impl Drop for Hand {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

/// The set-up of one contestant in a thread. Setting up all would be charged to it where the making
/// of threads is part of the round.
pub struct Entered {
    leave: fn(),
}

impl Entered {
    pub fn by(entry: &Entry) -> Self {
        (entry.enter_thread)();
        Self { leave: entry.leave_thread }
    }

    pub fn of<C: Contestant>() -> Self {
        C::enter_thread();
        Self { leave: C::leave_thread }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        (self.leave)();
    }
}

/// Runs `job` in a number of new threads at once, which end before this returns.
pub fn fresh(threads: usize, cpus: Cpus, entry: Entry, job: &Job) -> Took {
    let turn = Turn::new(threads, cpus.allowed);
    let order = in_order(cpus.first);
    let started: Vec<JoinHandle<()>> = (0..threads)
        .map(|index| {
            let (seat, job, order) =
                (Seat { index, turn: Arc::clone(&turn) }, Arc::clone(job), order.clone());
            thread::spawn(move || {
                place(&order, index, seat.has_room());
                let _entered = Entered::by(&entry);
                or_abort(|| job(&seat));
                drop(job);
                seat.turn.leave();
            })
        })
        .collect();
    let took = turn.wait();
    for thread in started {
        // One that panicked has ended the process.
        let _ = thread.join();
    }
    took
}

/// Rounds of a crew, as a lane of a row.
pub struct CrewWork {
    pub crew: Arc<Crew>,
    pub threads: usize,
    pub objects_per_repeat: usize,
    /// Repetitions of a round.
    pub repeats: usize,
    /// Whether the caller has the first seat.
    pub has_caller: bool,
    /// The job of a round of so many repetitions.
    pub job: Arc<dyn Fn(usize) -> Job>,
}

impl Work for CrewWork {
    fn objects_per_repeat(&self) -> usize {
        self.objects_per_repeat
    }

    /// At the start and the end not all threads work; that must weigh the same for every
    /// contestant.
    fn fixed_repeats(&self) -> Option<usize> {
        Some(self.repeats)
    }

    /// A round takes milliseconds where a crew is woken for it.
    fn max_rounds(&self) -> usize {
        if self.has_caller { usize::MAX } else { 100 }
    }

    fn prepare(&self) -> Box<dyn FnMut(usize) -> u64> {
        let (crew, job, threads) = (Arc::clone(&self.crew), Arc::clone(&self.job), self.threads);
        let run = if self.has_caller { Crew::run_with_caller } else { Crew::run };
        Box::new(move |repeats| run(&crew, threads, &job(repeats)).ticks.max(1))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::lineup::{MALLOC, peers};

    pub const CPUS: Cpus = Cpus { first: 0, second: None, allowed: 1 };

    /// The contestants of patterns with mixed sizes.
    pub fn all_that_malloc() -> impl Iterator<Item = Entry> {
        peers().iter().copied().chain([MALLOC])
    }

    pub fn in_crew(threads: usize, job: impl Fn(&Seat) + Send + Sync + 'static) {
        let job: Job = Arc::new(job);
        Crew::new(CPUS).run(threads, &job);
    }

    pub fn in_fresh_threads(threads: usize, entry: Entry, job: impl Fn(&Seat) + Send + Sync + 'static) {
        let job: Job = Arc::new(job);
        fresh(threads, CPUS, entry, &job);
    }

    #[test]
    fn all_start_together_and_every_seat_is_taken_once() {
        let crew = Crew::new(CPUS);
        for threads in [1, 3, 8, 2] {
            let before = Arc::new(AtomicUsize::new(0));
            let seats = Arc::new(Mutex::new(Vec::new()));
            let job: Job = {
                let (before, seats) = (Arc::clone(&before), Arc::clone(&seats));
                Arc::new(move |seat| {
                    before.fetch_add(1, AcqRel);
                    seat.start();
                    assert_eq!(before.load(Acquire), seat.threads());
                    seat.stop();
                    seats.lock().unwrap().push(seat.index);
                })
            };
            crew.run(threads, &job);
            let mut seats = seats.lock().unwrap();
            seats.sort_unstable();
            assert!(seats.iter().copied().eq(0..threads));
        }
        assert_eq!(crew.hands.lock().unwrap().len(), 8);
    }

    #[test]
    fn fresh_threads_have_ended_when_their_run_has() {
        let alive = Arc::new(());
        let job: Job = {
            let alive = Arc::clone(&alive);
            Arc::new(move |seat| {
                seat.start();
                seat.stop();
                drop(Arc::clone(&alive));
            })
        };
        fresh(4, CPUS, MALLOC, &job);
        Crew::new(CPUS).run_with_caller(3, &job);
        drop(job);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
