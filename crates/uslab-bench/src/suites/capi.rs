//! Suite `capi`: what the C functions cost through libuslab.so, beside mimalloc's through Debian's libmimalloc.so.2, in one C program
//! (linked/calls.c).
//!
//! A pair of a cache and one of malloc, with one live object and with 64, and a bulk of 64, an object of which stands beside mimalloc's pair with 64 live.
//!
//! A third lane calls empty functions of another shared library: what a program pays for calling one at all. On Zen 4 that is 4.3 ns a pair, against
//! 2.4 within one program, so that of a cheap row most is neither allocator's; the column "above floor" has the ratio without it. With one
//! live object mimalloc's last free of a page takes its slow way each time: look at 64 live, too.
//!
//! Must never: compare calls of different kinds.

use super::{Context, RowPlan, Suite};
use crate::linked::{self, Link, Programs, Recipe, Rounds};
use crate::measure::Method;
use crate::results::{Role, Run};
use std::fmt::Write;
use std::rc::Rc;

const SIZES: [usize; 5] = [16, 64, 256, 1024, 4096];
const BULK: usize = 64;

/// The program's word, the subject's name, the table's heading, and the target.
struct Kind(&'static str, &'static str, &'static str, f64);

const CACHE: Kind = Kind("cache", "uslab cache, .so", "cache: one object, allocated and freed, from C", 0.85);
const MALLOC: Kind =
    Kind("malloc", "uslab malloc, .so", "malloc: one object, allocated and freed, from C", 0.95);
const BULKS: Kind = Kind("bulk", "uslab cache, bulk, .so", "cache: an object of a bulk of 64, from C", 0.15);

const RECIPE: Recipe = Recipe {
    source: include_str!("../linked/calls.c"),
    file: "calls.c",
    compiler: ("cc", "gcc"),
    // Where a loop begins in its line is worth as much as the difference between two allocators.
    flags: &["-O2", "-std=gnu11", "-falign-functions=64", "-falign-loops=32"],
    library: Some((&["-DEMPTY", "-shared", "-fPIC"], "libempty.so")),
};

pub struct Capi;

impl Suite for Capi {
    fn name(&self) -> &'static str {
        "capi"
    }

    fn summary(&self) -> &'static str {
        "C calls through libuslab.so beside mimalloc's through its own, in one C program: pairs, and a bulk of 64"
    }

    fn rows(&self, context: &Context) -> Vec<RowPlan> {
        let programs = Programs::new(RECIPE);
        let rows = [(CACHE, 1), (CACHE, 64), (MALLOC, 1), (MALLOC, 64), (BULKS, BULK)];
        rows.iter()
            .flat_map(|(kind, live)| SIZES.map(|size| row(context, &programs, kind, size, *live)))
            .collect()
    }

    fn render(&self, run: &Run, out: &mut dyn Write) -> std::fmt::Result {
        linked::render(run, out)
    }
}

fn row(context: &Context, programs: &Rc<Programs>, kind: &Kind, size: usize, live: usize) -> RowPlan {
    let &Kind(word, subject, group, target) = kind;
    let options = &context.options;
    let numbers = [size, live, options.rounds, options.round_us as usize, usize::from(options.touch)];
    let arguments = [word.into()].into_iter().chain(numbers.map(|number| number.to_string())).collect();
    let rounds = Rounds::new(programs, Link::Shared, arguments);
    let mut lanes = vec![rounds.lane(subject, Role::Subject), rounds.lane("mimalloc v2, .so", Role::Peer)];
    if word != BULKS.0 {
        lanes.push(rounds.lane("empty calls", Role::Floor));
    }
    let title = if word == BULKS.0 { format!("{size} B") } else { format!("{size} B, {live} live") };
    RowPlan {
        size_bytes: size,
        live,
        target: Some(target),
        ..RowPlan::new(format!("{word}/{size}/live{live}"), group, title, Method::Runs(options.rounds, lanes))
    }
}
