//! `cargo xtask balance`: the simulation of caches under pressure, as curves and numbers in
//! docs/results.
//!
//! ```text
//!   examples/balance_curves.rs ──JSON──▶ curves ──▶ docs/results/balance.html
//!   (the simulation of tests/balance.rs)   page ──▶ docs/results/balance.md
//! ```
//!
//! The curves are drawn by the template of the benchmark's report. The simulation is deterministic,
//! so every machine makes the same files. `--check` compares instead of writing. Must never: hold a
//! figure of its own.

use crate::staged::output;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;

const FOLDER: &str = "docs/results";

/// The page that draws tables and charts from data.
const TEMPLATE: &str = include_str!("../../crates/uslab-bench/src/page.html");

/// Arguments of `cargo xtask balance`.
#[derive(clap::Args)]
pub struct Args {
    /// Fail where the files differ from the simulation's; write nothing.
    #[arg(long)]
    check: bool,
}

impl Args {
    /// The options of CI.
    pub fn checking() -> Self {
        Self { check: true }
    }
}

/// Writes, or checks, the curves and the page.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let outcome = simulated(workspace)?;
    for way in outcome.ways() {
        println!("{}: {}", way.name, grouped(way.cost));
    }
    println!("{UNAVOIDABLE}: {}", grouped(outcome.unavoidable));
    for (name, text) in [("balance.html", curves(&outcome)), ("balance.md", page(&outcome))] {
        let path = workspace.root.join(FOLDER).join(name);
        if fs::read_to_string(&path).is_ok_and(|present| present == text) {
            println!("{FOLDER}/{name}: as the simulation says");
        } else if args.check {
            bail!("{FOLDER}/{name} is not what the simulation gives: run `cargo xtask balance` and commit");
        } else {
            fs::write(&path, text).with_context(|| format!("cannot write {FOLDER}/{name}"))?;
            println!("{FOLDER}/{name}: written");
        }
    }
    Ok(())
}

/// Runs the example and reads its output.
fn simulated(workspace: &Workspace) -> Result<Outcome> {
    let options = ["run", "--quiet", "--release", "--package", "uslab", "--example", "balance_curves"];
    serde_json::from_str(&output(&mut workspace.cargo(&options))?)
        .context("the simulation printed something else")
}

/// The outcome of the simulation.
#[derive(serde::Deserialize)]
struct Outcome {
    costs: [u64; 3],
    memory: u64,
    phases: u64,
    steps_a_phase: u64,
    sample_steps: u64,
    best: [u64; 3],
    best_cost: u64,
    equal_cost: u64,
    balanced: Vec<[u64; 3]>,
    balanced_cost: u64,
    blind_cost: u64,
    unavoidable: u64,
}

/// One way to share the memory, and its part in the curves.
struct Way {
    name: &'static str,
    role: &'static str,
    cost: u64,
}

const UNAVOIDABLE: &str = "first requests alone, which every cache must miss";

impl Outcome {
    fn ways(&self) -> [Way; 4] {
        [
            Way { name: "reclaim, entries weighted by cost", role: "subject", cost: self.balanced_cost },
            Way { name: "best static split", role: "peer", cost: self.best_cost },
            Way { name: "equal split", role: "peer", cost: self.equal_cost },
            Way { name: "reclaim, as if all entries cost the same", role: "ours", cost: self.blind_cost },
        ]
    }
}

/// The number with a space between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// `part` of `whole`, in percent.
fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}

/// The curves of each cache and the costs as bars, as data for the template.
fn curves(outcome: &Outcome) -> String {
    let steps = outcome.phases * outcome.steps_a_phase;
    let figure = |name: &str, role: &str, value: u64, course: Vec<[u64; 2]>| {
        let value = json!({ "min": value, "median": value, "median_low": value, "median_high": value });
        let series = if course.is_empty() { json!({}) } else { json!({ "entries_by_requests": course }) };
        json!({ "contestant": name, "role": role, "value": value, "rounds": 1, "redone": 0, "series": series })
    };
    let entries = |cache: usize| {
        let samples = outcome.balanced.iter().zip(1..);
        let course = samples.map(|(sizes, at)| [at * outcome.sample_steps, sizes[cache]]);
        let flat = |entries| vec![[0, entries], [steps, entries]];
        let last = outcome.balanced.last().map_or(0, |sizes| sizes[cache]);
        let (best, equal) = (outcome.best[cache], outcome.memory / 3);
        let figures = [
            figure("reclaim", "subject", last, [[0, 0]].into_iter().chain(course).collect()),
            figure("best static split", "peer", best, flat(best)),
            figure("equal split", "peer", equal, flat(equal)),
        ];
        json!({ "id": format!("cache{cache}"), "group": "entries of each cache, at the end and over time",
            "title": format!("an entry costs {}", outcome.costs[cache]), "unit": "entries", "figures": figures })
    };
    let mut ways: Vec<Value> =
        outcome.ways().iter().map(|way| figure(way.name, way.role, way.cost, Vec::new())).collect();
    ways.push(figure(UNAVOIDABLE, "floor", outcome.unavoidable, Vec::new()));
    let misses = json!({ "id": "misses", "group": "cost of all misses", "title": "all caches",
        "unit": "cost", "figures": ways });
    let rows = [entries(0), entries(1), entries(2), misses];
    let about = format!(
        "Three caches in one memory for {} entries. The traffic shifts every {} requests.",
        grouped(outcome.memory),
        grouped(outcome.steps_a_phase)
    );
    let run = json!({ "suite": "balance", "about": about, "mode": "", "complete": true, "rows": rows });
    let page = json!({ "title": "The balance of caches under pressure", "about": "", "cautions": [],
        "facts": [], "claims": [], "columns": [], "runs": [run] });
    TEMPLATE.replace("{{DATA}}", &page.to_string().replace('<', "\\u003c"))
}

fn page(outcome: &Outcome) -> String {
    let [cheap, middle, dear] = outcome.costs;
    let mut text = format!(
        "<!-- Written by `cargo xtask balance`. -->\n\
         # The balance of caches under pressure\n\n\
         Three caches share a memory for {} entries. Making an entry again costs {cheap}, {middle} and {dear}. {} requests, Zipf's in popularity, shift\n\
         in which cache they go to and which keys are popular. It is a simulation, without a clock: the same everywhere.\n\n\
         [balance.html](balance.html) has the entries of each cache over time, and these costs as bars.\n\n\
         | how the memory is shared | cost of all misses | of the best static split | of the equal split |\n\
         |---|---:|---:|---:|\n",
        grouped(outcome.memory),
        grouped(outcome.phases * outcome.steps_a_phase),
    );
    for Way { name, cost, .. } in outcome.ways() {
        let (best, equal) = (percent(cost, outcome.best_cost), percent(cost, outcome.equal_cost));
        let _ = writeln!(text, "| {name} | {} | {best} | {equal} |", grouped(cost));
    }
    let [a, b, c] = outcome.best.map(grouped);
    let _ = write!(
        text,
        "| {UNAVOIDABLE} | {} | {} | {} |\n\n\
         The best static split is {a}, {b} and {c} entries, found by trying all splits in hundredths of the memory, each on the\n\
         whole trace. Reclaim knows no trace: whenever memory runs out it asks every cache for the same part of its entries, less the more they\n\
         cost (`crates/uslab/src/reclaim/balance.rs`). It may do better than every static split, because its own follows the traffic.\n\n\
         ## Repeat it\n\n\
         ```sh\n\
         cargo xtask balance                     # this page and the curves\n\
         cargo test -p uslab --test balance      # what must hold: at most 110 % of the best split, at most 75 % of the equal one\n\
         ```\n",
        grouped(outcome.unavoidable),
        percent(outcome.unavoidable, outcome.best_cost),
        percent(outcome.unavoidable, outcome.equal_cost),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        let json = r#"{"costs":[1,10,100],"memory":1000,"phases":2,"steps_a_phase":10,"sample_steps":5,
            "best":[10,290,700],"best_cost":200,"equal_cost":1000,"unavoidable":50,
            "balanced_cost":190,"balanced":[[1,2,3],[100,300,600],[50,250,700],[40,260,700]],
            "blind_cost":1234567,"blind":[[1,2,3]]}"#;
        serde_json::from_str(json).expect("complete")
    }

    #[test]
    fn what_is_missing_is_named() {
        let error =
            serde_json::from_str::<Outcome>(r#"{"costs": [1, 10, 100]}"#).err().expect("it is incomplete");
        assert!(error.to_string().contains("missing field `memory`"), "{error}");
    }

    #[test]
    fn the_page_has_every_way_with_its_cost() {
        let text = page(&outcome());
        assert!(text.contains("| reclaim, entries weighted by cost | 190 | 95.0 % | 19.0 % |"), "{text}");
        assert!(text.contains("| 1 234 567 |") && text.contains("10, 290 and 700 entries"), "{text}");
        assert!(text.contains("](balance.html)"));
    }

    #[test]
    fn the_curves_are_whole_and_need_nothing_else() {
        let html = curves(&outcome());
        assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
        assert_eq!(html.matches("\"entries_by_requests\"").count(), 9);
        assert!(html.contains("[[0,0],[5,1],[10,100]") && html.contains("1234567"));
        assert!(!html.contains("{{DATA}}") && !html.contains("http:") && !html.contains("https:"));
    }
}
