//! Suite `batch10000`: allocate ten thousand objects, then free them all; the two parts apart, at
//! every size of the table of 2011.
//!
//! Everything is live at once, so no queue in front of the slabs is long enough: what is measured
//! is how objects come out of pages and get back. As published, no object is touched; these are the
//! judged rows. What the allocator itself does with an object's memory then shows: a link written
//! into each free object is a cache miss, a bitmap beside the pages is none. A program touches what
//! it allocates, so each row stands there a second time, with the first word of each object written
//! for every contestant: there the misses are the program's, whatever the allocator.
//!
//! A round is one batch after one like it, so that each finds what its contestant kept; an
//! allocator that gives memory back in between pays for getting it again, as in a program. The
//! order is that of allocation, as published; `--order` and `--touch` change nothing here. The bare
//! array beside them shows what is left when nothing is protected and nothing goes back to a page:
//! for large objects, mostly the touch.

use super::{Context, RowPlan, Suite, lanes, published};
use crate::lineup::{BARE_ARRAY, MALLOC, cache};
use crate::measure::Lane;
use crate::results::{Role, Row};
use crate::rounds::{BatchRound, BatchWork, Entry, Shape};

/// Size, and the most of the best peer's cost.
const JUDGED: (usize, f64) = (4096, 0.3);

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
