//! Published figures of the kernel's allocators, in cycles an object on one CPU, for the columns
//! beside uslab's. They were measured in the kernel, on machines of their time: compare the shape
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

/// SLAB's and SLUB's bulk allocation as first posted to linux-mm in 2015.
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

/// Sizes of the tables of 2011.
pub const SIZES: [usize; 12] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/// SLUB's pair before and after its lock-free fast path, 2011. For 8 to 8192 bytes there is a range
/// alone, 132 to 152 and 78 to 88: its upper ends stand here.
pub fn pair_2011(size: usize) -> (f64, f64) {
    if size <= 8192 { (152.0, 88.0) } else { (754.0, 706.0) }
}

/// "Allocate 10000, then free 10000", SLUB in 2011 with its lock-free fast path: size, allocation,
/// free.
pub const BATCH_10000: [(usize, f64, f64); 12] = [
    (8, 190.0, 129.0),
    (16, 76.0, 123.0),
    (32, 126.0, 124.0),
    (64, 181.0, 128.0),
    (128, 310.0, 140.0),
    (256, 809.0, 165.0),
    (512, 1005.0, 269.0),
    (1024, 1999.0, 527.0),
    (2048, 3967.0, 570.0),
    (4096, 7658.0, 637.0),
    (8192, 8111.0, 859.0),
    (16384, 8791.0, 1173.0),
];

/// Objects of 4 KiB that come and go, before and after empty slabs went back at once: live objects,
/// cycles.
pub const CHURN_4K: [(usize, f64, f64); 2] = [(1, 145.0, 133.0), (4, 662.0, 2733.0)];
