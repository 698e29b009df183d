//! The oracle: the live objects, their addresses and their contents.

use std::collections::BTreeMap;
use std::ops::Bound::Excluded;

/// Up to this size every byte of an object is written and compared.
const WHOLE_BYTES: usize = 16 << 10;
/// Above it, a word at each multiple of this, and the last bytes: enough to touch each page of an
/// object that is not huge.
const STRIDE_BYTES: usize = 4096;
/// From this size on the stride is larger: these objects test the address space, not the memory.
const HUGE_BYTES: usize = 4 << 20;
const HUGE_STRIDE_BYTES: usize = 1 << 20;
/// Bytes written at each step of a stride.
const STEP_BYTES: usize = 8;

/// An object that the allocator returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub address: usize,
    pub bytes: usize,
    /// Distinct for each object, so that a write through a wrong object is noticed.
    pub tag: u64,
}

impl Object {
    pub fn pointer(self) -> *mut u8 {
        self.address as *mut u8
    }

    fn byte_at(self, offset: usize) -> u8 {
        let mixed = (self.tag ^ (offset as u64 / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.to_le_bytes()[7 - offset % 4]
    }

    /// Offsets that are written and compared.
    fn offsets(self) -> impl Iterator<Item = usize> {
        let stride = match self.bytes {
            0..=WHOLE_BYTES => STEP_BYTES,
            HUGE_BYTES.. => HUGE_STRIDE_BYTES,
            _ => STRIDE_BYTES,
        };
        let bytes = self.bytes;
        let last = bytes - bytes.min(STEP_BYTES);
        let steps = (0..bytes).step_by(stride).chain([last]);
        steps.flat_map(move |at| at..bytes.min(at + STEP_BYTES))
    }

    /// Writes the object's own pattern to it.
    pub fn fill(self) {
        for offset in self.offsets() {
            // SAFETY: the caller owns the object, and the offset lies within it.
            unsafe { self.pointer().add(offset).write(self.byte_at(offset)) };
        }
    }

    /// Offset of the first written byte before `end` that differs from the pattern of
    /// [`Object::fill`].
    pub fn changed_before(self, end: usize) -> Option<usize> {
        // SAFETY: as in `fill`; the bytes were written there.
        self.offsets().find(|&at| at < end && unsafe { self.pointer().add(at).read() } != self.byte_at(at))
    }

    /// Offset of the first compared byte before `end` that is not zero.
    pub fn nonzero_before(self, end: usize) -> Option<usize> {
        // SAFETY: the caller owns the object, which was allocated as zeroed.
        self.offsets().find(|&at| at < end && unsafe { self.pointer().add(at).read() } != 0)
    }

    fn end(self) -> usize {
        self.address + self.bytes.max(1)
    }
}

/// All live objects of one program.
#[derive(Default)]
pub struct Oracle {
    live: BTreeMap<usize, Object>,
    tags: u64,
}

impl Oracle {
    /// Adds a new object of `bytes` usable bytes, and fills it.
    pub fn born(&mut self, pointer: *mut u8, bytes: usize, align: usize) -> Object {
        let object = self.enter(pointer, bytes, align);
        object.fill();
        object
    }

    /// [`Oracle::born`] for an object whose first `zeroed` bytes must be zero.
    pub fn born_zeroed(&mut self, pointer: *mut u8, bytes: usize, zeroed: usize, align: usize) -> Object {
        let object = self.enter(pointer, bytes, align);
        if let Some(at) = object.nonzero_before(zeroed) {
            panic!("{object:x?}: byte {at} of {zeroed} is not zero");
        }
        object.fill();
        object
    }

    /// [`Oracle::born`] for an object that was `old` until it was resized to `asked` bytes: the
    /// bytes that both have in common must be unchanged.
    ///
    /// `old` is no longer in the map, and its address may be `pointer`.
    pub fn resized(
        &mut self,
        old: Object,
        pointer: *mut u8,
        (asked, bytes): (usize, usize),
        align: usize,
    ) -> Object {
        // Compared at the offsets of the old size, which were written; then filled again.
        let common = old.bytes.min(asked);
        let moved = Object { address: pointer as usize, ..old };
        let object = self.enter(pointer, bytes, align);
        if let Some(at) = moved.changed_before(common) {
            panic!("{old:x?} became {object:x?} and lost byte {at}");
        }
        object.fill();
        object
    }

    fn enter(&mut self, pointer: *mut u8, bytes: usize, align: usize) -> Object {
        assert!(!pointer.is_null(), "there is memory");
        self.tags += 1;
        let object = Object { address: pointer as usize, bytes, tag: self.tags };
        assert_eq!(object.address % align, 0, "{object:x?} is aligned to {align}");
        let before = self.live.range((Excluded(0), Excluded(object.end()))).next_back();
        if let Some((_, other)) = before {
            assert!(other.end() <= object.address, "{object:x?} overlaps {other:x?}");
        }
        self.live.insert(object.address, object);
        object
    }

    /// Removes an object that is about to be freed or resized, and checks its contents.
    pub fn dies(&mut self, pointer: *mut u8) -> Object {
        let object =
            self.live.remove(&(pointer as usize)).expect("a program freed an object that is not live");
        self.check(object);
        object
    }

    fn check(&self, object: Object) {
        if let Some(at) = object.changed_before(object.bytes) {
            panic!("{object:x?}: byte {at} was changed");
        }
    }

    /// Checks every live object.
    pub fn check_all(&self) {
        self.live.values().for_each(|&object| self.check(object));
    }

    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// The live object number `n`, modulo their number; `None` if there are none.
    pub fn nth(&self, n: usize) -> Option<Object> {
        if self.live.is_empty() {
            return None;
        }
        // By address from a pseudo-random place on: fast, and any order serves.
        let values = self.live.values();
        values.copied().nth(n % self.live.len())
    }

    /// Whether an object starts at `pointer`.
    pub fn has(&self, pointer: *const u8) -> bool {
        self.live.contains_key(&(pointer as usize))
    }

    /// All live objects.
    pub fn objects(&self) -> Vec<Object> {
        self.live.values().copied().collect()
    }
}
