//! The tests that guests run: their programs, the words for their guests, and their judgement.
//!
//! ```text
//!   boots          the guest is what the others rely on
//!   storm          the library's own many-thread tests, with restartable sequences
//!   storm-locked   the same without
//!   killed         three caches that never shrink, under a memory limit: the kernel must kill them
//!   limits         the same program with reclaim: it must not, and hits nearly as often as the simulation
//!   swap           a program whose memory is swapped out: pressure must ask for twice as much
//!   hotplug        CPUs come and go while threads allocate: no object may have two owners
//!   overcommit     strict overcommit: six tenths of what glibc gets, and the charge falls again
//!   policies       caches with a memory policy on two nodes: each page is where the policy has it
//!   nodes-C-N      C CPUs on N nodes of uneven memory: objects go home, CPUs come and go, sums agree
//! ```
//!
//! A guest's time limit follows from its work, and is generous: emulated CPUs share those of the
//! host.

use super::guest::Outcome;
use super::machine::{Shape, USUAL};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The library's tests that a storm runs, as `cargo test --test` knows them.
pub const STORMS: &[&str] = &["sequences", "threads", "fork"];
/// The programs of `uslab-vm-guest` that guests run, beside its first process.
pub const PROGRAMS: &[&str] =
    &["vm-boots", "three-caches", "swapped-out", "cpu-hotplug", "commit-charge", "nodes", "policies"];
/// The time that a guest needs to boot and to end, beside its programs.
const OVERHEAD: Duration = Duration::from_secs(120);
/// Requests a second to caches that shrink: about half of what two CPUs of a host can emulate.
const RATE: u64 = 8000;

/// How often CPUs of the guests with many nodes go offline or come back, in each of three runs.
const CHANGES: usize = 10;

/// The caller's options.
pub struct Options {
    /// How long `limits` and `killed` run.
    pub run: Duration,
    /// Whether the program reclaims by itself rather than by the library's thread.
    pub own_loop: bool,
}

/// One test.
pub struct Case {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for `--list`.
    pub what: &'static str,
    /// The words for the guest's first process, and the guest's time limit.
    pub plan: fn(&Options, &Sizes) -> (Vec<String>, Duration),
    /// The guest's CPUs and nodes.
    pub shape: &'static Shape,
    /// Whether the guest has a disk.
    pub has_disk: bool,
    /// Judges the outcome; a line for the user.
    pub judge: fn(&Outcome, &Host) -> Result<String>,
}

/// All tests, in the order in which they run.
pub const CASES: &[Case] = &[
    Case {
        name: "boots",
        what: "8 CPUs, 2 nodes, PSI, the memory controller, restartable sequences",
        shape: &USUAL,
        has_disk: false,
        plan: |_, _| (words("vm-boots 8 2"), OVERHEAD),
        judge: |outcome, _| passed(outcome),
    },
    Case {
        name: "storm",
        what: "the library's many-thread tests, with restartable sequences",
        shape: &USUAL,
        has_disk: false,
        plan: |_, _| storm(""),
        judge: |outcome, _| passed(outcome),
    },
    Case {
        name: "storm-locked",
        what: "the same without restartable sequences",
        shape: &USUAL,
        has_disk: false,
        plan: |_, _| storm("USLAB_RSEQ=0 "),
        judge: |outcome, _| passed(outcome),
    },
    Case {
        name: "killed",
        what: "three caches that never shrink reach their memory limit and are killed",
        shape: &USUAL,
        has_disk: false,
        plan: |options, sizes| three_caches(options, sizes, "--no-reclaim".into()),
        judge: |outcome, _| was_killed(outcome),
    },
    Case {
        name: "limits",
        what: "the same with reclaim run to their end below the limit",
        shape: &USUAL,
        has_disk: false,
        plan: |options, sizes| {
            let own_loop = if options.own_loop { "--own-loop" } else { "" };
            three_caches(options, sizes, format!("--rate {RATE} {own_loop}"))
        },
        judge: stayed_below,
    },
    Case {
        name: "swap",
        what: "pressure asks for twice as much while memory is swapped out",
        shape: &USUAL,
        has_disk: true,
        plan: |_, _| {
            let told = "USLAB_PRESSURE=systemd,cgroup MEMORY_PRESSURE_WATCH=/tmp/pressure swapped-out";
            (words(told), 2 * OVERHEAD)
        },
        judge: |outcome, _| counted_twice(outcome),
    },
    Case {
        name: "hotplug",
        what: "CPUs go offline and come back while threads allocate",
        shape: &USUAL,
        has_disk: false,
        plan: |_, _| (words("cpu-hotplug then USLAB_RSEQ=0 cpu-hotplug"), 3 * OVERHEAD),
        judge: |outcome, _| had_one_owner(outcome),
    },
    Case {
        name: "overcommit",
        what: "strict overcommit: six tenths of what glibc gets, and the charge falls again",
        shape: &USUAL,
        has_disk: false,
        plan: |_, _| (words("commit-charge"), 3 * OVERHEAD),
        judge: |outcome, _| gave_charge_back(outcome),
    },
    Case {
        name: "policies",
        what: "caches with a memory policy on two nodes: each page is where the policy has it",
        shape: &USUAL,
        has_disk: false,
        plan: |_, _| (words("policies 2 then USLAB_RSEQ=0 policies 2"), 2 * OVERHEAD),
        judge: |outcome, _| passed(outcome),
    },
    Case {
        name: "memory-only",
        what: "two nodes, one without CPUs: one home, and policies still reach both",
        shape: &Shape { cpus: 8, nodes_mib: &[768, 512], memory_only: 1 },
        has_disk: false,
        plan: |_, _| (words("policies 2 1 then USLAB_RSEQ=0 policies 2 1"), 2 * OVERHEAD),
        judge: |outcome, _| passed(outcome),
    },
    Case {
        name: "nodes-16-1",
        what: "16 CPUs on one node: objects are handed on, CPUs come and go, sums agree",
        shape: &Shape { cpus: 16, nodes_mib: &[1536], memory_only: 0 },
        has_disk: false,
        plan: |_, _| nodes(16, 1),
        judge: |outcome, _| were_home(outcome),
    },
    Case {
        name: "nodes-16-2",
        what: "16 CPUs on two nodes of uneven memory: the same, and objects go home",
        shape: &Shape { cpus: 16, nodes_mib: &[1024, 512], memory_only: 0 },
        has_disk: false,
        plan: |_, _| nodes(16, 2),
        judge: |outcome, _| were_home(outcome),
    },
    Case {
        name: "nodes-16-4",
        what: "16 CPUs on four nodes of uneven memory",
        shape: &Shape { cpus: 16, nodes_mib: &[768, 256, 512, 256], memory_only: 0 },
        has_disk: false,
        plan: |_, _| nodes(16, 4),
        judge: |outcome, _| were_home(outcome),
    },
    Case {
        name: "nodes-64-1",
        what: "64 CPUs on one node",
        shape: &Shape { cpus: 64, nodes_mib: &[2048], memory_only: 0 },
        has_disk: false,
        plan: |_, _| nodes(64, 1),
        judge: |outcome, _| were_home(outcome),
    },
    Case {
        name: "nodes-64-2",
        what: "64 CPUs on two nodes of uneven memory",
        shape: &Shape { cpus: 64, nodes_mib: &[1536, 512], memory_only: 0 },
        has_disk: false,
        plan: |_, _| nodes(64, 2),
        judge: |outcome, _| were_home(outcome),
    },
    Case {
        name: "nodes-64-4",
        what: "64 CPUs on four nodes of uneven memory",
        shape: &Shape { cpus: 64, nodes_mib: &[1024, 256, 512, 384], memory_only: 0 },
        has_disk: false,
        plan: |_, _| nodes(64, 4),
        judge: |outcome, _| were_home(outcome),
    },
];

/// Limits of the three caches.
pub struct Sizes {
    /// The limit above which the kernel slows the program: half of the most that its caches would
    /// hold.
    pub high: u64,
    /// The limit above which the kernel kills the program: three fifths.
    pub max: u64,
}

impl Sizes {
    /// Half and three fifths of `wanted` bytes.
    pub fn of(wanted: u64) -> Sizes {
        Sizes { high: wanted / 2, max: wanted / 5 * 3 }
    }
}

/// The program that guests run, started on the host, without a limit.
pub struct Host<'a> {
    /// The built `three-caches`.
    pub three_caches: &'a Path,
}

impl Host<'_> {
    /// The result of `three-caches ARGS`.
    pub fn three_caches(&self, args: &[&str]) -> Result<Value> {
        let output =
            Command::new(self.three_caches).args(args).output().context("cannot start three-caches")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().rfind(|line| line.starts_with('{'));
        let line = line.with_context(|| format!("three-caches {} says nothing", args.join(" ")))?;
        Ok(serde_json::from_str(line)?)
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

/// Short storms, and a long limit: some tests do a fixed amount of work, and eight emulated CPUs
/// have no more cycles than the host.
fn storm(environment: &str) -> (Vec<String>, Duration) {
    let steps: Vec<String> = STORMS
        .iter()
        .map(|name| format!("USLAB_STRESS_SECONDS=1 {environment}{name} --test-threads=1"))
        .collect();
    (words(&steps.join(" then ")), OVERHEAD + Duration::from_secs(2400))
}

/// What `nodes` does in both modes and without nodes, and then a storm.
fn nodes(cpus: usize, nodes: usize) -> (Vec<String>, Duration) {
    let told = format!(
        "vm-boots {cpus} {nodes} then nodes {nodes} {CHANGES} then USLAB_RSEQ=0 nodes {nodes} {CHANGES} then USLAB_NUMA=0 nodes 1 {CHANGES} then USLAB_STRESS_SECONDS=1 sequences --test-threads=1"
    );
    (words(&told), OVERHEAD + Duration::from_secs(1500))
}

fn three_caches(options: &Options, sizes: &Sizes, how: String) -> (Vec<String>, Duration) {
    let seconds = options.run.as_secs();
    let told = format!(
        "memory.high={} memory.max={} memory.swap.max=0 three-caches --seconds {seconds} {how}",
        sizes.high, sizes.max
    );
    (words(&told), 2 * OVERHEAD + 2 * options.run)
}

fn number(value: &Value, name: &str) -> Result<u64> {
    value[name].as_u64().with_context(|| format!("no `{name}` in {value}"))
}

/// Every program was run and ended well.
fn passed(outcome: &Outcome) -> Result<String> {
    for step in &outcome.steps {
        if step["exit"] != 0 {
            bail!("{step}");
        }
    }
    let programs: Vec<String> = outcome
        .steps
        .iter()
        .map(|step| format!("{} {} s", step["program"].as_str().unwrap_or("?"), step["seconds"]))
        .collect();
    Ok(programs.join(", "))
}

fn only_step(outcome: &Outcome) -> Result<&Value> {
    match &outcome.steps[..] {
        [step] => Ok(step),
        steps => bail!("one program was to run, and {} did", steps.len()),
    }
}

fn was_killed(outcome: &Outcome) -> Result<String> {
    let step = only_step(outcome)?;
    if number(step, "oom_kill")? == 0 {
        bail!("it was not killed: {step}");
    }
    let (seconds, peak) = (&step["seconds"], mib(number(step, "memory_peak")?));
    Ok(format!("killed for memory after {seconds} s, with {peak}"))
}

fn stayed_below(outcome: &Outcome, host: &Host) -> Result<String> {
    let step = only_step(outcome)?;
    if number(step, "oom_kill")? > 0 {
        bail!("it was killed for memory: {step}");
    }
    if step["exit"] != 0 {
        bail!("it failed: {step}");
    }
    let result = outcome.results.last().context("three-caches gave no result")?;
    let rate = result["hit_rate"].as_f64().context("no hit rate")?;
    let operations = number(result, "operations")?.to_string();
    let simulated = host.three_caches(&["--simulate", "--operations", &operations])?;
    let miss_us = result["miss_us"].as_array().context("no cost of a miss")?;
    let miss_us = miss_us.iter().map(Value::to_string).collect::<Vec<_>>().join(",");
    // In the guest the cost of a miss is not in proportion to its setting, because sleeping takes
    // time of its own. Caches use the measured cost.
    let measured = host.three_caches(&["--simulate", "--operations", &operations, "--miss-us", &miss_us])?;
    let costs = [number(result, "cost")?, number(&simulated, "cost")?, number(&measured, "cost")?];
    let simulated = simulated["hit_rate"].as_f64().context("no simulated hit rate")?;
    let longest_ms = number(step, "longest_above_ms")?;
    let told = format!(
        "{operations} operations, hit rate {:.2} % ({:.2} % simulated), misses cost {} ({} simulated, {} for caches that take a miss to cost {miss_us} us as these did); peak {}, above high {} times, {longest_ms} ms at the longest",
        100.0 * rate,
        100.0 * simulated,
        costs[0],
        costs[1],
        costs[2],
        mib(number(step, "memory_peak")?),
        number(step, "breaches")?,
    );
    if rate < 0.9 * simulated {
        bail!("fewer hits than nine tenths of the simulation's: {told}");
    }
    if longest_ms > 2000 {
        bail!("above memory.high for more than 2 s: {told}");
    }
    Ok(told)
}

/// The tolerance is a tenth, since a pass asks for whole batches.
fn counted_twice(outcome: &Outcome) -> Result<String> {
    passed(outcome)?;
    let result = outcome.results.last().context("swapped-out gave no result")?;
    let asked: Vec<f64> =
        result["asked"].as_array().context("no figures")?.iter().filter_map(Value::as_f64).collect();
    let [first, before, swapping, after] = asked[..] else { bail!("four reports were to be made: {result}") };
    let is_about = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.1;
    let told = format!(
        "one report of pressure asked for {first} and {before} entries, for {swapping} while memory was swapped out, for {after} afterwards"
    );
    if first <= 0.0 || !is_about(before, first) || !is_about(swapping, 2.0 * first) || !is_about(after, first)
    {
        bail!("not twice as many: {told}");
    }
    Ok(told)
}

/// Requires both modes, and CPUs that came and went.
fn had_one_owner(outcome: &Outcome) -> Result<String> {
    passed(outcome)?;
    let [rseq, locked] = &outcome.results[..] else { bail!("two runs were to give figures") };
    for (result, mode) in [(rseq, "rseq"), (locked, "locked")] {
        if result["mode"] != mode || number(result, "doubled")? > 0 || number(result, "toggles")? < 10 {
            bail!("not ten changes in mode {mode} without two owners: {result}");
        }
    }
    Ok(format!("{} and {} changes", rseq["toggles"], locked["toggles"]))
}

/// In each run objects that another node freed were home again, no node handed out another's
/// objects, no object had two owners, and nothing was left.
fn were_home(outcome: &Outcome) -> Result<String> {
    passed(outcome)?;
    let [rseq, locked, without] = &outcome.results[..] else { bail!("three runs were to give figures") };
    let mut told = Vec::new();
    for (result, mode) in [(rseq, "rseq"), (locked, "locked"), (without, "rseq")] {
        let (freed, home) = (number(result, "freed_away")?, number(result, "home")?);
        let wrong = ["foreign", "doubled", "left"].map(|name| number(result, name));
        let is_right = wrong.iter().all(|count| matches!(count, Ok(0)));
        if result["mode"] != mode
            || !is_right
            || home * 100 < freed * 95
            || number(result, "toggles")? < number(result, "least")?
        {
            bail!("not at home in mode {mode}: {result}");
        }
        told.push(format!("{home} of {freed} home, {} changes", result["toggles"]));
    }
    Ok(told.join("; "))
}

/// The program itself checks that the charge falls. uslab gets less than glibc: runs of pages are
/// aligned to the next power of two, and untouched holes are charged.
fn gave_charge_back(outcome: &Outcome) -> Result<String> {
    passed(outcome)?;
    let [libc, rseq, locked] = &outcome.results[..] else { bail!("three runs were to give figures") };
    let wanted_kib = number(libc, "kib")? / 10 * 6;
    for (result, mode) in [(rseq, "rseq"), (locked, "locked")] {
        if result["allocator"] != mode || number(result, "kib")? < wanted_kib {
            bail!("less than six tenths of glibc's {libc}: {result}");
        }
    }
    let shown = |result: &Value| -> Result<String> {
        let charged = |name| Ok::<_, anyhow::Error>(mib(number(result, name)? << 10));
        let (before, full, after) = (charged("before_kib")?, charged("full_kib")?, charged("after_kib")?);
        Ok(format!("{} in blocks, charge {before}, {full}, {after}", charged("kib")?))
    };
    Ok(format!("glibc {}; rseq {}; locked {}", shown(libc)?, shown(rseq)?, shown(locked)?))
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ended(step: Value) -> Outcome {
        Outcome { steps: vec![step], results: vec![], off: true }
    }

    #[test]
    fn names_are_unique() {
        for (at, case) in CASES.iter().enumerate() {
            assert!(CASES[..at].iter().all(|other| other.name != case.name), "{}", case.name);
        }
    }

    #[test]
    fn a_program_that_fails_or_is_signalled_fails_its_test() {
        assert!(passed(&ended(json!({"program": "a", "exit": 0, "signal": 0}))).is_ok());
        assert!(passed(&ended(json!({"program": "a", "exit": 1, "signal": 0}))).is_err());
        assert!(passed(&ended(json!({"program": "a", "exit": -1, "signal": 11}))).is_err());
        assert!(passed(&ended(json!({"broken": "no memory controller"}))).is_err());
    }

    #[test]
    fn only_the_kernels_kill_is_a_kill_for_memory() {
        let killed = json!({"exit": -1, "signal": 9, "oom_kill": 1, "memory_peak": 5, "seconds": 1});
        assert!(was_killed(&ended(killed)).is_ok());
        let other = json!({"exit": -1, "signal": 9, "oom_kill": 0, "memory_peak": 5, "seconds": 1});
        assert!(was_killed(&ended(other)).is_err());
    }

    #[test]
    fn swapping_must_double_what_is_asked_for_and_nothing_else() {
        let judged = |asked: Value| {
            let mut outcome = ended(json!({"program": "swapped-out", "exit": 0, "seconds": 1}));
            outcome.results.push(json!({ "asked": asked }));
            counted_twice(&outcome).is_ok()
        };
        assert!(judged(json!([1000, 1050, 1990, 1000])));
        for asked in [
            json!([1000, 1000, 1000, 1000]),
            json!([1000, 1000, 2000, 2000]),
            json!([0, 0, 0, 0]),
            json!([1]),
        ] {
            assert!(!judged(asked));
        }
    }

    #[test]
    fn an_object_with_two_owners_and_cpus_that_stay_fail() {
        let judged = |toggles: u64, doubled: u64| {
            let mut outcome = ended(json!({"program": "cpu-hotplug", "exit": 0, "seconds": 1}));
            let result = |mode| json!({"toggles": toggles, "doubled": doubled, "mode": mode});
            outcome.results = vec![result("rseq"), result("locked")];
            had_one_owner(&outcome).is_ok()
        };
        assert!(judged(20, 0));
        assert!(!judged(20, 1));
        assert!(!judged(0, 0));
    }

    #[test]
    fn objects_that_stay_away_or_are_handed_out_elsewhere_fail() {
        let judged = |home: u64, foreign: u64| {
            let mut outcome = ended(json!({"program": "nodes", "exit": 0, "seconds": 1}));
            let result = |mode| json!({"mode": mode, "freed_away": 1000, "home": home, "foreign": foreign, "doubled": 0, "left": 0, "toggles": 20, "least": 10});
            outcome.results = vec![result("rseq"), result("locked"), result("rseq")];
            were_home(&outcome).is_ok()
        };
        assert!(judged(950, 0));
        assert!(!judged(949, 0));
        assert!(!judged(1000, 1));
    }

    #[test]
    fn what_glibc_gets_is_the_measure_under_strict_overcommit() {
        let judged = |kib: u64| {
            let mut outcome = ended(json!({"program": "commit-charge", "exit": 0, "seconds": 1}));
            let result = |allocator, kib| json!({"allocator": allocator, "kib": kib, "before_kib": 1, "full_kib": 1, "after_kib": 1});
            outcome.results = vec![result("libc", 1000), result("rseq", kib), result("locked", kib)];
            gave_charge_back(&outcome).is_ok()
        };
        assert!(judged(650));
        assert!(!judged(500));
    }

    #[test]
    fn storms_run_all_programs_within_the_kernels_limit_of_words() {
        let (told, _) = storm("USLAB_RSEQ=0 ");
        assert_eq!(told.iter().filter(|word| *word == "then").count(), STORMS.len() - 1);
        // The kernel panics beyond 32.
        assert!(told.len() < 30, "{told:?}");
    }
}
