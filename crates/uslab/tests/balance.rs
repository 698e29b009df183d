//! The balance of caches under pressure: bounds for a deterministic simulation.
//! `cargo xtask balance` draws the same simulation.

#[path = "support/simulation.rs"]
mod simulation;
#[path = "support/traffic.rs"]
mod traffic;

use simulation::{MEMORY, PHASES, SAMPLE_STEPS, STEPS_A_PHASE, simulate};

#[test]
fn the_cost_of_misses_is_near_the_best_split_and_far_below_the_equal_one() {
    let outcome = simulate();
    let (ours, best, equal) = (outcome.balanced.cost, outcome.best_cost, outcome.equal_cost);
    println!(
        "best split {:?}: {best}; equal: {equal}; balanced: {ours} ({:.3} of the best, {:.3} of the equal); \
         balanced without costs: {}; unavoidable: {}",
        outcome.best,
        ours as f64 / best as f64,
        ours as f64 / equal as f64,
        outcome.blind.cost,
        outcome.unavoidable
    );
    assert!(ours as f64 <= 1.10 * best as f64);
    assert!(ours as f64 <= 0.75 * equal as f64);
    assert!(outcome.unavoidable < ours, "the misses cost less than first requests alone");
    assert!(ours < outcome.blind.cost, "seeks do not lower the cost of misses");
    for run in [&outcome.balanced, &outcome.blind] {
        assert_eq!(run.sizes.len() as u64, PHASES * STEPS_A_PHASE / SAMPLE_STEPS);
        assert!(
            run.sizes.iter().all(|sizes| sizes.iter().sum::<usize>() <= MEMORY),
            "the caches exceed the memory"
        );
    }
}
