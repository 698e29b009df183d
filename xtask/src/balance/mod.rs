//! `cargo xtask balance`: the simulation of caches under pressure, as curves and numbers in
//! docs/results.
//!
//! ```text
//!   examples/balance_curves.rs ──JSON──▶ chart ──▶ docs/results/balance.svg
//!   (the simulation of tests/balance.rs)  page ──▶ docs/results/balance.md
//! ```
//!
//! The simulation is deterministic, so both files are the same wherever they are made. `--check`
//! compares instead of writing. Must never: hold a figure of its own.

mod chart;

use crate::staged::output;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;

const FOLDER: &str = "docs/results";

/// Arguments of `cargo xtask balance`.
#[derive(clap::Args)]
pub struct Args {
    /// Fail where the files are not what the simulation gives; write nothing.
    #[arg(long)]
    check: bool,
}

impl Args {
    /// What CI asks.
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
    for (name, text) in [("balance.svg", chart::drawn(&outcome)), ("balance.md", page(&outcome))] {
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

/// What the example prints.
fn simulated(workspace: &Workspace) -> Result<Outcome> {
    let options = ["run", "--quiet", "--release", "--package", "uslab", "--example", "balance_curves"];
    serde_json::from_str(&output(&mut workspace.cargo(&options))?)
        .context("the simulation printed something else")
}

/// What the simulation gave.
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

/// One way to share the memory, and the class that colours it.
struct Way {
    name: &'static str,
    class: &'static str,
    cost: u64,
}

const UNAVOIDABLE: &str = "first requests alone, which every cache must miss";

impl Outcome {
    fn ways(&self) -> [Way; 4] {
        [
            Way { name: "reclaim, entries weighted by cost", class: "ours", cost: self.balanced_cost },
            Way { name: "best static split", class: "best", cost: self.best_cost },
            Way { name: "equal split", class: "equal", cost: self.equal_cost },
            Way { name: "reclaim, as if all entries cost the same", class: "blind", cost: self.blind_cost },
        ]
    }
}

/// With a space between thousands.
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

fn page(outcome: &Outcome) -> String {
    let [cheap, middle, dear] = outcome.costs;
    let mut text = format!(
        "<!-- Written by `cargo xtask balance`. -->\n\
         # The balance of caches under pressure\n\n\
         Three caches share a memory for {} entries. Making an entry again costs {cheap}, {middle} and {dear}. {} requests, Zipf's in popularity, shift\n\
         in which cache they go to and which keys are popular. It is a simulation, without a clock: the same everywhere.\n\n\
         ![Entries of each cache over time, and the cost of all misses](balance.svg)\n\n\
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
        assert!(text.contains("](balance.svg)"));
    }

    #[test]
    fn the_chart_is_whole_and_needs_nothing_else() {
        let svg = chart::drawn(&outcome());
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert_eq!(svg.matches("http").count(), 1, "the name space, and nothing to load");
        assert!(svg.contains("prefers-color-scheme: dark") && svg.contains("1 234 567"));
    }
}
