//! Suite `containers`: nodes of std::list, std::map and std::unordered_map that come and go, by allocator (linked/churn.cpp).
//!
//! The default allocator is the peer; std::pmr's unsynchronized pool stands beside, as it serves one thread alone and gives nothing back.
//! `uslab::allocator` is judged, `uslab::memory_resource` shown. The floor is the same churn without allocation: the container's own work, as the node
//! is moved where the others free it and allocate another. Of a map's step that is most, whoever allocates: the column "above floor"
//! compares what is left.
//!
//! Nothing is made easy: 10 000 nodes live, erased in order, at random, or built and destroyed whole; keys of 64 random bits; one thread, for which
//! glibc's malloc leaves out its locks. Each row stands twice, with libuslab.so and with libuslab.a: a call into a shared library costs what
//! a pair of the allocator does (suite `capi`), and the peer's operator new and malloc are two of them.
//!
//! Must never: show a workload because it looks well.

use super::{Context, RowPlan, Suite};
use crate::linked::{self, Link, Programs, Recipe, Rounds};
use crate::measure::Method;
use crate::results::{Role, Run};
use std::fmt::Write;
use std::rc::Rc;

const NODES: usize = 10_000;
const CHECK_NODES: usize = 100;

/// Twice the default's speed.
const TARGET: f64 = 0.5;

/// A round is that many of the options' rounds: the caches warm up in each.
const ROUNDS_AS_ONE: u64 = 4;

/// The program's word, the title, and the bytes of a node of libstdc++.
const ROWS: [(&str, &str, usize); 7] = [
    ("list-fifo", "list, first in first out", 32),
    ("list-random", "list, at random", 32),
    ("map-random", "map, at random", 48),
    ("unordered-random", "unordered_map, at random", 24),
    ("list-build", "list, built and destroyed", 32),
    ("map-build", "map, built and destroyed", 48),
    ("unordered-build", "unordered_map, built and destroyed", 24),
];

const RECIPE: Recipe = Recipe {
    source: include_str!("../linked/churn.cpp"),
    file: "churn.cpp",
    compiler: ("c++", "g++"),
    flags: &["-O2", "-std=c++17"],
    library: None,
};

pub struct Containers;

impl Suite for Containers {
    fn name(&self) -> &'static str {
        "containers"
    }

    fn summary(&self) -> &'static str {
        "C++: nodes of std::list, map and unordered_map on uslab::allocator, the default allocator and std::pmr's pool"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let programs = Programs::new(RECIPE);
        let of = |link| ROWS.map(|row| plan(context, &programs, link, row));
        [Link::Shared, Link::Archive].into_iter().flat_map(of).collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        linked::render(run, out)
    }
}

fn plan(
    context: &Context,
    programs: &Rc<Programs>,
    link: Link,
    (word, title, node_bytes): (&str, &str, usize),
) -> RowPlan {
    let options = &context.options;
    let nodes = if options.check { CHECK_NODES } else { NODES };
    let numbers = [nodes as u64, options.rounds as u64, options.round_us * ROUNDS_AS_ONE];
    let arguments = [word.into()].into_iter().chain(numbers.map(|number| number.to_string())).collect();
    let rounds = Rounds::new(programs, link, arguments);
    let mut lanes = vec![
        rounds.lane("uslab::allocator", Role::Subject),
        rounds.lane("uslab::memory_resource", Role::Ours),
        rounds.lane("std::allocator", Role::Peer),
        rounds.lane("pmr pool, one thread", Role::Rival),
    ];
    if !word.ends_with("-build") {
        lanes.push(rounds.lane("the container alone", Role::Floor));
    }
    RowPlan {
        size_bytes: node_bytes,
        live: nodes,
        target: Some(TARGET),
        ..RowPlan::new(
            format!("{}/{word}", if link == Link::Shared { "so" } else { "a" }),
            format!("nodes of containers, {}", link.file()),
            title,
            Method::Runs(options.rounds, lanes),
        )
    }
}
