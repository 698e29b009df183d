//! Marks: the objects that a search has reached, and the flood that reaches them.

use super::heap::Heap;
use crate::os::own_memory::OwnMemory;
use crate::report::leak::Amount;
use core::ops::Range;

/// States of an object.
pub const UNREACHED: u8 = 0;
/// A root leads to it.
pub const REACHED: u8 = 1;
/// Nothing does; the first flood among such objects has visited it.
pub const LEAKED: u8 = 2;
/// The second flood has visited it as well.
pub const COUNTED: u8 = 3;

/// Bytes of heap for each mark: no two objects start within as many.
const GRANULE_BYTES: usize = 16;

/// Bytes of marks for a heap of `bytes`.
pub const fn mark_bytes(bytes: usize) -> usize {
    bytes / GRANULE_BYTES / 4 + 1
}

/// Objects from this size on are read page by page, as far as the program wrote to them.
const MIN_PAGED_BYTES: usize = 256 << 10;

/// The marks of all objects, and the objects whose contents are still to be searched.
pub struct Marker<'a> {
    pub heap: Heap<'a>,
    pub memory: &'a OwnMemory,
    /// Two bits an object.
    marks: &'a mut [u8],
    /// Objects to be searched, and how many there are.
    places: &'a mut [usize],
    pending: usize,
    /// Heads of leaks, and how many there are. One may be an object to be searched as well.
    heads: &'a mut [usize],
    head_count: usize,
    /// For copies of memory.
    buffer: &'a mut [usize],
    /// Ranges of the heap that loads cannot read, in order.
    closed: &'a [Range<usize>],
    /// The marks of objects that the flood visits, and what it gives them.
    from: u8,
    to: u8,
    /// Objects that the flood visited.
    visited: Amount,
}

impl<'a> Marker<'a> {
    /// No object is marked, and a flood reaches unreached objects.
    pub fn new(
        heap: Heap<'a>,
        memory: &'a OwnMemory,
        marks: &'a mut [u8],
        [places, heads]: [&'a mut [usize]; 2],
        buffer: &'a mut [usize],
        closed: &'a [Range<usize>],
    ) -> Marker<'a> {
        marks.fill(0);
        Marker {
            heap,
            memory,
            marks,
            places,
            pending: 0,
            heads,
            head_count: 0,
            buffer,
            closed,
            from: UNREACHED,
            to: REACHED,
            visited: Amount::default(),
        }
    }

    /// Makes floods visit objects with the mark `from`, and mark them `to`.
    pub fn flood_from(&mut self, from: u8, to: u8) {
        (self.from, self.to) = (from, to);
    }

    fn place_of(&self, pointer: usize) -> (usize, u32) {
        let granule = (pointer - self.heap.data().start) / GRANULE_BYTES;
        (granule / 4, (granule % 4) as u32 * 2)
    }

    /// The mark of the object at `pointer`.
    pub fn mark_of(&self, pointer: usize) -> u8 {
        let (byte, shift) = self.place_of(pointer);
        self.marks[byte] >> shift & 3
    }

    fn set(&mut self, pointer: usize, mark: u8) {
        let (byte, shift) = self.place_of(pointer);
        self.marks[byte] = self.marks[byte] & !(3 << shift) | mark << shift;
    }

    /// Searches a word for a pointer to an object.
    #[inline]
    pub fn word(&mut self, word: usize) {
        if let Some(object) = self.heap.object_of(word) {
            self.visit(&object);
        }
    }

    fn visit(&mut self, object: &Range<usize>) -> bool {
        let is_new = self.mark_of(object.start) == self.from;
        if is_new {
            self.set(object.start, self.to);
            self.visited.add_object(object.len());
            // Each object has this place once.
            self.places[self.pending] = object.start;
            self.pending += 1;
        }
        is_new
    }

    /// Searches memory that any code may have mapped or protected: the parts that the process wrote
    /// to. Then searches what it leads to.
    pub fn region(&mut self, range: Range<usize>, is_shared: bool) {
        self.written(range, is_shared);
        self.drain();
    }

    fn written(&mut self, range: Range<usize>, is_shared: bool) {
        let memory = self.memory;
        memory.for_each_written(range, is_shared, &mut |run| {
            let mut at = run.start;
            while at < run.end {
                let bytes = (run.end - at).min(size_of_val(self.buffer));
                let n = self.memory.read_words(at, &mut self.buffer[..bytes / size_of::<usize>()]);
                (0..n).for_each(|index| self.word(self.buffer[index]));
                at += bytes.next_multiple_of(size_of::<usize>());
            }
        });
    }

    /// Searches the contents of all objects that were visited, and of those that they lead to.
    pub fn drain(&mut self) {
        while let Some(next) = self.pending.checked_sub(1) {
            self.pending = next;
            let pointer = self.places[next];
            if let Some(object) = self.heap.object_of(pointer) {
                self.contents(object);
            }
        }
    }

    /// Searches the contents of an object, where pointers are aligned.
    fn contents(&mut self, object: Range<usize>) {
        let words = object.start.next_multiple_of(size_of::<usize>())..object.end & !(size_of::<usize>() - 1);
        let next = self.closed.partition_point(|range| range.end <= words.start);
        let is_closed = self.closed.get(next).is_some_and(|range| range.start < words.end);
        if words.len() < MIN_PAGED_BYTES && !is_closed {
            for at in words.step_by(size_of::<usize>()) {
                // SAFETY: an aligned word of an object in use, whose pages are mapped and readable.
                self.word(unsafe { (at as *const usize).read_volatile() });
            }
            return;
        }
        self.written(words, false);
    }

    /// Visits an object as a root, and what it leads to; returns whether its mark was the one that
    /// floods visit, and the objects beside it that were visited.
    pub fn flood(&mut self, object: &Range<usize>) -> Option<Amount> {
        self.visited = Amount::default();
        if !self.visit(object) {
            return None;
        }
        self.drain();
        let mut others = self.visited;
        others.objects -= 1;
        others.bytes -= object.len();
        Some(others)
    }

    /// Keeps the head of a leak. There is room for each object once.
    pub fn push_head(&mut self, pointer: usize) {
        self.heads[self.head_count] = pointer;
        self.head_count += 1;
    }

    /// Whether a head was kept.
    pub fn has_heads(&self) -> bool {
        self.head_count > 0
    }

    /// Takes the head that was kept last.
    pub fn pop_head(&mut self) -> Option<usize> {
        self.head_count = self.head_count.checked_sub(1)?;
        Some(self.heads[self.head_count])
    }
}
