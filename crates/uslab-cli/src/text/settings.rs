//! What a process runs with, and what reclaim did there: settings, limits, passes, pressure sources
//! and shrinkers.

use super::{bytes, count};
use crate::layout;
use crate::snapshot::{Shrinker, Snapshot, Source};

/// The page of `uslab info --settings`; `now_ns` is the present time since boot.
pub fn text(snapshot: &Snapshot, now_ns: u64) -> String {
    let mut lines = vec![format!("{:<14} {:<28} {}", "setting", "value", "from")];
    lines.extend(
        snapshot.settings.iter().map(|set| format!("{:<14} {:<28} {}", set.name, set.value, set.origin)),
    );
    lines.push(String::new());
    lines.extend(reclaim(snapshot, now_ns));
    lines.join("\n") + "\n"
}

/// Limits, passes, sources and shrinkers, in lines of at most 80 columns but for long names.
pub fn reclaim(snapshot: &Snapshot, now_ns: u64) -> Vec<String> {
    let limit = |limit: u64| if limit == 0 { "none".to_owned() } else { bytes(limit) };
    let held = snapshot.used_bytes.saturating_add(snapshot.dirty_bytes);
    let mut lines = vec![format!(
        "limits: soft {}, hard {}; {} held",
        limit(snapshot.soft_limit_bytes),
        limit(snapshot.hard_limit_bytes),
        bytes(held)
    )];
    let causes = layout::PASSES.map(|cause| {
        let passes = snapshot.passes.get(cause).copied().unwrap_or(0);
        format!("{} {}", cause.replace('_', " "), count(passes))
    });
    lines.push(format!(
        "passes: {}; {} given back; last {}",
        causes.join(", "),
        bytes(snapshot.passes_bytes),
        ago(snapshot.last_pass_ns, now_ns)
    ));
    lines.push(String::new());
    lines.push(format!(
        "{:<8} {:<8} {:>8} {:>9}  {:<10} {}",
        "source", "state", "reports", "asked", "last", "level"
    ));
    lines.extend(snapshot.sources.iter().map(|source| source_line(source, now_ns)));
    lines.push(String::new());
    let shrinkers: Vec<&Shrinker> =
        snapshot.shrinkers.iter().filter(|shrinker| !shrinker.destroyed).collect();
    if shrinkers.is_empty() {
        lines.push("no shrinkers: the program registered no cache that can give entries up".to_owned());
        return lines;
    }
    lines.push(format!(
        "{:<20} {:>5} {:>5} {:>5} {:>5} {:>5}  {:<8} {}",
        "shrinker", "could", "seeks", "owed", "asked", "freed", "last", "stopped: why"
    ));
    lines.extend(shrinkers.into_iter().map(|shrinker| shrinker_line(shrinker, now_ns)));
    if snapshot.shrinkers_left_out > 0 {
        lines.push(format!("{} more have no place in the snapshot", snapshot.shrinkers_left_out));
    }
    lines
}

fn source_line(source: &Source, now_ns: u64) -> String {
    let level = match source.limit_bytes {
        0 => "-".to_owned(),
        limit => format!("{} of {}", bytes(source.used_bytes), bytes(limit)),
    };
    let asked = if source.reports == 0 { "-".to_owned() } else { bytes(source.asked_bytes) };
    format!(
        "{:<8} {:<8} {:>8} {asked:>9}  {:<10} {level}",
        source.name,
        source.state,
        count(source.reports),
        ago(source.last_ns, now_ns)
    )
}

fn shrinker_line(shrinker: &Shrinker, now_ns: u64) -> String {
    format!(
        "{:<20} {:>5} {:>5} {:>5} {:>5} {:>5}  {:<8} {}",
        shrinker.name,
        count(shrinker.freeable),
        format!("{:.1}", shrinker.seeks()).trim_end_matches(".0"),
        count(shrinker.deferred),
        count(shrinker.asked),
        count(shrinker.freed),
        ago(shrinker.last_ns, now_ns),
        shrinker.stop
    )
}

/// How long ago a moment was, in one unit.
fn ago(then_ns: u64, now_ns: u64) -> String {
    let seconds = now_ns.saturating_sub(then_ns) / 1_000_000_000;
    match (then_ns, seconds) {
        (0, _) => "never".to_owned(),
        (_, 0..120) => format!("{seconds} s ago"),
        (_, 120..7200) => format!("{} min ago", seconds / 60),
        (_, 7200..172_800) => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::Image;

    #[test]
    fn settings_limits_sources_and_shrinkers() {
        let snapshot = Image::sample().parse().expect("whole");
        let text = text(&snapshot, 5_000_000_099);
        let expected = "\
setting        value                        from
decay_ms       250                          environment
limit          1,2                          request

limits: soft 768 MiB, hard 1 GiB; 13.2 MiB held
passes: call 2, allocation 0, pressure 0, soft limit 0; 9 MiB given back; last 5 s ago

source   state     reports     asked  last       level
systemd  off             0         -  never      -
psi      off             0         -  never      -
cgroup   watched         5       0 B  5 s ago    900 MiB of 1 GiB

shrinker             could seeks  owed asked freed  last     stopped: why
sessions               100     2     7    40    33  5 s ago  answered: not now
";
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn ages_have_one_unit() {
        let s = 1_000_000_000;
        let shown = [(119, "119 s ago"), (120, "2 min ago"), (7200, "2 h ago"), (172_800, "2 d ago")];
        for (seconds, text) in shown {
            assert_eq!(ago(1, 1 + seconds * s), text);
        }
        assert_eq!((ago(0, s).as_str(), ago(2 * s, s).as_str()), ("never", "0 s ago"));
    }
}
