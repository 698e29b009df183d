//! sqlite3: a table of 400 000 rows, indexes over it, and queries whose answers must equal those
//! of a run without the allocator.

use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(index => builds_an_index);

/// A large page cache and a sorter thread exercise the heap; the disk is not under test.
const SCRIPT: &str = "
.bail on
.timer off
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -200000;
PRAGMA temp_store = MEMORY;
PRAGMA threads = 2;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER NOT NULL, name TEXT NOT NULL, data BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000)
INSERT INTO t SELECT i, (i * 2654435761) % 1000003, printf('name-%08x', (i * 40503) % 16777216),
                     CASE WHEN i % 10 = 0 THEN zeroblob(i % 300) END FROM n;
CREATE INDEX by_k ON t(k);
CREATE UNIQUE INDEX by_name ON t(name, id);
CREATE INDEX partly ON t(length(data)) WHERE data IS NOT NULL;
ANALYZE;
PRAGMA integrity_check;
SELECT count(*), sum(id), sum(k), sum(length(name)), total(length(data)) FROM t;
SELECT count(*), sum(id * (k % 1000)) FROM t INDEXED BY by_k WHERE k BETWEEN 1000 AND 300000;
SELECT substr(name, 6, 2) AS p, count(*), sum(k) FROM t GROUP BY p ORDER BY p;
SELECT group_concat(name, ',') FROM (SELECT name FROM t ORDER BY name DESC, id LIMIT 2000);
SELECT count(*), sum(a.id) FROM t a JOIN t b ON a.k = b.k AND a.id < b.id;
UPDATE t SET name = upper(name) || '!' WHERE id % 7 = 0;
DELETE FROM t WHERE id % 11 = 0;
VACUUM;
PRAGMA integrity_check;
SELECT count(*), sum(id), sum(length(name)), max(name), min(name) FROM t;
";

fn builds_an_index(mode: Mode) {
    static PLAIN: OnceLock<String> = OnceLock::new();
    let plain = PLAIN.get_or_init(|| answers(Mode::Plain));
    let ours = answers(mode);
    assert_eq!(
        ours.lines().filter(|l| *l == "ok").count(),
        2,
        "{mode:?}: an integrity check failed:\n{ours}"
    );
    assert!(ours.contains("\n400000|"), "{mode:?}: the rows are not all there:\n{ours}");
    for (number, (wanted, got)) in plain.lines().zip(ours.lines()).enumerate() {
        assert_eq!(wanted, got, "{mode:?}: line {} of the answers differs", number + 1);
    }
    assert_eq!(plain.lines().count(), ours.lines().count(), "{mode:?}: the answers end early");
}

fn answers(mode: Mode) -> String {
    let scratch = Scratch::new("sqlite");
    let script = scratch.write("script.sql", SCRIPT);
    let sqlite = Program::new(tool("sqlite3", "sqlite3")).args(["-batch", "rows.db"]).stdin(script);
    let outcome = sqlite.limit_s(300).run_clean(&scratch, mode);
    outcome.expect(outcome.stderr().is_empty(), "sqlite3 wrote to standard error");
    outcome.stdout()
}
