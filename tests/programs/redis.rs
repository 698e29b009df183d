//! redis-server under redis-benchmark, on a Unix socket: 80 000 writes and reads of a key, 160 000
//! pushes, 8000 reads of hundreds of elements, a snapshot written by a forked child of the loaded
//! server, a second server that reads it, and a clean shutdown of both.
//!
//! Debian's server is linked with libjemalloc, so the test checks that its memory comes from uslab.
//! The server reports jemalloc's count of allocated bytes beside its own sum. While the server
//! holds many megabytes, jemalloc's count must be less than an eighth of its sum.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use uslab_tests::harness::{Mode, Outcome, Program, Running, Scratch, artifacts, tool};

both_modes!(benchmark => serves_a_benchmark);

const REQUESTS: u64 = 80_000;
/// Elements pushed to a list.
const PUSHED: u64 = 160_000;
/// Requests that read a range, each hundreds of elements.
const RANGES: u64 = 8000;
/// Rows of redis-benchmark's table for `-t lrange`, which pushes first.
const RANGE_ROWS: [&str; 5] = [
    "LPUSH (needed to benchmark LRANGE)",
    "LRANGE_100 (first 100 elements)",
    "LRANGE_300 (first 300 elements)",
    "LRANGE_500 (first 500 elements)",
    "LRANGE_600 (first 600 elements)",
];

fn serves_a_benchmark(mode: Mode) {
    let scratch = Scratch::new("redis");
    let server = Server::start(&scratch, mode, "first");
    server.benchmark("set,get", REQUESTS, &["SET", "GET"]);
    server.benchmark("lpush", PUSHED, &["LPUSH"]);
    server.benchmark("lrange", RANGES, &RANGE_ROWS);
    let pushed = (PUSHED + RANGES).to_string();
    assert_eq!(server.ask(&["LLEN", "mylist"]), pushed, "{mode:?}: elements of the list");
    assert_eq!(server.ask(&["DBSIZE"]).parse::<u64>().map(|n| n > 32_000), Ok(true), "{mode:?}: keys");
    server.expect_ours();

    // Fill, change and delete in one script inside the server: Lua's own allocations, and sizes of
    // all kinds.
    let script = "local s = 0 for i = 1, 30000 do local v = string.rep('v', i % 3000) \
                  redis.call('HSET', 'h' .. i % 1000, i, v) redis.call('ZADD', 'z', i * 7 % 10007, 'm' .. i) \
                  if i % 3 == 0 then redis.call('HDEL', 'h' .. i % 1000, i - 1000) end s = s + #v end return s";
    let sum: u64 = (1..=30_000).map(|i| i % 3000).sum();
    assert_eq!(server.ask(&["EVAL", script, "0"]), sum.to_string(), "{mode:?}: the script's sum");

    server.save_in_the_background();
    let digest = server.ask(&["DEBUG", "DIGEST"]);
    server.shut_down();

    let second = Server::start(&scratch, mode, "second");
    assert_eq!(second.ask(&["DEBUG", "DIGEST"]), digest, "{mode:?}: the saved data set differs");
    assert_eq!(second.ask(&["FLUSHALL"]), "OK");
    second.shut_down();
}

/// A running server.
struct Server<'a> {
    scratch: &'a Scratch,
    mode: Mode,
    socket: PathBuf,
    running: Running,
}

impl<'a> Server<'a> {
    fn start(scratch: &'a Scratch, mode: Mode, name: &str) -> Server<'a> {
        let socket = scratch.join(format!("{name}.sock"));
        let mut running = Program::new(tool("redis-server", "redis-server"))
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--appendonly",
                "no",
                "--enable-debug-command",
                "yes",
                "--unixsocket",
            ])
            .arg(&socket)
            .arg("--dir")
            .arg(scratch.path())
            .limit_s(600)
            .start(scratch, mode);
        let deadline = Instant::now() + Duration::from_secs(60);
        while cli(scratch, Mode::Plain, &socket, &["PING"]).stdout().trim() != "PONG" {
            if running.ended().is_some() || Instant::now() > deadline {
                running.fail("redis-server did not start");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Server { scratch, mode, socket, running }
    }

    /// The answer to one command, without the end of line.
    fn ask(&self, words: &[&str]) -> String {
        let outcome = cli(self.scratch, self.mode, &self.socket, words).expect_clean();
        outcome.stdout().trim_end().to_string()
    }

    /// One field of `INFO`.
    fn info(&self, section: &str, field: &str) -> String {
        let text = self.ask(&["INFO", section]);
        let value = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("INFO {section} has no {field}:\n{text}")).trim().to_string()
    }

    /// `requests` of each of `kinds`, whose table has these rows.
    fn benchmark(&self, kinds: &str, requests: u64, rows: &[&str]) {
        let outcome = Program::new(tool("redis-benchmark", "redis-tools"))
            .arg("-s")
            .arg(&self.socket)
            .args(["-t", kinds, "-r", "40000", "-d", "64", "--csv", "-n"])
            .arg(requests.to_string())
            .limit_s(480)
            .run_clean(self.scratch, self.mode);
        let table = outcome.stdout();
        for row in rows {
            let line = table.lines().find(|l| l.starts_with(&format!("\"{row}\",")));
            let per_s = line.and_then(|l| l.split('"').nth(3)?.parse::<f64>().ok());
            outcome.expect(per_s.is_some_and(|r| r > 0.0), &format!("no rate for {row} in the table"));
        }
    }

    /// Checks that the library is mapped into the server and that jemalloc, if the server is linked
    /// with it, has allocated almost nothing.
    fn expect_ours(&self) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.info("server", "process_id")));
        let maps = maps.expect("the mappings of the server");
        let name = artifacts().library.file_name().expect("a file name").to_string_lossy().into_owned();
        assert!(maps.contains(&name), "{name} is not mapped into redis-server");
        let number = |field| self.info("memory", field).parse::<u64>().expect("a number of bytes");
        let (used, jemalloc) = (number("used_memory"), number("allocator_allocated"));
        assert!(used > 16 << 20, "the server holds only {used} bytes");
        eprintln!("redis {:?}: {used} bytes in use, of which jemalloc allocated {jemalloc}", self.mode);
        // Without jemalloc the server reports its own sum in both places, and the check does not
        // apply.
        let asked = maps.contains("libjemalloc") && !artifacts().control;
        assert!(!asked || jemalloc < used / 8, "jemalloc serves {jemalloc} of the server's {used} bytes");
    }

    /// `BGSAVE`: a forked child of the loaded server writes the data set to a file.
    fn save_in_the_background(&self) {
        assert_eq!(self.ask(&["BGSAVE"]), "Background saving started");
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.info("persistence", "rdb_bgsave_in_progress") != "0" {
            assert!(Instant::now() < deadline, "{:?}: the background save does not end", self.mode);
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(
            self.info("persistence", "rdb_last_bgsave_status"),
            "ok",
            "{:?}: background save",
            self.mode
        );
    }

    fn shut_down(self) {
        let _ = cli(self.scratch, self.mode, &self.socket, &["SHUTDOWN", "NOSAVE"]);
        let outcome = self.running.wait().expect_clean();
        let log = outcome.stdout();
        outcome.expect(log.contains("ready to exit, bye bye"), "the server did not shut down cleanly");
        outcome.expect(!log.contains("REDIS BUG REPORT"), "the server reported a bug");
    }
}

fn cli(scratch: &Scratch, mode: Mode, socket: &Path, words: &[&str]) -> Outcome {
    let cli = Program::new(tool("redis-cli", "redis-tools")).arg("-s").arg(socket).args(words);
    cli.limit_s(60).run(scratch, mode)
}
