//! Suite `order`: slabs of 1 to 32 pages, against speed and memory; and a build under LD_PRELOAD.
//!
//! The kernel's slab order trades speed for memory: a larger slab serves more objects before the
//! page layer is asked, and one live object keeps more pages. A lane is a cache whose slabs all
//! have one order; "uslab" is a cache as it comes, "deep queue" one whose sheaves hold 256 objects.
//! A run allocates a batch, writes each object, and frees the batch. Its value is the time of an
//! object. Beside it stand the bytes of the slabs: with all objects live, and after a random 90 %
//! of them were freed and the cache was shrunk.
//!
//! The tables of 2009 had loads that do much besides allocating. The build is one of them; ADR 0026
//! has the reason why messages and transactions were removed.

use super::{Context, RowPlan, Suite, Tables};
use crate::measure::{Lane, Method, Sample};
use crate::preload;
use crate::programs;
use crate::results::{Role, Row, Scale, Unit};
use crate::rounds::random::shuffle;
use std::ptr::{NonNull, null_mut};
use std::time::Instant;
use uslab::{CacheBuilder, RawCache};

const SIZES: [usize; 5] = [64, 256, 1024, 2048, 4096];
const ORDERS: [(u32, &str); 6] =
    [(0, "order 0"), (1, "order 1"), (2, "order 2"), (3, "order 3"), (4, "order 4"), (5, "order 5")];
const DEEP_QUEUE: usize = 256;

/// In the second reading of memory one object in ten is live.
const KEPT_ONE_IN: usize = 10;

pub const ORDER: Suite = Suite {
    tables: Tables::Lines,
    ..Suite::new("order", "slab orders 0 to 5 against speed and memory; and a build", |context| {
        let scale = context.options.scale();
        SIZES.iter().map(|&size| knob_row(context, size)).chain([build_row(scale)]).collect()
    })
};

fn knob_row(context: &Context, size: usize) -> RowPlan {
    let objects = context.pick(100, 10_000, 10_000);
    let lane = |name: &str, role, set: fn(CacheBuilder, u32) -> CacheBuilder, order| {
        Lane::of_runs(name, role, move || {
            let cache = set(CacheBuilder::new("bench-order"), order).build_raw(size);
            let cache = cache.map_err(|error| format!("no cache of {size} bytes: {error}"))?;
            Ok(run_cache(&cache, objects))
        })
    };
    let mut lanes = vec![lane("uslab", Role::Subject, |builder, _| builder, 0)];
    for (order, name) in ORDERS {
        lanes.push(lane(name, Role::Ours, of_order, order));
    }
    lanes.push(lane("deep queue", Role::Ours, |builder, _| builder.sheaf_capacity(DEEP_QUEUE), 0));
    let row = Row::new(format!("knobs/{size}"), "a batch allocated, written and freed", format!("{size} B"));
    Row { size_bytes: size, live: objects, ..row }
        .by(Method::Runs(context.options.scale().pick(1, 20, 100), lanes))
}

/// The builder takes order 0 for its default order, so order 0 is set by a least number of objects.
fn of_order(builder: CacheBuilder, order: u32) -> CacheBuilder {
    if order == 0 { builder.min_objects(1) } else { builder.min_order(order).max_order(order) }
}

/// A batch, and the memory of the cache.
fn run_cache(cache: &RawCache, objects: usize) -> Sample {
    let mut slots = vec![null_mut(); objects];
    let alloc = || cache.alloc().map_or(null_mut(), NonNull::as_ptr);
    // SAFETY: each object is freed once, and is not null: `written` has checked it.
    let free = |object: *mut u8| unsafe { cache.free(NonNull::new_unchecked(object)) };
    // The first batch pays for fresh pages.
    batch_ns(&mut slots, alloc, free);
    let mut sample = Sample::of(batch_ns(&mut slots, alloc, free));
    slots.fill_with(|| written(alloc()));
    let mut slab_bytes = |name: &str| {
        if let Some(stats) = cache.stats() {
            sample.extra.insert(name.into(), stats.slab_bytes as f64);
        }
    };
    slab_bytes("all_live_bytes");
    let order = shuffle(objects);
    let (kept, freed) = order.split_at(objects / KEPT_ONE_IN);
    freed.iter().for_each(|&slot| free(slots[slot as usize]));
    cache.shrink();
    slab_bytes("tenth_live_bytes");
    kept.iter().for_each(|&slot| free(slots[slot as usize]));
    sample
}

/// Nanoseconds for an object.
fn batch_ns(slots: &mut [*mut u8], alloc: impl Fn() -> *mut u8, free: impl Fn(*mut u8)) -> f64 {
    let start = Instant::now();
    slots.fill_with(|| written(alloc()));
    slots.iter().for_each(|&object| free(object));
    start.elapsed().as_nanos() as f64 / slots.len() as f64
}

/// Writes the first word of a fresh object.
fn written(object: *mut u8) -> *mut u8 {
    assert!(!object.is_null(), "no memory for a batch");
    // SAFETY: fresh memory of 64 bytes at least, aligned to 8 at least.
    unsafe { object.cast::<usize>().write(1) };
    object
}

fn build_row(scale: Scale) -> RowPlan {
    let lane = |library: &'static preload::Library, role| {
        Lane::of_runs(library.name, role, move || {
            super::programs::run(programs::BUILD.name, &library.find()?, scale)
        })
    };
    let lanes = vec![lane(&preload::USLAB, Role::Subject), lane(&preload::GLIBC, Role::Peer)];
    let row = Row::new("build", "make -j of a generated project", (programs::BUILD.title)(scale));
    Row { unit: Unit::Seconds, live: 0, ..row }.by(Method::Runs(scale.pick(1, 1, 5), lanes))
}
