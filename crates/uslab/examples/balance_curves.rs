//! The simulation of `tests/balance.rs` as JSON, for `cargo xtask balance`, which draws it into
//! docs/results.
//!
//! Must never: print a figure that does not come from the simulation.

#[path = "../tests/support/simulation.rs"]
mod simulation;
#[path = "../tests/support/traffic.rs"]
mod traffic;

use simulation::{MEMORY, PHASES, SAMPLE_STEPS, STEPS_A_PHASE, simulate};
use traffic::COSTS;

fn main() {
    let outcome = simulate();
    // Rust's debug format of an array of numbers is valid JSON.
    println!(r#"{{"costs":{COSTS:?},"memory":{MEMORY},"phases":{PHASES},"#);
    println!(r#""steps_a_phase":{STEPS_A_PHASE},"sample_steps":{SAMPLE_STEPS},"#);
    println!(r#""best":{:?},"best_cost":{},"#, outcome.best, outcome.best_cost);
    println!(r#""equal_cost":{},"unavoidable":{},"#, outcome.equal_cost, outcome.unavoidable);
    println!(r#""balanced_cost":{},"balanced":{:?},"#, outcome.balanced.cost, outcome.balanced.sizes);
    println!(r#""blind_cost":{},"blind":{:?}}}"#, outcome.blind.cost, outcome.blind.sizes);
}
