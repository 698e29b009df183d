//! `cargo xtask scale`: how the allocator would scale to 256 CPUs, by a model of cache coherence.
//!
//! ```text
//!   crates/uslab-scale ──JSON, a run for each machine and workload──▶ docs/results/scale.{md,svg}
//! ```
//!
//! The counts are exact and the same on every machine; the times are predictions. Other allocators
//! are models too: of their published designs, with the same costs. `--check` models 8 CPUs and
//! fails where a bound of the counts does not hold.

mod draw;

use crate::staged::output;
use crate::workspace::{self, Workspace};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const FOLDER: &str = "docs/results";
const WORKLOADS: [&str; 11] = [
    "pairs",
    "malloc",
    "bursts",
    "overflow",
    "handoff",
    "scattered",
    "growth",
    "large",
    "caches",
    "reclaim",
    "fork",
];
/// CPUs and nodes of the machines.
const MACHINES: [(usize, usize); 6] = [(2, 1), (8, 1), (16, 1), (64, 1), (128, 2), (256, 4)];
/// The CPUs of the largest machine.
const MAX_CPUS: u16 = 256;
/// Workloads with long traces, and the largest machine that they are modelled on. With 256 CPUs an
/// operation of `caches` may drain each of 256 slots of up to 256 caches for capacity, and one of
/// `reclaim` drains 256 slots of two sheaves of hundreds of objects.
const LONG: [&str; 3] = ["scattered", "caches", "reclaim"];
const MAX_CPUS_OF_LONG: usize = 64;
/// Workloads that are timed on one real CPU, too: the error of the model.
const TIMED: [&str; 6] = ["pairs", "malloc", "bursts", "overflow", "scattered", "growth"];
const REAL: &str = "real";
/// Other designs, and the workloads that they have a counterpart of.
const PEERS: [&str; 3] = ["one-lock", "arenas", "transfer"];
const COMPARED: [&str; 2] = ["bursts", "handoff"];
/// The outcomes before the counters of slow paths moved to the lines of their CPUs (ADR 0054). Only
/// their counts compare: the model of that time played each operation whole.
const BEFORE: &str = "scale-before.json";
/// Workloads that are modelled with one barn and one set of slab lists for each node, too, as they
/// were before ADRs 0057 and 0064.
const WITH_ONE_GROUP: [&str; 4] = ["overflow", "handoff", "scattered", "caches"];
const ONE_GROUP: &str = "one group a node";

/// Workloads whose traces are the same each time, and are compared with those of the processor.
const STEPPED: [&str; 3] = ["pairs", "malloc", "large"];
const SINGLE_STEPS: &str = "single steps";

/// Upper bounds of atomic read-modify-writes an operation, on lines that several CPUs write.
const BOUNDS: [(&str, f64); 5] =
    [("pairs", 0.0), ("malloc", 0.0), ("bursts", 0.0), ("large", 0.0), ("handoff", 0.25)];

/// Arguments of `cargo xtask scale`.
#[derive(clap::Args)]
pub struct Args {
    /// Model one machine, compare the counts with their bounds; write nothing.
    #[arg(long)]
    check: bool,
    /// Model machines of up to so many CPUs; with fewer than 256, print the page and write nothing.
    #[arg(
        long,
        value_name = "CPUS",
        default_value_t = MAX_CPUS,
        value_parser = clap::value_parser!(u16).range(2..=i64::from(MAX_CPUS)),
        conflicts_with_all = ["check", "lines"],
    )]
    max_cpus: u16,
    /// Print the lines that limit this workload, on 64 CPUs, and stop.
    #[arg(long, value_name = "WORKLOAD", conflicts_with = "check")]
    lines: Option<String>,
}

impl Args {
    /// The options of CI.
    pub fn checking() -> Self {
        Self { check: true, max_cpus: MAX_CPUS, lines: None }
    }
}

/// One run's outcome.
#[derive(Serialize, Deserialize)]
struct Outcome {
    #[serde(default)]
    who: String,
    workload: String,
    cpus: usize,
    nodes: usize,
    ops_per_us: f64,
    objects_per_op: usize,
    instructions_per_op: f64,
    shared_modifies_per_op: f64,
    transfers_per_op: f64,
    lines: Vec<LineUse>,
}

#[derive(Serialize, Deserialize)]
struct LineUse {
    name: String,
    writers: u32,
    readers: u32,
    modifies_per_op: f64,
    transfers_per_op: f64,
    wait_ns_per_op: f64,
    #[serde(default)]
    hold_ns: f64,
    code: Vec<String>,
}

/// Runs the model, and writes or checks.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        println!("scale: skipped, the trace decodes x86-64 only");
        return Ok(());
    }
    workspace::check(workspace.release_build().arg("--quiet"))?;
    if let Some(workload) = &args.lines {
        print!("{}", table_of_lines(&lines_of(workspace, workload)?));
        return Ok(());
    }
    if args.check {
        return check(workspace);
    }
    let folder = workspace.root.join(FOLDER);
    let before = fs::read_to_string(folder.join(BEFORE)).with_context(|| format!("cannot read {BEFORE}"))?;
    let mut outcomes: Vec<Outcome> = serde_json::from_str(&before).context(BEFORE)?;
    outcomes.iter_mut().for_each(|outcome| outcome.who = "before".into());
    // Measured while the CPUs that free still filled their sheaves.
    outcomes.retain(|outcome| outcome.workload != "handoff");
    outcomes.extend(all(workspace, &jobs(args.max_cpus.into()))?);
    compare_operations(&outcomes)?;
    // By themselves: other work on the machine would be timed with them.
    for workload in TIMED {
        outcomes.push(model(workspace, &(workload, 1, 1, Some(REAL)))?);
    }
    if args.max_cpus < MAX_CPUS {
        print!("{}", page(&outcomes));
        return Ok(());
    }
    fs::write(folder.join("scale.md"), page(&outcomes)).context("cannot write scale.md")?;
    fs::write(folder.join("scale.svg"), draw::chart(&outcomes, "handoff"))
        .context("cannot write scale.svg")?;
    println!("{FOLDER}/scale.md and scale.svg: written");
    Ok(())
}

/// A workload, CPUs, nodes, and another design if it is not uslab's.
type Job = (&'static str, usize, usize, Option<&'static str>);

/// All runs on machines of up to `max_cpus` CPUs, the longest ones first.
fn jobs(max_cpus: usize) -> Vec<Job> {
    let mut jobs: Vec<Job> = TIMED.iter().map(|&workload| (workload, 1, 1, None)).collect();
    for workload in WORKLOADS {
        let most = if LONG.contains(&workload) { max_cpus.min(MAX_CPUS_OF_LONG) } else { max_cpus };
        for (cpus, nodes) in MACHINES.into_iter().filter(|&(cpus, _)| cpus <= most) {
            jobs.push((workload, cpus, nodes, None));
            if WITH_ONE_GROUP.contains(&workload) && cpus <= MAX_CPUS_OF_LONG {
                jobs.push((workload, cpus, nodes, Some(ONE_GROUP)));
            }
            if COMPARED.contains(&workload) {
                jobs.extend(PEERS.map(|peer| (workload, cpus, nodes, Some(peer))));
            }
        }
    }
    jobs.sort_by_key(|&(_, cpus, ..)| std::cmp::Reverse(cpus));
    jobs
}

/// Runs jobs on all CPUs; returns their outcomes in the order of the jobs.
fn all(workspace: &Workspace, jobs: &[Job]) -> Result<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = kept_or_modelled(workspace, job);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push(outcome);
            if done.len().is_multiple_of(10) {
                println!("{} of {} runs", done.len(), jobs.len());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut outcomes: Vec<Outcome> =
        done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect::<Result<_>>()?;
    outcomes.sort_by_key(|outcome| outcome.cpus);
    Ok(outcomes)
}

/// A run's outcome, which an earlier call may have left in the build folder: a call that is ended,
/// or of which one run fails, loses no other. Outcomes older than the program do not count.
fn kept_or_modelled(workspace: &Workspace, job: &Job) -> Result<Outcome> {
    let &(workload, cpus, nodes, peer) = job;
    let name = format!("{workload}-{cpus}-{nodes}-{}.json", peer.unwrap_or("uslab").replace(' ', "-"));
    let file = workspace.target.join("scale").join(name);
    let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let program = changed(&workspace.release_dir().join("uslab-scale"));
    if changed(&file) > program
        && let Ok(text) = fs::read_to_string(&file)
        && let Ok(outcome) = serde_json::from_str(&text)
    {
        return Ok(outcome);
    }
    let outcome = model(workspace, job)?;
    fs::create_dir_all(file.parent().context("a file in a folder")?)?;
    fs::write(&file, serde_json::to_string(&outcome)?)?;
    Ok(outcome)
}

fn model(workspace: &Workspace, &(workload, cpus, nodes, peer): &Job) -> Result<Outcome> {
    let mut command = Command::new(workspace.release_dir().join("uslab-scale"));
    command.args(["--workload", workload, "--lines", "8"]);
    command.args(["--cpus", &cpus.to_string(), "--nodes", &nodes.to_string()]);
    match peer {
        Some(ONE_GROUP) => command.args(["--cpus-of-cache", "0"]),
        Some(REAL) => command.arg("--timed"),
        Some(SINGLE_STEPS) => command.arg("--single-step"),
        Some(peer) => command.args(["--peer", peer]),
        None => &mut command,
    };
    // The model has one thread.
    workspace::without_settings(&mut command).env("USLAB_REAPER", "0");
    let text = output(&mut command)?;
    let mut outcome: Outcome = serde_json::from_str(&text).context("the model printed something else")?;
    outcome.who = peer.unwrap_or("uslab").into();
    Ok(outcome)
}

fn lines_of(workspace: &Workspace, workload: &str) -> Result<Outcome> {
    let known = WORKLOADS.into_iter().find(|&known| known == workload);
    model(workspace, &(known.with_context(|| format!("no workload is called {workload}"))?, 64, 1, None))
}

fn check(workspace: &Workspace) -> Result<()> {
    workspace::check(Command::new(workspace.release_dir().join("uslab-scale")).arg("--layout"))?;
    // The emulator does what the processor does.
    for workload in STEPPED {
        let [emulated, stepped] =
            [None, Some(SINGLE_STEPS)].map(|how| model(workspace, &(workload, 2, 1, how)));
        let counts = |o: Outcome| (o.instructions_per_op, o.shared_modifies_per_op, o.transfers_per_op);
        let (emulated, stepped) = (counts(emulated?), counts(stepped?));
        if emulated != stepped {
            bail!("{workload}: {emulated:?} emulated, and {stepped:?} on the processor");
        }
    }
    for (workload, bound) in BOUNDS {
        let outcome = model(workspace, &(workload, 8, 1, None))?;
        println!("{workload}: {:.3} shared atomics an operation", outcome.shared_modifies_per_op);
        if outcome.shared_modifies_per_op > bound {
            bail!("{workload}: more than {bound}\n{}", table_of_lines(&outcome));
        }
    }
    Ok(())
}

/// Refuses operations of one workload that differ in objects: their rates would not compare.
fn compare_operations(outcomes: &[Outcome]) -> Result<()> {
    for workload in WORKLOADS {
        let mut of = outcomes.iter().filter(|outcome| outcome.workload == workload);
        let Some(first) = of.next() else { continue };
        if let Some(other) = of.find(|outcome| outcome.objects_per_op != first.objects_per_op) {
            bail!(
                "{workload}: an operation of {} has {} objects, one of {} has {}",
                first.who,
                first.objects_per_op,
                other.who,
                other.objects_per_op
            );
        }
    }
    Ok(())
}

/// Operations a second of a CPU, as a part of what a CPU of the smallest machine does.
fn part_of_linear(outcomes: &[Outcome], of: &Outcome) -> f64 {
    let first = outcomes
        .iter()
        .filter(|other| other.who == of.who && other.workload == of.workload && other.cpus > 1)
        .min_by_key(|other| other.cpus);
    first.map_or(1.0, |first| of.ops_per_us / of.cpus as f64 / (first.ops_per_us / first.cpus as f64))
}

fn page(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "# Scaling, predicted\n\n`cargo xtask scale` writes this page. Nothing here was timed: a model of cache coherence counts\n\
         what the released code does on CPUs that do not exist, and each transfer of a line has a published\n\
         cost ([ADR 0054](../adr/0054-a-model-of-cache-coherence.md) has the costs, the limits and the error).\n\n\
         ![Operations a second of a CPU where objects change CPUs](scale.svg)\n\n\
         ## Operations a microsecond, and the part of linear\n\n",
    );
    text.push_str("| workload | who |");
    MACHINES.iter().for_each(|(cpus, nodes)| {
        let _ = write!(text, " {cpus} CPUs, {nodes} |");
    });
    text.push_str("\n|---|---|---:|---:|---:|---:|---:|---:|\n");
    for workload in WORKLOADS {
        for who in ["uslab", ONE_GROUP].iter().chain(&PEERS) {
            let of: Vec<&Outcome> =
                outcomes.iter().filter(|o| o.workload == workload && o.who == **who).collect();
            if of.is_empty() {
                continue;
            }
            let _ = write!(text, "| {workload} | {who} |");
            for machine in MACHINES {
                let _ = match of.iter().find(|o| (o.cpus, o.nodes) == machine) {
                    Some(o) => write!(text, " {:.2} ({:.2}) |", o.ops_per_us, part_of_linear(outcomes, o)),
                    None => write!(text, " |"),
                };
            }
            text.push('\n');
        }
    }
    text.push_str(
        "\nIn `fork` and `reclaim` one CPU forks, or drains all caches, over and over, and the others do \
         `bursts`.\nSo compare their operations with those of `bursts` on the same machine. On several nodes \
         each operation\nhas more instructions than on one (ADR 0061): its part of linear falls once, and then \
         stays.\n",
    );
    text.push_str(
        "\n## The error\n\nOne CPU, nanoseconds an operation: predicted, and the least time of 200 rounds on the \
         machine\nthat wrote this page. A prediction charges 0.1 ns for an instruction and 5 ns for an atomic \
         one,\nwhatever the processor does at a time. So compare parts of linear.\n\n\
         | workload | objects | predicted | measured | predicted / measured |\n|---|---:|---:|---:|---:|\n",
    );
    for workload in TIMED {
        let ns = |who: &str| {
            let of = outcomes.iter().find(|o| o.workload == workload && o.who == who && o.cpus == 1);
            of.map_or(0.0, |of| 1000.0 / of.ops_per_us)
        };
        let objects =
            outcomes.iter().find(|o| o.workload == workload && o.cpus == 1).map_or(0, |o| o.objects_per_op);
        let (predicted, measured) = (ns("uslab"), ns(REAL));
        let _ = writeln!(
            text,
            "| {workload} | {objects} | {predicted:.1} | {measured:.1} | {:.2} |",
            predicted / measured
        );
    }
    text.push_str("\n## Atomics an operation on lines that several CPUs write, 8 CPUs\n\n| workload | objects | uslab | before |\n|---|---:|---:|---:|\n");
    for workload in WORKLOADS {
        let of = |who: &str| outcomes.iter().find(|o| o.workload == workload && o.who == who && o.cpus == 8);
        let shown = |who| of(who).map_or(String::new(), |o| format!("{:.2}", o.shared_modifies_per_op));
        let objects = of("uslab").map_or(0, |o| o.objects_per_op);
        let _ = writeln!(text, "| {workload} | {objects} | {} | {} |", shown("uslab"), shown("before"));
    }
    for workload in ["overflow", "handoff", "scattered"] {
        if let Some(outcome) =
            outcomes.iter().find(|o| o.workload == workload && o.who == "uslab" && o.cpus == 64)
        {
            let _ =
                write!(text, "\n## The lines that limit {workload}, 64 CPUs\n\n{}", table_of_lines(outcome));
        }
    }
    text
}

fn table_of_lines(outcome: &Outcome) -> String {
    let mut text = String::from(
        "| line | writers | readers | atomics/op | transfers/op | ns/op | ns a hold | code |\n|---|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for line in &outcome.lines {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.2} | {:.2} | {:.0} | {:.0} | {} |",
            line.name,
            line.writers,
            line.readers,
            line.modifies_per_op,
            line.transfers_per_op,
            line.wait_ns_per_op,
            line.hold_ns,
            line.code.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_number_of_cpus_that_would_have_no_effect_is_refused() {
        let parsed = |words: &[&str]| Line::try_parse_from([&["scale"], words].concat());
        assert_eq!(parsed(&[]).unwrap().args.max_cpus, MAX_CPUS);
        assert_eq!(parsed(&["--max-cpus", "8"]).unwrap().args.max_cpus, 8);
        assert!(parsed(&["--check"]).is_ok() && parsed(&["--lines", "pairs"]).is_ok());
        let refused: [&[&str]; 5] = [
            &["--max-cpus", "1"],
            &["--max-cpus", "257"],
            &["--max-cpus", "8", "--check"],
            &["--max-cpus", "8", "--lines", "pairs"],
            &["--check", "--lines", "pairs"],
        ];
        assert!(refused.iter().all(|words| parsed(words).is_err()));
    }

    #[test]
    fn no_job_has_more_cpus_than_were_asked_for() {
        let most = |cpus| jobs(cpus).iter().map(|job| job.1).max();
        assert_eq!((most(8), most(usize::from(MAX_CPUS))), (Some(8), Some(256)));
    }

    #[test]
    fn operations_that_differ_in_objects_are_refused() {
        let outcome = |who: &str, objects_per_op| Outcome {
            who: who.into(),
            workload: "bursts".into(),
            cpus: 2,
            nodes: 1,
            ops_per_us: 1.0,
            objects_per_op,
            instructions_per_op: 1.0,
            shared_modifies_per_op: 0.0,
            transfers_per_op: 0.0,
            lines: Vec::new(),
        };
        assert!(compare_operations(&[outcome("uslab", 400), outcome("arenas", 400)]).is_ok());
        let error = compare_operations(&[outcome("uslab", 400), outcome("arenas", 200)]).unwrap_err();
        assert!(error.to_string().contains("one of arenas has 200"), "{error}");
    }
}
