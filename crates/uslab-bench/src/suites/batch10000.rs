//! Suite `batch10000`: allocate ten thousand objects, then free them all; the two parts apart, at every size of
//! the table of 2011.
//!
//! Everything is live at once, so no queue in front of the slabs is long enough: what is measured is how objects
//! come out of pages and get back. As published, nobody touches the objects; these are the judged rows. What the allocator itself does with
//! an object's memory then shows: a link written into each free object is a cache miss, a bitmap beside the pages is none. A program touches what it
//! allocates, so each row stands there a second time, with the first word of each object written by everybody: there the misses are the
//! program's, whatever the allocator. A round is one batch after one like it, so that each finds what its contestant
//! kept; who gives memory back in between pays for getting it again, as in a program. The order is that of
//! allocation, as published; `--order` and `--touch` change nothing here. The bare array beside them shows what is
//! left when nothing is protected and nothing goes back to a page: for large objects, mostly the touch.

use super::{Context, RowPlan, Suite, lane, peers, published};
use crate::contestants::{Entry, floor, uslab_cache, uslab_malloc};
use crate::measure::Method;
use crate::results::{Figure, Role, Row, Run};
use crate::rounds::{BatchRound, BatchWork, Shape, Work};
use crate::table::{self, Grid};
use std::fmt::Write;

const OBJECTS: usize = 10_000;
/// For function only.
const CHECK_OBJECTS: usize = 100;
/// Rounds of a row, which are long: at most, and with `--quick`.
const ROUNDS: usize = 30;
const QUICK_ROUNDS: usize = 3;

/// Size, and the most of the best peer's cost.
const JUDGED: (usize, f64) = (4096, 0.3);

/// Sizes with rows of the typed cache.
const CACHE_SIZES: [usize; 3] = [256, 1024, 4096];

/// What a table's rows are: the id's first part, its title, the typed cache or malloc, objects touched.
struct Kind {
    id: &'static str,
    group: &'static str,
    typed: bool,
    touch: bool,
}

const KINDS: [Kind; 4] = [
    Kind {
        id: "malloc",
        group: "malloc and free, 10000 and 10000, as published",
        typed: false,
        touch: false,
    },
    Kind { id: "cache", group: "typed cache, 10000 and 10000, as published", typed: true, touch: false },
    Kind {
        id: "malloc-touched",
        group: "malloc and free, each object written to",
        typed: false,
        touch: true,
    },
    Kind { id: "cache-touched", group: "typed cache, each object written to", typed: true, touch: true },
];

pub struct Batch10000;

impl Suite for Batch10000 {
    fn name(&self) -> &'static str {
        "batch10000"
    }

    fn summary(&self) -> &'static str {
        "allocate 10000 objects, then free them, at every size of the table of 2011"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let sizes = |kind: &Kind| if kind.typed { CACHE_SIZES.to_vec() } else { published::SIZES.to_vec() };
        KINDS
            .iter()
            .flat_map(|kind| sizes(kind).into_iter().map(move |size| row(context, kind, size)))
            .collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        for Kind { group, .. } in KINDS {
            let rows: Vec<&Row> = run.rows.iter().filter(|row| row.group == group).collect();
            if !rows.is_empty() {
                render(group, &rows, &run.mode, out)?;
            }
        }
        writeln!(out, "published column: cycles in the kernel of 2011, allocation / free")
    }
}

fn row(context: &Context, kind: &Kind, size: usize) -> RowPlan {
    let ours = if kind.typed {
        let [inlined, _] = uslab_cache::entries(size).expect("a listed size has a cache");
        inlined
    } else {
        uslab_malloc::CALLED
    };
    let options = &context.options;
    let objects = if options.check { CHECK_OBJECTS } else { OBJECTS };
    let rounds = if context.quick() { QUICK_ROUNDS } else { ROUNDS };
    let work = |entry: Entry| -> Box<dyn Work> {
        let round = BatchRound { size, shape: Shape::Live, step: None, touch: kind.touch, flush: false };
        Box::new(BatchWork::new(entry, objects, round, Some(rounds)))
    };
    let mut lanes = vec![lane(ours.name, Role::Subject, work(ours))];
    lanes.extend(peers(work));
    let [_, array] = floor::REFERENCES;
    lanes.push(lane(array.name, Role::Reference, work(array)));
    let published = published::BATCH_10000.into_iter().find(|row| row.0 == size);
    RowPlan {
        size_bytes: size,
        live: objects,
        target: (size == JUDGED.0 && !kind.touch).then_some(JUDGED.1),
        published_cycles: published
            .into_iter()
            .flat_map(|(_, alloc, free)| [("slub_2011_alloc".into(), alloc), ("slub_2011_free".into(), free)])
            .collect(),
        ..RowPlan::new(format!("{}/{size}", kind.id), kind.group, format!("{size} B"), Method::Rounds(lanes))
    }
}

/// A figure's parts, in ns and in cycles: allocation, free.
fn parts(figure: Option<&Figure>) -> Option<([f64; 2], [f64; 2])> {
    let figure = figure?;
    let ns = [*figure.extra.get("alloc_ns")?, *figure.extra.get("free_ns")?];
    let cycles_a_ns = figure.cycles?.min / figure.value.min;
    Some((ns, ns.map(|ns| ns * cycles_a_ns)))
}

fn render(group: &str, rows: &[&Row], mode: &str, out: &mut dyn Write) -> std::fmt::Result {
    let others: Vec<&str> = rows[0].figures[1..].iter().map(|figure| figure.contestant.as_str()).collect();
    let mut header = vec![
        "",
        "uslab ns",
        "alloc",
        "free",
        "median",
        "alloc / free cycles",
        "SLUB 2011",
        "to the best",
        "target",
        "",
    ];
    header.extend(&others);
    let mut grid = Grid::new(&header);
    for row in rows {
        let subject = row.figure(Role::Subject);
        let ours = parts(subject);
        let both = |pair: [f64; 2]| format!("{:.0} / {:.0}", pair[0], pair[1]);
        let published = |part: &str| row.published_cycles.get(&format!("slub_2011_{part}")).copied();
        let mut cells = vec![
            row.title.clone(),
            table::number(subject.map(|f| f.value.min)),
            table::number(ours.map(|(ns, _)| ns[0])),
            table::number(ours.map(|(ns, _)| ns[1])),
            table::number(subject.map(|f| f.value.median)),
            ours.map_or(String::new(), |(_, cycles)| both(cycles)),
            published("alloc")
                .zip(published("free"))
                .map_or(String::new(), |(alloc, free)| both([alloc, free])),
            table::ratio(subject.and_then(|f| f.ratio)),
            table::target(row.target),
            table::mark(row.verdict).to_owned(),
        ];
        cells.extend(others.iter().map(|&name| {
            let best = if row.best_peer.as_deref() == Some(name) { "*" } else { "" };
            format!("{best}{}", table::number(row.named(name).map(|f| f.value.min)))
        }));
        grid.row(cells);
    }
    writeln!(
        out,
        "\n{group} · uslab in {mode} mode · ns an object; minimum of the rounds, its parts from the same round"
    )?;
    grid.write(out)
}
