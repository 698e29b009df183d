//! Suite `locality`: where an allocator puts objects, as the program feels it that walks them:
//! lists of malloc's objects of one size and of several, trees, hash tables, lists and strings of
//! the standard library of C++, under LD_PRELOAD of each allocator.
//!
//! Each is built and walked; then a random half of its objects goes and comes again, four times,
//! and it is walked; then all of it goes and is built again, and walked. Figures are ns an object.
//! Beside them stand page faults and what needs no counter of the processor: misses of simulated
//! TLBs, and those that no prefetcher follows (locality/measure.h says how each is computed). The
//! rows of a program are readings of the same runs.
//!
//! A walk in the order of building shows whether neighbours in time are neighbours in memory. The
//! order of a map of random keys is one that no allocator can know: there, only fewer pages and
//! larger ones help.

use super::shared::{Lanes, figure, runs_of};
use super::{Context, RowPlan, Suite};
use crate::locality::{self, Program};
use crate::measure::Method;
use crate::preload::{self, Library};
use crate::results::{Row, Scale, Unit};
use std::rc::Rc;

pub const LOCALITY: Suite = Suite::new(
    "locality",
    "walks over lists, trees, hash tables and strings under LD_PRELOAD: fresh, reused, rebuilt; page faults",
    rows,
);

/// A program and its arguments.
struct Load {
    id: &'static str,
    title: &'static str,
    /// A container, which stands before the number of objects; of none, a list of malloc's objects.
    word: Option<&'static str>,
    objects: usize,
    /// After it and the number of halves.
    sizes: &'static [usize],
}

const MIXED: Load = Load {
    id: "mixed",
    title: "malloc: 32, 64, 96, 208 B by turns, linked",
    word: None,
    objects: 2_000_000,
    sizes: &[32, 64, 96, 208],
};

const fn container(id: &'static str, title: &'static str, objects: usize) -> Load {
    Load { id, title, word: Some(id), objects, sizes: &[] }
}

const LOADS: [&Load; 6] = [
    &MIXED,
    &Load { id: "sequential", title: "malloc: 64 B, linked", sizes: &[64], ..MIXED },
    &container("list", "std::list of 16 B", 1_000_000),
    &container("map", "std::map of 8 B by 8 B", 200_000),
    &container("unordered", "std::unordered_map of 8 B by 8 B", 400_000),
    &container("strings", "std::vector<std::string>, 24 to 151 B", 500_000),
];

/// Halves that go and come again before the walk `reused`.
const HALVES: usize = 4;

/// What is read of a run.
struct Reading {
    /// The end of a row's id.
    id: &'static str,
    /// The table.
    group: &'static str,
    /// The figure's name.
    name: &'static str,
    unit: Unit,
    /// Of the mixed list, and of the other loads.
    targets: [Option<f64>; 2],
}

const fn ns(id: &'static str, group: &'static str, name: &'static str) -> Reading {
    Reading { id, group, name, unit: Unit::Ns, targets: [None; 2] }
}

const fn count(id: &'static str, group: &'static str, name: &'static str) -> Reading {
    Reading { unit: Unit::Count, ..ns(id, group, name) }
}

const FRESH: Reading = ns("fresh", "walk, fresh", "fresh_walk_ns");
const REUSED: Reading = ns("reused", "walk, random halves freed and made again", "reused_walk_ns");
const GROW: Reading = ns("grow", "built for the first time", "grow_ns");
const REBUILD: Reading = ns("rebuild", "built again after all was freed", "rebuild_ns");
const RESIDENT: Reading = ns("resident", "resident memory, built again", "rebuild_resident_bytes");

const READINGS: [Reading; 14] = [
    Reading { targets: [Some(1.1), Some(1.0)], ..FRESH },
    Reading { targets: [Some(1.0), Some(1.0)], ..REUSED },
    ns("rebuilt", "walk, all freed and built again", "rebuilt_walk_ns"),
    Reading { targets: [Some(1.0), None], ..GROW },
    Reading { targets: [Some(1.2), None], ..REBUILD },
    Reading { unit: Unit::Bytes, ..RESIDENT },
    count("grow-faults", "page faults, built for the first time", "grow_faults"),
    count("rebuild-faults", "page faults, built again five times", "rebuild_faults"),
    count("fresh-tlb", "misses of a TLB of 64 in 1000 steps, fresh", "fresh_tlb_64_misses_per_1000"),
    count("fresh-jumps", "jumps in 1000 steps, fresh", "fresh_jumps_per_1000"),
    count("reused-tlb", "misses of a TLB of 2048 in 1000 steps, reused", "reused_tlb_2048_misses_per_1000"),
    count("reused-jumps", "jumps in 1000 steps, reused", "reused_jumps_per_1000"),
    count("reused-regions", "changes of 2 MiB in 1000 steps, reused", "reused_region_changes_per_1000"),
    count("reused-distinct", "pages that the walk meets, reused", "reused_distinct_pages"),
];

fn rows(context: &Context) -> Vec<RowPlan> {
    let scale = context.options.scale();
    let [walk, containers] =
        [&locality::WALK, &locality::CONTAINERS].map(|source| Rc::new(Program::new(source, scale)));
    let program = |load: &Load| if load.word.is_some() { &containers } else { &walk };
    // For function, one peer is enough.
    let taken = |peer: &Library| scale != Scale::Check || peer.name == preload::GLIBC.name;
    let runs = LOADS.map(|load| (load, runs_of(program(load), &arguments(load, scale), taken)));
    READINGS
        .iter()
        .flat_map(|reading| runs.iter().map(|(load, runs)| row(load, reading, runs, context)))
        .collect()
}

fn arguments(load: &Load, scale: Scale) -> Vec<String> {
    let objects = scale.pick(100, load.objects / 4, load.objects);
    let numbers = [objects, HALVES].into_iter().chain(load.sizes.iter().copied());
    load.word.map(String::from).into_iter().chain(numbers.map(|number| number.to_string())).collect()
}

fn row(
    load: &'static Load,
    &Reading { id, group, name, unit, targets }: &'static Reading,
    runs: &Lanes,
    context: &Context,
) -> RowPlan {
    let least = if unit == Unit::Count { 0.1 } else { 1e-3 };
    let lanes = runs.iter().map(|(library, role, runs)| {
        runs.lane(library.name, *role, move |sample| figure(sample, name, least))
    });
    let lanes = lanes.collect();
    let target = targets[usize::from(load.id != MIXED.id)];
    let scale = context.options.scale();
    let live = scale.pick(100, load.objects / 4, load.objects);
    let row = Row::new(format!("locality/{}/{id}", load.id), group, load.title);
    let times = context.options.runs.unwrap_or(scale.pick(1, 1, 5));
    Row { unit, live, target, ..row }.by(Method::Runs(times, lanes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_those_of_the_programs() {
        let of = |load| arguments(load, Scale::Full).join(" ");
        assert_eq!(of(LOADS[0]), "2000000 4 32 64 96 208");
        assert_eq!(of(LOADS[3]), "map 200000 4");
    }
}
