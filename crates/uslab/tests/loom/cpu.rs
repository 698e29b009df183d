//! A model of the kernel's guarantees for restartable sequences.
//!
//! A thread that begins a sequence on a CPU runs there, so the kernel preempted any thread inside a
//! sequence on that CPU: the new sequence takes the CPU's ticket. `membarrier` invalidates the
//! ticket too. A step happens only while its thread holds the ticket. The mutex makes the check and
//! the step one action, so no other thread runs on the CPU between two steps of a sequence that is
//! not restarted. Other CPUs run freely.
//!
//! The mutex also provides the memory order of a context switch and of a membarrier: earlier stores
//! on the CPU are visible afterwards.

use loom::sync::Mutex;

/// A CPU: the ticket of the sequence that runs there.
pub struct Cpu {
    ticket: Mutex<usize>,
    /// Seeded mistake: no sequence is ever restarted.
    deaf: bool,
}

/// The sequence was preempted, or restarted by a membarrier.
pub struct Aborted;

/// A sequence in progress.
pub struct Sequence<'a> {
    cpu: &'a Cpu,
    ticket: usize,
}

impl Cpu {
    pub fn new(deaf: bool) -> Cpu {
        Cpu { ticket: Mutex::new(0), deaf }
    }

    /// `membarrier(PRIVATE_EXPEDITED_RSEQ)` for this CPU.
    pub fn restart(&self) {
        *self.ticket.lock().unwrap() += 1;
    }

    /// Runs a sequence until it commits.
    pub fn run<R>(&self, body: impl Fn(&Sequence) -> Result<R, Aborted>) -> R {
        let mut aborts = 0;
        loop {
            let ticket = {
                let mut ticket = self.ticket.lock().unwrap();
                *ticket += 1;
                *ticket
            };
            match body(&Sequence { cpu: self, ticket }) {
                Ok(result) => return result,
                Err(Aborted) => aborts += 1,
            }
            // The model must exclude two threads that preempt each other for ever. The first
            // restart may come at any time, later ones only after the other threads progressed.
            if aborts > 1 {
                loom::thread::yield_now();
            }
        }
    }
}

impl Sequence<'_> {
    /// One instruction of the sequence; the last one is the commit.
    pub fn step<R>(&self, instruction: impl FnOnce() -> R) -> Result<R, Aborted> {
        let ticket = self.cpu.ticket.lock().unwrap();
        if *ticket == self.ticket || self.cpu.deaf { Ok(instruction()) } else { Err(Aborted) }
    }
}
