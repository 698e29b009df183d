//! What the kernel promises of a restartable sequence, as a model.
//!
//! A thread that begins a sequence on a CPU runs there, so whoever was in a sequence on that CPU has been preempted: beginning takes the
//! CPU's ticket away from it. `membarrier` takes the ticket away from everyone. A step of a sequence happens only while
//! its thread still has the ticket, and checking the ticket and doing the step are one (the mutex): nothing runs on
//! a CPU between two steps of a sequence that is not restarted. What other CPUs do meanwhile is not held up by it.
//!
//! The mutex also gives the order that a context switch and a membarrier give: what was done on the CPU before is seen after.

use loom::sync::Mutex;

/// A CPU: the ticket of the sequence that has run there undisturbed.
pub struct Cpu {
    ticket: Mutex<usize>,
    /// Seeded mistake: nobody is ever restarted.
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

    /// Runs a sequence until it gets through.
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
            // Two threads that preempt each other within their sequences for ever: a model has to leave that out. The first
            // restart comes at any time, later ones when the others have got on.
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
