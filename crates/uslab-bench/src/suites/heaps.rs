//! Suite `heaps`: private heaps of seven objects, made, used and destroyed, beside mimalloc's.
//!
//! A heap is a normal thing to have for a request, a document or a connection, so thousands of
//! small ones come and go in processes with much other memory. A row's figure is the time of one
//! heap: to make it, to allocate and write an object each of 16, 32 … 1024 bytes, and to destroy
//! it. Heaps go one after the other, or 9000 live at once. All rows beside the same memory read the
//! same runs (rounds/heaps.rs), each in a process of its own.
//!
//! 9000 heaps beside 4 GiB are compared with mimalloc's, the only peer with such heaps. One heap
//! has an absolute limit, whatever lives beside it.

use super::shared::Runs;
use super::{Context, RowPlan, Suite};
use crate::child;
use crate::lineup::WITH_HEAPS;
use crate::measure::{Method, Sample};
use crate::results::{LIMIT_NS, Role, Row};
use crate::rounds::heaps::{HeapLoad, MANY, ONE, SIZES};
use crate::task::Task;
use std::rc::Rc;
use std::time::Duration;

pub const HEAPS: Suite = Suite::new(
    "heaps",
    "private heaps of seven objects, one after the other and 9000 at once, beside nothing and 4 GiB",
    rows,
);

const MANY_HEAPS: usize = 9000;

/// The end of a row's id, its title, and the memory beside the heaps.
const BESIDE: [(&str, &str, usize); 2] =
    [("alone", "nothing beside", 0), ("4g", "4 GiB live beside", 4 << 30)];

/// Many heaps beside memory, over mimalloc's; and nanoseconds of one heap.
const MANY_TARGET: f64 = 0.3;
const MAX_ONE_NS: f64 = 3000.0;

/// A run of mimalloc beside 4 GiB takes some seconds, and ten times as long on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The runs of each contestant, with its name.
type Contestants = [(&'static str, Rc<Runs>); 2];

fn rows(context: &Context) -> Vec<RowPlan> {
    let heaps = context.pick(20, 1000, MANY_HEAPS);
    let times = context.pick(1, 1, 3);
    let all = BESIDE.map(|(id, title, bytes)| {
        let load = HeapLoad { heaps, beside_bytes: context.pick(bytes >> 10, bytes, bytes) };
        (id, title, bytes, runs_of(load))
    });
    let many = all.iter().map(|(id, title, bytes, runs)| {
        let row = Row::new(format!("heaps/many/{id}"), format!("a heap of {heaps} at once"), *title);
        let target = (*bytes > 0).then_some(MANY_TARGET);
        plan(Row { live: heaps * SIZES.len(), target, ..row }, runs, MANY, times)
    });
    let one = all.iter().map(|(id, title, _, runs)| {
        let row = Row::new(format!("heaps/one/{id}"), "a heap, one after the other", *title);
        plan(Row { live: SIZES.len(), ..row }, runs, ONE, times)
    });
    many.chain(one).collect()
}

fn runs_of(load: HeapLoad) -> Contestants {
    WITH_HEAPS.map(|entry| {
        let task = Task::Heaps { contestant: entry.name.into(), load };
        (entry.name, Runs::new(move || child::run(&task, LIMIT)))
    })
}

/// A row of the figure of that name.
fn plan(row: Row, runs: &Contestants, name: &'static str, times: usize) -> RowPlan {
    let lanes = runs.iter().enumerate().map(|(at, (contestant, runs))| {
        let role = if at == 0 { Role::Subject } else { Role::Peer };
        runs.lane(contestant, role, move |sample| Ok(read(sample, name)))
    });
    row.by(Method::Runs(times, lanes.collect()))
}

fn read(sample: &Sample, name: &str) -> Sample {
    let mut extra = sample.extra.clone();
    let value = extra[name];
    if name == ONE {
        extra = [(LIMIT_NS.to_owned(), MAX_ONE_NS)].into();
    } else {
        extra.retain(|part, _| part != ONE && part != name);
    }
    Sample { extra, ..Sample::of(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::heaps::{DESTROYED, MADE};

    #[test]
    fn a_reading_has_its_own_figure_and_one_heap_the_limit() {
        let figures = [(ONE, 1.0), (MANY, 5.0), (MADE, 2.0), (DESTROYED, 3.0)];
        let sample =
            Sample { extra: figures.map(|(name, value)| (name.to_owned(), value)).into(), ..Sample::of(5.0) };
        let (one, many) = (read(&sample, ONE), read(&sample, MANY));
        assert_eq!((one.value, many.value), (1.0, 5.0));
        assert_eq!(one.extra, [(LIMIT_NS.to_owned(), MAX_ONE_NS)].into());
        assert_eq!(many.extra.keys().collect::<Vec<_>>(), [DESTROYED, MADE]);
    }
}
