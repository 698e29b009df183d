//! The command line of `uslab record`, and of times.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::{plain_file, process_id};
use crate::ask::args::copy_number;

pub const RECORD_EXAMPLES: &str = "\
Examples:
  uslab record 4711 -o server.record      until Ctrl-C, or until the process ends
  uslab record 4711 -o night.record --every 10s --for 12h
  uslab report night.record -o night.html

A record holds the figures of every cache at each sample, as differences, in one gzip stream. An
hour of one sample a second takes some hundred KiB. The recorder reads files and asks the process
nothing.

Without --every it takes a sample each second, or less often where a sample takes more than a
millisecond of a CPU: the recorder then uses a thousandth of one. A record that was cut short by
SIGKILL is readable up to its last sample.";

/// Options of `uslab record`.
#[derive(Args)]
pub struct Record {
    /// The process
    #[arg(value_parser = process_id)]
    pub pid: i32,

    /// The file to write; one of that name is replaced
    #[arg(short, long, value_name = "FILE", value_parser = plain_file())]
    pub output: PathBuf,

    /// Which copy of the library, if the process contains several; by default the one with the most
    /// memory
    #[arg(long, value_name = "N", value_parser = copy_number())]
    pub copy: Option<u32>,

    /// Time between two samples: 500ms, 10s, 1m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub every: Option<Duration>,

    /// End after this time: 30s, 1h
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub duration: Option<Duration>,
}

/// A time with its unit; a plain number is seconds.
pub fn time(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let scale = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err("not a time such as 500ms, 10s, 5m or 1h".to_owned()),
    };
    let seconds = number.parse::<f64>().map_err(|_| "not a time such as 500ms, 10s, 5m or 1h".to_owned())?;
    let seconds = seconds * scale;
    if !(0.01..=3.2e7).contains(&seconds) {
        return Err("not a time from 10ms to a year".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, milliseconds) in
            [("500ms", 500), ("1", 1000), ("1.5s", 1500), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "s", "1y", "-1s", "0s", "1e3s", "1..2s", "999999d"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
