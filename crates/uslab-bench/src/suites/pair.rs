//! Suite `pair`: what one allocation and its free cost, one at a time.
//!
//! Typed caches inlined in Rust; malloc and free at every size of the table of 2011 with one live object, as
//! published; and at four sizes with larger live sets, which that table left out, and where queues and lists
//! show; the free that is told the size. Two references stand beside malloc: what two empty C calls cost in that
//! loop, and what a pair costs that protects nothing.
//!
//! Targets are ratios to the best peer of the same row, which may be another one in each. Of malloc the suite
//! asks to be ahead of every peer in nine cells of ten and never past 1.1, and a cost that does not grow with the
//! size: both are told after the tables.

use super::{Context, RowPlan, Suite, lane, peers, published, shape};
use crate::contestants::{Entry, floor, uslab_cache, uslab_malloc};
use crate::measure::Method;
use crate::results::{Role, Row, Run};
use crate::rounds::LocalRound;
use crate::table::{self, Grid};
use std::fmt::Write;

/// Sizes and live sets of the grid; with one live object there are all of [`published::SIZES`].
const SIZES: [usize; 4] = [16, 64, 256, 1024];
const LIVE: [usize; 3] = [64, 1024, 4096];

/// Live objects and target, of the typed cache.
const CACHE: [(usize, Option<f64>); 4] =
    [(1, Some(0.55)), (64, Some(0.45)), (1024, None), (4096, Some(0.60))];
/// Ahead of every peer; in so many of ten cells, and past this in none.
const MALLOC_TARGET: f64 = 1.0;
const AHEAD_OF_TEN: usize = 9;
const MALLOC_MOST: f64 = 1.1;

/// The dearest size over the cheapest, up to 8192 bytes; and 16384 bytes over the cheapest.
const FLAT_MOST: f64 = 1.3;
const LARGEST_MOST: f64 = 2.0;

const CACHE_GROUP: &str = "typed cache, inlined in Rust";
const MALLOC_GROUP: &str = "malloc and free, one object live";
const GRID_GROUP: &str = "malloc and free, larger live sets";
const SIZED_GROUP: &str = "malloc and sized free (glibc and rpmalloc have none: plain free)";

pub struct Pair;

impl Suite for Pair {
    fn name(&self) -> &'static str {
        "pair"
    }

    fn summary(&self) -> &'static str {
        "one allocation and its free: typed cache, malloc at every size and four live sets, sized free"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let mut rows = cache_rows(context);
        for size in published::SIZES {
            let (before, after) = published::pair_2011(size);
            rows.push(RowPlan {
                published_cycles: [("slub_2011".into(), before), ("slub_2011_lockless".into(), after)].into(),
                ..malloc_row(context, MALLOC_GROUP, size, 1)
            });
        }
        let cells = SIZES.into_iter().flat_map(|size| LIVE.map(|live| (size, live)));
        rows.extend(cells.map(|(size, live)| malloc_row(context, GRID_GROUP, size, live)));
        rows.extend(SIZES.map(|size| sized_row(context, size)));
        rows
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        table::by_group(run, out)?;
        ratios(run, out)?;
        claims(run, out)
    }
}

fn cache_rows(context: &Context) -> Vec<RowPlan> {
    let size = context.options.object_size_bytes;
    let [inlined, called] = uslab_cache::entries(size).expect("the size was checked with the options");
    CACHE
        .into_iter()
        .map(|(live, target)| {
            let work =
                |entry: Entry| context.local(entry, live, LocalRound { size, ..LocalRound::default() });
            let mut lanes = vec![
                lane(inlined.name, Role::Subject, work(inlined)),
                lane(called.name, Role::Ours, work(called)),
            ];
            lanes.extend(peers(work));
            RowPlan {
                size_bytes: size,
                live,
                target: target.filter(|_| size == 256),
                ..RowPlan::new(
                    format!("cache/{size}/live{live}"),
                    CACHE_GROUP,
                    format!("{size} B, {live} live"),
                    Method::Rounds(lanes),
                )
            }
        })
        .collect()
}

fn malloc_row(context: &Context, group: &str, size: usize, live: usize) -> RowPlan {
    let round = LocalRound { size, ..LocalRound::default() };
    let work = |entry: Entry| context.local(entry, live, round.clone());
    let ours = uslab_malloc::CALLED;
    let mut lanes = vec![lane(ours.name, Role::Subject, work(ours))];
    lanes.extend(peers(work));
    lanes.extend(floor::REFERENCES.map(|entry| lane(entry.name, Role::Reference, work(entry))));
    RowPlan {
        size_bytes: size,
        live,
        target: Some(MALLOC_TARGET),
        ..RowPlan::new(
            format!("malloc/{size}/live{live}"),
            group,
            if live == 1 { format!("{size} B") } else { format!("{size} B, {live} live") },
            Method::Rounds(lanes),
        )
    }
}

/// A row a size, for information.
fn sized_row(context: &Context, size: usize) -> RowPlan {
    let live = 64;
    let round = LocalRound { size, sized: true, ..LocalRound::default() };
    let work = |entry: Entry| context.local(entry, live, round.clone());
    let ours = uslab_malloc::CALLED;
    let mut lanes = vec![lane(ours.name, Role::Subject, work(ours))];
    lanes.extend(peers(work));
    RowPlan {
        size_bytes: size,
        live,
        ..RowPlan::new(
            format!("sized/{size}/live{live}"),
            SIZED_GROUP,
            format!("{size} B, {live} live"),
            Method::Rounds(lanes),
        )
    }
}

/// The rows of plain malloc that this run has.
fn malloc_cells(run: &Run) -> impl Iterator<Item = &Row> {
    run.rows.iter().filter(|row| row.group == MALLOC_GROUP || row.group == GRID_GROUP)
}

/// All of malloc at a glance: the ratio to the best peer, by size and live set.
fn ratios(run: &Run, out: &mut dyn Write) -> std::fmt::Result {
    if malloc_cells(run).count() < 2 {
        return Ok(());
    }
    let lives: Vec<usize> = [1].into_iter().chain(LIVE).collect();
    let header: Vec<String> =
        [String::new()].into_iter().chain(lives.iter().map(|live| format!("{live} live"))).collect();
    let mut grid = Grid::new(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for size in published::SIZES {
        let cell = |live: usize| malloc_cells(run).find(|row| row.size_bytes == size && row.live == live);
        if lives.iter().any(|&live| cell(live).is_some()) {
            let ratio = |&live: &usize| {
                cell(live).map_or(String::new(), |row| {
                    table::ratio(row.figure(Role::Subject).and_then(|f| f.ratio))
                })
            };
            grid.row([format!("{size} B")].into_iter().chain(lives.iter().map(ratio)));
        }
    }
    writeln!(out, "\nmalloc and free to the best peer of each cell · uslab in {} mode", run.mode)?;
    grid.write(out)
}

/// What the suite claims of malloc as a whole.
fn claims(run: &Run, out: &mut dyn Write) -> std::fmt::Result {
    let ratios: Vec<f64> = malloc_cells(run).filter_map(|row| row.figure(Role::Subject)?.ratio).collect();
    if ratios.is_empty() {
        return Ok(());
    }
    let ahead = ratios.iter().filter(|&&ratio| ratio <= MALLOC_TARGET).count();
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    let held = ahead * 10 >= ratios.len() * AHEAD_OF_TEN && worst <= MALLOC_MOST;
    writeln!(
        out,
        "\nahead of every peer in {ahead} of {} cells (asked: {AHEAD_OF_TEN} of 10), the worst cell {worst:.3} (at most {MALLOC_MOST:.2})  {}",
        ratios.len(),
        shape::mark(run, held)
    )?;
    let cost = |size: usize| {
        let row = malloc_cells(run).find(|row| row.live == 1 && row.size_bytes == size)?;
        Some(row.figure(Role::Subject)?.value.min)
    };
    let small: Vec<f64> =
        published::SIZES.into_iter().filter(|&size| size <= 8192).filter_map(cost).collect();
    let least = small.iter().copied().reduce(f64::min);
    let dearest = small.iter().copied().reduce(f64::max);
    shape::line(run, "dearest size of 8 … 8192 to the cheapest", dearest, least, FLAT_MOST, out)?;
    shape::line(run, "16384 bytes to the cheapest of 8 … 8192", cost(16384), least, LARGEST_MOST, out)?;
    writeln!(
        out,
        "published: SLUB before → after its lock-free fast path, 2011; for 8 … 8192 the upper ends of 132–152 → 78–88"
    )
}
