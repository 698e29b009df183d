//! Memory by configuration: of one size for messages, of any size for SQLite.
//!
//! ```text
//!   any size:   │ class, 8 B │ the object that SQLite sees … │
//! ```
//!
//! Four classes a doubling, a cache each, waste at most a fifth. An object of any size has its
//! class in front of it, for glibc too: SQLite asks for sizes, and the answer must cost everybody
//! the same. What is larger than the largest class comes from glibc in every configuration.
//!
//! Must never: be called before [`AnySize::new`] made all caches, or round one configuration's
//! sizes otherwise than another's.

use super::Configuration;
use std::ptr::{NonNull, null_mut};
use uslab::RawCache;

/// Buffers of one size.
pub enum Buffers {
    Cache(RawCache),
    Glibc(usize),
}

impl Buffers {
    pub fn new(configuration: Configuration, size: usize) -> Result<Self, String> {
        Ok(configuration.cache(size)?.map_or(Buffers::Glibc(size), Buffers::Cache))
    }

    /// A buffer, or null.
    #[inline]
    pub fn alloc(&self) -> *mut u8 {
        match self {
            Buffers::Cache(cache) => cache.alloc().map_or(null_mut(), NonNull::as_ptr),
            // SAFETY: any size may be asked for.
            Buffers::Glibc(size) => unsafe { libc::malloc(*size).cast() },
        }
    }

    /// # Safety
    /// `buffer` is live and from [`alloc`](Self::alloc) of this one.
    #[inline]
    pub unsafe fn free(&self, buffer: *mut u8) {
        match self {
            // SAFETY: the caller's promise; a live buffer is not null.
            Buffers::Cache(cache) => unsafe { cache.free(NonNull::new_unchecked(buffer)) },
            // SAFETY: the caller's promise.
            Buffers::Glibc(_) => unsafe { libc::free(buffer.cast()) },
        }
    }
}

/// What stands in front of an object: its class, or the bytes of one that has none.
const HEADER: usize = 8;

/// The largest class, with its header.
const LARGEST: usize = 64 << 10;
const FIRST_DOUBLING: usize = 128;

/// The bytes of every class, with the header: steps of 16 to 128, then four a doubling.
fn classes() -> Vec<usize> {
    let small = (16..=FIRST_DOUBLING).step_by(16);
    let doublings = std::iter::successors(Some(FIRST_DOUBLING), |low| Some(low * 2));
    let steps = doublings.take_while(|&low| low < LARGEST).flat_map(|low| (5..=8).map(move |n| low * n / 4));
    small.chain(steps).collect()
}

/// The number of the smallest class that holds `bytes`; past the last where none does.
fn class_of(bytes: usize) -> usize {
    if bytes <= FIRST_DOUBLING {
        return bytes.div_ceil(16).max(1) - 1;
    }
    let top = (bytes - 1).ilog2();
    let doubling = (top - FIRST_DOUBLING.ilog2()) as usize;
    let quarter = (bytes - 1 - (1 << top)) >> (top - 2);
    FIRST_DOUBLING / 16 + doubling * 4 + quarter
}

/// Objects of any size.
pub struct AnySize {
    classes: Vec<(usize, Buffers)>,
}

impl AnySize {
    pub fn new(configuration: Configuration) -> Result<Self, String> {
        let one = |bytes| Ok((bytes, Buffers::new(configuration, bytes)?));
        Ok(Self { classes: classes().into_iter().map(one).collect::<Result<_, String>>()? })
    }

    /// At least so many bytes, aligned to 8, or null.
    pub fn alloc(&self, bytes: usize) -> *mut u8 {
        let whole = bytes + HEADER;
        let class = class_of(whole);
        let (start, header) = match self.classes.get(class) {
            Some((_, buffers)) => (buffers.alloc(), class),
            // SAFETY: any size may be asked for. No class is as large as the size, so the header
            // tells which it is.
            None => (unsafe { libc::malloc(whole).cast() }, whole),
        };
        if start.is_null() {
            return null_mut();
        }
        // SAFETY: the object begins with HEADER bytes that no other code uses, aligned to 8 as
        // caches and malloc align what is not smaller; what follows them is within it.
        unsafe {
            start.cast::<usize>().write(header);
            start.add(HEADER)
        }
    }

    /// How many bytes fit.
    ///
    /// # Safety
    /// `object` is live and from [`alloc`](Self::alloc) of this one.
    pub unsafe fn size(&self, object: *mut u8) -> usize {
        // SAFETY: the caller's promise: `alloc` wrote the header there.
        let header = unsafe { object.sub(HEADER).cast::<usize>().read() };
        self.classes.get(header).map_or(header, |class| class.0) - HEADER
    }

    /// # Safety
    /// As for [`size`](Self::size).
    pub unsafe fn free(&self, object: *mut u8) {
        // SAFETY: the caller's promise: `alloc` gave HEADER bytes before, and wrote the header
        // there.
        let (start, header) = unsafe {
            let start = object.sub(HEADER);
            (start, start.cast::<usize>().read())
        };
        match self.classes.get(header) {
            // SAFETY: the header says that it came from there.
            Some((_, buffers)) => unsafe { buffers.free(start) },
            // SAFETY: a header that is no class is a size, of what malloc gave.
            None => unsafe { libc::free(start.cast()) },
        }
    }

    /// What [`size`](Self::size) of an object of `bytes` will be.
    pub fn rounded(&self, bytes: usize) -> usize {
        let whole = bytes + HEADER;
        self.classes.get(class_of(whole)).map_or(whole, |class| class.0) - HEADER
    }
}

#[cfg(test)]
mod tests {
    use super::super::CONFIGURATIONS;
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_holds_it() {
        let classes = classes();
        assert!(classes.windows(2).all(|pair| pair[0] < pair[1]) && *classes.last().unwrap() == LARGEST);
        for bytes in 1..=LARGEST {
            let class = class_of(bytes);
            assert!(classes[class] >= bytes && (class == 0 || classes[class - 1] < bytes), "{bytes}");
        }
        assert_eq!(class_of(LARGEST + 1), classes.len());
    }

    #[test]
    fn objects_of_all_sizes_are_whole_and_apart() {
        for configuration in CONFIGURATIONS {
            let memory = AnySize::new(configuration).unwrap();
            let sizes = [1, 7, 100, 121, 4368, 65_000, 65_528, 65_529, 1 << 20];
            let objects: Vec<_> = sizes.iter().map(|&size| (size, memory.alloc(size))).collect();
            for (i, &(size, object)) in objects.iter().enumerate() {
                assert!(!object.is_null() && object.addr() % 8 == 0);
                // SAFETY: the object is live and holds `size` bytes.
                unsafe {
                    assert!(memory.size(object) >= size);
                    assert_eq!(memory.size(object), memory.rounded(size));
                    object.write_bytes(i as u8, size);
                }
            }
            for (i, (size, object)) in objects.into_iter().enumerate() {
                // SAFETY: as above; freed once.
                unsafe {
                    assert!((0..size).all(|at| object.add(at).read() == i as u8));
                    memory.free(object);
                }
            }
        }
    }
}
