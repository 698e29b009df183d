//! The record of one event: the thread that allocated or freed an object, its CPU, time and stack.

use crate::os;
use crate::os::facts::{Fact, facts};
use crate::os::unwind::MAX_FRAMES;
use crate::report::Event;
use crate::report::depot::{self, StackId};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Which of an object's two records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The last allocation.
    Allocated = 0,
    /// The last free.
    Freed = 1,
}

/// An event; all zero for none.
#[repr(C)]
pub struct Track {
    stack: AtomicU32,
    thread: AtomicU32,
    cpu: AtomicU32,
    _unused: AtomicU32,
    time_ms: AtomicU64,
}

/// Events, for a debugger.
pub const FACTS: &[Fact] = facts!(Track { stack, thread, cpu, time_ms });

impl Track {
    /// Records an event of the calling thread, now.
    pub fn note(&self) {
        self.stack.store(depot::save_current().0, Relaxed);
        self.thread.store(os::thread::own_id(), Relaxed);
        self.cpu.store(os::cpu::current() as u32, Relaxed);
        self.time_ms.store(os::clock::coarse_ms(), Relaxed);
    }

    /// Forgets the event.
    pub fn forget(&self) {
        self.thread.store(0, Relaxed);
    }

    /// The event, if there was one; its frames are copied to `frames`.
    pub fn event<'a>(&self, frames: &'a mut [usize; MAX_FRAMES]) -> Option<Event<'a>> {
        let thread = self.thread.load(Relaxed);
        if thread == 0 {
            return None;
        }
        let stack = StackId(self.stack.load(Relaxed));
        let n = depot::frames(stack, frames);
        let lost = depot::why_empty(stack, n);
        let (cpu, time_ms) = (self.cpu.load(Relaxed), self.time_ms.load(Relaxed));
        Some(Event { thread, cpu, time_ms, stack: &frames[..n], lost })
    }

    /// The event's stack, thread, CPU and time; the thread is 0 if there was none.
    pub fn words(&self) -> (StackId, u32, u32, u64) {
        let (stack, thread) = (StackId(self.stack.load(Relaxed)), self.thread.load(Relaxed));
        (stack, thread, self.cpu.load(Relaxed), self.time_ms.load(Relaxed))
    }
}
