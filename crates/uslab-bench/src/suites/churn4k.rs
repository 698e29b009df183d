//! Suite `churn4k`: one and four objects of 4 KiB that come and go.
//!
//! A slab holds few of them, so each free may empty one. Where empty slabs went back at once, the published cost
//! of four such objects was twenty times that of one; here arrays in front of the slabs, and slabs that are kept
//! while they are wanted, make it no step at all: four may cost at most 1.3 of one.

use super::{Context, RowPlan, Suite, lane, peers, published, shape};
use crate::contestants::{Entry, uslab_cache, uslab_malloc};
use crate::measure::Method;
use crate::results::{Role, Run};
use crate::rounds::LocalRound;
use crate::table;
use std::fmt::Write;

const SIZE: usize = 4096;
const TARGET: f64 = 1.0;
/// Four live over one.
const STEP_MOST: f64 = 1.3;

const KINDS: [(&str, &str); 2] = [("cache", "typed cache, inlined in Rust"), ("malloc", "malloc and free")];

pub struct Churn4k;

impl Suite for Churn4k {
    fn name(&self) -> &'static str {
        "churn4k"
    }

    fn summary(&self) -> &'static str {
        "one and four live objects of 4 KiB: the step that returning empty slabs at once makes must be absent"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let [cache, _] = uslab_cache::entries(SIZE).expect("a listed size has a cache");
        let ours = [cache, uslab_malloc::CALLED];
        let kinds = KINDS.into_iter().zip(ours);
        kinds
            .flat_map(|((kind, group), ours)| {
                published::CHURN_4K.map(|published| row(context, kind, group, ours, published))
            })
            .collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        table::by_group(run, out)?;
        writeln!(out)?;
        for (kind, group) in KINDS {
            let cost = |live: usize| {
                let row = run.rows.iter().find(|row| row.group == group && row.live == live)?;
                Some(row.figure(Role::Subject)?.value.min)
            };
            shape::line(run, &format!("{kind}, 4 live to 1 live"), cost(4), cost(1), STEP_MOST, out)?;
        }
        writeln!(
            out,
            "published: the kernel's cycles before → after empty slabs went back at once; 4 live to 1 live 4.57 → 20.5"
        )
    }
}

fn row(
    context: &Context,
    kind: &str,
    group: &str,
    ours: Entry,
    (live, before, after): (usize, f64, f64),
) -> RowPlan {
    let work = |entry: Entry| context.local(entry, live, LocalRound { size: SIZE, ..LocalRound::default() });
    let mut lanes = vec![lane(ours.name, Role::Subject, work(ours))];
    lanes.extend(peers(work));
    RowPlan {
        size_bytes: SIZE,
        live,
        target: Some(TARGET),
        published_cycles: [("kernel_2002".into(), before), ("kernel_2002_returned".into(), after)].into(),
        ..RowPlan::new(format!("{kind}/live{live}"), group, format!("{live} live"), Method::Rounds(lanes))
    }
}
