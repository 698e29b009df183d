//! Lua, Node.js and Ruby, each running a script that builds and drops what its programs are made
//! of. Lua asks malloc for every table and string; Ruby for what does not fit its own slots of some
//! tens of bytes; Node.js for buffers, compressors and its compiler, as V8's heap comes from mmap.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;

/// A script, and how it is run.
struct Script {
    /// The interpreter and Debian's package of it.
    program: (&'static str, &'static str),
    file: &'static str,
    text: &'static str,
    /// Records that it builds in a round.
    records: fn(Scale) -> u32,
}

impl Script {
    fn title(&self, what: &str, scale: Scale) -> String {
        format!("{}: {what}, {} records", self.program.0, (self.records)(scale))
    }

    fn run(&self, place: &Place) -> Result<Usage, String> {
        place.write(self.file, self.text)?;
        let mut interpreter = place.measured(self.program.0, self.program.1)?;
        interpreter.arg(self.file).arg((self.records)(place.scale).to_string());
        process::run_watched(interpreter)
    }
}

const TREES_LUA: Script = Script {
    program: ("lua5.4", "lua5.4"),
    file: "trees.lua",
    text: include_str!("trees.lua"),
    records: |scale| scale.pick(30, 10_000, 60_000),
};

pub const LUA: Workload = Workload {
    name: "lua",
    title: |scale| TREES_LUA.title("tables, strings and trees", scale),
    run: |place| TREES_LUA.run(place),
};

const RECORDS_JS: Script = Script {
    program: ("node", "nodejs"),
    file: "records.js",
    text: include_str!("records.js"),
    records: |scale| scale.pick(20, 5_000, 40_000),
};

pub const NODE: Workload = Workload {
    name: "node",
    title: |scale| RECORDS_JS.title("JSON, buffers and gzip", scale),
    run: |place| RECORDS_JS.run(place),
};

const RECORDS_RB: Script = Script {
    program: ("ruby", "ruby"),
    file: "records.rb",
    text: include_str!("records.rb"),
    records: |scale| scale.pick(20, 5_000, 40_000),
};

pub const RUBY: Workload = Workload {
    name: "ruby",
    title: |scale| RECORDS_RB.title("objects, hashes and JSON", scale),
    run: |place| RECORDS_RB.run(place),
};
