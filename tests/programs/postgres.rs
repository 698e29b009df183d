//! postgres: initdb, pgbench with 8 clients, queries whose answers are compared with a plain
//! server's, a backend that is killed, and a clean shutdown after which a second start finds the
//! same data.
//!
//! The server runs as `nobody` where the caller is root, on a Unix socket in the scratch directory.
//! Backends leave the process group (they call `setsid`), but they end with the server.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Outcome, Program, Running, Scratch, expect_mapped, tool};

both_modes!(cluster => initdb_pgbench_and_queries);

const CLIENTS: u64 = 8;
const TRANSACTIONS_PER_CLIENT: u64 = 150;

/// Hash joins, sorts that spill, aggregates in parallel workers, regular expressions, JSON,
/// PL/pgSQL with exceptions, and an index over text: each allocates in another part of the server.
const QUERIES: &str = include_str!("queries.sql");

fn initdb_pgbench_and_queries(mode: Mode) {
    static PLAIN: OnceLock<String> = OnceLock::new();
    let plain = PLAIN.get_or_init(|| answers(Mode::Plain));
    let ours = answers(mode);
    assert!(plain.lines().count() > 30, "the queries answer too little: {plain}");
    for (number, (wanted, got)) in plain.lines().zip(ours.lines()).enumerate() {
        assert_eq!(wanted, got, "{mode:?}: line {} of the answers differs", number + 1);
    }
    assert_eq!(plain.lines().count(), ours.lines().count(), "{mode:?}: the answers end early");
}

fn answers(mode: Mode) -> String {
    let scratch = Scratch::new("pg");
    let data = scratch.unprivileged_dir("data");
    let sockets = scratch.unprivileged_dir("s");
    let initdb = program("initdb").args(["--no-sync", "--auth=trust", "--username=u", "--encoding=UTF8"]);
    initdb.args(["--locale=C.UTF-8", "-D"]).arg(&data).run_clean(&scratch, mode);

    let server = Server::start(&scratch, mode, &data, &sockets);
    if mode == Mode::Plain {
        let answers = server.sql(QUERIES);
        server.shut_down();
        return answers;
    }
    server.pgbench();
    let answers = server.sql(QUERIES);
    expect_mapped(mode, server.running.pid(), 5);
    server.survives_a_killed_backend();
    let rows = server.sql("SELECT md5(string_agg(i || name, ',' ORDER BY i)) FROM things;");
    server.shut_down();

    let second = Server::start(&scratch, mode, &data, &sockets);
    assert_eq!(second.sql("SELECT md5(string_agg(i || name, ',' ORDER BY i)) FROM things;"), rows);
    second.shut_down();
    answers
}

/// A program of the newest version that is installed: Debian keeps them off `PATH`.
fn program(name: &str) -> Program {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|v| v.path().join("bin").join(name)).filter(|p| p.is_file()).collect();
    found.sort();
    let path = found.pop().unwrap_or_else(|| tool(name, "postgresql"));
    Program::new(path).unprivileged().env("PGUSER", "u").limit_s(180)
}

/// A running server.
struct Server<'a> {
    scratch: &'a Scratch,
    mode: Mode,
    sockets: &'a Path,
    running: Running,
}

impl<'a> Server<'a> {
    fn start(scratch: &'a Scratch, mode: Mode, data: &Path, sockets: &'a Path) -> Server<'a> {
        let settings = [
            "listen_addresses=",
            "fsync=off",
            "shared_buffers=16MB",
            "work_mem=1MB",
            "max_connections=20",
            // The memory that parallel workers share is a file of the cluster, so a killed server
            // leaves nothing in /dev/shm.
            "dynamic_shared_memory_type=mmap",
            "restart_after_crash=on",
            "min_parallel_table_scan_size=0",
            "parallel_setup_cost=0",
            "parallel_tuple_cost=0",
        ];
        let mut server = program("postgres").arg("-D").arg(data).arg("-k").arg(sockets);
        for setting in settings {
            server = server.args(["-c", setting]);
        }
        let running = server.limit_s(300).start(scratch, mode).wait_until("its socket", |_| {
            psql(scratch, Mode::Plain, sockets, "SELECT 1").run(scratch, Mode::Plain).succeeded()
        });
        Server { scratch, mode, sockets, running }
    }

    /// The output of psql, with unaligned rows.
    fn sql(&self, sql: &str) -> String {
        let outcome = psql(self.scratch, self.mode, self.sockets, sql).run_clean(self.scratch, self.mode);
        outcome.stdout()
    }

    /// Eight clients change four tables; the sums over all of them must agree in the end.
    fn pgbench(&self) {
        let pgbench =
            |args: &[&str]| program("pgbench").arg("-h").arg(self.sockets).args(args).arg("postgres");
        pgbench(&["-i", "-q", "-s", "1"]).run_clean(self.scratch, self.mode);
        let (clients, transactions) = (CLIENTS.to_string(), TRANSACTIONS_PER_CLIENT.to_string());
        for protocol in ["simple", "prepared"] {
            let args = ["-n", "-c", &clients, "-j", "2", "-t", &transactions, "-M", protocol];
            let outcome = pgbench(&args).run_clean(self.scratch, self.mode);
            let wanted = format!("actually processed: {0}/{0}", CLIENTS * TRANSACTIONS_PER_CLIENT);
            outcome.expect(outcome.stdout().contains(&wanted), "not all transactions were processed");
        }
        let sums = self.sql(
            "SELECT count(*), \
             sum(delta) = (SELECT sum(abalance) FROM pgbench_accounts), \
             sum(delta) = (SELECT sum(bbalance) FROM pgbench_branches), \
             sum(delta) = (SELECT sum(tbalance) FROM pgbench_tellers) FROM pgbench_history",
        );
        assert_eq!(sums, format!("{}|t|t|t\n", 2 * CLIENTS * TRANSACTIONS_PER_CLIENT), "{:?}", self.mode);
    }

    /// Kills one backend by SIGKILL: the server ends the other backends, recovers, and continues.
    fn survives_a_killed_backend(&self) {
        let suicide = "SELECT pg_backend_pid() AS pid \\gset\n\\setenv PID :pid\n\\! kill -9 $PID\nSELECT 1;";
        let outcome = psql(self.scratch, self.mode, self.sockets, suicide).run(self.scratch, self.mode);
        outcome.expect(!outcome.succeeded(), "the backend was not killed");
        for _ in 0..600 {
            let again = psql(self.scratch, self.mode, self.sockets, "SELECT 1").run(self.scratch, self.mode);
            if again.succeeded() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("{:?}: the server did not recover", self.mode);
    }

    fn shut_down(self) -> Outcome {
        self.running.signal(libc::SIGINT);
        let outcome = self.running.wait().expect_clean();
        let log = outcome.stderr();
        outcome.expect(log.contains("database system is shut down"), "the server did not shut down");
        outcome.expect(!log.contains("PANIC"), "the server panicked");
        for signal in ["signal 11", "signal 6"] {
            outcome.expect(!log.contains(signal), "a process of the server crashed");
        }
        outcome
    }
}

fn psql(scratch: &Scratch, mode: Mode, sockets: &Path, sql: &str) -> Program {
    let file = scratch.write(format!("{mode:?}.sql"), sql);
    let psql = program("psql").args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-h"]).arg(sockets);
    psql.stdin(file).limit_s(120)
}
