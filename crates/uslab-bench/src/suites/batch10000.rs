//! Suite `batch10000`: allocate ten thousand objects, then free them all; the two parts apart, at
//! every size of the table of 2011.
//!
//! All objects are live at once, so no queue in front of the slabs is long enough: the suite
//! measures how objects leave pages and return. The judged rows touch no object, as published. They
//! show the allocator's own accesses: a link in each free object is a cache miss, a bitmap beside
//! the pages is none. Programs touch their objects, so each row has a second form in which every
//! contestant's objects are written to. There the misses are the program's.
//!
//! Each round follows a batch of the same kind, so it finds the memory that its contestant kept. An
//! allocator that returned memory in between pays for it again, as in a program. The order is that
//! of allocation, as published; `--order` and `--touch` change nothing here. The bare array beside
//! them has no protection and returns nothing to a page: for large objects its cost is mostly the
//! touch.

use super::{Context, RowPlan, Suite, lanes, published};
use crate::lineup::{BARE_ARRAY, MALLOC, cache};
use crate::measure::Lane;
use crate::results::{Role, Row};
use crate::rounds::{BatchRound, BatchWork, Entry, Shape};

/// The judged size, and its target.
const JUDGED: (usize, f64) = (4096, 0.5);

/// A table's rows: the id's first part, its title, the sizes, typed cache or malloc, objects
/// touched.
type Kind = (&'static str, &'static str, &'static [usize], bool, bool);

const CACHE_SIZES: &[usize] = &[256, 1024, 4096];
const KINDS: [Kind; 4] = [
    ("malloc", "malloc and free, 10000 and 10000, as published", &published::SIZES, false, false),
    ("cache", "typed cache, 10000 and 10000, as published", CACHE_SIZES, true, false),
    ("malloc-touched", "malloc and free, each object written to", &published::SIZES, false, true),
    ("cache-touched", "typed cache, each object written to", CACHE_SIZES, true, true),
];

pub const BATCH_10000: Suite = Suite {
    notes: |_| vec!["published: cycles in the kernel of 2011, allocation → free".into()],
    ..Suite::new(
        "batch10000",
        "allocate 10000 objects, then free them, at every size of the table of 2011",
        |context| KINDS.iter().flat_map(|kind| kind.2.iter().map(|&size| row(context, kind, size))).collect(),
    )
};

fn row(context: &Context, &(id, group, _, typed, touch): &Kind, size: usize) -> RowPlan {
    let objects = context.pick(100, 10_000, 10_000);
    let rounds = context.pick(3, 3, 30);
    let work = |entry: Entry| {
        let round = BatchRound { size, shape: Shape::Live, step: None, touch, flush: false };
        BatchWork::new(entry, objects, round, Some(rounds))
    };
    let mut lanes = lanes(if typed { cache(size) } else { MALLOC }, work);
    lanes.push(Lane::of_rounds(BARE_ARRAY.name, Role::Reference, work(BARE_ARRAY)));
    let published = published::BATCH_10000.into_iter().find(|row| row.0 == size);
    Row {
        size_bytes: size,
        live: objects,
        target: (size == JUDGED.0 && !touch).then_some(JUDGED.1),
        published_cycles: published
            .into_iter()
            .flat_map(|(_, alloc, free)| [("slub_2011_alloc".into(), alloc), ("slub_2011_free".into(), free)])
            .collect(),
        ..Row::new(format!("{id}/{size}"), group, format!("{size} B"))
    }
    .by_rounds(lanes)
}
