//! The solver z3 on a job shop: is there a plan in which every machine does one job at a time and
//! all are done by a limit? Integers, differences and alternatives: many small terms and clauses.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;
use std::fmt::Write;

pub const SOLVER: Workload = Workload { name: "z3", title, run };

/// Jobs and machines.
fn shop(scale: Scale) -> (u32, u32) {
    scale.pick((2, 2), (9, 8), (12, 8))
}

fn title(scale: Scale) -> String {
    let (jobs, machines) = shop(scale);
    format!("z3: a job shop of {jobs} jobs on {machines} machines")
}

fn run(place: &Place) -> Result<Usage, String> {
    let (jobs, machines) = shop(place.scale);
    place.write("shop.smt2", &problem(jobs, machines))?;
    let mut solver = place.measured("z3", "z3")?;
    solver.args(["-smt2", "shop.smt2"]);
    process::run_watched(solver)
}

/// The question in SMT-LIB, with times that a generator of random numbers chose.
fn problem(jobs: u32, machines: u32) -> String {
    let mut state: u32 = 7;
    let mut time = || {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
        1 + (state >> 16) % 9
    };
    let times: Vec<Vec<u32>> = (0..jobs).map(|_| (0..machines).map(|_| time()).collect()).collect();
    let busiest = (0..machines as usize).map(|m| times.iter().map(|job| job[m]).sum::<u32>()).max();
    let mut text = String::from("(set-option :smt.random_seed 1)\n(declare-const limit Int)\n");
    for job in 0..jobs {
        for machine in 0..machines {
            let _ = writeln!(text, "(declare-const t{job}_{machine} Int)");
        }
    }
    for (job, times) in times.iter().enumerate() {
        let _ = writeln!(text, "(assert (>= t{job}_0 0))");
        for (m, time) in times.iter().enumerate() {
            let next = if m + 1 == times.len() { "limit".into() } else { format!("t{job}_{}", m + 1) };
            let _ = writeln!(text, "(assert (>= {next} (+ t{job}_{m} {time})))");
        }
    }
    for (a, first) in times.iter().enumerate() {
        for (b, second) in times.iter().enumerate().skip(a + 1) {
            for (m, (of_a, of_b)) in first.iter().zip(second).enumerate() {
                let b_first = format!("(>= t{a}_{m} (+ t{b}_{m} {of_b}))");
                let _ = writeln!(text, "(assert (or {b_first} (>= t{b}_{m} (+ t{a}_{m} {of_a}))))");
            }
        }
    }
    let _ = writeln!(text, "(assert (<= limit {}))\n(check-sat)", busiest.unwrap_or(0) + 10);
    text
}
