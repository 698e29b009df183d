//! Suite `pair`: what one allocation and its free cost, one at a time.
//!
//! Four tables: typed caches inlined in Rust; malloc and free over sizes and live sets; the free that is told
//! the size; and a producer and a consumer on two CPUs. The published procedure (2011) is the pair with one
//! live object; larger live sets are what it left out, and where queues and lists show.
//!
//! Targets are those of issue 2, as ratios to the best peer of the same row, which may be another one in
//! each.

use super::{Context, RowPlan, Suite, lane, peers};
use crate::contestants::{Entry, none::NoAllocator, uslab_cache, uslab_malloc};
use crate::measure::Method;
use crate::results::{Role, Run};
use crate::rounds::LocalRound;
use crate::table;
use std::fmt::Write;

const SIZES: [usize; 4] = [16, 64, 256, 1024];
const LIVE: [usize; 4] = [1, 64, 1024, 4096];

/// Live objects and target, of the typed cache.
const CACHE: [(usize, Option<f64>); 4] =
    [(1, Some(0.55)), (64, Some(0.45)), (1024, None), (4096, Some(0.60))];
const MALLOC_TARGET: f64 = 0.90;

/// The producer and the consumer: bulk calls, target.
const REMOTE: [(bool, f64); 2] = [(false, 1.0), (true, 0.6)];

const CACHE_GROUP: &str = "typed cache, inlined in Rust";
const MALLOC_GROUP: &str = "malloc and free";
const SIZED_GROUP: &str = "malloc and sized free (glibc and rpmalloc have none: plain free)";
const REMOTE_GROUP: &str = "one thread allocates, another frees (with the hand-over's own cost)";

pub struct Pair;

impl Suite for Pair {
    fn name(&self) -> &'static str {
        "pair"
    }

    fn summary(&self) -> &'static str {
        "one allocation and its free: typed cache, malloc at 4 sizes and 4 live sets, sized free, producer and consumer"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let mut rows = cache_rows(context);
        rows.extend(malloc_rows(context, false));
        rows.extend(malloc_rows(context, true));
        rows.extend(remote_rows(context));
        rows
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        table::by_group(run, out)
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

/// With the sized free there is a row a size, for information.
fn malloc_rows(context: &Context, sized: bool) -> Vec<RowPlan> {
    let lives: &[usize] = if sized { &[64] } else { &LIVE };
    let cells = SIZES.into_iter().flat_map(|size| lives.iter().map(move |&live| (size, live)));
    cells
        .map(|(size, live)| {
            let round = LocalRound { size, sized, ..LocalRound::default() };
            let work = |entry: Entry| context.local(entry, live, round.clone());
            let ours = uslab_malloc::CALLED;
            let mut lanes = vec![lane(ours.name, Role::Subject, work(ours))];
            lanes.extend(peers(work));
            RowPlan {
                size_bytes: size,
                live,
                target: (!sized).then_some(MALLOC_TARGET),
                ..RowPlan::new(
                    format!("{}/{size}/live{live}", if sized { "sized" } else { "malloc" }),
                    if sized { SIZED_GROUP } else { MALLOC_GROUP },
                    format!("{size} B, {live} live"),
                    Method::Rounds(lanes),
                )
            }
        })
        .collect()
}

fn remote_rows(context: &Context) -> Vec<RowPlan> {
    let size = context.options.object_size_bytes;
    let [cache, _] = uslab_cache::entries(size).expect("the size was checked with the options");
    let mut rows = Vec::new();
    for (ours, kind) in [(cache, "cache"), (uslab_malloc::CALLED, "malloc")] {
        for (bulk, target) in REMOTE {
            let way = if bulk { "bulk" } else { "single" };
            let subject = if bulk { format!("{}, bulk", ours.name) } else { ours.name.into() };
            let mut lanes = vec![lane(subject, Role::Subject, context.remote(ours, size, bulk))];
            lanes.extend(peers(|peer| context.remote(peer, size, false)));
            let nobody = Entry::of::<NoAllocator>();
            lanes.push(lane(nobody.name, Role::Floor, context.remote(nobody, size, bulk)));
            rows.push(RowPlan {
                size_bytes: size,
                live: crate::rounds::remote::MOST_LIVE,
                // On one CPU the two threads take turns, and the scheduler is what is measured.
                target: context.cpus.second.map(|_| target),
                ..RowPlan::new(
                    format!("remote/{kind}/{size}/{way}"),
                    REMOTE_GROUP,
                    format!("{size} B, {kind}, {way}"),
                    Method::Rounds(lanes),
                )
            });
        }
    }
    rows
}
