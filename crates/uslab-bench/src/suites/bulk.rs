//! Suite `bulk`: N objects of one typed cache, one at a time and by one call, for every N of the tables of
//! 2015 and on to 4096.
//!
//! A row's figure is the cost of one object, allocated and freed; `bulk` is one call for all N and one to
//! free them. The peers, which have no bulk calls, allocate and free the same N one at a time. The judged row
//! is N = 64, where the best peer's figure is also its pair with 64 live; for every other N the ratio is
//! information, and the shape is the point: the cost stays flat. DPDK's mempool, which has bulk calls and is no
//! general allocator, has a column of its own; a bulk of it is one C call, as for "uslab malloc, bulk", where
//! uslab's typed bulk is inlined.
//!
//! **Complete cost.** A free that only queues has put its cost off. So there are rows that pay all of it: 10000
//! objects go through in calls of N, and then the cache is shrunk, which brings every object from the arrays of
//! every CPU back to its slab, and every empty slab back to the page layer; that time counts, and the next 10000
//! begin with no slab at all. Beside it stands the same without the shrinking, in the same row, and the complete
//! cost may be three times that. Two ways of going through: *by turns*, N allocated and freed and again, which is
//! what the published module timed and what is judged; and *all live*, all 10000 allocated before the first is
//! freed, the hardest there is, where each object leaves its slab and returns to it: for information. The peers
//! stand beside both without flushing anything, which favours them.

use super::{Context, RowPlan, Suite, lane, peers, published, shape};
use crate::contestants::{Entry, dpdk, uslab_cache, uslab_malloc};
use crate::measure::Method;
use crate::results::{Figure, Role, Row, Run};
use crate::rounds::{BatchRound, BatchWork, LocalRound, Shape, Work};
use crate::table::{self, Grid};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Bulk of 64, an object, over the best peer's pair.
const JUDGED: (usize, f64) = (64, 0.12);

/// Bulk of 64 over the same of DPDK's mempool.
const RIVAL_MOST: f64 = 0.8;

/// Bulk of 4096 over bulk of 64.
const FLAT: (usize, usize, f64) = (4096, 64, 1.3);

/// Objects that go through before a flush, and in calls of how many.
const COMPLETE_OBJECTS: usize = 10_000;
const CHECK_OBJECTS: usize = 1_000;
const COMPLETE_N: [usize; 3] = [64, 512, 4096];
/// The complete cost over that of the same without a flush.
const COMPLETE_MOST: f64 = 3.0;

const COMPLETE_GROUP: &str = "complete cost";
const UNFLUSHED: &str = "uslab cache, bulk, not flushed";

const SUBJECT: &str = "uslab cache, bulk";
const MALLOC_BULK: &str = "uslab malloc, bulk";

pub struct Bulk;

impl Suite for Bulk {
    fn name(&self) -> &'static str {
        "bulk"
    }

    fn summary(&self) -> &'static str {
        "N objects by one call and one at a time, N from 1 to 4096, beside the tables of 2015; and the complete cost"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let complete = [Shape::Through, Shape::Live]
            .into_iter()
            .flat_map(|shape| COMPLETE_N.map(|n| complete_row(context, shape, n)));
        published::BULK.iter().map(|row| plan(context, row)).chain(complete).collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        let (complete, plain): (Vec<&Row>, Vec<&Row>) =
            run.rows.iter().partition(|row| row.group == COMPLETE_GROUP);
        if !plain.is_empty() {
            render(run, &plain, out)?;
        }
        if !complete.is_empty() {
            render_complete(run, &complete, out)?;
        }
        Ok(())
    }
}

fn plan(context: &Context, published: &published::BulkRow) -> RowPlan {
    let (size, n) = (context.options.object_size_bytes, published.n);
    let [inlined, _] = uslab_cache::entries(size).expect("the size was checked with the options");
    let work = |entry: Entry, bulk: bool| {
        context.local(entry, n, LocalRound { size, bulk, ..LocalRound::default() })
    };
    let malloc = uslab_malloc::CALLED;
    let mut lanes = vec![
        lane(SUBJECT, Role::Subject, work(inlined, true)),
        lane(inlined.name, Role::Ours, work(inlined, false)),
        lane(MALLOC_BULK, Role::Ours, work(malloc, true)),
    ];
    lanes.extend(peers(|peer| work(peer, false)));
    lanes.extend(dpdk::entry(size).map(|pool| lane(pool.name, Role::Rival, work(pool, true))));
    let columns = [
        ("slab_2015_single", published.slab_single),
        ("slab_2015_bulk", Some(published.slab_bulk)),
        ("slub_2015_single", published.slub_single),
        ("slub_2015_bulk", published.slub_bulk),
    ];
    RowPlan {
        size_bytes: size,
        live: n,
        target: (n == JUDGED.0 && size == 256).then_some(JUDGED.1),
        published_cycles: columns
            .into_iter()
            .filter_map(|(name, value)| Some((name.into(), value?)))
            .collect::<BTreeMap<_, _>>(),
        ..RowPlan::new(
            format!("bulk/{size}/n{n}"),
            format!("{size} B objects, N at once"),
            format!("N = {n}"),
            Method::Rounds(lanes),
        )
    }
}

fn complete_row(context: &Context, shape: Shape, n: usize) -> RowPlan {
    let size = context.options.object_size_bytes;
    let objects = if context.options.check { CHECK_OBJECTS } else { COMPLETE_OBJECTS };
    let [inlined, _] = uslab_cache::entries(size).expect("the size was checked with the options");
    let work = |entry: Entry, step: Option<usize>, flush: bool| -> Box<dyn Work> {
        let round = BatchRound { size, shape, step, touch: context.options.touch, flush };
        Box::new(BatchWork::new(entry, objects, round, None))
    };
    // A peer goes through the same N at a time: its bulk calls are the trait's loops.
    let mut lanes = vec![
        lane(SUBJECT, Role::Subject, work(inlined, Some(n), true)),
        lane(UNFLUSHED, Role::Ours, work(inlined, Some(n), false)),
    ];
    lanes.extend(peers(|peer| work(peer, Some(n), false)));
    let (way, title) = match shape {
        Shape::Through => ("turns", "by turns"),
        Shape::Live => ("live", "all live"),
    };
    RowPlan {
        size_bytes: size,
        live: if shape == Shape::Live { objects } else { n },
        ..RowPlan::new(
            format!("bulk/{size}/complete/{way}/n{n}"),
            COMPLETE_GROUP,
            format!("{title}, N = {n}"),
            Method::Rounds(lanes),
        )
    }
}

fn cost(row: &Row) -> Option<f64> {
    row.figure(Role::Subject).map(|figure| figure.value.min)
}

/// What `part` is less than `whole`, in percent.
fn saved(whole: f64, part: f64) -> String {
    format!("{:.0} %", (1.0 - part / whole) * 100.0)
}

fn render(run: &Run, rows: &[&Row], out: &mut dyn Write) -> std::fmt::Result {
    let mut grid = Grid::new(&[
        "N",
        "single ns",
        "bulk ns",
        "saved",
        "median",
        "single → bulk cycles",
        "SLAB 2015",
        "saved",
        "SLUB 2015",
        "saved",
        "malloc bulk ns",
        "DPDK bulk ns",
        "bulk/DPDK",
        "best peer ns",
        "",
        "bulk/best",
        "target",
        "",
    ]);
    for row in rows {
        let (bulk, single) = (row.figure(Role::Subject), row.named("uslab cache"));
        let best = row.best_peer.as_deref().and_then(|name| row.named(name));
        let ns = |figure: Option<&Figure>| figure.map(|f| f.value.min);
        let cycles = |figure: Option<&Figure>| figure.and_then(|f| f.cycles).map(|c| c.min);
        let percent = |single: Option<f64>, bulk: Option<f64>| {
            single.zip(bulk).map_or(String::new(), |(single, bulk)| saved(single, bulk))
        };
        let column =
            |family: &str, way: &str| row.published_cycles.get(&format!("{family}_2015_{way}")).copied();
        let published = |family: &str| match (column(family, "single"), column(family, "bulk")) {
            (Some(single), Some(bulk)) => format!("{single:.0} → {bulk:.0}"),
            (None, Some(bulk)) => format!("→ {bulk:.0}"),
            _ => String::new(),
        };
        let published_saved = |family: &str| percent(column(family, "single"), column(family, "bulk"));
        grid.row([
            row.live.to_string(),
            table::number(ns(single)),
            table::number(ns(bulk)),
            percent(ns(single), ns(bulk)),
            table::number(bulk.map(|f| f.value.median)),
            format!("{} → {}", table::cycles(cycles(single)), table::cycles(cycles(bulk))),
            published("slab"),
            published_saved("slab"),
            published("slub"),
            published_saved("slub"),
            table::number(ns(row.named(MALLOC_BULK))),
            table::number(ns(row.figure(Role::Rival))),
            table::ratio(ns(bulk).zip(ns(row.figure(Role::Rival))).map(|(bulk, rival)| bulk / rival)),
            table::number(ns(best)),
            row.best_peer.clone().unwrap_or_default(),
            table::ratio(bulk.and_then(|f| f.ratio)),
            table::target(row.target),
            table::mark(row.verdict).to_owned(),
        ]);
    }
    writeln!(
        out,
        "\n{} · uslab in {} mode · an object, allocated and freed; minimum of the rounds",
        rows[0].group, run.mode
    )?;
    grid.write(out)?;
    table::skipped(&run.rows, out)?;
    writeln!(
        out,
        "published columns: cycles in the kernel of 2015, one at a time → bulk; DPDK's mempool in bulk, never the best peer\n"
    )?;
    let row = |n: usize| rows.iter().find(|row| row.live == n);
    let of = |n: usize| row(n).and_then(|row| cost(row));
    let (large, small, most) = FLAT;
    shape::line(run, &format!("bulk of {large} to bulk of {small}"), of(large), of(small), most, out)?;
    let rival = row(JUDGED.0).and_then(|row| row.figure(Role::Rival)).map(|f| f.value.min);
    shape::line(run, &format!("bulk of {} to DPDK's", JUDGED.0), of(JUDGED.0), rival, RIVAL_MOST, out)
}

fn render_complete(run: &Run, rows: &[&Row], out: &mut dyn Write) -> std::fmt::Result {
    let mut grid = Grid::new(&[
        "",
        "complete ns",
        "of it flush",
        "median",
        "cycles",
        "not flushed ns",
        "complete/not flushed",
        "asked",
        "",
        "best peer ns",
        "",
        "complete/best",
    ]);
    for row in rows {
        let subject = row.figure(Role::Subject);
        let unflushed = row.named(UNFLUSHED).map(|f| f.value.min);
        let times = cost(row).zip(unflushed).map(|(complete, plain)| complete / plain);
        // All live is for information; the title tells them apart by the live set being the whole.
        let asked = row.id.contains("/turns/");
        let best = row.best_peer.as_deref().and_then(|name| row.named(name));
        grid.row([
            row.title.clone(),
            table::number(cost(row)),
            table::number(subject.and_then(|f| f.extra.get("flush_ns")).copied()),
            table::number(subject.map(|f| f.value.median)),
            table::cycles(subject.and_then(|f| f.cycles).map(|c| c.min)),
            table::number(unflushed),
            table::ratio(times),
            if asked { table::target(Some(COMPLETE_MOST)) } else { String::new() },
            times.filter(|_| asked).map_or("", |times| shape::mark(run, times <= COMPLETE_MOST)).to_owned(),
            table::number(best.map(|f| f.value.min)),
            row.best_peer.clone().unwrap_or_default(),
            table::ratio(subject.and_then(|f| f.ratio)),
        ]);
    }
    writeln!(
        out,
        "\ncomplete cost · {COMPLETE_OBJECTS} objects of {} B in calls of N, then all of them back in slabs and the slabs in the page layer · uslab in {} mode",
        rows[0].size_bytes, run.mode
    )?;
    grid.write(out)?;
    writeln!(out, "peers flush nothing; flush and the whole are ns an object")
}
