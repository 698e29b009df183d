//! Suite `pair`: the cost of one allocation and its free, one at a time.
//!
//! It measures typed caches inlined in Rust; local caches, inlined and called; malloc and free; and
//! sized free. malloc has every size
//! of the table of 2011 with one live object, as published. Four sizes have larger live sets, too,
//! where queues and lists show. Two references stand beside malloc: two empty C calls in that loop,
//! and a pair without any protection.
//!
//! Targets are ratios to the best peer of the same row, which may be another one in each. malloc
//! must be ahead of every peer in nine cells of ten, never exceed 1.1, and not become slower with
//! the size. Lines below the tables judge this.

use super::{Context, RowPlan, Suite, cost, lanes, mark, published, shape};
use crate::lineup::{BARE_ARRAY, EMPTY_CALLS, MALLOC, caches, locals};
use crate::measure::Lane;
use crate::results::{Role, Row, Run};
use crate::rounds::{Entry, LocalRound};

/// Sizes and live sets of the grid; with one live object there are all of [`published::SIZES`].
const SIZES: [usize; 4] = [16, 64, 256, 1024];
const LIVE: [usize; 3] = [64, 1024, 4096];

/// Live objects and target, of the typed cache.
const CACHE: [(usize, Option<f64>); 4] =
    [(1, Some(0.55)), (64, Some(0.45)), (1024, None), (4096, Some(0.60))];
/// Live objects of the local cache, and targets of it, inlined and called.
const LOCAL_LIVE: [usize; 3] = [1, 64, 4096];
const LOCAL_TARGET: f64 = 0.40;
const LOCAL_CALLED_TARGET: f64 = 0.75;
/// Ahead of every peer; in so many of ten cells, and past this in none.
const MALLOC_TARGET: f64 = 1.0;
const AHEAD_OF_TEN: usize = 9;
const MAX_MALLOC_RATIO: f64 = 1.1;

/// The dearest size over the cheapest, up to 8192 bytes; and 16384 bytes over the cheapest.
const MAX_FLAT_RATIO: f64 = 1.3;
const MAX_LARGEST_RATIO: f64 = 2.0;

const MALLOC_GROUP: &str = "malloc and free, one object live";

pub const PAIR: Suite = Suite {
    notes,
    ..Suite::new(
        "pair",
        "one allocation and its free: typed cache, local cache, malloc at every size and four live sets, sized free",
        rows,
    )
};

fn rows(context: &Context) -> Vec<RowPlan> {
    let mut rows = cache_rows(context);
    rows.extend(local_rows(context));
    rows.extend(published::SIZES.map(|size| {
        let (before, after) = published::pair_2011(size);
        let mut plan = malloc_row(context, MALLOC_GROUP, size, 1);
        plan.row.published_cycles =
            [("slub_2011".into(), before), ("slub_2011_lockless".into(), after)].into();
        plan
    }));
    let cells = SIZES.into_iter().flat_map(|size| LIVE.map(|live| (size, live)));
    rows.extend(
        cells.map(|(size, live)| malloc_row(context, "malloc and free, larger live sets", size, live)),
    );
    rows.extend(SIZES.map(|size| sized_row(context, size)));
    rows
}

fn title(size: usize, live: usize) -> String {
    if live == 1 { format!("{size} B") } else { format!("{size} B, {live} live") }
}

fn cache_rows(context: &Context) -> Vec<RowPlan> {
    let size = context.options.object_size_bytes;
    let [inlined, called] = caches(size).expect("the size was checked with the options");
    let row = |(live, target): (usize, Option<f64>)| {
        let work = context.local(live, LocalRound { size, ..LocalRound::default() });
        let mut lanes = lanes(inlined, &work);
        lanes.insert(1, Lane::of_rounds(called.name, Role::Ours, work(called)));
        let (group, title) = ("typed cache, inlined in Rust", format!("{size} B, {live} live"));
        let target = target.filter(|_| size == 256);
        Row { size_bytes: size, live, target, ..Row::new(format!("cache/{size}/live{live}"), group, title) }
            .by_rounds(lanes)
    };
    CACHE.map(row).into()
}

fn local_rows(context: &Context) -> impl Iterator<Item = RowPlan> {
    let size = context.options.object_size_bytes;
    let [inlined, called] = locals(size).expect("the size was checked with the options");
    let row = move |live: usize, entry: Entry, way: &str, target: f64| {
        let work = context.local(live, LocalRound { size, ..LocalRound::default() });
        let (group, title) = (format!("local cache, {way}"), format!("{size} B, {live} live"));
        let target = (size == 256).then_some(target);
        Row {
            size_bytes: size,
            live,
            target,
            ..Row::new(format!("local/{way}/{size}/live{live}"), group, title)
        }
        .by_rounds(lanes(entry, work))
    };
    LOCAL_LIVE.into_iter().flat_map(move |live| {
        [row(live, inlined, "inlined", LOCAL_TARGET), row(live, called, "called", LOCAL_CALLED_TARGET)]
    })
}

fn malloc_row(context: &Context, group: &str, size: usize, live: usize) -> RowPlan {
    let work = context.local(live, LocalRound { size, ..LocalRound::default() });
    let mut lanes = lanes(MALLOC, &work);
    lanes.extend(
        [EMPTY_CALLS, BARE_ARRAY].map(|entry| Lane::of_rounds(entry.name, Role::Reference, work(entry))),
    );
    let row = Row::new(format!("malloc/{size}/live{live}"), group, title(size, live));
    Row { size_bytes: size, live, target: Some(MALLOC_TARGET), ..row }.by_rounds(lanes)
}

/// A row a size, for information.
fn sized_row(context: &Context, size: usize) -> RowPlan {
    let live = 64;
    let work = context.local(live, LocalRound { size, sized: true, ..LocalRound::default() });
    let group = "malloc and sized free (glibc and rpmalloc have none: plain free)";
    let row = Row::new(format!("sized/{size}/live{live}"), group, title(size, live));
    Row { size_bytes: size, live, ..row }.by_rounds(lanes(MALLOC, work))
}

/// The suite's claims about malloc as a whole.
fn notes(run: &Run) -> Vec<String> {
    let cells = || run.rows.iter().filter(|row| row.id.starts_with("malloc/"));
    let ratios: Vec<f64> = cells().filter_map(|row| row.figure(Role::Subject)?.ratio).collect();
    if ratios.is_empty() {
        return Vec::new();
    }
    let (ahead, all) = (ratios.iter().filter(|&&ratio| ratio <= MALLOC_TARGET).count(), ratios.len());
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    let mark = mark(run, ahead * 10 >= all * AHEAD_OF_TEN && worst <= MAX_MALLOC_RATIO);
    let of = |size: usize| {
        cost(run, |row| row.id.starts_with("malloc/") && row.live == 1 && row.size_bytes == size)
    };
    let small = || published::SIZES.into_iter().filter(|&size| size <= 8192).filter_map(of);
    let (least, dearest) = (small().reduce(f64::min), small().reduce(f64::max));
    let shapes = [
        shape(run, "dearest size of 8 … 8192 to the cheapest", dearest, least, MAX_FLAT_RATIO),
        shape(run, "16384 bytes to the cheapest of 8 … 8192", of(16384), least, MAX_LARGEST_RATIO),
    ];
    let ahead = format!(
        "ahead of every peer in {ahead} of {all} cells (asked: {AHEAD_OF_TEN} of 10), \
         the worst cell {worst:.3} (at most {MAX_MALLOC_RATIO:.2})  {mark}"
    );
    let published = "published: SLUB before and after its lock-free fast path, 2011; \
                     for 8 … 8192 the upper ends of 132–152 and 78–88";
    [ahead].into_iter().chain(shapes.into_iter().flatten()).chain([published.into()]).collect()
}
