//! Suite `churn4k`: one and four objects of 4 KiB that come and go.
//!
//! A slab holds few of them, so each free may empty one. Where the kernel returned empty slabs at
//! once, the published cost of four such objects was twenty times that of one. Sheaves in front of
//! the slabs, and an adaptive number of kept empty slabs, must remove that step: four may cost at
//! most 1.3 times one.

use super::{Context, RowPlan, Suite, cost, lanes, published, shape};
use crate::lineup::{MALLOC, cache};
use crate::results::{Row, Run};
use crate::rounds::LocalRound;

const SIZE: usize = 4096;
const TARGET: f64 = 1.0;
/// Four live over one.
const MAX_STEP_RATIO: f64 = 1.3;

const KINDS: [(&str, &str); 2] = [("cache", "typed cache, inlined in Rust"), ("malloc", "malloc and free")];

pub const CHURN_4K: Suite = Suite {
    notes,
    ..Suite::new(
        "churn4k",
        "one and four live objects of 4 KiB: the step that returning empty slabs at once makes must be absent",
        rows,
    )
};

fn rows(context: &Context) -> Vec<RowPlan> {
    let kinds = KINDS.into_iter().zip([cache(SIZE), MALLOC]);
    let row = |((kind, group), ours), (live, before, after): (usize, f64, f64)| {
        let work = context.local(live, LocalRound { size: SIZE, ..LocalRound::default() });
        Row {
            size_bytes: SIZE,
            live,
            target: Some(TARGET),
            published_cycles: [("kernel_2002".into(), before), ("kernel_2002_returned".into(), after)].into(),
            ..Row::new(format!("{kind}/live{live}"), group, format!("{live} live"))
        }
        .by_rounds(lanes(ours, work))
    };
    kinds.flat_map(|kind| published::CHURN_4K.map(|published| row(kind, published))).collect()
}

fn notes(run: &Run) -> Vec<String> {
    let step = |(kind, group): (&str, &str)| {
        let of = |live| cost(run, |row| row.group == group && row.live == live);
        shape(run, &format!("{kind}, 4 live to 1 live"), of(4), of(1), MAX_STEP_RATIO)
    };
    let published = "published: the kernel's cycles before and after empty slabs went back at once; \
                     4 live to 1 live 4.57 → 20.5";
    KINDS.into_iter().filter_map(step).chain([published.into()]).collect()
}
