//! The job of a guest: the words that the kernel passes to its first process.
//!
//! ```text
//!   limit=90  memory.high=78643200 memory.max=94371840 USLAB_RSEQ=0  three-caches --seconds 60  then  boots
//! ```
//!
//! `limit=SECONDS` bounds the life of the guest. Before a program come the limits of its control
//! group (names with a dot) and its environment. The first word without `=` is the program; the
//! words up to `then` are its arguments. Parsing must never fail: a guest has no user to report to,
//! and a wrong word appears in the program's behaviour.

use std::time::Duration;

/// The whole job of a guest.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Job {
    /// The longest life of the guest.
    pub limit: Option<Duration>,
    /// Programs, one after another.
    pub steps: Vec<Step>,
}

/// One program.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Step {
    /// Files of the control group, and their contents.
    pub limits: Vec<(String, String)>,
    /// Variables of the environment.
    pub environment: Vec<(String, String)>,
    /// Its name in `/bin`.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
}

impl Job {
    /// Reads the words.
    pub fn parse(words: impl Iterator<Item = String>) -> Job {
        let mut job = Job::default();
        let mut step = Step::default();
        for word in words {
            if word == "then" {
                job.steps.push(std::mem::take(&mut step));
            } else if !step.program.is_empty() {
                step.args.push(word);
            } else if let Some((name, value)) = word.split_once('=') {
                let pair = (name.to_string(), value.to_string());
                match name {
                    "limit" => job.limit = value.parse().ok().map(Duration::from_secs),
                    _ if name.contains('.') => step.limits.push(pair),
                    _ => step.environment.push(pair),
                }
            } else {
                step.program = word;
            }
        }
        job.steps.push(step);
        job.steps.retain(|step| !step.program.is_empty());
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_environment_and_arguments_belong_to_their_program() {
        let words = "limit=9 memory.high=5 A=b three --rate x=1 then USLAB_RSEQ=0 boots";
        let job = Job::parse(words.split(' ').map(String::from));
        assert_eq!(job.limit, Some(Duration::from_secs(9)));
        let [three, boots] = &job.steps[..] else { panic!("{job:?}") };
        assert_eq!(three.limits, [("memory.high".to_string(), "5".to_string())]);
        assert_eq!(three.environment, [("A".to_string(), "b".to_string())]);
        assert_eq!(
            (three.program.as_str(), &three.args[..]),
            ("three", &["--rate".into(), "x=1".into()][..])
        );
        assert_eq!((boots.program.as_str(), boots.environment.len()), ("boots", 1));
        assert!(boots.limits.is_empty() && boots.args.is_empty());
    }

    #[test]
    fn no_words_are_no_programs() {
        assert_eq!(Job::parse(std::iter::empty()), Job::default());
    }
}
