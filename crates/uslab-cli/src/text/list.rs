//! The list of processes that publish.

use std::fmt::Write;

use super::{bytes, mode_name};
use crate::snapshot::Snapshot;

/// One line a process, largest pid last; names are already safe to print.
pub fn text(processes: &[(Snapshot, String)]) -> String {
    let mut text =
        format!("{:>8}  {:<15}  {:<9}  {:>11}  {:>11}\n", "PID", "COMMAND", "MODE", "HEAP", "LARGE");
    for (snapshot, command) in processes {
        let _ = writeln!(
            text,
            "{:>8}  {command:<15}  {:<9}  {:>11}  {:>11}",
            snapshot.pid,
            mode_name(snapshot.mode),
            bytes(snapshot.used_bytes),
            bytes(snapshot.large_bytes)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::Image;

    #[test]
    fn one_line_a_process() {
        let snapshot = Image::sample().parse().expect("whole");
        let expected = "
     PID  COMMAND          MODE              HEAP        LARGE
    4711  redis-server     rseq          12.2 MiB        5 MiB
";
        assert_eq!(text(&[(snapshot, "redis-server".into())]), expected[1..]);
    }
}
