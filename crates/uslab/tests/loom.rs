//! Models of the lock-free protocols, run through every interleaving within a bounded number of
//! preemptions.
//!
//! ```text
//!   RUSTFLAGS="--cfg loom" cargo test -p uslab --release --test loom
//! ```
//!
//! * `words` runs the real code of the slab words, with the slab lists around it in miniature.
//! * `slots` runs the sheaf protocols (pop, push, take, install, drain, the fork's gate) on a model
//!   of the kernel's guarantees for restartable sequences (`cpu`), because sequences themselves
//!   cannot run under a model checker.
//! * `groups` runs a thread that reaches a slab late, after the slab was released and made again in
//!   another group.
//! * `start` runs a thread that allocates while another thread sets up the library.
//! * `in_flight` runs a search for free memory beside a drain with memory in flight.
//!
//! Every model can fail: a test seeds a known mistake into it, and expects the failure.
#![cfg(loom)]

#[path = "loom/cpu.rs"]
mod cpu;
#[path = "loom/groups.rs"]
mod groups;
#[path = "loom/in_flight.rs"]
mod in_flight;
#[path = "loom/ledger.rs"]
mod ledger;
#[path = "loom/slots.rs"]
mod slots;
#[path = "loom/start.rs"]
mod start;
#[path = "loom/words.rs"]
mod words;

/// Runs `model` with a bounded number of preemptions in each execution; LOOM_MAX_PREEMPTIONS sets
/// another bound.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(model);
}

/// The failure message of `model`, which contains a mistake and must fail in some interleaving.
fn mistake_in(model: impl Fn() + Sync + Send + 'static) -> String {
    let failure = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| explore(model)));
    let failure = failure.expect_err("the mistake goes unnoticed");
    match failure.downcast::<String>() {
        Ok(text) => *text,
        Err(failure) => failure.downcast_ref::<&str>().unwrap_or(&"").to_string(),
    }
}
