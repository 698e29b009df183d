//! The machine and the versions behind a report, as lines for its readers.

use crate::machine::Machine;
use crate::results::{Report, Run};
use jiff::Timestamp;

/// Name and text. `runs` are those that the report's machine, build and options stand for.
pub fn lines<'a>(report: &Report, runs: impl Iterator<Item = &'a Run>) -> Vec<(&'static str, String)> {
    let (m, b, o) = (&report.machine, &report.build, &report.options);
    let guest = if m.virtual_machine { ", virtual machine" } else { "" };
    let second = m.second_cpu.map_or("no second CPU".into(), |cpu| format!("second thread on CPU {cpu}"));
    let assertions = if b.debug_assertions { ", debug assertions" } else { "" };
    let commit = b.commit.as_ref().map_or(String::new(), |commit| format!(", commit {commit}"));
    let touch = if o.touch { "touched" } else { "not touched" };
    let order = format!("{:?}", o.order).to_lowercase();
    let others = other_rounds(o.rounds, runs);
    let mut lines = vec![
        ("date", date(report.started_unix_s)),
        ("machine", format!("{}, {}{guest}", m.cpu_model, m.architecture)),
        (
            "CPUs",
            format!(
                "{} of {}; on CPU {} at {:.2} GHz (counter {:.2} GHz), {second}; load average at start {}",
                m.cpus_allowed,
                m.cpus_online,
                m.cpu,
                m.core_hz / 1e9,
                m.tick_hz / 1e9,
                m.load_average
            ),
        ),
        (
            "system",
            format!(
                "{}, pages of {} bytes, huge pages {}",
                m.kernel, m.page_size_bytes, m.transparent_hugepages
            ),
        ),
        ("uslab", format!("{}{commit}, {}", b.version, b.target)),
        (
            "build",
            format!(
                "{}, opt-level {}{assertions}; {}; {}; {}",
                b.profile, b.opt_level, b.rustc, b.rustflags, b.cc
            ),
        ),
        (
            "method",
            format!(
                "{} rounds of {} µs each, interleaved{others}; objects of {} bytes {touch}, freed {order}",
                o.rounds, o.round_us, o.object_size_bytes
            ),
        ),
    ];
    if !m.variables.is_empty() {
        lines.push(("variables", variables(m)));
    }
    lines
}

/// The variables that set up an allocator, as one would type them.
pub fn variables(machine: &Machine) -> String {
    machine.variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// The suites with rows of other numbers of rounds, most of them because a round is longer, or is
/// the run of a program; and the least and the most rounds of such rows.
fn other_rounds<'a>(usual: usize, runs: impl Iterator<Item = &'a Run>) -> String {
    let mut suites: Vec<(&str, usize, usize)> = Vec::new();
    for run in runs {
        let rounds = run.rows.iter().flat_map(|row| &row.figures).map(|figure| figure.rounds);
        for rounds in rounds.filter(|&rounds| rounds != usual) {
            match suites.iter_mut().find(|(suite, ..)| *suite == run.suite) {
                Some((_, least, most)) => (*least, *most) = (rounds.min(*least), rounds.max(*most)),
                None => suites.push((&run.suite, rounds, rounds)),
            }
        }
    }
    let shown = |(suite, least, most): (&str, usize, usize)| {
        if least == most { format!("{suite} {most}") } else { format!("{suite} {least} to {most}") }
    };
    let shown: Vec<String> = suites.into_iter().map(shown).collect();
    if shown.is_empty() {
        String::new()
    } else {
        format!("; rows with other numbers of rounds or runs: {}", shown.join(", "))
    }
}

/// A day, in UTC: runs take too long for minutes to matter.
pub fn date(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|s| Timestamp::from_second(s).ok());
    time.map_or("unknown".into(), |time| time.strftime("%Y-%m-%d").to_string())
}

#[cfg(test)]
mod tests {
    use super::{date, other_rounds};
    use crate::load::tests::sample;

    #[test]
    fn suites_of_other_numbers_of_rounds_are_named_with_them() {
        let joined = sample();
        let others = |usual| other_rounds(usual, joined.runs.iter().map(|taken| &taken.run));
        assert_eq!(others(60), "; rows with other numbers of rounds or runs: sample 3");
        assert_eq!(others(3), "; rows with other numbers of rounds or runs: pair 60, bulk 60");
    }

    #[test]
    fn days() {
        assert_eq!((date(0).as_str(), date(1_795_278_723).as_str()), ("1970-01-01", "2026-11-21"));
        assert_eq!(date(u64::MAX), "unknown");
    }
}
