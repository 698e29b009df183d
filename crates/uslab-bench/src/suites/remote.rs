//! Suite `remote`: objects that one thread allocates and another frees.
//!
//! First a producer and a consumer on two CPUs; then a ring of 2, 4 and 8 threads, where each allocates batches for
//! the next one and frees those of the one before. The hand-over is the same for everybody and stands in each table
//! as a contestant that allocates nothing. In the ring's rows every way of using uslab stands beside the judged
//! one, malloc one at a time.
//!
//! Targets: those of issue 2 for the producer and the consumer; in the ring, ahead of every peer (issue 3).

use super::{Context, RowPlan, Suite, crewed, lane, peers};
use crate::contestants::{Entry, none::NoAllocator, uslab_cache, uslab_malloc};
use crate::measure::Method;
use crate::results::{Role, Run};
use crate::rounds::crew::Job;
use crate::rounds::remote::{BATCH, MOST_LIVE};
use crate::rounds::ring::RingRound;
use crate::table;
use std::fmt::Write;
use std::sync::Arc;

/// The producer and the consumer: bulk calls, target.
const PAIR: [(bool, f64); 2] = [(false, 1.0), (true, 0.6)];

const RING_THREADS: [usize; 3] = [2, 4, 8];
const RING_TARGET: f64 = 1.0;
/// Batches of all threads in a round of the ring: a millisecond or two.
const RING_BATCHES: usize = 1024;

const PAIR_GROUP: &str = "one thread allocates, another frees (with the hand-over's own cost)";
const RING_GROUP: &str =
    "a ring of threads: each frees what the one before it allocated (with the hand-over's own cost)";

pub struct Remote;

impl Suite for Remote {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn summary(&self) -> &'static str {
        "objects freed by another thread than their allocator: producer and consumer, and a ring of 2, 4 and 8 threads"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let mut rows = pair_rows(context);
        rows.extend(RING_THREADS.map(|threads| ring_row(context, threads)));
        rows
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        table::by_group(run, out)
    }
}

fn pair_rows(context: &Context) -> Vec<RowPlan> {
    let size = context.options.object_size_bytes;
    let [cache, _] = uslab_cache::entries(size).expect("the size was checked with the options");
    let mut rows = Vec::new();
    for (ours, kind) in [(cache, "cache"), (uslab_malloc::CALLED, "malloc")] {
        for (bulk, target) in PAIR {
            let way = if bulk { "bulk" } else { "single" };
            let subject = if bulk { format!("{}, bulk", ours.name) } else { ours.name.into() };
            let mut lanes = vec![lane(subject, Role::Subject, context.remote(ours, size, bulk))];
            lanes.extend(peers(|peer| context.remote(peer, size, false)));
            let nobody = Entry::of::<NoAllocator>();
            lanes.push(lane(nobody.name, Role::Floor, context.remote(nobody, size, bulk)));
            rows.push(RowPlan {
                size_bytes: size,
                live: MOST_LIVE,
                threads: 2,
                // On one CPU the two threads take turns, and the scheduler is what is measured.
                target: context.cpus.second.map(|_| target),
                ..RowPlan::new(
                    format!("pair/{kind}/{size}/{way}"),
                    PAIR_GROUP,
                    format!("{size} B, {kind}, {way}"),
                    Method::Rounds(lanes),
                )
            });
        }
    }
    rows
}

fn ring_row(context: &Context, threads: usize) -> RowPlan {
    let size = context.options.object_size_bytes;
    let [cache, _] = uslab_cache::entries(size).expect("the size was checked with the options");
    let (malloc, nobody) = (uslab_malloc::CALLED, Entry::of::<NoAllocator>());
    let lane = |name: String, role, entry: Entry, bulk| {
        let job = move |batches| -> Job {
            let round = RingRound::new(threads, size, bulk, batches);
            Arc::new(move |seat| (entry.crew.ring)(&round, seat))
        };
        crewed::crew_lane(context, name, role, (threads, threads * BATCH, RING_BATCHES / threads), job)
    };
    let plain = |role, entry: Entry| lane(entry.name.into(), role, entry, false);
    let bulk = |entry: Entry| lane(format!("{}, bulk", entry.name), Role::Ours, entry, true);
    let mut lanes = vec![plain(Role::Subject, malloc), bulk(malloc), plain(Role::Ours, cache), bulk(cache)];
    lanes.extend(crewed::everybody().filter(|who| who.1 == Role::Peer).map(|(peer, role)| plain(role, peer)));
    lanes.push(plain(Role::Floor, nobody));
    RowPlan {
        size_bytes: size,
        live: threads * MOST_LIVE,
        threads,
        target: context.cpus.second.map(|_| RING_TARGET),
        ..RowPlan::new(
            format!("ring/{size}/t{threads}"),
            RING_GROUP,
            format!("{size} B, {threads} threads"),
            Method::Rounds(lanes),
        )
    }
}
