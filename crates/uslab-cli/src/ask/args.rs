//! The command lines of requests to a running process.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser as NonEmpty;

use crate::args::process_id;
use crate::layout::MAX_COPIES;

pub const VALIDATE_EXAMPLES: &str = "\
Examples:
  uslab validate 4711                     the totals of what was checked, or the first fault

The process walks its own structures: caches with their sheaves, slabs and bitmaps, the page map,
the free pages; and the objects of debugged caches, whose faults it reports as it does otherwise.
It takes about a microsecond a slab, on a thread beside the program's.

Exit status:
  0 when all was valid, 1 when an invariant was violated, 3 when the process could not be asked.";

pub const DEBUG_EXAMPLES: &str = "\
Examples:
  uslab debug 4711 malloc-64 F            check each free of the cache from now on
  uslab debug 4711 'malloc-*' FU          of all classes of malloc, and record who uses their objects
  uslab debug 4711 session T              print a line for each allocation and free
  uslab debug 4711 malloc-64 -            switch it off

A fault is reported where the process reports (its standard error, or USLAB_DEBUG_REPORT), and ends
it unless it was started with USLAB_ON_MISUSE=report. Letters Z and P need room around objects,
which a running cache does not have: start the program with `uslab run --debug` for them.";

pub const SHRINK_EXAMPLES: &str = "\
Examples:
  uslab shrink 4711                       release all free memory of the allocator to the system
  uslab shrink 4711 session               that of one cache

Afterwards the program pays a page fault for each of these pages that it uses again.";

pub const LIMIT_EXAMPLES: &str = "\
Examples:
  uslab limit 4711 768M 1G                reclaim above 768 MiB; at 1 GiB allocations fail
  uslab limit 4711 0 0                    no limits

The limits count what the allocator holds. They replace those that the program has set, and take
effect at once. A program that links the Rust crate accepts them only if it uses some part of
uslab::reclaim, or sets a limit.";

/// The number of a copy of the library in a process.
pub fn copy_number() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(MAX_COPIES))
}

/// The process that is asked.
#[derive(Args)]
pub struct Asked {
    /// The process
    #[arg(value_parser = process_id)]
    pub pid: i32,

    /// Which copy of the library, if the process contains several; by default the one with the most
    /// memory
    #[arg(long, value_name = "N", value_parser = copy_number())]
    pub copy: Option<u32>,

    /// Seconds within which the process must accept the request
    #[arg(short, long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub timeout: Duration,
}

/// Options of `uslab validate`.
#[derive(Args)]
pub struct Validate {
    #[command(flatten)]
    pub asked: Asked,
}

/// Options of `uslab debug`.
#[derive(Args)]
pub struct Debug {
    #[command(flatten)]
    pub asked: Asked,

    /// The cache, or several between commas; `*` at the end of a name stands for any rest
    #[arg(value_name = "CACHE", value_parser = NonEmpty::new())]
    pub cache: String,

    /// F checks each free, U records who allocated and freed, T prints each call; - switches off
    #[arg(value_name = "LETTERS", allow_hyphen_values = true, value_parser = NonEmpty::new())]
    pub letters: String,
}

/// Options of `uslab shrink`.
#[derive(Args)]
pub struct Shrink {
    #[command(flatten)]
    pub asked: Asked,

    /// The cache; without it, all
    #[arg(value_name = "CACHE", value_parser = NonEmpty::new())]
    pub cache: Option<String>,
}

/// Options of `uslab limit`.
#[derive(Args)]
pub struct Limit {
    #[command(flatten)]
    pub asked: Asked,

    /// Bytes above which the process reclaims, with K, M, G or T for powers of 1024; 0: no limit
    #[arg(value_name = "SOFT", value_parser = bytes)]
    pub soft: u64,

    /// Bytes at which allocations fail; 0: no limit
    #[arg(value_name = "HARD", value_parser = bytes)]
    pub hard: u64,
}

/// A time in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("not a number of seconds from 0.1 to 3600".to_owned()),
    }
}

/// A number of bytes: `4096`, `512M`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return Err("not a number of bytes, with K, M, G or T behind it".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number of bytes".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too many bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("0"), Ok(0));
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert_eq!(bytes("3g"), Ok(3 << 30));
        for wrong in ["", "M", "1.5G", "-1", "1GB", "99999999T", "99999999999999999999"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
