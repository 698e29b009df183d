//! The program: from the command line to the printed report.
//!
//! Must never: write anything but the report to standard output.

use crate::child;
use crate::cli::{self, Args, Command};
use crate::clock::Clock;
use crate::contestants::{InThread, uslab};
use crate::cpu::{self, Cpus};
use crate::lineup;
use crate::machine::{Build, Machine};
use crate::measure::{Plan, measure};
use crate::modes;
use crate::orders;
use crate::report::{self, Refused};
use crate::results::{Report, Run, RunOptions, SCHEMA, judge};
use crate::session::Session;
use crate::stop;
use crate::suites::{Context, RowPlan, Suite, find};
use crate::summary;
use crate::table;
use crate::task;
use clap::Parser;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Exit statuses: after a wrong command line, and after Ctrl-C.
const USAGE: u8 = 2;
const INTERRUPTED: u8 = 130;

pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return cli::refuse(&error),
    };
    if let Some(task) = &args.child {
        return child::main(task::measure(task));
    }
    match &args.command {
        Some(Command::Report(args)) => {
            return match report::text(args) {
                Ok(page) => print(&page.unwrap_or_default(), 0),
                Err(Refused::Input(line)) => fail(USAGE, &line),
                Err(Refused::Output(line)) => fail(1, &line),
            };
        }
        Some(Command::Summary(args)) => {
            return summary::text(args).map_or_else(|line| fail(USAGE, &line), |text| print(&text, 0));
        }
        Some(Command::Orders(args)) => {
            return orders::text(args).map_or_else(|line| fail(USAGE, &line), |text| print(&text, 0));
        }
        None => {}
    }
    let suites = match args.suites() {
        Ok(suites) => suites,
        Err(line) => return fail(USAGE, &line),
    };
    let cpus = match Cpus::choose(args.cpu) {
        Ok(cpus) => cpus,
        Err(line) => return fail(USAGE, &line),
    };
    let context = Context::new(args.run_options(), cpus);
    let only = args.only.as_deref().unwrap_or("");
    let plans: Vec<(&Suite, Vec<RowPlan>)> = suites
        .into_iter()
        .map(|suite| {
            (suite, (suite.rows)(&context).into_iter().filter(|plan| plan.row.id.contains(only)).collect())
        })
        .collect();
    if plans.iter().all(|(_, rows)| rows.is_empty()) {
        return fail(USAGE, &format!("no row's id contains '{only}'; --list shows them"));
    }
    if args.list {
        return print(&if args.json { listing_json(&plans) } else { listing(&plans) }, 0);
    }
    if let (Some(why), false, false) = (Build::this().unfit(), args.allow_unoptimised, context.options.check)
    {
        let line = format!(
            "{why}: its figures would mean nothing; build with --release, or insist with --allow-unoptimised"
        );
        return fail(1, &line);
    }
    let report = if args.both_modes { modes::run() } else { run(&context, plans) };
    match report {
        Ok((report, is_whole)) => print(
            &if args.json { report_json(&report) } else { table::text(&report, find) },
            if is_whole { 0 } else { INTERRUPTED },
        ),
        Err(line) => fail(1, &line),
    }
}

fn fail(status: u8, line: &str) -> ExitCode {
    eprintln!("uslab-bench: {line}");
    ExitCode::from(status)
}

/// A closed pipe is no error.
fn print(text: &str, status: u8) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            fail(1, &format!("cannot write to standard output: {error}"))
        }
        _ => ExitCode::from(status),
    }
}

fn listing(plans: &[(&Suite, Vec<RowPlan>)]) -> String {
    let mut text = String::new();
    for (suite, rows) in plans {
        text.push_str(&format!("{}: {}\n", suite.name, suite.summary));
        for RowPlan { row, .. } in rows {
            let target = row.target.map_or(String::new(), |target| format!("  target ≤ {target:.2}"));
            text.push_str(&format!("  {:<28} {}{target}\n", row.id, row.group));
        }
    }
    text
}

/// The list as JSON.
fn listing_json(plans: &[(&Suite, Vec<RowPlan>)]) -> String {
    let row = |RowPlan { row, .. }: &RowPlan| json!({ "id": row.id, "group": row.group, "title": row.title, "target": row.target });
    let suite = |(suite, rows): &(&Suite, Vec<RowPlan>)| {
        let rows: Vec<_> = rows.iter().map(row).collect();
        json!({ "name": suite.name, "summary": suite.summary, "rows": rows })
    };
    let suites: Vec<_> = plans.iter().map(suite).collect();
    format!("{:#}\n", json!({ "tool": "uslab-bench", "schema": SCHEMA, "suites": suites }))
}

/// Measures all rows of all suites in this process; the report, and whether it has them all.
fn run(context: &Context, plans: Vec<(&Suite, Vec<RowPlan>)>) -> Result<(Report, bool), String> {
    if !cpu::pin(context.cpus.first) {
        eprintln!("uslab-bench: cannot stay on CPU {}; the figures will scatter", context.cpus.first);
    }
    let _in_thread = InThread::enter();
    let mut clock = Clock::calibrate();
    // Read before the rounds, which would raise the load average.
    let mut machine = Machine::read(&context.cpus, &clock);
    let rows = plans.iter().map(|(_, rows)| rows.len()).sum();
    let started = SystemTime::now().duration_since(UNIX_EPOCH);
    stop::watch()?;
    let session = Session::start(rows);
    let (suites, mut runs) = (plans.len(), Vec::new());
    for (suite, plans) in plans {
        if stop::asked() {
            break;
        }
        runs.push(run_suite(suite, plans, &context.options, &mut clock, &session));
    }
    session.end();
    machine.core_hz = clock.core_hz();
    let is_whole = runs.len() == suites && runs.iter().all(|run| run.complete);
    let report = Report {
        tool: "uslab-bench".into(),
        schema: SCHEMA,
        started_unix_s: started.map_or(0, |since| since.as_secs()),
        machine,
        build: Build::this(),
        options: context.options.clone(),
        contestants: lineup::took_part(context.options.object_size_bytes),
        missing: lineup::missing(),
        runs,
    };
    Ok((report, is_whole))
}

fn run_suite(
    suite: &Suite,
    plans: Vec<RowPlan>,
    options: &RunOptions,
    clock: &mut Clock,
    session: &Session,
) -> Run {
    let plan = Plan { rounds: options.rounds, round_ns: options.round_us as f64 * 1e3 };
    let mode = uslab::mode();
    let judged = mode == ::uslab::Mode::Rseq && !options.check;
    let (expected, mut rows) = (plans.len(), Vec::new());
    for RowPlan { mut row, method } in plans {
        session.row_starts(&row.title);
        let Some((figures, skipped)) = measure(method, plan, clock, stop::asked) else { break };
        (row.figures, row.skipped) = (figures, skipped);
        judge(&mut row, judged);
        rows.push(row);
        session.row_ends();
    }
    let complete = rows.len() == expected;
    Run { suite: suite.name.into(), mode: mode.to_string(), complete, rows }
}

fn report_json(report: &Report) -> String {
    let mut text = serde_json::to_string_pretty(report).expect("a report has nothing that JSON cannot say");
    text.push('\n');
    text
}
