//! One search: its memory, its steps while other threads are stopped, and the reports afterwards.

use super::heap::{self, Heap, Part};
use super::mark::{COUNTED, LEAKED, Marker, REACHED, UNREACHED, mark_bytes};
use super::stacks::Stacks;
use super::{SearchError, roots};
use crate::cache::{background, registry};
use crate::counters;
use crate::debug::guard::{self, Stack};
use crate::os::maps;
use crate::os::memory;
use crate::os::own_memory::OwnMemory;
use crate::os::stop::{self, Room, Thread, Way, Work};
use crate::os::unwind::MAX_FRAMES;
use crate::pages::{self, PAGE_BYTES};
use crate::report::depot::{self, StackId};
use crate::report::leak::{self, Amount, Leak, Totals};
use crate::report::suppress::Suppressions;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Upper bound on the file of suppressions.
const MAX_SUPPRESSIONS_BYTES: usize = 256 << 10;
/// The stack of the child that searches.
const STACK_BYTES: usize = 256 << 10;
/// Words that are read at once.
const BUFFER_WORDS: usize = 8 << 10;
/// Ranges of the heap that the program closed for loads. Beyond these, the search gives up.
const MAX_CLOSED: usize = 4 << 10;
/// Threads that may start, and objects that may be allocated, between the count and the stop.
const MORE_THREADS: usize = 256;
const MORE_OBJECTS: usize = 64 << 10;
/// Attempts, each with more room.
const MAX_ATTEMPTS: usize = 4;
/// Words of a set of stacks, one bit each.
const SET_WORDS: usize = depot::IDS / 64;

/// The memory of a search: shared with the child, and zeroed.
struct Scratch {
    start: *mut u8,
    bytes: usize,
    used: usize,
}

impl Scratch {
    fn new(bytes: usize) -> Option<Scratch> {
        let bytes = bytes.next_multiple_of(memory::page_bytes());
        Some(Scratch { start: memory::map_shared(bytes)?, bytes, used: 0 })
    }

    /// Takes room for `count` values, of a type of which zeroes are a valid value.
    ///
    /// # Safety
    /// The caller must not use the slice after the scratch memory was dropped.
    unsafe fn take<T>(&mut self, count: usize) -> &'static mut [T] {
        let from = self.used.next_multiple_of(align_of::<T>().max(64));
        self.used = from + count * size_of::<T>();
        assert!(self.used <= self.bytes, "the memory of a search has room for its parts");
        // SAFETY: the room is the caller's alone, zeroed, and aligned as a mapping is.
        unsafe { core::slice::from_raw_parts_mut(self.start.add(from).cast::<T>(), count) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and the promise of `take` ends its slices.
        unsafe { memory::unmap(self.start, self.bytes) };
    }
}

/// What the child needs and finds.
struct Search {
    /// A word for each page of the heap.
    firsts: &'static mut [u32],
    marks: &'static mut [u8],
    /// Two lists of the marker, each with a word for each object.
    places: [&'static mut [usize]; 2],
    found: &'static mut [MaybeUninit<Leak>],
    buffer: &'static mut [usize],
    closed: &'static mut [Range<usize>],
    /// The stacks whose objects are not reported, and those of all leaked objects.
    ignored: &'static mut [u64],
    leaked: &'static mut [u64],
    /// The caller's stack pointer.
    stack: usize,
    own: Range<usize>,
    outcome: Outcome,
    /// Leaks at the start of `found`.
    leaks: usize,
    suppressed: Amount,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// More room is needed, for so many objects.
    Small(usize),
    NoProc,
}

/// Searches once, reports what was found, and returns the totals and the way of the search.
pub fn report_leaks(stack: usize) -> Result<(Totals, Way), SearchError> {
    let mut objects = registry::sum(|core| core.tracked_objects())
        + counters::header().large_objects.load(Relaxed) as usize
        + guard::stats().used_slots;
    for _ in 0..MAX_ATTEMPTS {
        let room = objects + objects / 4 + MORE_OBJECTS;
        match report_with(stack, room)? {
            Ok(found) => return Ok(found),
            // Other threads may allocate as fast as the search ends.
            Err(more) => objects = 2 * more.max(room),
        }
    }
    Err(SearchError::OutOfMemory)
}

/// [`report_leaks`] with room for so many objects; `Ok(Err(_))` with a larger number if that does
/// not suffice.
fn report_with(stack: usize, objects: usize) -> Result<Result<(Totals, Way), usize>, SearchError> {
    let heap_bytes = pages::arena::data().len();
    let threads = stop::threads() + MORE_THREADS;
    // Each open slot of a guarded object parts two ranges.
    let max_closed = MAX_CLOSED + guard::stats().slots;
    let bytes = heap_bytes / PAGE_BYTES * size_of::<u32>()
        + mark_bytes(heap_bytes)
        + objects * (2 * size_of::<usize>() + size_of::<Leak>())
        + BUFFER_WORDS * size_of::<usize>()
        + max_closed * size_of::<Range<usize>>()
        + 2 * SET_WORDS * size_of::<u64>()
        + threads * size_of::<Thread>()
        + STACK_BYTES
        + MAX_SUPPRESSIONS_BYTES
        + size_of::<Search>()
        + (64 << 10);
    let mut scratch = Scratch::new(bytes).ok_or(SearchError::OutOfMemory)?;
    // SAFETY: the slices are used in this function alone, which drops the memory last.
    unsafe {
        let room = Room {
            stack: scratch.take::<u8>(STACK_BYTES).as_mut_ptr(),
            stack_bytes: STACK_BYTES,
            threads: scratch.take::<u8>(threads * size_of::<Thread>()).as_mut_ptr().cast(),
            max_threads: threads,
            state: scratch.take::<AtomicU32>(1).as_ptr(),
        };
        let text = scratch.take::<u8>(MAX_SUPPRESSIONS_BYTES);
        let search = Search {
            firsts: scratch.take(heap_bytes / PAGE_BYTES),
            marks: scratch.take(mark_bytes(heap_bytes)),
            places: [scratch.take(objects), scratch.take(objects)],
            found: scratch.take(objects),
            buffer: scratch.take(BUFFER_WORDS),
            closed: scratch.take(max_closed),
            ignored: scratch.take(SET_WORDS),
            leaked: scratch.take(SET_WORDS),
            stack,
            own: scratch.start as usize..scratch.start as usize + scratch.bytes,
            outcome: Outcome::NoProc,
            leaks: 0,
            suppressed: Amount::default(),
        };
        let place = scratch.take::<MaybeUninit<Search>>(1)[0].write(search);
        report_by(place, &room, text)
    }
}

fn report_by(
    search: &mut Search,
    room: &Room,
    text: &mut [u8],
) -> Result<Result<(Totals, Way), usize>, SearchError> {
    static WAS_READ: AtomicBool = AtomicBool::new(false);
    let suppressions = Suppressions::read(text, !WAS_READ.swap(true, Relaxed));
    let mut is_second = false;
    loop {
        let work = Work { body, argument: (&raw mut *search).expose_provenance() };
        // SAFETY: the room is this search's; the body writes to the memory of the search alone.
        let way = unsafe { stop::run(work, room) };
        match search.outcome {
            _ if way == Way::Failed => return Err(SearchError::Failed),
            Outcome::NoProc => return Err(SearchError::NoProc),
            Outcome::Small(objects) => return Ok(Err(objects)),
            Outcome::Done => {}
        }
        // What suppressed objects lead to is no leak either, so the search is repeated with these
        // as roots.
        if is_second || suppressions.is_empty() || !search.ignore_matches(&suppressions) {
            return Ok(Ok((search.publish(), way)));
        }
        is_second = true;
    }
}

/// Whether the process has one thread beside the library's own, which runs: the caller. Makes no
/// system call where that does not run. True where the number of threads is not known.
pub fn is_alone_with_background() -> bool {
    background::is_running() && matches!(stop::threads(), 0 | 2)
}

/// Whether the process has threads other than the caller and the library's own.
pub fn has_threads_of_the_program() -> bool {
    stop::threads() > 1 + usize::from(background::is_running())
}

fn body(threads: &[Thread], are_all: bool, argument: usize) {
    let search = core::ptr::with_exposed_provenance_mut::<Search>(argument);
    // SAFETY: the caller of `stop::run` passed its search, and waits.
    let search = unsafe { &mut *search };
    search.outcome = search.run(Stacks::of(threads, are_all, search.stack));
}

fn is_in(set: &[u64], stack: StackId) -> bool {
    let at = stack.0 as usize;
    set.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 != 0)
}

fn insert(set: &mut [u64], stack: StackId) {
    let at = stack.0 as usize;
    if let Some(word) = set.get_mut(at / 64) {
        *word |= 1 << (at % 64);
    }
}

impl Search {
    /// The search proper. Runs while no other thread does.
    fn run(&mut self, stacks: Stacks<'_>) -> Outcome {
        let Some(memory) = OwnMemory::open() else { return Outcome::NoProc };
        let heap_pages = pages::arena::data().len() / PAGE_BYTES;
        if heap_pages > self.firsts.len() {
            return Outcome::Small(self.found.len());
        }
        let (heap, objects) = Heap::index(&mut self.firsts[..heap_pages]);
        if objects > self.found.len() {
            return Outcome::Small(objects);
        }
        let mut closed = 0;
        let is_listed = maps::for_each(|mapping| {
            let data = heap.data();
            let is_inside = mapping.range.start < data.end && data.start < mapping.range.end;
            if is_inside && !mapping.is_readable {
                if let Some(place) = self.closed.get_mut(closed) {
                    *place = mapping.range.clone();
                }
                closed += 1;
            }
        });
        if !is_listed || closed > self.closed.len() {
            return Outcome::NoProc;
        }
        let closed = &self.closed[..closed];
        let places = self.places.each_mut().map(|places| &mut **places);
        let mut marker = Marker::new(heap, &memory, self.marks, places, self.buffer, closed);
        if !roots::search(&mut marker, stacks, self.own.clone()) {
            return Outcome::NoProc;
        }
        self.suppressed = Amount::default();
        if self.ignored.iter().any(|&word| word != 0) {
            self.suppressed = reach_ignored(&mut marker, self.ignored);
        }
        self.leaks = find_heads(&mut marker, self.leaked, self.found);
        Outcome::Done
    }

    /// Adds the stacks of leaked objects that match a suppression to the ignored ones; returns
    /// whether there is any.
    fn ignore_matches(&mut self, suppressions: &Suppressions<'_>) -> bool {
        let mut is_any = false;
        for (index, &word) in self.leaked.iter().enumerate().filter(|(_, word)| **word != 0) {
            for bit in (0..64).filter(|bit| word >> bit & 1 != 0) {
                let stack = StackId((index * 64 + bit) as u32);
                let mut frames = [0; MAX_FRAMES];
                let n = depot::frames(stack, &mut frames);
                if suppressions.match_stack(&frames[..n]) {
                    insert(self.ignored, stack);
                    is_any = true;
                }
            }
        }
        is_any
    }

    /// Groups the leaks by stack, and reports each group, the largest first.
    fn publish(&mut self) -> Totals {
        let found = &mut self.found[..self.leaks];
        // SAFETY: the search wrote so many.
        let leaks =
            unsafe { core::slice::from_raw_parts_mut(found.as_mut_ptr().cast::<Leak>(), found.len()) };
        for leak in leaks.iter_mut() {
            // Guarded objects keep their stacks by themselves.
            leak.first = guard::allocation_of(leak.first.pointer, Stack::Saved).unwrap_or(leak.first);
        }
        leaks
            .sort_unstable_by_key(|leak| (leak.first.stack.0, leak.first.cache.as_ptr(), leak.first.pointer));
        let mut groups = 0;
        for index in 0..leaks.len() {
            let next = leaks[index];
            let is_same = |leak: &Leak| {
                let (one, other) = (&leak.first, &next.first);
                one.stack == other.stack && (one.stack != StackId::NONE || one.cache == other.cache)
            };
            if groups > 0 && is_same(&leaks[groups - 1]) {
                let group = &mut leaks[groups - 1];
                group.direct.add(next.direct);
                group.indirect.add(next.indirect);
            } else {
                leaks[groups] = next;
                groups += 1;
            }
        }
        let groups = &mut leaks[..groups];
        groups.sort_unstable_by_key(|leak| {
            (core::cmp::Reverse(leak.direct.bytes + leak.indirect.bytes), leak.first.pointer)
        });
        let mut totals = Totals { suppressed: self.suppressed, places: groups.len(), ..Totals::default() };
        for leak in groups.iter() {
            totals.direct.add(leak.direct);
            totals.indirect.add(leak.indirect);
            leak::publish(leak);
        }
        totals
    }
}

/// Reaches the unreached objects of ignored stacks, and what they lead to; returns how many.
fn reach_ignored(marker: &mut Marker<'_>, ignored: &[u64]) -> Amount {
    let mut all = Amount::default();
    marker.flood_from(UNREACHED, REACHED);
    each_unreached(marker, |marker, object| {
        let stack = heap::allocation_of(object.start).map_or(StackId::NONE, |found| found.stack);
        if is_in(ignored, stack)
            && let Some(others) = marker.flood(object)
        {
            all.add_object(object.len());
            all.add(others);
        }
    });
    all
}

fn each_unreached(marker: &mut Marker<'_>, mut visit: impl FnMut(&mut Marker<'_>, &Range<usize>)) {
    heap::walk(&mut |part| {
        if let Part::Object(object) = part
            && marker.mark_of(object.start) == UNREACHED
        {
            visit(marker, &object);
        }
    });
}

/// Finds the leaked objects to which no other leaked object leads, and one object of each cycle to
/// which no object outside the cycle leads. Writes them to `found`, and the stacks of all leaked
/// objects to `stacks`. Returns how many it found.
///
/// The first flood visits all leaked objects in the order of addresses. The object at which it
/// begins anew is a head: no earlier head leads to it. A later one may. So the second flood begins
/// at the last head and goes back: a head that it has not visited yet is one that no head leads to.
fn find_heads(marker: &mut Marker<'_>, stacks: &mut [u64], found: &mut [MaybeUninit<Leak>]) -> usize {
    stacks.fill(0);
    marker.flood_from(UNREACHED, LEAKED);
    each_unreached(marker, |marker, object| {
        marker.push_head(object.start);
        marker.flood(object);
    });
    if !marker.has_heads() {
        return 0;
    }
    heap::walk(&mut |part| {
        if let Part::Object(object) = part
            && marker.mark_of(object.start) == LEAKED
            && let Some(allocation) = heap::allocation_of(object.start)
        {
            insert(stacks, allocation.stack);
        }
    });
    marker.flood_from(LEAKED, COUNTED);
    let mut count = 0;
    while let Some(pointer) = marker.pop_head() {
        let Some(object) = marker.heap.object_of(pointer) else { continue };
        let Some(indirect) = marker.flood(&object) else { continue };
        let (Some(first), Some(place)) = (heap::allocation_of(pointer), found.get_mut(count)) else {
            continue;
        };
        let direct = Amount { objects: 1, bytes: object.len() };
        place.write(Leak { first, direct, indirect });
        count += 1;
    }
    count
}
