//! A cache whose slabs have one order, against time and memory.
//!
//! ```text
//!   grow ─ all freed ─ batches ─ filled again ─ random quarters ─ nine of ten freed, trimmed
//!    ns full              ns                          ns                       tenth
//! ```
//!
//! `full` and `tenth` are resident bytes: with all objects live and written, and after a random
//! 90 % of them were freed and every free page was asked back. This runs in a process of its own
//! (child.rs), because the resident set is the process's, and because only fresh memory shows what
//! growth costs.
//!
//! Must never: allocate from the system between the baseline and the last reading.

use super::memory::Statm;
use super::random::shuffle;
use crate::measure::Sample;
use serde::{Deserialize, Serialize};
use std::ptr::{NonNull, null_mut};
use std::time::Instant;
use uslab::{CacheBuilder, RawCache};

/// The size and order of a cache, and the number of objects that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slabs {
    pub object_bytes: usize,
    pub objects: usize,
    /// Of all slabs; `None` for the library's choice.
    pub order: Option<u32>,
    /// `None` for the library's choice.
    pub sheaf_capacity: Option<usize>,
}

/// Names of the readings in [`Sample::extra`]: nanoseconds of one object, and resident bytes of
/// each live byte.
pub const GROW: &str = "grow_ns";
pub const BATCH: &str = "batch_ns";
pub const CHURN: &str = "churn_ns";
pub const FULL: &str = "full_resident_per_live";
pub const TENTH: &str = "tenth_resident_per_live";

/// Objects of a batch at most, and batches, of which the least counts.
const BATCH_OBJECTS: usize = 10_000;
const BATCHES: usize = 5;
/// The part of the objects that go at once and come again.
const CHURNED_ONE_IN: usize = 4;
/// In the last reading of memory one object in ten is live.
const KEPT_ONE_IN: usize = 10;
/// The distance of writes that touch every page.
const PAGE_BYTES: usize = 4096;

impl Slabs {
    pub fn run(&self) -> Result<Sample, String> {
        let cache = self.cache()?;
        let statm = Statm::open().map_err(|error| format!("cannot read /proc/self/statm: {error}"))?;
        let (mut slots, order) = (vec![NonNull::dangling().as_ptr(); self.objects], shuffle(self.objects));
        // Objects that come with a quarter lie side by side, so the last frees have an order of
        // their own.
        let last: Vec<u32> = order.iter().map(|&at| order[at as usize]).collect();
        // The cache's own memory and that of the first call are the same for every order.
        free(&cache, object(&cache));
        let baseline = statm.resident_bytes();
        let per_live = |objects: usize| {
            let above = statm.resident_bytes().saturating_sub(baseline);
            above as f64 / (objects * self.object_bytes) as f64
        };
        let grow = per_object(self.objects, || slots.fill_with(|| object(&cache)));
        self.write_all(&slots);
        let full = per_live(self.objects);
        slots.iter().for_each(|&slot| free(&cache, slot));
        let count = BATCH_OBJECTS.min(self.objects);
        let batch = || {
            slots[..count].fill_with(|| object(&cache));
            slots[..count].iter().for_each(|&slot| free(&cache, slot));
        };
        let mut batch = batch;
        let batch = (0..BATCHES).map(|_| per_object(count, &mut batch)).fold(f64::INFINITY, f64::min);
        slots.fill_with(|| object(&cache));
        let quarters = order.chunks(self.objects.div_ceil(CHURNED_ONE_IN));
        let churn = per_object(self.objects, || {
            for quarter in quarters {
                quarter.iter().for_each(|&slot| free(&cache, slots[slot as usize]));
                quarter.iter().for_each(|&slot| slots[slot as usize] = object(&cache));
            }
        });
        self.write_all(&slots);
        let (kept, freed) = last.split_at((self.objects / KEPT_ONE_IN).max(1));
        freed.iter().for_each(|&slot| free(&cache, slots[slot as usize]));
        cache.shrink();
        uslab::trim(0);
        let tenth = per_live(kept.len());
        kept.iter().for_each(|&slot| free(&cache, slots[slot as usize]));
        let extra = [(GROW, grow), (BATCH, batch), (CHURN, churn), (FULL, full), (TENTH, tenth)];
        let extra = extra.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Sample { extra, ..Sample::of(batch) })
    }

    fn cache(&self) -> Result<RawCache, String> {
        let builder = CacheBuilder::new("bench-order");
        let builder = match self.order {
            // The builder takes order 0 for its default, so a least number of objects sets it.
            Some(0) => builder.min_objects(1),
            Some(order) => builder.min_order(order).max_order(order),
            None => builder,
        };
        let builder = match self.sheaf_capacity {
            Some(capacity) => builder.sheaf_capacity(capacity),
            None => builder,
        };
        let bytes = self.object_bytes;
        builder.build_raw(bytes).map_err(|error| format!("no cache of {bytes} bytes: {error}"))
    }

    /// Writes to every page of the objects.
    fn write_all(&self, slots: &[*mut u8]) {
        for &slot in slots {
            for offset in (0..self.object_bytes).step_by(PAGE_BYTES) {
                // SAFETY: the offset lies within an object that this thread alone uses.
                unsafe { slot.add(offset).write(1) };
            }
        }
    }
}

/// Nanoseconds of one of the `objects` that `work` handles.
fn per_object(objects: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / objects as f64
}

/// A fresh object, of which the first word is written.
fn object(cache: &RawCache) -> *mut u8 {
    let object = cache.alloc().map_or(null_mut(), NonNull::as_ptr);
    assert!(!object.is_null(), "no memory for a batch");
    // SAFETY: fresh memory of 64 bytes at least, aligned to 8 at least.
    unsafe { object.cast::<usize>().write(1) };
    object
}

fn free(cache: &RawCache, object: *mut u8) {
    // SAFETY: `object` made it, so it is not null; each is freed once.
    unsafe { cache.free(NonNull::new_unchecked(object)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_every_reading() {
        for order in [None, Some(0), Some(5)] {
            let slabs = Slabs { object_bytes: 4096, objects: 200, order, sheaf_capacity: None };
            let sample = slabs.run().unwrap();
            for name in [GROW, BATCH, CHURN, FULL, TENTH] {
                assert!(sample.extra.contains_key(name), "no {name}");
            }
        }
    }
}
