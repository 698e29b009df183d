//! A server whose threads come and go while its objects stay: after P. Larson and M. Krishnan,
//! "Memory Allocation for Long-Running Server Applications" (ISMM 1998).
//!
//! ```text
//!   thread ── replaces random blocks of its array ──► successor ── the same array ──► successor …
//!     └─ ends while its blocks live                     └─ frees what its predecessors allocated
//!                                                                 one such chain for each thread
//! ```
//!
//! Blocks of 8 to 1000 bytes are the paper's; here they are 16 at least, since every block holds
//! its size. As in the paper's program the making and the ending of the threads belong to the time.
//! A block is replaced by freeing it and allocating another of random size.
//!
//! Must never: let a thread work on its array after it has handed it on.

use super::crew::{Entered, Seat, or_abort};
use super::mixed::Held;
use super::random::Xorshift;
use crate::asm::opaque_size;
use crate::contestants::Contestant;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

const SMALLEST_BYTES: usize = 16;
const LARGEST_BYTES: usize = 1000;

#[derive(Clone, Copy, Debug)]
pub struct LarsonRound {
    /// Blocks in each array.
    pub blocks: usize,
    /// Threads that follow each other in a chain.
    pub generations: usize,
    /// Blocks that each of them replaces.
    pub replacements: usize,
}

/// The state that a thread hands to its successor.
struct Chain<C> {
    blocks: Vec<Held<C>>,
    random: Xorshift,
    generations_left: usize,
    round: LarsonRound,
    seat: Seat,
    /// Sends the handles of the threads to join.
    made: Sender<JoinHandle<()>>,
}

/// One chain. The thread of the crew only waits for it: each link is a thread of its own.
pub fn run<C: Contestant>(round: &LarsonRound, seat: &Seat) {
    let (round, seat) = (*round, seat.clone());
    let (made, threads) = channel();
    let first = thread::spawn(move || {
        or_abort(|| {
            let _entered = Entered::of::<C>();
            let mut random = Xorshift::new(seat.index);
            let blocks = (0..round.blocks).map(|_| Held::<C>::obtain(size(&mut random))).collect();
            seat.start();
            link(Chain { blocks, random, generations_left: round.generations, round, seat, made });
        });
    });
    // The chain's last link drops the sender.
    for thread in std::iter::once(first).chain(threads) {
        // One that panicked has ended the process.
        let _ = thread.join();
    }
}

fn size(random: &mut Xorshift) -> usize {
    opaque_size(SMALLEST_BYTES + random.below(LARGEST_BYTES - SMALLEST_BYTES + 1))
}

/// A thread's life.
fn link<C: Contestant>(mut chain: Chain<C>) {
    replace(&mut chain.blocks, &mut chain.random, chain.round.replacements);
    chain.generations_left = chain.generations_left.saturating_sub(1);
    if chain.generations_left == 0 {
        chain.seat.stop();
        chain.blocks.into_iter().for_each(Held::give_back);
        return;
    }
    let made = chain.made.clone();
    let successor = thread::spawn(move || {
        or_abort(|| {
            let _entered = Entered::of::<C>();
            link(chain);
        });
    });
    // The receiver lives until the last sender has gone.
    let _ = made.send(successor);
}

#[inline(never)]
fn replace<C: Contestant>(blocks: &mut [Held<C>], random: &mut Xorshift, times: usize) {
    for _ in 0..times {
        let block = random.below(blocks.len());
        Held::replace(&mut blocks[block], size(random));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::crew::tests::{all_that_malloc, in_fresh_threads};

    #[test]
    fn arrays_pass_through_all_generations_and_are_freed() {
        for entry in all_that_malloc() {
            in_fresh_threads(3, entry, move |seat| {
                (entry.larson)(&LarsonRound { blocks: 50, generations: 4, replacements: 100 }, seat);
            });
        }
    }
}
