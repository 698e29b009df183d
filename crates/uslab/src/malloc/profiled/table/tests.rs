//! Samples that threads begin and end at the same time.

use super::*;
use std::sync::Barrier;
use std::thread;

/// An object of a cache with an id that no cache has.
fn object(cache: u16, at: usize) -> Object {
    Object { address: (usize::from(cache) << 32) + at * 64, cache, tag: cache }
}

fn began(object: Object, site: usize) {
    begin(0, 64, 1 << 16, 0, &[site], object).expect("there is room");
}

fn live_samples_at(stack: usize) -> u32 {
    let mut frames = [0; MAX_FRAMES];
    let mut sites = (0..SITES).map_while(|at| site(at, &mut frames).map(|(site, _, _)| (site, frames[0])));
    sites.find(|&(_, first)| first == stack).map_or(0, |(site, _)| site.live_samples)
}

/// One thread ends samples by their objects, one all of their cache, while a third one reuses the
/// numbers: it would lose a sample if a number were found and ended in two steps.
#[test]
fn a_sample_that_two_threads_end_ends_once() {
    const ENDING: u16 = 60_001;
    const STAYING: u16 = 60_002;
    const ROUNDS: usize = 300;
    const SAMPLES: usize = 64;
    assert!(crate::cache::start::ensure() && make(), "there is memory");
    let barrier = Barrier::new(3);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                (0..SAMPLES).for_each(|at| began(object(ENDING, at), 1));
                barrier.wait();
                (0..SAMPLES).for_each(|at| _ = end_of(object(ENDING, at)));
                barrier.wait();
            }
        });
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                barrier.wait();
                end_all(ENDING, ENDING, |_| true);
                barrier.wait();
            }
        });
        for round in 0..ROUNDS {
            barrier.wait();
            (0..SAMPLES).for_each(|at| began(object(STAYING, round * SAMPLES + at), 2));
            barrier.wait();
        }
    });
    assert_eq!((live_samples_at(1), live_samples_at(2)), (0, (ROUNDS * SAMPLES) as u32));
    assert!((0..ROUNDS * SAMPLES).all(|at| end_of(object(STAYING, at))), "each is found");
    assert_eq!(live_samples_at(2), 0);
}
