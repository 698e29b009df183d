//! One thread, every single call of malloc and free timed.
//!
//! ```text
//!   steady   a live set of so many: a random one is freed, another allocated in its place
//!   waves    grows to so many objects, frees them all in the order of their allocation, again
//! ```
//!
//! The counter is read before and after each call, so a figure includes two readings. The lane that
//! allocates nothing shows their cost, and how often the machine delays a call. Work comes in
//! segments, so that contestants can take turns. A segment's first calls are not recorded, because
//! they find the processor's caches as the previous contestant left them. Each object's first word
//! is written between the timed calls.
//!
//! Must never: record into a histogram inside a segment (it is larger than the first cache); drop a
//! call by how long it took.

use super::Entry;
use super::random::{Xorshift, spread};
use crate::asm::{opaque, opaque_size, ticks};
use crate::contestants::{Contestant, out_of_memory};
use hdrhistogram::Histogram;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    Steady,
    Waves,
}

/// The work, the same for every contestant.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub pattern: Pattern,
    /// Objects live at once, of waves at the most.
    pub live: usize,
    /// Sizes are spread evenly over the logarithms of these two.
    pub smallest_bytes: usize,
    pub largest_bytes: usize,
    /// Calls of a segment that are recorded, and those before them.
    pub calls: usize,
    pub warm_calls: usize,
}

/// The number of sizes before they repeat; a power of two.
const SIZES: usize = 4096;

/// A contestant's way through its segments.
pub struct Course {
    plan: Plan,
    slots: Vec<*mut u8>,
    /// The size of the object in each slot.
    asked: Vec<u32>,
    sizes: Vec<u32>,
    at: usize,
    random: Xorshift,
    /// Of waves: the objects that are live are those from `first` up to `end`.
    first: usize,
    end: usize,
    growing: bool,
    /// The calls of the segment at hand, in ticks; a call of more than four thousand million counts
    /// as that.
    malloc_ticks: Vec<u32>,
    free_ticks: Vec<u32>,
    pub mallocs: Histogram<u64>,
    pub frees: Histogram<u64>,
}

impl Course {
    /// Ready for the first segment: of the steady pattern, with its objects live.
    pub fn start(entry: &Entry, plan: Plan) -> Self {
        // Three digits; the bounds hold any number of ticks that is kept.
        let histogram =
            || Histogram::new_with_bounds(1, u32::MAX.into(), 3).expect("the bounds are in order");
        let most = plan.calls.max(plan.warm_calls);
        let mut random = Xorshift::new(0);
        let sizes =
            (0..SIZES).map(|_| spread(&mut random, plan.smallest_bytes, plan.largest_bytes)).collect();
        let mut course = Self {
            plan,
            slots: vec![std::ptr::null_mut(); plan.live],
            asked: vec![0; plan.live],
            sizes,
            at: 0,
            random,
            first: 0,
            end: 0,
            growing: true,
            malloc_ticks: Vec::with_capacity(most),
            free_ticks: Vec::with_capacity(most),
            mallocs: histogram(),
            frees: histogram(),
        };
        if plan.pattern == Pattern::Steady {
            for slot in 0..plan.live {
                let size = course.next_size();
                course.slots[slot] = written((entry.alloc)(size), entry.name);
                course.asked[slot] = size as u32;
            }
            course.end = plan.live;
        }
        course
    }

    /// A segment, and its calls into the histograms.
    pub fn segment(&mut self, entry: &Entry) {
        (entry.latency)(self);
        for &ticks in &self.malloc_ticks {
            self.mallocs.saturating_record(ticks.max(1).into());
        }
        for &ticks in &self.free_ticks {
            self.frees.saturating_record(ticks.max(1).into());
        }
    }

    /// Frees what is live.
    pub fn finish(&mut self, entry: &Entry) {
        for slot in self.first..self.end {
            // SAFETY: the slots between the two hold live objects, each one once, of the sizes
            // beside them.
            unsafe { (entry.free)(self.slots[slot], self.asked[slot] as usize) };
        }
        (self.first, self.end) = (0, 0);
    }

    #[inline(always)]
    fn next_size(&mut self) -> usize {
        self.at = (self.at + 1) % SIZES;
        self.sizes[self.at] as usize
    }
}

/// Runs a segment; its calls are in the course's lists then.
pub fn run<C: Contestant>(course: &mut Course) {
    for calls in [course.plan.warm_calls, course.plan.calls] {
        course.malloc_ticks.clear();
        course.free_ticks.clear();
        match course.plan.pattern {
            Pattern::Steady => steady::<C>(course, calls / 2),
            Pattern::Waves => waves::<C>(course, calls),
        }
    }
}

#[inline(never)]
fn steady<C: Contestant>(course: &mut Course, pairs: usize) {
    for _ in 0..pairs {
        let slot = course.random.below(course.plan.live);
        let size = course.next_size();
        // SAFETY: every slot of this pattern holds a live object of the size beside it.
        let free_ticks = unsafe { timed_free::<C>(course.slots[slot], course.asked[slot] as usize) };
        let (object, malloc_ticks) = timed_malloc::<C>(size);
        course.slots[slot] = object;
        course.asked[slot] = size as u32;
        course.free_ticks.push(free_ticks);
        course.malloc_ticks.push(malloc_ticks);
    }
}

#[inline(never)]
fn waves<C: Contestant>(course: &mut Course, calls: usize) {
    for _ in 0..calls {
        if course.growing {
            let size = course.next_size();
            let (object, malloc_ticks) = timed_malloc::<C>(size);
            course.slots[course.end] = object;
            course.asked[course.end] = size as u32;
            course.malloc_ticks.push(malloc_ticks);
            course.end += 1;
            course.growing = course.end < course.plan.live;
        } else {
            let slot = course.first;
            // SAFETY: the slots from `first` up to `end` hold live objects of the sizes beside
            // them, and there is one at least while the wave does not grow.
            let free_ticks = unsafe { timed_free::<C>(course.slots[slot], course.asked[slot] as usize) };
            course.free_ticks.push(free_ticks);
            course.first += 1;
            if course.first == course.end {
                (course.first, course.end, course.growing) = (0, 0, true);
            }
        }
    }
}

#[inline(always)]
fn timed_malloc<C: Contestant>(size: usize) -> (*mut u8, u32) {
    let size = opaque_size(size);
    let start = ticks();
    let object = opaque(C::alloc(size));
    let took = ticks() - start;
    (written(object, C::NAME), took.min(u32::MAX.into()) as u32)
}

/// # Safety
/// `object` is live, of `C`, and of `size` bytes.
#[inline(always)]
unsafe fn timed_free<C: Contestant>(object: *mut u8, size: usize) -> u32 {
    let (object, size) = (opaque(object), opaque_size(size));
    let start = ticks();
    // SAFETY: the caller's promise is the same.
    unsafe { C::free(object, size) };
    (ticks() - start).min(u32::MAX.into()) as u32
}

/// The object, with its first word written.
#[inline(always)]
fn written(object: *mut u8, name: &str) -> *mut u8 {
    if object.is_null() {
        out_of_memory(name);
    }
    // SAFETY: fresh memory of at least 16 bytes, aligned to 8 at least by every contestant.
    unsafe { object.cast::<usize>().write(1) };
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestants::InThread;
    use crate::lineup::{MALLOC, cache, peers};

    fn plan(pattern: Pattern, smallest_bytes: usize) -> Plan {
        Plan { pattern, live: 30, smallest_bytes, largest_bytes: 64, calls: 100, warm_calls: 10 }
    }

    #[test]
    fn every_call_is_counted_and_every_object_freed() {
        let _in_thread = InThread::enter();
        for pattern in [Pattern::Steady, Pattern::Waves] {
            for entry in peers().iter().chain([&MALLOC]) {
                let mut course = Course::start(entry, plan(pattern, 16));
                (0..3).for_each(|_| course.segment(entry));
                assert_eq!(course.mallocs.len() + course.frees.len(), 300, "{}", entry.name);
                assert!(course.sizes.iter().all(|size| (16..=64).contains(size)));
                course.finish(entry);
                assert_eq!(course.first..course.end, 0..0);
            }
        }
    }

    #[test]
    fn a_wave_grows_to_its_height_and_ends_at_nothing() {
        let cache = cache(64);
        let mut course = Course::start(&cache, plan(Pattern::Waves, 64));
        course.plan.warm_calls = 0;
        for (calls, live, mallocs) in [(30, 30, 30), (29, 1, 0), (31, 30, 30)] {
            course.plan.calls = calls;
            course.segment(&cache);
            assert_eq!((course.end - course.first, course.malloc_ticks.len()), (live, mallocs));
            assert_eq!(course.malloc_ticks.len() + course.free_ticks.len(), calls);
        }
        course.finish(&cache);
    }
}
