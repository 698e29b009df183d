//! A postgres server under one psql: documents are built, grouped, sorted and joined in memory. The
//! time is that of the queries; processor time and memory are the server's and its processes'.
//!
//! The server refuses to run as root; then all of it runs as a user that owns no other file.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const START_LIMIT: Duration = Duration::from_secs(60);
/// The kernel's overflow user and group, which own no file.
const UNPRIVILEGED: u32 = 65_534;
const SETTINGS: [&str; 6] = [
    "listen_addresses=",
    "fsync=off",
    "shared_buffers=16MB",
    "work_mem=64MB",
    "max_parallel_workers_per_gather=0",
    // Workers share a file of the cluster, so a killed server leaves nothing in /dev/shm.
    "dynamic_shared_memory_type=mmap",
];

pub const SERVER: Workload = Workload { name: "postgres", title, run };

fn rows(scale: Scale) -> u32 {
    scale.pick(100, 30_000, 150_000)
}

fn title(scale: Scale) -> String {
    format!("postgres: documents and joins over {} rows", rows(scale))
}

/// A division by zero ends it if an answer is wrong.
fn script(rows: u32) -> String {
    format!(
        "CREATE TEMP TABLE t AS
SELECT i, md5(i::text) AS name, jsonb_build_object('id', i, 'tags', jsonb_build_array(i % 7, i % 11)) AS data
  FROM generate_series(1, {rows}) AS i;
CREATE INDEX ON t(name);
SELECT 1 / (count(*) = 77)::int FROM (SELECT data->'tags', count(*) FROM t GROUP BY 1) AS groups;
SELECT 1 / (sum(length(all_names)) > {rows})::int
  FROM (SELECT i % 100, string_agg(name, ',' ORDER BY name) AS all_names FROM t GROUP BY 1) AS names;
SELECT 1 / (count(*) = {rows})::int FROM t AS a JOIN t AS b ON a.name = b.name;
SELECT 1 / (max(jsonb_array_length(all_data)) > 0)::int
  FROM (SELECT i % 50, jsonb_agg(data ORDER BY name) AS all_data FROM t GROUP BY 1) AS documents;
"
    )
}

fn run(place: &Place) -> Result<Usage, String> {
    let (data, sockets) = (place.folder.join("data"), place.folder);
    place.write("script.sql", &script(rows(place.scale)))?;
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(place.folder, Some(UNPRIVILEGED), Some(UNPRIVILEGED))
            .map_err(|error| format!("cannot give {} away: {error}", place.folder.display()))?;
    }
    let mut initdb = place.plain(&path_of("initdb"), "postgresql")?;
    initdb.args(["-A", "trust", "-U", "u", "--no-sync", "-D"]).arg(&data);
    process::run(unprivileged(initdb))?;

    let mut server = place.measured(&path_of("postgres"), "postgresql")?;
    server.arg("-D").arg(&data).arg("-k").arg(sockets);
    server.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
    let psql = |arguments: &[&str]| -> Result<Command, String> {
        let mut psql = place.plain(&path_of("psql"), "postgresql-client")?;
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "u", "-d", "postgres", "-h"]).arg(sockets);
        psql.args(arguments);
        Ok(unprivileged(psql))
    };
    let server = process::start(unprivileged(server))?.watched();
    server.wait_until(START_LIMIT, || psql(&["-c", "SELECT 1"]).and_then(process::run).is_ok())?;
    let client = process::run(psql(&["-f", "script.sql"])?)?;
    let mut stop = place.plain(&path_of("pg_ctl"), "postgresql")?;
    stop.args(["stop", "--mode", "fast", "-D"]).arg(&data);
    process::run(unprivileged(stop))?;
    let served = server.finish()?;
    Ok(Usage { elapsed_s: client.elapsed_s, ..served })
}

fn unprivileged(mut command: Command) -> Command {
    if nix::unistd::geteuid().is_root() {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    command
}

/// A program of the newest version that is installed: Debian keeps them off `PATH`.
fn path_of(program: &str) -> String {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let paths = versions.map(|version| version.path().join("bin").join(program));
    let mut found: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    found.sort();
    found.pop().map_or(program.to_owned(), |path| path.display().to_string())
}
