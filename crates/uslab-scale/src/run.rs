//! One run: a workload on a machine.

use crate::model::{CPUS_OF_CACHE, Costs, LINE_BYTES, Machine};
use crate::names::Names;
use crate::peers::Peer;
use crate::trace::Tracer;
use crate::workloads::{Workload, objects_of};
use clap::Parser;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use uslab::internal::background;

/// Memory that was freed stays: a measurement lasts less than a millisecond of the model's time,
/// and seconds of this machine's.
// SAFETY: the name is this library's own, and of the type that it looks for.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static uslab_conf: &[u8; 15] = b"decay_ms=never\0";

/// Predicts how a workload scales on a machine that is not at hand.
#[derive(Parser)]
struct Args {
    #[arg(long, default_value = "bursts")]
    workload: String,
    #[arg(long, default_value_t = 8)]
    cpus: usize,
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// CPUs of a last-level cache that the library sees; 0: it sees none.
    #[arg(long, default_value_t = CPUS_OF_CACHE)]
    cpus_of_cache: usize,
    /// Model this design instead of uslab.
    #[arg(long, value_parser = crate::peers::NAMES)]
    peer: Option<String>,
    /// Time the workload instead, on one CPU of the real machine.
    #[arg(long)]
    timed: bool,
    /// Time a fork with so many caches instead, on the real machine.
    #[arg(long)]
    fork: Option<usize>,
    /// Check instead that what CPUs share stands on lines of its own.
    #[arg(long)]
    layout: bool,
    /// Let the processor run each instruction of a trace, to check the emulator.
    #[arg(long)]
    single_step: bool,
    /// Lines of the report.
    #[arg(long, default_value_t = 20)]
    lines: usize,
    /// Lines of code to report, by their instructions.
    #[arg(long, default_value_t = 0)]
    hot: usize,
}

/// The outcome, as JSON.
#[derive(Serialize, Default)]
struct Outcome {
    workload: String,
    cpus: usize,
    nodes: usize,
    mode: String,
    /// Operations of all CPUs in a microsecond.
    ops_per_us: f64,
    /// Objects that an operation allocates and frees.
    objects_per_op: usize,
    instructions_per_op: f64,
    /// Atomic read-modify-writes of an operation, on lines that more than one CPU writes.
    shared_modifies_per_op: f64,
    modifies_per_op: f64,
    transfers_per_op: f64,
    system_calls: u64,
    lines: Vec<LineUse>,
    /// Instructions of an operation by lines of code, the most first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hot: Vec<(String, f64)>,
}

#[derive(Serialize)]
struct LineUse {
    name: String,
    writers: u32,
    readers: u32,
    writes_per_op: f64,
    modifies_per_op: f64,
    transfers_per_op: f64,
    wait_ns_per_op: f64,
    /// The time that a lock on the line is held, on average and at most.
    hold_ns: f64,
    max_hold_ns: f64,
    code: Vec<String>,
}

pub fn main() {
    let args = Args::parse();
    if args.layout {
        std::process::exit(i32::from(!crate::shared::check(&Names::read())));
    }
    if let Some(peer) = &args.peer {
        return print(&of_peer(&args, peer));
    }
    if args.timed {
        background::pretend();
        return print(&timed(&args));
    }
    uslab::internal::cpu::pretend(args.cpus, args.nodes, args.cpus_of_cache);
    if let Some(caches) = args.fork {
        return crate::fork::measure(caches);
    }
    background::pretend();
    let mut workload = Workload::new(&args.workload, args.cpus);
    let names = Names::read();
    let header = uslab::internal::header();
    let arena = header.arena_start.load(Relaxed)
        ..header.arena_base.load(Relaxed) + header.reserved_bytes.load(Relaxed);
    let mut tracer = Tracer::new(vec![names.statics.clone(), arena], !args.single_step);
    let mut machine = Machine::new(args.cpus, args.nodes, Costs::PUBLISHED);
    // SAFETY: the library is set up, and this program has one thread.
    let fake = unsafe { uslab::internal::fake::FakeCpu::start(0) };
    let (before, measured) = workload.counts();
    let step = |tracer: &mut Tracer, machine: &mut Machine, workload: &mut Workload, cpu: usize| {
        fake.set(cpu);
        let trace = tracer.trace(|| workload.step(cpu));
        machine.run(cpu, &trace);
        trace
    };
    for turn in 0..before * args.cpus {
        let cpu = turn % args.cpus;
        // The thread comes when a growing cache wakes it. Its looks, twice a second, are further
        // apart than all operations of a run in the model's time.
        background::take_capacity();
        if turn < (before - workload.seen()) * args.cpus {
            fake.set(cpu);
            workload.step(cpu);
        } else {
            step(&mut tracer, &mut machine, &mut workload, cpu);
        }
    }
    crate::clock::stop();
    machine.begin();
    tracer.runs.clear();
    let start = machine.clock(0);
    let total = measured * args.cpus;
    let (mut instructions, mut system_calls, mut modifies) = (0u64, 0u64, Vec::new());
    for _ in 0..total {
        let cpu = machine.next(|cpu| !workload.is_waiting(cpu));
        let trace = step(&mut tracer, &mut machine, &mut workload, cpu);
        instructions += u64::from(trace.instructions);
        system_calls += u64::from(trace.system_calls);
        use crate::trace::Kind::{Compare, Modify};
        let atomics = trace.accesses.iter().filter(|access| matches!(access.kind, Compare | Modify));
        modifies.extend(atomics.map(|access| access.address));
    }
    drop(fake);
    let hot = hot(&tracer, &names, args.hot, total);
    machine.finish();
    let elapsed = (0..args.cpus).map(|cpu| machine.clock(cpu)).sum::<f64>() / args.cpus as f64 - start;
    let per_op = |count: f64| count / total as f64;
    let shared = machine.shared();
    let of_all = modifies.iter().filter(|&&address| machine.is_written_by_many(address)).count();
    let lines = shared.iter().take(args.lines).map(|(number, used)| {
        let mut codes: Vec<_> = used.codes.iter().collect();
        codes.sort_by_key(|&(_, &count)| std::cmp::Reverse(count));
        let mut code: Vec<String> = codes.iter().map(|&(&code, _)| names.of_code(code)).collect();
        code.dedup();
        code.truncate(5);
        LineUse {
            name: names.of_line(number * LINE_BYTES, LINE_BYTES).unwrap_or_else(|| "memory".into()),
            writers: used.writers(),
            readers: used.readers(),
            writes_per_op: per_op(used.writes as f64),
            modifies_per_op: per_op(used.modifies as f64),
            transfers_per_op: per_op(used.transfers as f64),
            wait_ns_per_op: per_op(used.wait_ns),
            hold_ns: used.held_ns / used.holds.max(1) as f64,
            max_hold_ns: used.max_held_ns,
            code,
        }
    });
    let outcome = Outcome {
        ops_per_us: total as f64 / elapsed * 1000.0,
        objects_per_op: workload.objects(),
        instructions_per_op: per_op(instructions as f64),
        shared_modifies_per_op: per_op(of_all as f64),
        modifies_per_op: per_op(modifies.len() as f64),
        transfers_per_op: per_op(shared.iter().map(|(_, used)| used.transfers as f64).sum()),
        system_calls,
        lines: lines.collect(),
        hot,
        mode: uslab::mode().to_string(),
        workload: args.workload,
        cpus: args.cpus,
        nodes: args.nodes,
    };
    print(&outcome);
}

/// Times the workload on the CPU that the thread runs on: the least of many rounds.
fn timed(args: &Args) -> Outcome {
    const ROUNDS: usize = 200;
    let mut workload = Workload::new(&args.workload, 1);
    let (before, measured) = workload.counts();
    (0..before).for_each(|_| workload.step(0));
    let mut round = || {
        let begin = Instant::now();
        (0..measured).for_each(|_| workload.step(0));
        begin.elapsed().as_nanos() as f64 / measured as f64
    };
    let ns = (0..ROUNDS).map(|_| round()).fold(f64::MAX, f64::min);
    Outcome {
        workload: args.workload.clone(),
        cpus: 1,
        nodes: 1,
        mode: uslab::mode().to_string(),
        ops_per_us: 1000.0 / ns,
        objects_per_op: workload.objects(),
        ..Outcome::default()
    }
}

/// The `most` lines of code with the most instructions of an operation.
fn hot(tracer: &Tracer, names: &Names, most: usize, operations: usize) -> Vec<(String, f64)> {
    let mut runs: HashMap<String, f64> = HashMap::new();
    if most > 0 {
        for (&code, &count) in &tracer.runs {
            *runs.entry(names.of_code(code)).or_default() += count as f64 / operations as f64;
        }
    }
    let mut runs: Vec<_> = runs.into_iter().collect();
    runs.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    runs.truncate(most);
    runs
}

fn print(outcome: &Outcome) {
    println!("{}", serde_json::to_string_pretty(outcome).expect("numbers and text"));
}

/// The same workloads under another design. Those without a counterpart run as bursts of as many
/// objects.
fn of_peer(args: &Args, name: &str) -> Outcome {
    const ROUNDS: usize = 16;
    let mut machine = Machine::new(args.cpus, args.nodes, Costs::PUBLISHED);
    let mut peer = Peer::new(name, args.cpus).expect("clap accepts known names only");
    let (objects, is_handoff) = (objects_of(&args.workload), args.workload == "handoff");
    let mut done = vec![0usize; args.cpus];
    for _ in 0..ROUNDS * args.cpus {
        // As the workload does: a consumer follows its producer, by four batches at most.
        let is_ready = |cpu: usize| match cpu % 2 {
            _ if !is_handoff => true,
            0 => done[cpu] < done[cpu + 1] + 4,
            _ => done[cpu] < done[cpu - 1],
        };
        let cpu = machine.next(is_ready);
        done[cpu] += 1;
        if is_handoff {
            peer.step(&mut machine, cpu, cpu & !1, objects, cpu.is_multiple_of(2));
        } else {
            peer.step(&mut machine, cpu, cpu, objects, true);
            peer.step(&mut machine, cpu, cpu, objects, false);
        }
    }
    machine.finish();
    let elapsed = (0..args.cpus).map(|cpu| machine.clock(cpu)).sum::<f64>() / args.cpus as f64;
    let total = (ROUNDS * args.cpus) as f64;
    Outcome {
        workload: args.workload.clone(),
        cpus: args.cpus,
        nodes: args.nodes,
        mode: name.into(),
        ops_per_us: total / elapsed * 1000.0,
        objects_per_op: objects,
        transfers_per_op: machine.shared().iter().map(|(_, used)| used.transfers as f64).sum::<f64>() / total,
        ..Outcome::default()
    }
}
