//! The sqlite3 command: a table and three indexes over it in memory, then an update, a delete and a
//! sort; and the library in eight threads of a C program (threads.c). In memory, because the disk
//! is not what is measured.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;

pub const INDEX: Workload = Workload { name: "sqlite", title, run };

fn rows(scale: Scale) -> u32 {
    scale.pick(100, 100_000, 300_000)
}

/// The answer is checked by the script itself: a wrong one violates a constraint, which ends it.
fn script(rows: u32) -> String {
    format!(
        ".bail on
PRAGMA temp_store = MEMORY;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER NOT NULL, name TEXT NOT NULL, data BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
INSERT INTO t SELECT i, (i * 2654435761) % 1000003, printf('name-%08x', (i * 40503) % 16777216),
                     CASE WHEN i % 10 = 0 THEN zeroblob(i % 300) END FROM n;
CREATE INDEX by_k ON t(k);
CREATE UNIQUE INDEX by_name ON t(name, id);
CREATE INDEX partly ON t(length(data)) WHERE data IS NOT NULL;
UPDATE t SET name = upper(name) || '!' WHERE id % 7 = 0;
DELETE FROM t WHERE id % 11 = 0;
SELECT group_concat(name, ',') FROM (SELECT name FROM t ORDER BY name DESC, id LIMIT 2000);
CREATE TABLE answer(n INTEGER CHECK (n = {rows} - {rows} / 11));
INSERT INTO answer SELECT count(*) FROM t;
"
    )
}

fn title(scale: Scale) -> String {
    format!("sqlite3: indexes over {} rows, in memory", rows(scale))
}

fn run(place: &Place) -> Result<Usage, String> {
    place.write("script.sql", &script(rows(place.scale)))?;
    let mut sqlite = place.measured("sqlite3", "sqlite3")?;
    sqlite.args(["-batch", ":memory:", ".read script.sql"]);
    process::run_watched(sqlite)
}

pub const THREADS: Workload = Workload { name: "sqlite-threads", title: title_of_threads, run: run_threads };

const COUNT: u32 = 8;

/// Rows of each thread's table.
fn rows_of_threads(scale: Scale) -> u32 {
    scale.pick(50, 10_000, 80_000)
}

fn title_of_threads(scale: Scale) -> String {
    format!("sqlite in {COUNT} threads: indexes over {} rows each", rows_of_threads(scale))
}

fn run_threads(place: &Place) -> Result<Usage, String> {
    place.write("threads.c", include_str!("threads.c"))?;
    let mut compiler = place.plain("cc", "gcc")?;
    compiler.args(["-O2", "-o", "threads", "threads.c", "-ldl", "-lpthread"]);
    process::run(compiler)?;
    let mut threads = place.measured(&place.folder.join("threads").display().to_string(), "")?;
    threads.args([COUNT, rows_of_threads(place.scale)].map(|number| number.to_string()));
    process::run_watched(threads)
}
