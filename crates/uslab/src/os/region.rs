//! Regions of the library's own memory, for a test that writes to them at random.

/// A structure's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The kind of structure.
    pub kind: &'static str,
    /// Its first byte.
    pub start: usize,
    /// Its bytes.
    pub bytes: usize,
}

/// Called with each region.
pub type Visit<'a> = dyn FnMut(Region) + 'a;

impl Region {
    /// The value at `place`.
    pub fn of<T: ?Sized>(kind: &'static str, place: &T) -> Region {
        Region { kind, start: core::ptr::from_ref(place).addr(), bytes: size_of_val(place) }
    }
}
