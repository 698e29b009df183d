//! Suite `remote`: objects that one thread allocates and another frees.
//!
//! First come a producer and a consumer on two CPUs, then a ring of 2, 4 and 8 threads. In the ring
//! each thread allocates batches for the next one, and frees those of the one before. The hand-over
//! is the same for every contestant; a contestant that allocates nothing shows its cost in each
//! table. The ring's rows judge malloc, one object at a time, and show the other ways of using
//! uslab.

use super::{Context, RowPlan, Suite, everyone};
use crate::lineup::{MALLOC, NOTHING, cache};
use crate::measure::Lane;
use crate::results::{Role, Row};
use crate::rounds::Entry;
use crate::rounds::crew::{CrewWork, Job};
use crate::rounds::handover::{BATCH, MAX_LIVE, PairRound, RingRound};
use std::sync::Arc;

/// The producer and the consumer: bulk calls, target; and their batches in a round.
const PAIR: [(bool, f64); 2] = [(false, 1.0), (true, 0.6)];
const PAIR_BATCHES: usize = 256;

const RING_THREADS: [usize; 3] = [2, 4, 8];
const RING_TARGET: f64 = 1.0;
/// Batches of all threads in a round of the ring: a millisecond or two.
const RING_BATCHES: usize = 1024;

pub const REMOTE: Suite = Suite::new(
    "remote",
    "objects freed by another thread than their allocator: producer and consumer, \
     and a ring of 2, 4 and 8 threads",
    |context| {
        let mut rows = pair_rows(context);
        rows.extend(RING_THREADS.map(|threads| ring_row(context, threads)));
        rows
    },
);

fn pair_rows(context: &Context) -> Vec<RowPlan> {
    let size = context.options.object_size_bytes;
    let lane = |name: String, role, entry: Entry, bulk| {
        let job = move |batches| -> Job {
            let round = PairRound::new(size, bulk, batches);
            Arc::new(move |seat| (entry.pair)(&round, seat))
        };
        let (crew, job) = (Arc::clone(&context.crew), Arc::new(job));
        let (objects_per_repeat, repeats) = (BATCH, PAIR_BATCHES);
        let work = CrewWork { crew, threads: 2, objects_per_repeat, repeats, has_caller: true, job };
        Lane::of_rounds(name, role, work)
    };
    let row = |ours: Entry, kind: &str, (bulk, target): (bool, f64)| {
        let way = if bulk { "bulk" } else { "single" };
        let subject = if bulk { format!("{}, bulk", ours.name) } else { ours.name.into() };
        let lanes = everyone(ours).map(|(entry, role)| match role {
            Role::Subject => lane(subject.clone(), role, ours, bulk),
            _ => lane(entry.name.into(), role, entry, false),
        });
        let lanes: Vec<Lane> = lanes.chain([lane(NOTHING.name.into(), Role::Floor, NOTHING, bulk)]).collect();
        let group = "one thread allocates, another frees (with the hand-over's own cost)";
        Row {
            size_bytes: size,
            live: MAX_LIVE,
            threads: 2,
            target: context.if_parallel(target),
            ..Row::new(format!("pair/{kind}/{size}/{way}"), group, format!("{size} B, {kind}, {way}"))
        }
        .by_rounds(lanes)
    };
    let kinds = [(cache(size), "cache"), (MALLOC, "malloc")];
    kinds.iter().flat_map(|&(ours, kind)| PAIR.map(|pair| row(ours, kind, pair))).collect()
}

fn ring_row(context: &Context, threads: usize) -> RowPlan {
    let size = context.options.object_size_bytes;
    let lane = |name: String, role, entry: Entry, bulk| {
        let job = move |batches| -> Job {
            let round = RingRound::new(threads, size, bulk, batches);
            Arc::new(move |seat| (entry.ring)(&round, seat))
        };
        context.crew_lane(name, role, (threads, threads * BATCH, RING_BATCHES / threads), job)
    };
    let plain = |role, entry: Entry| lane(entry.name.into(), role, entry, false);
    let bulk = |entry: Entry| lane(format!("{}, bulk", entry.name), Role::Ours, entry, true);
    let mut lanes: Vec<Lane> = everyone(MALLOC).map(|(entry, role)| plain(role, entry)).collect();
    lanes.splice(1..1, [bulk(MALLOC), plain(Role::Ours, cache(size)), bulk(cache(size))]);
    lanes.push(plain(Role::Floor, NOTHING));
    let group = "a ring of threads: each frees what the one before it allocated \
                 (with the hand-over's own cost)";
    Row {
        size_bytes: size,
        live: threads * MAX_LIVE,
        threads,
        target: context.if_parallel(RING_TARGET),
        ..Row::new(format!("ring/{size}/t{threads}"), group, format!("{size} B, {threads} threads"))
    }
    .by_rounds(lanes)
}
