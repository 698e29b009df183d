//! redis-server under redis-benchmark, over a Unix socket: the time of all requests, and the
//! server's processor time and memory.
//!
//! Only the server has the allocator under it. Starting and stopping it is not timed. It keeps
//! nothing on disk. Of the benchmark's tests of ranges the shortest is taken, 100 elements: in the
//! longer ones both sides copy answers and nothing is allocated.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const TESTS: &str = "set,get,lpush,lrange_100";
const START_LIMIT: Duration = Duration::from_secs(60);

pub const SERVER: Workload = Workload { name: "redis", title, run };

fn requests(scale: Scale) -> u32 {
    scale.pick(100, 20_000, 60_000)
}

fn title(scale: Scale) -> String {
    format!("redis-server: {TESTS}, {} requests each", requests(scale))
}

fn run(place: &Place) -> Result<Usage, String> {
    let socket = place.folder.join("s");
    let mut server = place.measured("redis-server", "redis-server")?;
    server.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
    let mut benchmark = place.plain("redis-benchmark", "redis-tools")?;
    benchmark.arg("-s").arg(&socket).args(["-t", TESTS, "-r", "100000", "-d", "64", "--csv", "-n"]);
    benchmark.arg(requests(place.scale).to_string());

    let server = process::start(server)?.watched();
    server.wait_until(START_LIMIT, || ask(&socket, "PING").is_ok_and(|answer| answer == "+PONG"))?;
    let client = process::run(benchmark)?;
    // Its answer is that the connection ends.
    let _ = ask(&socket, "SHUTDOWN NOSAVE");
    let served = server.finish()?;
    Ok(Usage { elapsed_s: client.elapsed_s, ..served })
}

/// The first line of the answer to one command.
fn ask(socket: &Path, command: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(START_LIMIT))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        answer.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
}
