//! The figures at exit: the snapshot ends with the process, and `USLAB_STATS=1` asks for a report
//! of its memory and caches.
//!
//! The report goes to standard error, line by line, and allocates nothing: it runs while the
//! process ends.

use super::caches;
use crate::cache::{account_all, start};
use crate::counters::{self, header, layout, shrinker};
use crate::os::{file, report};
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

/// Removes the snapshot of a process that exits, or leaves its final figures to
/// `uslab run --stats`. The loader calls this function, also in a Rust program, which calls nothing
/// of the library at its end. It needs no memory and no registration. The shared libraries call it
/// once more, which is harmless.
///
/// A process that publishes nothing takes no lock here. Its `exit` may run in a signal handler, or
/// in a copy of a process in which another thread held the lock.
pub extern "C" fn finish() {
    // The figures, and the locks that keep them, may be those of the process that this one was
    // copied from, or that it shares them with.
    if counters::is_published() && header().pid.load(Relaxed) == file::process_id() {
        account_all();
        counters::finish();
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = finish;

/// Writes the report, if `USLAB_STATS` asks for it. For the shared libraries, which call it when
/// the process exits.
pub fn report_at_exit() {
    if start::reports_at_exit() {
        write(&mut |line| report::print(line));
    }
}

/// Passes the report to `print`, line by line.
fn write(print: &mut dyn FnMut(fmt::Arguments<'_>)) {
    let usage = super::usage();
    let header = header();
    print(format_args!("memory of process {} at exit, in bytes", file::process_id()));
    print(format_args!(
        "live {}, in {} large objects {}; pages in use {}, free {}, mapped {}; most held {}",
        usage.allocated_bytes,
        usage.large_objects,
        usage.large_bytes,
        usage.used_bytes,
        usage.dirty_bytes,
        usage.committed_bytes,
        usage.max_system_bytes,
    ));
    let [soft, hard] = [&header.soft_limit_bytes, &header.hard_limit_bytes].map(|limit| limit.load(Relaxed));
    if soft != 0 || hard != 0 {
        print(format_args!("limits: {soft} soft, {hard} hard"));
    }
    let passes = header.passes.each_ref().map(|passes| passes.load(Relaxed));
    if passes != [0; layout::PASSES.len()] {
        let [call, allocation, pressure, soft] = passes;
        let bytes = header.passes_bytes.load(Relaxed);
        print(format_args!(
            "passes: {call} by calls, {allocation} for allocations, {pressure} by pressure, {soft} by the soft \
             limit; {bytes} bytes given back"
        ));
    }
    print(format_args!("{:<24} {:>8} {:>10} {:>8} {:>12}", "cache", "size", "live", "slabs", "bytes"));
    for cache in caches().filter(|cache| cache.grows > 0) {
        print(format_args!(
            "{:<24} {:>8} {:>10} {:>8} {:>12}",
            cache.name, cache.user_bytes, cache.active_objects, cache.slabs, cache.slab_bytes
        ));
    }
    let used = header.shrinkers_used.load(Relaxed) as usize;
    for figures in (0..used).map_while(shrinker) {
        let counters = [&figures.freeable, &figures.asked, &figures.freed].map(|figure| figure.load(Relaxed));
        let ([freeable, asked, freed], name) = (counters, super::CacheName::of(&figures.name));
        if asked > 0 {
            print(format_args!(
                "shrinker {name}: {freeable} entries could go, {asked} asked for, {freed} freed"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};

    #[test]
    fn an_exit_without_figures_takes_no_lock() {
        assert!(!counters::is_published());
        crate::cache::registry::with_lock(|| finish());
    }

    #[test]
    fn the_report_names_caches_that_were_used() {
        let cache = crate::Cache::<[u8; 88]>::new("reported at exit");
        let object = cache.insert([1; 88]).expect("there is memory");
        let mut text = String::new();
        write(&mut |line| text += &(line.to_string() + "\n"));
        drop(object);
        assert!(text.starts_with("memory of process "), "{text}");
        let row = text.lines().find(|line| line.starts_with("reported at exit ")).expect("a row");
        assert!(row.split_whitespace().eq(row.split_whitespace()) && row.contains(" 88 "), "{row}");
    }
}
