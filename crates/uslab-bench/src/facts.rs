//! The machine and the versions behind a report, as lines for its readers.

use crate::results::Report;
use jiff::Timestamp;

/// Name and text.
pub fn lines(report: &Report) -> Vec<(&'static str, String)> {
    let (m, b, o) = (&report.machine, &report.build, &report.options);
    let guest = if m.virtual_machine { ", virtual machine" } else { "" };
    let second = m.second_cpu.map_or("no second CPU".into(), |cpu| format!("second thread on CPU {cpu}"));
    let assertions = if b.debug_assertions { ", debug assertions" } else { "" };
    let commit = b.commit.as_ref().map_or(String::new(), |commit| format!(", commit {commit}"));
    let touch = if o.touch { "touched" } else { "not touched" };
    let order = format!("{:?}", o.order).to_lowercase();
    vec![
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
                "{} rounds of {} µs each, interleaved; objects of {} bytes {touch}, freed {order}",
                o.rounds, o.round_us, o.object_size_bytes
            ),
        ),
    ]
}

/// A day, in UTC: runs take too long for minutes to matter.
pub fn date(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|s| Timestamp::from_second(s).ok());
    time.map_or("unknown".into(), |time| time.strftime("%Y-%m-%d").to_string())
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn days() {
        assert_eq!((date(0).as_str(), date(1_795_278_723).as_str()), ("1970-01-01", "2026-11-21"));
        assert_eq!(date(u64::MAX), "unknown");
    }
}
