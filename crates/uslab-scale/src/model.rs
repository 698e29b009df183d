//! The model: caches of a machine that does not exist, and what each access costs there.
//!
//! ```text
//!   trace of an operation on CPU c ─▶ for each line: in c's cache? whose is it? ─▶ c's clock advances
//!                                     a transfer occupies the line; a lock keeps other CPUs out
//! ```
//!
//! A line is in one cache for writing, or in many for reading (MESI). A transfer costs what lies
//! between the two CPUs, and a line makes one transfer at a time. A store waits in the store
//! buffer: only the next atomic instruction waits for it. A word that one operation compares and
//! later modifies is a lock, which the model keeps from other CPUs between the two.
//!
//! The library runs each operation whole, and so never finds a lock taken. The model then plays the
//! accesses of all CPUs in the order of their clocks. A CPU that comes to a lock waits until the
//! holder has come to its release.
//!
//! The model knows no capacity of caches, no memory, no prefetcher and no futex.

use crate::trace::{Access, Kind, Trace};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// A hash of numbers of lines: one multiplication.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, number: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ number).wrapping_mul(ODD).rotate_left(29);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map by numbers of lines or words.
type Numbers<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// Costs in nanoseconds. Transfers: medians of AMD EPYC 7R13 (Milan, 48 cores a socket), one
/// socket and two, as <https://github.com/nviennot/core-to-core-latency> gives them.
#[derive(Clone, Copy)]
pub struct Costs {
    /// From a core with the same L3 cache.
    pub near: f64,
    /// From another L3 cache of the socket.
    pub far: f64,
    /// From another socket.
    pub remote: f64,
    /// An atomic instruction on a line that is in the cache.
    pub atomic: f64,
    /// Any instruction.
    pub instruction: f64,
}

impl Costs {
    pub const PUBLISHED: Costs =
        Costs { near: 23.0, far: 107.0, remote: 197.0, atomic: 5.0, instruction: 0.1 };
}

/// CPUs with one L3 cache, as on Milan and Genoa.
pub const CPUS_OF_CACHE: usize = 8;
pub const LINE_BYTES: u64 = 64;
pub const MAX_CPUS: usize = 256;

type Set = [u64; MAX_CPUS / 64];

/// One line.
#[derive(Default)]
struct Line {
    holders: Set,
    /// The CPU that may write without asking.
    owner: Option<usize>,
    /// When the last transfer ends.
    free_at: f64,
    pub use_: Use,
}

/// What CPUs did with one line.
#[derive(Default, Clone)]
pub struct Use {
    pub writers: Set,
    pub readers: Set,
    pub writes: u64,
    pub modifies: u64,
    pub transfers: u64,
    /// Time that CPUs spent on transfers of the line and on its lock.
    pub wait_ns: f64,
    /// How often the line's locks were held, and for how long in all and at most.
    pub holds: u64,
    pub held_ns: f64,
    pub max_held_ns: f64,
    /// The instructions that wrote, and how often each caused a transfer.
    pub codes: HashMap<u64, u64>,
}

impl Use {
    pub fn writers(&self) -> u32 {
        self.writers.iter().map(|word| word.count_ones()).sum()
    }

    pub fn readers(&self) -> u32 {
        self.readers.iter().map(|word| word.count_ones()).sum()
    }
}

fn has(set: &Set, cpu: usize) -> bool {
    set[cpu / 64] >> (cpu % 64) & 1 != 0
}

fn insert(set: &mut Set, cpu: usize) {
    set[cpu / 64] |= 1 << (cpu % 64);
}

/// What a CPU does next.
struct Step {
    access: Access,
    /// Instructions before it, since the last step.
    instructions: u32,
    lock: Option<Turn>,
}

/// What a step does to the lock in its word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Take,
    Release,
}

/// The machine.
pub struct Machine {
    cpus: usize,
    nodes: usize,
    costs: Costs,
    lines: Numbers<Line>,
    clocks: Vec<f64>,
    /// When a CPU's stores are done.
    stored_at: Vec<f64>,
    /// The rest of each CPU's operation.
    steps: Vec<VecDeque<Step>>,
    /// Locks that CPUs hold, and since when.
    held: Numbers<(usize, f64)>,
    /// The lock that a CPU waits for.
    awaits: Vec<Option<u64>>,
}

impl Machine {
    pub fn new(cpus: usize, nodes: usize, costs: Costs) -> Machine {
        assert!(cpus <= MAX_CPUS && nodes <= cpus, "a model has up to {MAX_CPUS} CPUs");
        Machine {
            cpus,
            nodes,
            costs,
            lines: Numbers::default(),
            clocks: vec![0.0; cpus],
            stored_at: vec![0.0; cpus],
            steps: (0..cpus).map(|_| VecDeque::new()).collect(),
            held: Numbers::default(),
            awaits: vec![None; cpus],
        }
    }

    /// Plays accesses until a CPU that `may_run` another operation is furthest behind; returns it.
    pub fn next(&mut self, may_run: impl Fn(usize) -> bool) -> usize {
        loop {
            let is_ready = |cpu: usize| !self.steps[cpu].is_empty() || may_run(cpu);
            let ready = (0..self.cpus).filter(|&cpu| self.awaits[cpu].is_none() && is_ready(cpu));
            let cpu = ready.min_by(|&a, &b| self.clocks[a].total_cmp(&self.clocks[b])).unwrap_or(0);
            if self.steps[cpu].is_empty() {
                return cpu;
            }
            self.play(cpu);
        }
    }

    /// Plays all accesses to their ends.
    pub fn finish(&mut self) {
        loop {
            let ready =
                (0..self.cpus).filter(|&cpu| self.awaits[cpu].is_none() && !self.steps[cpu].is_empty());
            let Some(cpu) = ready.min_by(|&a, &b| self.clocks[a].total_cmp(&self.clocks[b])) else { return };
            self.play(cpu);
        }
    }

    /// Plays the next access of a CPU, and those behind it that concern this CPU alone.
    fn play(&mut self, cpu: usize) {
        while let Some(Step { access, instructions, lock }) = self.steps[cpu].pop_front() {
            let word = access.address & !3;
            let number = access.address / LINE_BYTES;
            if lock == Some(Turn::Take) && self.held.get(&word).is_some_and(|&(holder, _)| holder != cpu) {
                self.awaits[cpu] = Some(word);
                self.steps[cpu].push_front(Step { access, instructions, lock });
                return;
            }
            let now = self.clocks[cpu] + f64::from(instructions) * self.costs.instruction;
            let end = self.touch(cpu, number, access.kind, access.code, now);
            self.clocks[cpu] = end;
            match lock {
                Some(Turn::Take) => {
                    self.held.insert(word, (cpu, end));
                }
                Some(Turn::Release) => {
                    if let Some((_, since)) = self.held.remove(&word) {
                        let use_ = &mut self.lines.entry(number).or_default().use_;
                        use_.holds += 1;
                        use_.held_ns += end - since;
                        use_.max_held_ns = use_.max_held_ns.max(end - since);
                    }
                    self.wake(word, number, end);
                }
                None => {}
            }
            if !self.steps[cpu].front().is_some_and(|step| self.is_own(cpu, step)) {
                return;
            }
        }
    }

    /// Whether a step takes no transfer and no lock. No CPU has a line that none has used yet.
    fn is_own(&self, cpu: usize, step: &Step) -> bool {
        step.lock.is_none()
            && self.lines.get(&(step.access.address / LINE_BYTES)).is_none_or(|line| match step.access.kind {
                Kind::Read => has(&line.holders, cpu),
                _ => line.owner == Some(cpu),
            })
    }

    /// Lets the CPU that has waited longest for a lock try again at the time of its release. If
    /// another CPU is faster, it waits for that one's release.
    fn wake(&mut self, word: u64, number: u64, released: f64) {
        let waiting = (0..self.cpus).filter(|&cpu| self.awaits[cpu] == Some(word));
        let Some(cpu) = waiting.min_by(|&a, &b| self.clocks[a].total_cmp(&self.clocks[b])) else { return };
        self.awaits[cpu] = None;
        let waited = (released - self.clocks[cpu]).max(0.0);
        self.clocks[cpu] += waited;
        self.lines.entry(number).or_default().use_.wait_ns += waited;
    }

    pub fn clock(&self, cpu: usize) -> f64 {
        self.clocks[cpu]
    }

    /// Starts the measurement: all clocks at one time, no line used.
    pub fn begin(&mut self) {
        self.finish();
        let now = self.clocks.iter().copied().fold(0.0, f64::max);
        self.clocks.fill(now);
        self.lines.values_mut().for_each(|line| line.use_ = Use::default());
    }

    fn distance(&self, from: usize, to: usize) -> f64 {
        let node = |cpu: usize| cpu * self.nodes / self.cpus;
        match () {
            () if node(from) != node(to) => self.costs.remote,
            () if from / CPUS_OF_CACHE != to / CPUS_OF_CACHE => self.costs.far,
            () => self.costs.near,
        }
    }

    /// Lets `cpu` do what `trace` did, behind what it does already.
    pub fn run(&mut self, cpu: usize, trace: &Trace) {
        let mut at = 0;
        // The steps of this operation that compared a word, and may have taken a lock there.
        let mut taken: Numbers<usize> = Numbers::default();
        for &access in &trace.accesses {
            let word = access.address & !3;
            let index = self.steps[cpu].len();
            let mut lock = None;
            match access.kind {
                Kind::Compare => {
                    taken.entry(word).or_insert(index);
                }
                Kind::Modify => {
                    if let Some(taker) = taken.remove(&word) {
                        self.steps[cpu][taker].lock = Some(Turn::Take);
                        lock = Some(Turn::Release);
                    }
                }
                Kind::Read | Kind::Write => {}
            }
            self.steps[cpu].push_back(Step { access, instructions: access.at - at, lock });
            at = access.at;
        }
        // The instructions behind the last access.
        let rest = f64::from(trace.instructions.saturating_sub(at)) * self.costs.instruction;
        self.clocks[cpu] += rest;
    }

    /// One access; returns when the CPU goes on.
    fn touch(&mut self, cpu: usize, number: u64, kind: Kind, code: u64, now: f64) -> f64 {
        let is_write = kind != Kind::Read;
        let is_atomic = matches!(kind, Kind::Compare | Kind::Modify);
        let line = self.lines.entry(number).or_default();
        let (holders, owner, free_at) = (line.holders, line.owner, line.free_at);
        let is_here = if is_write { owner == Some(cpu) } else { has(&holders, cpu) };
        let transfer = if is_here {
            0.0
        } else {
            let others = (0..self.cpus).filter(|&other| other != cpu && has(&holders, other));
            let costs = others.map(|other| self.distance(cpu, other));
            // A write waits for the last copy to go, a read for the nearest copy to come.
            let cost = if is_write { costs.fold(0.0, f64::max) } else { costs.fold(f64::MAX, f64::min) };
            if cost == f64::MAX { 0.0 } else { cost }
        };
        let mut start = now;
        if is_atomic {
            start = start.max(self.stored_at[cpu]);
        }
        if transfer > 0.0 {
            start = start.max(free_at);
        }
        let mut end = start + transfer;
        if is_atomic {
            end += self.costs.atomic;
        }
        let line = self.lines.entry(number).or_default();
        if transfer > 0.0 {
            line.free_at = end;
            line.use_.transfers += 1;
            line.use_.wait_ns += end - now;
            *line.use_.codes.entry(code).or_default() += 1;
        }
        if is_write {
            line.holders = Set::default();
            line.owner = Some(cpu);
            insert(&mut line.use_.writers, cpu);
            line.use_.writes += 1;
            line.use_.modifies += u64::from(is_atomic);
        } else {
            if owner != Some(cpu) && !is_here {
                line.owner = None;
            }
            insert(&mut line.use_.readers, cpu);
        }
        insert(&mut line.holders, cpu);
        if kind == Kind::Write {
            self.stored_at[cpu] = self.stored_at[cpu].max(end);
            now
        } else {
            end
        }
    }

    /// The lines that more than one CPU used and one at least wrote, by the time spent on them.
    pub fn shared(&self) -> Vec<(u64, Use)> {
        let mut shared: Vec<(u64, Use)> = self
            .lines
            .iter()
            .filter(|(_, line)| {
                line.use_.writers() > 1 || line.use_.writers() == 1 && line.use_.transfers > 0
            })
            .map(|(&number, line)| (number, line.use_.clone()))
            .collect();
        shared.sort_by(|a, b| b.1.wait_ns.total_cmp(&a.1.wait_ns).then(a.0.cmp(&b.0)));
        shared
    }

    /// Whether more than one CPU wrote the line of `address`.
    pub fn is_written_by_many(&self, address: u64) -> bool {
        self.lines.get(&(address / LINE_BYTES)).is_some_and(|line| line.use_.writers() > 1)
    }
}
