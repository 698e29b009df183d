//! Suite `medium`: malloc and free of 33 KiB to 1 MiB, and of 3 MiB beside many live objects of
//! that size.
//!
//! Objects of these sizes are runs of pages, for which many allocators take a lock, or ask the
//! kernel. The first table has one live object, in rounds. The second has pairs of 3 MiB, a size
//! of two chunks, beside as many as 20 000 live ones: a search among them would show. No object is
//! written to, since a page fault for each page would be all of the figure.
//!
//! In the second table each contestant runs in a process of its own (rounds/beside.rs), for which
//! the kernel must allow 60 GB of addresses (`vm.overcommit_memory` other than 2). A contestant
//! without them is left out. Its rows have a limit instead of a peer: at most 1.3 times the pair of
//! the same process before there was a live object.

use super::{Context, RowPlan, Suite, everyone, lanes};
use crate::child;
use crate::lineup::MALLOC;
use crate::measure::{Lane, Method, Sample};
use crate::results::{LIMIT_NS, Row};
use crate::rounds::LocalRound;
use crate::rounds::beside::{ALONE, Beside};
use crate::task::Task;
use std::time::Duration;

pub const MEDIUM: Suite = Suite::new(
    "medium",
    "malloc and free of 33 KiB to 1 MiB, and of 3 MiB beside 0 to 20000 live objects of 3 MiB",
    |context| {
        let pairs = SIZES_KIB.map(|kib| pair_row(context, kib));
        pairs.into_iter().chain(BESIDE.map(|objects| beside_row(context, objects))).collect()
    },
);

const SIZES_KIB: [usize; 6] = [33, 64, 128, 256, 512, 1024];
const PAIR_TARGET: f64 = 1.2;

const LARGE_BYTES: usize = 3 << 20;
const BESIDE: [usize; 4] = [0, 200, 2_000, 20_000];
/// Beside live objects over alone.
const MAX_FLAT_RATIO: f64 = 1.3;

/// A run takes seconds where an allocator asks the kernel for every object.
const LIMIT: Duration = Duration::from_secs(120);

fn pair_row(context: &Context, kib: usize) -> RowPlan {
    let size = kib << 10;
    let work = context.local(1, LocalRound { size, ..LocalRound::default() });
    let group = "malloc and free, one object live";
    let row = Row::new(format!("medium/{kib}k"), group, format!("{kib} KiB"));
    Row { size_bytes: size, target: Some(PAIR_TARGET), ..row }.by_rounds(lanes(MALLOC, work))
}

fn beside_row(context: &Context, objects: usize) -> RowPlan {
    let (rounds, round_us) = (context.options.rounds, context.options.round_us);
    let beside = Beside {
        object_bytes: LARGE_BYTES,
        objects: context.pick(objects / 1000, objects, objects),
        rounds,
        round_us,
    };
    let lanes = everyone(MALLOC).map(|(entry, role)| {
        let task = Task::Beside { contestant: entry.name.into(), beside };
        Lane::of_runs(entry.name, role, move || Ok(limited(child::run(&task, LIMIT)?, objects)))
    });
    let group = "malloc and free of 3 MiB beside live objects of 3 MiB";
    let row = Row::new(format!("medium/3m/beside{objects}"), group, format!("{objects} live beside"));
    Row { size_bytes: LARGE_BYTES, live: objects + 1, ..row }
        .by(Method::Runs(context.pick(1, 1, 3), lanes.collect()))
}

/// The sample with its limit, where something lives beside the pair.
fn limited(mut sample: Sample, objects: usize) -> Sample {
    if objects > 0 {
        let limit = MAX_FLAT_RATIO * sample.extra[ALONE];
        sample.extra.insert(LIMIT_NS.into(), limit);
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_pair_of_the_same_process() {
        let sample = || Sample { extra: [(ALONE.to_owned(), 100.0)].into(), ..Sample::of(120.0) };
        assert_eq!(limited(sample(), 200).extra[LIMIT_NS], MAX_FLAT_RATIO * 100.0);
        assert!(!limited(sample(), 0).extra.contains_key(LIMIT_NS));
    }
}
