//! Suite `bulk`: N objects of one typed cache, one at a time and by one call, for every N of the tables of
//! 2015 and on to 4096.
//!
//! A row's figure is the cost of one object, allocated and freed; `bulk` is one call for all N and one to
//! free them. The peers, which have no bulk calls, allocate and free the same N one at a time. The judged row
//! is N = 64, where the best peer's figure is also its pair with 64 live; for every other N the ratio is
//! information, and the shape is the point: the cost stays flat.

use super::{Context, RowPlan, Suite, lane, peers, published};
use crate::contestants::{Entry, uslab_cache, uslab_malloc};
use crate::measure::Method;
use crate::results::{Role, Row, Run};
use crate::rounds::LocalRound;
use crate::table::{self, Grid};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Bulk of 64, an object, over the best peer's pair.
const JUDGED: (usize, f64) = (64, 0.12);

const SUBJECT: &str = "uslab cache, bulk";
const MALLOC_BULK: &str = "uslab malloc, bulk";

pub struct Bulk;

impl Suite for Bulk {
    fn name(&self) -> &'static str {
        "bulk"
    }

    fn summary(&self) -> &'static str {
        "N objects by one call and one at a time, N from 1 to 4096, beside the tables of 2015"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        published::BULK.iter().map(|row| plan(context, row)).collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        render(run, out)
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

fn render(run: &Run, out: &mut dyn Write) -> std::fmt::Result {
    let mut grid = Grid::new(&[
        "N",
        "bulk ns",
        "median",
        "cycles",
        "single ns",
        "cycles",
        "malloc bulk ns",
        "best peer ns",
        "",
        "bulk/best",
        "target",
        "",
        "SLAB 2015",
        "SLUB 2015",
    ]);
    let single =
        |row: &Row| row.named("uslab cache").map(|figure| (figure.value.min, figure.cycles.map(|c| c.min)));
    for row in &run.rows {
        let bulk = row.figure(Role::Subject);
        let best = row.best_peer.as_deref().and_then(|name| row.named(name));
        let published = |family: &str| {
            let column = |way: &str| row.published_cycles.get(&format!("{family}_2015_{way}")).copied();
            match (column("single"), column("bulk")) {
                (Some(single), Some(bulk)) => format!("{single:.0} → {bulk:.0}"),
                (None, Some(bulk)) => format!("→ {bulk:.0}"),
                _ => String::new(),
            }
        };
        grid.row([
            row.live.to_string(),
            table::number(bulk.map(|f| f.value.min)),
            table::number(bulk.map(|f| f.value.median)),
            table::cycles(bulk.and_then(|f| f.cycles).map(|c| c.min)),
            table::number(single(row).map(|s| s.0)),
            table::cycles(single(row).and_then(|s| s.1)),
            table::number(row.named(MALLOC_BULK).map(|f| f.value.min)),
            table::number(best.map(|f| f.value.min)),
            row.best_peer.clone().unwrap_or_default(),
            table::ratio(bulk.and_then(|f| f.ratio)),
            table::target(row.target),
            table::mark(row.verdict).to_owned(),
            published("slab"),
            published("slub"),
        ]);
    }
    let group = run.rows.first().map_or("", |row| row.group.as_str());
    writeln!(
        out,
        "\n{group} · uslab in {} mode · an object, allocated and freed; minimum of the rounds",
        run.mode
    )?;
    grid.write(out)?;
    writeln!(out, "published columns: cycles in the kernel of 2015, one at a time → bulk")
}
