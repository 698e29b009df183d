//! Figures that others published, in cycles an object (256 bytes, allocated and freed, one CPU), for the
//! column beside ours. They were measured in the kernel, on a machine of 2015: their place here is the shape
//! of the curve, not the number.

/// A row of the bulk tables of 2015, for N objects.
pub struct BulkRow {
    pub n: usize,
    /// SLAB, one at a time and in bulk.
    pub slab_single: Option<f64>,
    pub slab_bulk: f64,
    /// SLUB, the fallback loop and in bulk.
    pub slub_single: Option<f64>,
    pub slub_bulk: Option<f64>,
}

const fn both(n: usize, slab: (f64, f64), slub: (f64, f64)) -> BulkRow {
    BulkRow {
        n,
        slab_single: Some(slab.0),
        slab_bulk: slab.1,
        slub_single: Some(slub.0),
        slub_bulk: Some(slub.1),
    }
}

const fn large(n: usize, slab_bulk: f64) -> BulkRow {
    BulkRow { n, slab_single: None, slab_bulk, slub_single: None, slub_bulk: None }
}

/// SLAB's and SLUB's bulk allocation as first posted to linux-mm in 2015 (MISSION.md, sections 1 and 2).
pub const BULK: &[BulkRow] = &[
    both(1, (115.0, 42.0), (47.0, 45.0)),
    both(2, (103.0, 27.0), (46.0, 28.0)),
    both(3, (101.0, 22.0), (46.0, 22.0)),
    both(4, (100.0, 21.0), (45.0, 19.0)),
    both(8, (98.0, 18.0), (45.0, 17.0)),
    both(16, (97.0, 17.0), (44.0, 17.0)),
    both(30, (98.0, 16.0), (75.0, 57.0)),
    both(32, (98.0, 16.0), (73.0, 56.0)),
    both(34, (98.0, 18.0), (75.0, 58.0)),
    both(48, (97.0, 17.0), (80.0, 64.0)),
    both(64, (97.0, 17.0), (87.0, 74.0)),
    both(128, (99.0, 19.0), (98.0, 89.0)),
    both(158, (99.0, 18.0), (101.0, 93.0)),
    both(250, (101.0, 20.0), (104.0, 100.0)),
    large(512, 20.0),
    large(768, 30.0),
    large(1024, 40.0),
    large(2048, 72.0),
    large(4096, 90.0),
];
