//! RocksDB's own benchmark: keys written at random, read at random and looked for by iterators. The
//! log is left out, because the disk is not what is measured; threads of the background write and
//! merge tables beside the one that asks.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;

pub const DB_BENCH: Workload = Workload { name: "rocksdb", title, run };

const TESTS: &str = "fillrandom,readrandom,seekrandom";

/// Keys written, and keys asked for by each test.
fn keys(scale: Scale) -> (u32, u32) {
    scale.pick((100, 100), (60_000, 20_000), (250_000, 40_000))
}

fn title(scale: Scale) -> String {
    format!("rocksdb's db_bench: {TESTS}, {} keys", keys(scale).0)
}

fn run(place: &Place) -> Result<Usage, String> {
    let (keys, asked) = keys(place.scale);
    let mut bench = place.measured("db_bench", "rocksdb-tools")?;
    bench.arg(format!("--benchmarks={TESTS}")).arg(format!("--db={}", place.folder.join("db").display()));
    bench.arg(format!("--num={keys}")).arg(format!("--reads={asked}"));
    bench.args(["--seed=1", "--value_size=100", "--disable_wal=1", "--compression_type=none"]);
    process::run_watched(bench)
}
