//! Geometry: the number of pages of a slab, and the positions of its objects.
//!
//! The kernel's rule picks the lowest order from `min_order` to `max_order` that holds
//! `min_objects` objects and leaves at most 1/16 of the slab unused. If no order does, the bound
//! becomes 1/8, then 1/4, then 1/2. If none fits even then, a slab is as small as one object
//! allows.

use crate::os::facts::{Fact, facts};
use crate::pages::{DESCRIPTOR_BYTES, PAGE_BYTES};
use crate::rseq::StartTest;

/// Bytes of [`Head`] before the bitmap.
pub(super) const HEAD_BYTES: usize = 16;

/// Size and alignment that the user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of an object; not 0.
    pub size: usize,
    /// Its alignment; a power of two.
    pub align: usize,
}

/// Tuning options; 0 selects the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeometryOptions {
    /// Lower bound on the objects of a slab, where the orders allow it. The default is
    /// `4 · (log2(cpus) + 2)`, or 32 if that is more.
    pub min_objects: usize,
    /// Lowest order tried.
    pub min_order: u32,
    /// Highest order tried; by default 5.
    pub max_order: u32,
    /// Bytes at the end of a slab in which no object starts. A slab may then have less room than
    /// its order was chosen for.
    pub tail_bytes: usize,
    /// Bytes at the end of a slab that stay free for the end of the last object's record, which is
    /// longer than the distance between two objects.
    pub spill_bytes: usize,
}

/// Why a layout cannot be served by slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// Size 0, or an alignment that is not a power of two.
    Invalid,
    /// An object or alignment beyond what slabs serve.
    TooLarge,
}

/// The layout of every slab of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Distance between two objects, in bytes.
    pub object_bytes: usize,
    /// Objects of a slab.
    pub objects: usize,
    /// A slab lies on a multiple of `2^order` pages.
    pub order: u32,
    /// Pages of a slab: `2^order`, or those of one object, which is a run.
    pages: usize,
    /// `ceil(2^44 / object_bytes)`: an offset times this, shifted right by 44, is the object's
    /// index.
    reciprocal: u64,
}

/// The layout of slabs, for a debugger.
pub(super) const FACTS: &[Fact] = facts!(Geometry { object_bytes, objects, order, pages });

/// With offsets and objects below 2^20 bytes the reciprocal's error stays below one part in 2^44.
const RECIPROCAL_SHIFT: u32 = 44;

impl Geometry {
    /// Largest object of a slab of parts: 256 KiB. A slab that is one object may be larger.
    pub const MAX_OBJECT_BYTES: usize = 256 << 10;
    /// Largest distance between two objects: that of debugged objects of the largest size and
    /// alignment. Their slabs stay below the reciprocal's bound.
    const MAX_STRIDE_BYTES: usize = 3 * Self::MAX_OBJECT_BYTES;
    /// Highest order that `max_order` may name: 1 MiB.
    pub const MAX_ORDER: u32 = 8;
    const DEFAULT_MAX_ORDER: u32 = 5;
    /// The default for slabs that give no page back while an object is in use.
    pub const WHOLE_MAX_ORDER: u32 = 3;
    /// Default lower bound on the objects of a slab, where the orders allow it: what the kernel's
    /// rule gives for 64 CPUs. The kernel makes small slabs on small machines because contiguous
    /// physical memory is scarce. Contiguous addresses are not (ADR 0014).
    const MIN_OBJECTS: usize = 32;

    /// Chooses the order for objects of `layout` on a machine of `cpus` CPUs.
    pub fn new(layout: Layout, options: GeometryOptions, cpus: usize) -> Result<Geometry, GeometryError> {
        let Layout { size, align } = layout;
        if size == 0 || !align.is_power_of_two() {
            return Err(GeometryError::Invalid);
        }
        if size > Self::MAX_STRIDE_BYTES || align > Self::MAX_OBJECT_BYTES {
            return Err(GeometryError::TooLarge);
        }
        // A free object is never written, so it needs no room for a link. Each object costs a bit
        // of the bitmap, hence at least 8 bytes an object.
        let object_bytes = size.max(8).next_multiple_of(align.max(1));
        // A slab starts on a multiple of its own size, which gives its objects their alignment.
        let align_order = (align.div_ceil(PAGE_BYTES)).next_power_of_two().trailing_zeros();
        let max_order = if options.max_order == 0 { Self::DEFAULT_MAX_ORDER } else { options.max_order };
        let max_order = max_order.clamp(align_order, Self::MAX_ORDER);
        let min_order = options.min_order.max(align_order).min(max_order);
        let wanted = match options.min_objects {
            0 => (4 * (cpus.max(1).ilog2() as usize + 2)).max(Self::MIN_OBJECTS),
            n => n,
        };
        let min_objects = wanted.min(fitting(object_bytes, max_order, options.spill_bytes)).max(1);
        let order = [16, 8, 4, 2].iter().find_map(|&fraction| {
            (min_order..=max_order).find(|&order| {
                let objects = fitting(object_bytes, order, options.spill_bytes);
                let bytes = PAGE_BYTES << order;
                objects >= min_objects && bytes - objects * object_bytes <= bytes / fraction
            })
        });
        let one_bytes = object_bytes + options.spill_bytes;
        let single = || one_bytes.div_ceil(PAGE_BYTES).next_power_of_two().trailing_zeros();
        let order = order.unwrap_or_else(|| single().max(min_order));
        let starts = (PAGE_BYTES << order).saturating_sub(options.tail_bytes).div_ceil(object_bytes);
        Ok(Geometry {
            object_bytes,
            objects: fitting(object_bytes, order, options.spill_bytes).min(starts).max(1),
            order,
            pages: 1 << order,
            reciprocal: (1u64 << RECIPROCAL_SHIFT).div_ceil(object_bytes as u64),
        })
    }

    /// Slabs that are runs: each is one object of `pages` whole pages, on any page. The page map
    /// names the cache for the first page only. So no pointer to another page is taken for an
    /// object.
    pub fn run(pages: usize) -> Geometry {
        let object_bytes = pages * PAGE_BYTES;
        let reciprocal = (1u64 << RECIPROCAL_SHIFT).div_ceil(object_bytes as u64);
        Geometry { object_bytes, objects: 1, order: 0, pages, reciprocal }
    }

    /// Whether slabs are runs; see [`Geometry::run`].
    pub const fn is_run(&self) -> bool {
        self.pages > 1 << self.order
    }

    /// Pages of a slab.
    pub const fn pages(&self) -> usize {
        self.pages
    }

    /// Whether these words are those of a geometry: a wild write to one of them is found.
    #[inline]
    pub(super) const fn is_plausible(&self) -> bool {
        let excess =
            (self.reciprocal.wrapping_mul(self.object_bytes as u64)).wrapping_sub(1 << RECIPROCAL_SHIFT);
        let objects = self.objects as u64;
        // An object at least, and the reciprocal's own definition.
        objects.wrapping_sub(1) < 1 << 20
            && excess < self.object_bytes as u64
            && objects * self.object_bytes as u64 <= (self.pages * PAGE_BYTES) as u64
            && (self.pages == 1 << (self.order & 15) || self.objects == 1)
    }

    /// Pages of a slab, from the first on, that the page map names the cache for.
    pub const fn named_pages(&self) -> usize {
        1 << self.order
    }

    /// Words of the bitmap.
    pub const fn words(&self) -> usize {
        self.objects.div_ceil(64)
    }

    /// Whether a slab knows which of its pages have memory: one word of 64 bits tells.
    pub const fn has_resident_word(&self) -> bool {
        !self.is_run() && has_resident_word(self.order)
    }

    /// Whether a slab is charged for a page when an object on it is about to be used, and not for
    /// all pages at once: from 64 KiB on. Smaller runs come from the CPU's page lists, whole.
    pub const fn grows_by_pages(&self) -> bool {
        self.has_resident_word() && self.order >= 4
    }

    /// The object at `offset` bytes from the slab's start; `None` if no object starts there.
    #[inline]
    pub fn index_of(&self, offset: usize) -> Option<usize> {
        let index = ((offset as u64 * self.reciprocal) >> RECIPROCAL_SHIFT) as usize;
        (index * self.object_bytes == offset && index < self.objects).then_some(index)
    }

    /// The object that contains the byte at `offset` from the slab's start; `None` behind the last.
    pub fn index_around(&self, offset: usize) -> Option<usize> {
        // Most offsets are those of a start, for which no division is needed.
        self.index_of(offset).or_else(|| {
            let index = offset / self.object_bytes;
            (index < self.objects).then_some(index)
        })
    }

    /// The fast path's form of [`Geometry::index_of`]: tests whether an object starts at an
    /// address.
    ///
    /// It is exact for every size class. For other caches it is exact if the slab and one object
    /// together have fewer than `2^32 / object_bytes` bytes, as with objects of up to 16 KiB in
    /// slabs of order 5 at most. Otherwise any multiple of the largest power of two that divides
    /// `object_bytes` may pass.
    pub fn start_test(&self) -> StartTest {
        if self.is_run() {
            return StartTest { mask: PAGE_BYTES as u32 - 1, reciprocal: 1, last: 0 };
        }
        let stride = self.object_bytes as u64;
        let slab_bytes = (self.pages() * PAGE_BYTES) as u64;
        let reciprocal = (1 << 32) / stride + 1;
        let excess = reciprocal * stride - (1 << 32);
        // The test multiplies an offset by the reciprocal, modulo 2^32. The start of object `i`
        // gives `i * excess`; each byte behind it adds one reciprocal. Under this condition the
        // starts stay below one reciprocal, and no other offset wraps around to a small product.
        if slab_bytes.div_ceil(stride) * excess < reciprocal {
            let last = (self.objects as u64 - 1) * excess;
            return StartTest {
                mask: (slab_bytes - 1) as u32,
                reciprocal: reciprocal as u32,
                last: last as u32,
            };
        }
        StartTest { mask: (1 << stride.trailing_zeros()) - 1, reciprocal: 1, last: 0 }
    }
}

/// See [`Geometry::has_resident_word`]. A slab of one page goes back whole, and those of more than
/// 64 have more pages than a word has bits.
const fn has_resident_word(order: u32) -> bool {
    order >= 1 && order <= 6
}

/// Objects that a slab of `order` holds in front of its last `spill_bytes`: bounded by its bytes
/// and by the bits of its descriptors.
fn fitting(object_bytes: usize, order: u32, spill_bytes: usize) -> usize {
    let resident_bytes = if has_resident_word(order) { size_of::<u64>() } else { 0 };
    let bits = ((DESCRIPTOR_BYTES << order) - HEAD_BYTES - resident_bytes) * 8 / 64 * 64;
    ((PAGE_BYTES << order).saturating_sub(spill_bytes) / object_bytes).min(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(size: usize) -> Geometry {
        Geometry::new(Layout { size, align: 8 }, GeometryOptions::default(), 2).unwrap()
    }

    #[test]
    fn small_objects_take_few_pages_and_waste_little() {
        assert_eq!((of(64).order, of(64).objects), (0, 64));
        assert_eq!((of(128).order, of(128).objects), (0, 32));
        assert_eq!((of(256).order, of(256).objects), (1, 32));
        for size in 8..=2048 {
            let g = of(size);
            let bytes = PAGE_BYTES << g.order;
            assert!((bytes - g.objects * g.object_bytes) * 8 <= bytes, "{size}: {g:?}");
        }
    }

    #[test]
    fn every_index_is_found_and_nothing_between() {
        for size in [8, 16, 24, 40, 96, 320, 1000, 1024, 4096, 10240, 28672, 65536, 200_000] {
            let g = of(size);
            for index in 0..g.objects {
                assert_eq!(g.index_of(index * g.object_bytes), Some(index));
                assert_eq!(g.index_of(index * g.object_bytes + 1), None);
                assert_eq!(g.index_of(index * g.object_bytes + g.object_bytes - 1), None);
            }
            assert_eq!(g.index_of(g.objects * g.object_bytes), None);
        }
    }

    /// Whether the fast test agrees with [`Geometry::index_of`] at every offset of a slab.
    fn is_exact(g: &Geometry) -> bool {
        let test = g.start_test();
        let slab_bytes = g.pages() * PAGE_BYTES;
        let start = 0x7f00_0000_0000 + 3 * slab_bytes;
        (0..slab_bytes).all(|offset| test.is_passed_by(start + offset) == g.index_of(offset).is_some())
    }

    #[test]
    fn the_fast_test_agrees_at_every_offset() {
        for size in (1..=512).chain((513..=16384).step_by(101)) {
            assert!(is_exact(&of(size)), "{:?}", of(size));
        }
        // malloc's larger classes.
        for size in [5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32].map(|kib| kib << 10) {
            let options = GeometryOptions { max_order: 5, ..GeometryOptions::default() };
            let g = Geometry::new(Layout { size, align: 16 }, options, 2).unwrap();
            assert!(is_exact(&g), "{g:?}");
        }
    }

    #[test]
    fn the_last_object_may_go_on_behind_its_stride() {
        for spill_bytes in [8, 56, 4088] {
            let align = spill_bytes + 8;
            for size in (align..=65536).step_by(16 * align) {
                for order in [0, 5] {
                    let bounds = GeometryOptions { min_order: order, max_order: 5, ..Default::default() };
                    let options = GeometryOptions { spill_bytes, ..bounds };
                    let g = Geometry::new(Layout { size, align }, options, 2).unwrap();
                    assert!(g.objects * g.object_bytes + spill_bytes <= PAGE_BYTES << g.order, "{g:?}");
                }
            }
        }
    }

    #[test]
    fn the_fast_test_never_refuses_an_object() {
        for size in (16384..=Geometry::MAX_OBJECT_BYTES).step_by(4088) {
            for max_order in [0, 5, 8] {
                let options = GeometryOptions { max_order, ..GeometryOptions::default() };
                let g = Geometry::new(Layout { size, align: 8 }, options, 2).unwrap();
                for index in 0..g.objects {
                    let start = 0x7f00_0000_0000 + index * g.object_bytes;
                    assert!(g.start_test().is_passed_by(start), "{g:?}");
                    assert!(
                        !g.start_test().is_passed_by(start + 1) && !g.start_test().is_passed_by(start + 4)
                    );
                }
            }
        }
    }

    #[test]
    fn bits_fit_their_descriptors() {
        for size in 1..5000 {
            let g = of(size);
            assert!(HEAD_BYTES + g.words() * 8 <= DESCRIPTOR_BYTES << g.order, "{g:?}");
        }
    }

    #[test]
    fn alignment_beyond_a_page_raises_the_order() {
        let g = Geometry::new(Layout { size: 100, align: 16384 }, GeometryOptions::default(), 2).unwrap();
        assert!(g.order >= 2 && g.object_bytes == 16384);
    }

    #[test]
    fn bad_layouts_are_refused() {
        let new = |size, align| Geometry::new(Layout { size, align }, GeometryOptions::default(), 2);
        assert_eq!(new(0, 8), Err(GeometryError::Invalid));
        assert_eq!(new(8, 3), Err(GeometryError::Invalid));
        assert_eq!(new(8, 0), Err(GeometryError::Invalid));
        assert_eq!(new(usize::MAX, 8), Err(GeometryError::TooLarge));
        assert_eq!(new(8, 1 << 40), Err(GeometryError::TooLarge));
    }
}
