//! Suites `capi` and `containers`: programs in C and C++ that are linked with uslab's own
//! libraries.
//!
//! **capi** (linked/calls.c): the cost of the C functions in libuslab.so, beside mimalloc's in
//! Debian's libmimalloc.so.2. Rows are pairs of a cache, of a sheaf of the thread's own and of
//! malloc, with one live object and with 64, and a bulk of 64. The bulk's cost an object is
//! compared with mimalloc's pair. A third lane calls empty functions of another shared library.
//! Such calls cost 4.3 ns a pair on Zen 4, against 2.4 within one program. The ratio above the
//! floor excludes it. With one live object mimalloc's last free of a page takes its slow path each
//! time, so the rows with 64 live count, too.
//!
//! **containers** (linked/churn.cpp): nodes of std::list, std::map and std::unordered_map that come
//! and go, by allocator. The default allocator is the peer; std::pmr's unsynchronized pool is shown
//! apart, since it serves one thread alone and returns no memory. `uslab::allocator` is judged,
//! `uslab::memory_resource` shown. The floor is the same churn without allocation: it moves a node
//! where the other lanes free one and allocate another. 10 000 nodes live, and are erased in order,
//! at random, or built and destroyed whole. Keys are 64 random bits. The program has one thread,
//! for which glibc's malloc leaves out its locks. Each row stands twice, with libuslab.so and with
//! libuslab.a: a call into a shared library costs as much as a pair of the allocator.
//!
//! Must never: compare calls of different kinds; choose a workload by its result.

use super::{Context, RowPlan, Suite};
use crate::linked::{Link, Programs, Recipe, Rounds};
use crate::measure::Method;
use crate::results::{Role, Row};
use std::rc::Rc;

pub const CAPI: Suite = Suite::new(
    "capi",
    "C calls through libuslab.so beside mimalloc's through its own, in one C program: pairs, and a bulk of 64",
    |context| {
        let programs = Programs::new(CALLS);
        let pairs = [&CACHE, &SHEAF, &MALLOC].into_iter().flat_map(|kind| [(kind, 1), (kind, 64)]);
        pairs
            .chain([(&BULKS, 64)])
            .flat_map(|(kind, live)| SIZES.map(|size| calls(context, &programs, kind, size, live)))
            .collect()
    },
);

pub const CONTAINERS: Suite = Suite::new(
    "containers",
    "C++: nodes of std::list, map and unordered_map on uslab::allocator, the default allocator and std::pmr's pool",
    |context| {
        let programs = Programs::new(CHURN);
        let of = |link| NODES.map(|row| churn(context, &programs, link, row));
        [Link::Shared, Link::Archive].into_iter().flat_map(of).collect()
    },
);

const SIZES: [usize; 5] = [16, 64, 256, 1024, 4096];

/// The program's word, the subject's name, the table's heading, and the target.
struct Kind(&'static str, &'static str, &'static str, f64);

const CACHE: Kind = Kind("cache", "uslab cache, .so", "cache: one object, allocated and freed, from C", 0.85);
const SHEAF: Kind = Kind(
    "sheaf",
    "uslab sheaf, .so",
    "sheaf of the thread's own: one object, allocated and freed, from C",
    0.75,
);
const MALLOC: Kind =
    Kind("malloc", "uslab malloc, .so", "malloc: one object, allocated and freed, from C", 0.95);
const BULKS: Kind = Kind("bulk", "uslab cache, bulk, .so", "cache: an object of a bulk of 64, from C", 0.15);

const CALLS: Recipe = Recipe {
    source: include_str!("../linked/calls.c"),
    file: "calls.c",
    compiler: ("cc", "gcc"),
    // The place of a loop in its cache line matters as much as the difference between two
    // allocators.
    flags: &["-O2", "-std=gnu11", "-falign-functions=64", "-falign-loops=32"],
    library: Some((&["-DEMPTY", "-shared", "-fPIC"], "libempty.so")),
};

fn calls(context: &Context, programs: &Rc<Programs>, kind: &Kind, size: usize, live: usize) -> RowPlan {
    let &Kind(word, subject, group, target) = kind;
    let options = &context.options;
    let numbers = [size, live, options.rounds, options.round_us as usize, usize::from(options.touch)];
    let rounds = Rounds::new(programs, Link::Shared, word, &numbers);
    let mut lanes = vec![rounds.lane(subject, Role::Subject), rounds.lane("mimalloc v2, .so", Role::Peer)];
    if word != BULKS.0 {
        lanes.push(rounds.lane("empty calls", Role::Floor));
    }
    let title = if word == BULKS.0 { format!("{size} B") } else { format!("{size} B, {live} live") };
    let row = Row::new(format!("{word}/{size}/live{live}"), group, title);
    Row { size_bytes: size, live, target: Some(target), ..row }.by(Method::Runs(options.rounds, lanes))
}

/// Twice the default's speed.
const TWICE: f64 = 0.5;

/// A round is that many of the options' rounds: the caches warm up in each.
const ROUNDS_AS_ONE: usize = 4;

/// The program's word, the title, and the bytes of a node of libstdc++.
const NODES: [(&str, &str, usize); 7] = [
    ("list-fifo", "list, first in first out", 32),
    ("list-random", "list, at random", 32),
    ("map-random", "map, at random", 48),
    ("unordered-random", "unordered_map, at random", 24),
    ("list-build", "list, built and destroyed", 32),
    ("map-build", "map, built and destroyed", 48),
    ("unordered-build", "unordered_map, built and destroyed", 24),
];

const CHURN: Recipe = Recipe {
    source: include_str!("../linked/churn.cpp"),
    file: "churn.cpp",
    compiler: ("c++", "g++"),
    flags: &["-O2", "-std=c++17"],
    library: None,
};

fn churn(
    context: &Context,
    programs: &Rc<Programs>,
    link: Link,
    (word, title, node_bytes): (&str, &str, usize),
) -> RowPlan {
    let options = &context.options;
    let nodes = context.pick(100, 10_000, 10_000);
    let numbers = [nodes, options.rounds, options.round_us as usize * ROUNDS_AS_ONE];
    let rounds = Rounds::new(programs, link, word, &numbers);
    let mut lanes = vec![
        rounds.lane("uslab::allocator", Role::Subject),
        rounds.lane("uslab::memory_resource", Role::Ours),
        rounds.lane("std::allocator", Role::Peer),
        rounds.lane("pmr pool, one thread", Role::Rival),
    ];
    if !word.ends_with("-build") {
        lanes.push(rounds.lane("the container alone", Role::Floor));
    }
    let id = format!("{}/{word}", if link == Link::Shared { "so" } else { "a" });
    let row = Row::new(id, format!("nodes of containers, {}", link.file()), title);
    Row { size_bytes: node_bytes, live: nodes, target: Some(TWICE), ..row }
        .by(Method::Runs(options.rounds, lanes))
}
