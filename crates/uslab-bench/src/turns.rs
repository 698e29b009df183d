//! The order in which contestants take their turns.
//!
//! ```text
//!   round 1:  A B D C      Each contestant stands in each place once, and follows each other
//!   round 2:  B C A D      contestant once: a Williams square. An odd number of contestants needs
//!   round 3:  C D B A      twice as many rounds for that; the second half runs backwards.
//!   round 4:  D A C B
//! ```
//!
//! A contestant leaves its state to the next one: the processor's caches, and in a virtual machine
//! free memory, which the host may have to back again. An order that only rotates would let each
//! contestant follow the same other one in all rounds.

/// The contestant, of `count`, whose turn is number `turn` of `round`.
pub fn contestant(round: usize, turn: usize, count: usize) -> usize {
    let is_backwards = count % 2 == 1 && round / count % 2 == 1;
    let turn = if is_backwards { count - 1 - turn } else { turn };
    let step = if turn.is_multiple_of(2) { count - turn / 2 } else { turn.div_ceil(2) };
    (round + step) % count
}

#[cfg(test)]
mod tests {
    use super::contestant;

    fn order(round: usize, count: usize) -> Vec<usize> {
        (0..count).map(|turn| contestant(round, turn, count)).collect()
    }

    #[test]
    fn each_stands_in_each_place_and_follows_each_other_equally_often() {
        for count in 1..12 {
            let rounds = if count % 2 == 0 { count } else { 2 * count };
            let mut places = vec![vec![0; count]; count];
            let mut pairs = vec![vec![0; count]; count];
            for round in 0..rounds {
                let order = order(round, count);
                order.iter().enumerate().for_each(|(place, &who)| places[who][place] += 1);
                order.windows(2).for_each(|pair| pairs[pair[0]][pair[1]] += 1);
            }
            assert!(places.iter().flatten().all(|&times| times == rounds / count), "{count}");
            for (before, row) in pairs.iter().enumerate() {
                for (after, &times) in row.iter().enumerate() {
                    assert_eq!(times, if before == after { 0 } else { rounds / count }, "{count}");
                }
            }
        }
    }

    #[test]
    fn four_take_turns_as_drawn() {
        assert_eq!(
            (0..4).map(|round| order(round, 4)).collect::<Vec<_>>(),
            [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]]
        );
    }
}
