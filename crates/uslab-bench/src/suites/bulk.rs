//! Suite `bulk`: N objects of one typed cache, one at a time and by one call, for every N of the
//! tables of 2015 and on to 4096.
//!
//! A row's figure is the cost of one object, allocated and freed; `bulk` is one call for all N and
//! one to free them. The peers, which have no bulk calls, allocate and free the same N one at a
//! time. The judged row is N = 64, where the best peer's figure is also its pair with 64 live. The
//! ratios of other N are for information, but the cost must stay flat.
//!
//! **Complete cost.** A free that only queues defers its cost. So there are rows that pay all of
//! it. 10000 objects go through in calls of N, and then the cache is shrunk. That flushes the
//! sheaves of every CPU to their slabs, and returns every empty slab to the page layer. That time
//! counts, and the next 10000 begin without a slab. The same row has the cost without the shrink;
//! the complete cost may be three times that. There are two shapes. *By turns*, as the published
//! module did: N are allocated and freed, again and again; this is judged. *All live*: all 10000
//! are allocated before the first is freed, so that each object leaves its slab and returns to it;
//! this is for information. The peers flush nothing in either, which favours them.

use super::{Context, RowPlan, Suite, cost, lanes, published, shape};
use crate::lineup::{MALLOC, cache, locals};
use crate::measure::Lane;
use crate::results::{Role, Row, Run};
use crate::rounds::{BatchRound, BatchWork, Entry, LocalRound, Shape};

/// Bulk of 64, an object, over the best peer's pair.
const JUDGED: (usize, f64) = (64, 0.12);

/// The same of a local cache.
const LOCAL_TARGET: f64 = 0.06;

/// Bulk of 4096 over bulk of 64.
const FLAT: (usize, usize, f64) = (4096, 64, 1.3);

/// Objects a call, before a flush.
const COMPLETE_N: [usize; 3] = [64, 512, 4096];
/// The complete cost over that of the same without a flush.
const MAX_COMPLETE_RATIO: f64 = 3.0;

const SUBJECT: &str = "uslab cache, bulk";
const UNFLUSHED: &str = "uslab cache, bulk, not flushed";

pub const BULK: Suite = Suite {
    notes,
    ..Suite::new(
        "bulk",
        "N objects by one call and one at a time, N from 1 to 4096, beside the tables of 2015; \
         and the complete cost",
        rows,
    )
};

fn rows(context: &Context) -> Vec<RowPlan> {
    let complete = [Shape::Through, Shape::Live]
        .into_iter()
        .flat_map(|shape| COMPLETE_N.map(|n| complete_row(context, shape, n)));
    let plain = published::BULK.iter().map(|row| plain_row(context, row));
    plain.chain([local_row(context)]).chain(complete).collect()
}

/// The judged number of objects at once, of a local cache.
fn local_row(context: &Context) -> RowPlan {
    let (size, (n, _)) = (context.options.object_size_bytes, JUDGED);
    let [local, _] = locals(size).expect("the size was checked with the options");
    let single = context.local(n, LocalRound { size, ..LocalRound::default() });
    let bulk = context.local(n, LocalRound { size, bulk: true, ..LocalRound::default() });
    let mut lanes = lanes(local, &single);
    lanes[0] = Lane::of_rounds("uslab local cache, bulk", Role::Subject, bulk(local));
    lanes.insert(1, Lane::of_rounds(local.name, Role::Ours, single(local)));
    let group = format!("{size} B objects, N at once, local cache");
    Row {
        size_bytes: size,
        live: n,
        target: (size == 256).then_some(LOCAL_TARGET),
        ..Row::new(format!("bulk/{size}/local/n{n}"), group, format!("N = {n}"))
    }
    .by_rounds(lanes)
}

fn plain_row(context: &Context, published: &published::BulkRow) -> RowPlan {
    let (size, n) = (context.options.object_size_bytes, published.n);
    let cache = cache(size);
    let single = context.local(n, LocalRound { size, ..LocalRound::default() });
    let bulk = context.local(n, LocalRound { size, bulk: true, ..LocalRound::default() });
    let mut lanes = lanes(cache, &single);
    lanes[0] = Lane::of_rounds(SUBJECT, Role::Subject, bulk(cache));
    lanes.insert(1, Lane::of_rounds(cache.name, Role::Ours, single(cache)));
    lanes.insert(2, Lane::of_rounds("uslab malloc, bulk", Role::Ours, bulk(MALLOC)));
    let columns = [
        ("slab_2015_single", published.slab_single),
        ("slab_2015_bulk", Some(published.slab_bulk)),
        ("slub_2015_single", published.slub_single),
        ("slub_2015_bulk", published.slub_bulk),
    ];
    Row {
        size_bytes: size,
        live: n,
        target: (n == JUDGED.0 && size == 256).then_some(JUDGED.1),
        published_cycles: columns
            .into_iter()
            .filter_map(|(name, value)| Some((name.into(), value?)))
            .collect(),
        ..Row::new(format!("bulk/{size}/n{n}"), format!("{size} B objects, N at once"), format!("N = {n}"))
    }
    .by_rounds(lanes)
}

fn complete_row(context: &Context, shape: Shape, n: usize) -> RowPlan {
    let size = context.options.object_size_bytes;
    let objects = context.pick(1_000, 10_000, 10_000);
    // A peer goes through the same N at a time: its bulk calls are the trait's loops.
    let work = |entry: Entry, flush: bool| {
        let round = BatchRound { size, shape, step: Some(n), touch: context.options.touch, flush };
        BatchWork::new(entry, objects, round, None)
    };
    let cache = cache(size);
    let mut lanes = lanes(cache, |entry| work(entry, false));
    lanes[0] = Lane::of_rounds(SUBJECT, Role::Subject, work(cache, true));
    lanes.insert(1, Lane::of_rounds(UNFLUSHED, Role::Ours, work(cache, false)));
    let (way, title, live) = match shape {
        Shape::Through => ("turns", "by turns", n),
        Shape::Live => ("live", "all live", objects),
    };
    let (id, title) = (format!("bulk/{size}/complete/{way}/n{n}"), format!("{title}, N = {n}"));
    Row { size_bytes: size, live, ..Row::new(id, "complete cost", title) }.by_rounds(lanes)
}

fn notes(run: &Run) -> Vec<String> {
    let is_plain = |row: &Row| !row.id.contains("/complete/") && !row.id.contains("/local/");
    let plain = |n: usize| move |row: &Row| row.live == n && is_plain(row);
    let (large, small, most) = FLAT;
    let (of_large, of_small) = (cost(run, plain(large)), cost(run, plain(small)));
    let flat = shape(run, &format!("bulk of {large} to bulk of {small}"), of_large, of_small, most);
    let complete = run.rows.iter().filter(|row| row.id.contains("/complete/turns/")).filter_map(|row| {
        let ours = row.figure(Role::Subject).map(|figure| figure.value.min);
        let unflushed = row.named(UNFLUSHED).map(|figure| figure.value.min);
        shape(
            run,
            &format!("complete cost to not flushed, {}", row.title),
            ours,
            unflushed,
            MAX_COMPLETE_RATIO,
        )
    });
    let published = "published: cycles in the kernel of 2015, SLAB in bulk and single, SLUB likewise; \
                     peers flush nothing";
    flat.into_iter().chain(complete).chain([published.into()]).collect()
}
