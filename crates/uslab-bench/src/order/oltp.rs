//! Transactions on SQLite by 1 to 16 threads, each with a database of its own in memory: what they
//! share is the allocator.
//!
//! A transaction is that of the usual benchmarks of databases: ten rows read by key, a range summed
//! up, another one sorted, two updates, a delete and an insert. Statements are parsed every time,
//! as many programs have it: of a statement's cost a good part is memory for its program.
//!
//! Must never: let one thread's share of the work depend on how fast the others are.

use super::Configuration;
use super::sqlite::{Database, Sqlite};
use crate::measure::Sample;
use crate::rounds::random::Xorshift;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::sync::Barrier;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

/// One measurement, as it is sent to a child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Oltp {
    pub configuration: Configuration,
    pub threads: usize,
    /// Of all threads together.
    pub transactions: usize,
    /// Of each database.
    pub rows: u64,
}

impl Oltp {
    /// Nanoseconds of wall time for a transaction.
    pub fn run(&self) -> Result<Sample, String> {
        let sqlite = Sqlite::load(self.configuration)?;
        let each = self.transactions.div_ceil(self.threads);
        let filled = Barrier::new(self.threads);
        let times = thread::scope(|scope| {
            let (sqlite, filled) = (&sqlite, &filled);
            let work = move |number| {
                let worker = Worker::new(sqlite, number, self.rows);
                // Everybody comes here, or the others wait for ever.
                filled.wait();
                let (mut worker, started) = (worker?, Instant::now());
                (0..each).try_for_each(|_| worker.transaction())?;
                Ok((started, Instant::now()))
            };
            let workers: Vec<_> =
                (0..self.threads as u64).map(|number| scope.spawn(move || work(number))).collect();
            let join = |worker: ScopedJoinHandle<Result<_, String>>| {
                worker.join().unwrap_or_else(|_| Err("a thread of the load panicked".into()))
            };
            workers.into_iter().map(join).collect::<Result<Vec<(Instant, Instant)>, String>>()
        })?;
        // From the first to start to the last to end; the waiting thread may be woken late.
        let first = times.iter().map(|time| time.0).min();
        let last = times.iter().map(|time| time.1).max();
        let (Some(first), Some(last)) = (first, last) else { return Err("no threads were asked for".into()) };
        Ok(Sample::of((last - first).as_nanos() as f64 / (each * self.threads) as f64))
    }
}

struct Worker<'a> {
    database: Database<'a>,
    rows: u64,
    random: Xorshift,
    text: String,
}

/// Rows of the two ranges.
const RANGE: u64 = 20;

impl<'a> Worker<'a> {
    fn new(sqlite: &'a Sqlite, number: u64, rows: u64) -> Result<Self, String> {
        let database = sqlite.open()?;
        let fill = format!(
            "CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, c TEXT, pad TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
             INSERT INTO t SELECT i, (i * 7919) % {rows}, printf('%0119d', i), printf('%059d', i) FROM n;
             CREATE INDEX by_k ON t(k);"
        );
        database.run(&fill)?;
        Ok(Self { database, rows, random: Xorshift::new(number as usize), text: String::new() })
    }

    /// A key, the same for every configuration.
    fn key(&mut self) -> u64 {
        self.random.below(self.rows as usize) as u64 + 1
    }

    fn transaction(&mut self) -> Result<(), String> {
        self.database.run("BEGIN")?;
        let mut found = 0;
        for _ in 0..10 {
            let id = self.key();
            found += self.run(format_args!("SELECT c FROM t WHERE id = {id}"))?;
        }
        if found != 10 {
            return Err(format!("SQLite found {found} rows of 10"));
        }
        let (low, other) = (self.key(), self.key());
        self.run(format_args!("SELECT sum(k) FROM t WHERE id BETWEEN {low} AND {}", low + RANGE))?;
        self.run(format_args!("SELECT c FROM t WHERE id BETWEEN {other} AND {} ORDER BY c", other + RANGE))?;
        let (id, k) = (self.key(), self.key());
        self.run(format_args!("UPDATE t SET k = {k} WHERE id = {id}"))?;
        let id = self.key();
        self.run(format_args!("UPDATE t SET c = printf('%0119d', {k}) WHERE id = {id}"))?;
        self.run(format_args!("DELETE FROM t WHERE id = {id}"))?;
        self.run(format_args!(
            "INSERT INTO t VALUES ({id}, {k}, printf('%0119d', {id}), printf('%059d', {k}))"
        ))?;
        self.database.run("COMMIT").map(drop)
    }

    fn run(&mut self, statement: std::fmt::Arguments) -> Result<u64, String> {
        self.text.clear();
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(statement);
        self.database.run(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test a process: SQLite takes one allocator.
    #[test]
    fn transactions_keep_the_table_whole() {
        let load = Oltp { configuration: Configuration::Vanilla, threads: 2, transactions: 8, rows: 50 };
        match load.run() {
            Ok(sample) => assert!(sample.value > 0.0),
            Err(why) => assert!(why.contains("apt-get install"), "{why}"),
        }
    }
}
