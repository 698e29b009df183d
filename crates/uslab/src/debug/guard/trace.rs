//! Allocations and frees of guarded objects: which thread, when, and its stack.

use crate::os;
use crate::os::unwind::{self, MAX_FRAMES};
use crate::report::Event;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// An allocation or a free. Zeroed memory is none. The stack lies here and not in the depot: the
/// number of slots bounds the memory.
#[repr(C)]
pub struct Trace {
    thread: AtomicU32,
    cpu: AtomicU32,
    time_ms: AtomicU64,
    count: AtomicUsize,
    frames: [AtomicUsize; MAX_FRAMES],
}

impl Trace {
    /// Notes that the calling thread does it now.
    #[inline(never)]
    pub fn record(&self) {
        let mut frames = [0; MAX_FRAMES];
        let count = unwind::capture(&mut frames);
        for (place, &pc) in self.frames.iter().zip(&frames[..count]) {
            place.store(pc, Relaxed);
        }
        self.count.store(count, Relaxed);
        self.thread.store(os::thread::id(), Relaxed);
        self.cpu.store(os::cpu::current() as u32, Relaxed);
        self.time_ms.store(os::clock::coarse_ms(), Relaxed);
    }

    /// Forgets it.
    pub fn clear(&self) {
        self.thread.store(0, Relaxed);
    }

    /// The event, with its stack in `frames`; `None` if it has not happened.
    pub fn event<'a>(&self, frames: &'a mut [usize; MAX_FRAMES]) -> Option<Event<'a>> {
        let thread = self.thread.load(Relaxed);
        let count = self.count.load(Relaxed).min(MAX_FRAMES);
        for (place, pc) in frames.iter_mut().zip(&self.frames) {
            *place = pc.load(Relaxed);
        }
        (thread != 0).then(|| Event {
            thread,
            cpu: self.cpu.load(Relaxed),
            time_ms: self.time_ms.load(Relaxed),
            stack: &frames[..count],
            lost: "",
        })
    }
}
