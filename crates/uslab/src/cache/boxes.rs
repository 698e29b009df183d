//! Many boxes at once: values that move into a cache by one call, and boxes that go by one.
//!
//! ```text
//!   iterator ── insert_many ──▶ Boxes<N> ── Deref ──▶ [CacheBox]
//!                                   └── drop, drop_many ──▶ one call for 32 objects
//! ```
//!
//! The boxes stand in an array of the caller's, since the library allocates from nowhere else.

use super::body::Core;
use super::typed::{Cache, CacheBox};
use core::fmt;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

impl<T> Cache<T> {
    /// Moves up to `N` values into objects of the cache, which it allocates by one call. Takes no
    /// further value from the iterator: pass `&mut iterator` to use the rest of it afterwards.
    ///
    /// Returns no box, and takes no value, if memory is used up or if the cache has a constructor.
    /// Blocks as [`Cache::alloc`].
    ///
    /// ```
    /// use uslab::{Boxes, Cache};
    /// static WORDS: Cache<String> = Cache::new("word");
    /// let mut words = "to be or not to be".split(' ').map(String::from);
    /// let first: Boxes<String, 4> = WORDS.insert_many(&mut words);
    /// assert_eq!(first.len(), 4);
    /// assert_eq!(*first[3], "not");
    /// assert_eq!(WORDS.insert_many::<4>(words).len(), 2);
    /// let kept: Vec<_> = first.into_iter().collect(); // each a box of its own
    /// # drop(kept);
    /// ```
    pub fn insert_many<const N: usize>(&self, values: impl IntoIterator<Item = T>) -> Boxes<'_, T, N> {
        let mut boxes = Boxes { boxes: [const { MaybeUninit::uninit() }; N], from: 0, to: 0 };
        let mut values = values.into_iter();
        let wanted = values.size_hint().1.map_or(N, |most| most.min(N));
        if wanted == 0 || self.core_if_set_up().is_some_and(Core::is_constructed) {
            return boxes;
        }
        let mut unused = Unused { cache: self, objects: [core::ptr::null_mut(); N], from: 0, to: 0 };
        if !self.alloc_bulk(&mut unused.objects[..wanted]) {
            return boxes;
        }
        unused.to = wanted;
        while unused.from < unused.to
            && let Some(value) = values.next()
            && let Some(object) = NonNull::new(unused.objects[unused.from])
        {
            // SAFETY: the object was just allocated and is uninitialised; with its value it is a
            // box's.
            boxes.boxes[boxes.to].write(unsafe {
                object.write(value);
                CacheBox::from_raw(self, object)
            });
            unused.from += 1;
            boxes.to += 1;
        }
        boxes
    }
}

/// Allocated objects without a value, which are freed in the end, also where the iterator panics.
struct Unused<'a, T, const N: usize> {
    cache: &'a Cache<T>,
    objects: [*mut T; N],
    from: usize,
    to: usize,
}

impl<T, const N: usize> Drop for Unused<'_, T, N> {
    fn drop(&mut self) {
        // SAFETY: allocated, and no box has them.
        unsafe { self.cache.free_bulk(&self.objects[self.from..self.to]) };
    }
}

/// Up to `N` boxes of a cache, in an array; [`Cache::insert_many`] makes them. A slice of boxes by
/// `Deref`; `into_iter` gives the boxes themselves. Dropping it drops the values, and frees the
/// objects in bulk.
pub struct Boxes<'a, T, const N: usize> {
    /// Those in `from..to` are boxes.
    boxes: [MaybeUninit<CacheBox<'a, T>>; N],
    from: usize,
    to: usize,
}

/// An iterator over boxes of [`Boxes`]. Dropping it drops the rest.
pub struct IntoBoxes<'a, T, const N: usize>(Boxes<'a, T, N>);

impl<'a, T, const N: usize> IntoIterator for Boxes<'a, T, N> {
    type Item = CacheBox<'a, T>;
    type IntoIter = IntoBoxes<'a, T, N>;

    fn into_iter(self) -> IntoBoxes<'a, T, N> {
        IntoBoxes(self)
    }
}

impl<'a, T, const N: usize> Iterator for IntoBoxes<'a, T, N> {
    type Item = CacheBox<'a, T>;

    fn next(&mut self) -> Option<CacheBox<'a, T>> {
        self.0.take_first()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl<T, const N: usize> ExactSizeIterator for IntoBoxes<'_, T, N> {}

impl<'a, T, const N: usize> Boxes<'a, T, N> {
    fn take_first(&mut self) -> Option<CacheBox<'a, T>> {
        let place = self.boxes[..self.to].get(self.from)?;
        self.from += 1;
        // SAFETY: a box, which the range leaves out from now on.
        Some(unsafe { place.assume_init_read() })
    }
}

impl<'a, T, const N: usize> Deref for Boxes<'a, T, N> {
    type Target = [CacheBox<'a, T>];

    fn deref(&self) -> &[CacheBox<'a, T>] {
        let boxes = &self.boxes[self.from..self.to];
        // SAFETY: boxes stand there, and `MaybeUninit` has the layout of its content.
        unsafe { core::slice::from_raw_parts(boxes.as_ptr().cast(), boxes.len()) }
    }
}

impl<T, const N: usize> DerefMut for Boxes<'_, T, N> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        let boxes = &mut self.boxes[self.from..self.to];
        // SAFETY: as above, exclusively.
        unsafe { core::slice::from_raw_parts_mut(boxes.as_mut_ptr().cast(), boxes.len()) }
    }
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for Boxes<'_, T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T, const N: usize> Drop for Boxes<'_, T, N> {
    fn drop(&mut self) {
        /// Drops the boxes that are left where a value's destructor panics.
        struct Rest<'b, 'a, T, const N: usize>(&'b mut Boxes<'a, T, N>);
        impl<T, const N: usize> Drop for Rest<'_, '_, T, N> {
            fn drop(&mut self) {
                while self.0.take_first().is_some() {}
            }
        }
        let rest = Rest(self);
        CacheBox::drop_many(core::iter::from_fn(|| rest.0.take_first()));
    }
}

/// Boxes whose objects one call frees.
const TOGETHER: usize = 32;

/// Objects without a value that wait for a free in bulk.
struct Gone<'a, T> {
    cache: Option<&'a Cache<T>>,
    objects: [*mut T; TOGETHER],
    n: usize,
}

impl<'a, T> Gone<'a, T> {
    /// Adds an object. It is freed with the next ones, or in the end.
    fn add(&mut self, cache: &'a Cache<T>, object: NonNull<T>) {
        if self.n == TOGETHER || !self.cache.is_some_and(|own| core::ptr::eq(own, cache)) {
            self.free();
        }
        self.cache = Some(cache);
        self.objects[self.n] = object.as_ptr();
        self.n += 1;
    }

    fn free(&mut self) {
        let n = core::mem::take(&mut self.n);
        if let Some(cache) = self.cache {
            // SAFETY: boxes of this cache owned them, and their values are gone.
            unsafe { cache.free_bulk(&self.objects[..n]) };
        }
    }
}

impl<T> Drop for Gone<'_, T> {
    fn drop(&mut self) {
        self.free();
    }
}

impl<'a, T> CacheBox<'a, T> {
    /// Drops boxes, and frees their objects in bulk, 32 by one call. Boxes of different caches may
    /// be mixed. If a value's destructor panics, the other boxes are dropped one by one.
    ///
    /// ```
    /// static NODES: uslab::Cache<u64> = uslab::Cache::new("node");
    /// let nodes: Vec<_> = (0..100).map(|n| NODES.insert(n).unwrap()).collect();
    /// uslab::CacheBox::drop_many(nodes);
    /// ```
    pub fn drop_many(boxes: impl IntoIterator<Item = CacheBox<'a, T>>) {
        let mut gone = Gone { cache: None, objects: [core::ptr::null_mut(); TOGETHER], n: 0 };
        for one in boxes {
            let one = ManuallyDrop::new(one);
            let (cache, object) = one.parts();
            gone.add(cache, object);
            // SAFETY: the box owned a valid value, which is not used any more. Its object is freed
            // after this.
            unsafe { object.drop_in_place() };
        }
    }
}
