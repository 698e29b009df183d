//! Several rows that read the same runs: a program that takes seconds tells more than one figure,
//! and starts once for all of them.

use crate::locality::Program;
use crate::measure::{Errand, Lane, Sample};
use crate::preload::{self, Library};
use crate::results::Role;
use std::cell::RefCell;
use std::rc::Rc;

/// The libraries that programs are run with: ours, a second build of ours where one is named, and
/// those of the peers that are `taken`.
pub fn libraries(taken: impl Fn(&Library) -> bool) -> impl Iterator<Item = (&'static Library, Role)> {
    let ours = [(&preload::USLAB, Role::Subject)].into_iter();
    let beside = preload::beside().map(|library| (library, Role::Ours));
    let peers = preload::PEERS.iter().filter(move |peer| taken(peer)).map(|peer| (peer, Role::Peer));
    ours.chain(beside).chain(peers)
}

/// A contestant's library, its part and its runs.
pub type Lanes = Vec<(&'static Library, Role, Rc<Runs>)>;

/// Runs of one contestant, made when a row first asks for one.
pub struct Runs {
    run: Measure,
    taken: RefCell<Vec<Result<Sample, String>>>,
}

/// The runs of a program with each of the [`libraries`].
pub fn runs_of(program: &Rc<Program>, arguments: &[String], taken: impl Fn(&Library) -> bool) -> Lanes {
    let runs = |(library, role): (&'static Library, Role)| {
        let (program, arguments) = (Rc::clone(program), arguments.to_vec());
        (library, role, Runs::new(move || program.run(&library.find()?, &arguments)))
    };
    libraries(taken).map(runs).collect()
}

type Measure = Box<dyn Fn() -> Result<Sample, String>>;

impl Runs {
    pub fn new(run: impl Fn() -> Result<Sample, String> + 'static) -> Rc<Self> {
        Rc::new(Self { run: Box::new(run), taken: RefCell::default() })
    }

    /// The run of that number, counted from 0.
    fn sample(&self, number: usize) -> Result<Sample, String> {
        while self.taken.borrow().len() <= number {
            let sample = (self.run)();
            self.taken.borrow_mut().push(sample);
        }
        self.taken.borrow()[number].clone()
    }

    /// A lane that reads of each run what `reading` makes of it.
    pub fn lane(
        self: &Rc<Self>,
        name: &'static str,
        role: Role,
        reading: impl Fn(&Sample) -> Result<Sample, String> + 'static,
    ) -> Lane<Errand> {
        let (runs, mut number) = (Rc::clone(self), 0);
        Lane::of_runs(name, role, move || {
            number += 1;
            reading(&runs.sample(number - 1)?)
        })
    }
}

/// A figure that a program told, and `least` where it told less, so that ratios mean something.
pub fn figure(sample: &Sample, name: &str, least: f64) -> Result<Sample, String> {
    let value = sample.extra.get(name).ok_or_else(|| format!("the program told no {name}"))?;
    Ok(Sample::of(value.max(least)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_figure_is_found_by_its_name_and_never_nothing() {
        let mut sample = Sample::default();
        sample.extra.insert("faults".into(), 0.0);
        sample.extra.insert("ns".into(), 2.5);
        assert_eq!(figure(&sample, "faults", 0.1).unwrap().value, 0.1);
        assert_eq!(figure(&sample, "ns", 0.1).unwrap().value, 2.5);
        assert!(figure(&sample, "walk_ns", 0.1).unwrap_err().contains("walk_ns"));
    }

    #[test]
    fn a_run_is_made_once_for_all_rows_and_so_is_its_failure() {
        let made = Rc::new(Cell::new(0));
        let count = Rc::clone(&made);
        let runs = Runs::new(move || {
            count.set(count.get() + 1);
            if count.get() == 2 { Err("no".into()) } else { Ok(Sample::of(f64::from(count.get()))) }
        });
        let mut lanes = [1.0, 10.0]
            .map(|factor| runs.lane("a", Role::Peer, move |sample| Ok(Sample::of(sample.value * factor))));
        assert_eq!(lanes.each_mut().map(|lane| (lane.work)().unwrap().value), [1.0, 10.0]);
        assert_eq!(lanes.each_mut().map(|lane| (lane.work)().is_err()), [true, true]);
        assert_eq!(made.get(), 2);
    }
}
