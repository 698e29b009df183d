//! The figures as text: JSON, and the format of `/proc/slabinfo`.

use super::caches::{CacheStats, all_caches, caches};
use crate::counters::{header, layout};
use crate::pages::PAGE_BYTES;
use crate::rseq::Mode;
use crate::{cache, os};
use core::fmt::{self, Write};
use core::sync::atomic::Ordering::Relaxed;

/// All figures as JSON, with the names that `uslab info --json` uses.
///
/// ```
/// let text = uslab::stats::json().to_string();
/// assert!(text.starts_with("{\n  \"format\": 1,"));
/// ```
pub fn json() -> Json {
    Json(())
}

/// Prints the figures as JSON, as they are at that moment. Made by [`json`].
#[derive(Clone, Copy, Debug)]
pub struct Json(());

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = header();
        write!(f, "{{\n  \"format\": 1,\n  \"pid\": {},\n", os::file::process_id())?;
        let mode = match cache::mode() {
            Mode::Rseq => "rseq",
            Mode::Locked => "locked",
        };
        writeln!(f, "  \"mode\": {},", Quoted(mode))?;
        match reason(header.mode_reason.load(Relaxed)) {
            Some(reason) => writeln!(f, "  \"mode_reason\": {},", Quoted(reason))?,
            None => writeln!(f, "  \"mode_reason\": null,")?,
        }
        for (name, value) in
            [("cpus", &header.cpus), ("nodes", &header.nodes), ("page_bytes", &header.page_bytes)]
        {
            writeln!(f, "  \"{name}\": {},", value.load(Relaxed))?;
        }
        for (name, value) in [
            ("start_ns", &header.start_ns),
            ("reserved_bytes", &header.reserved_bytes),
            ("committed_bytes", &header.committed_bytes),
            ("used_bytes", &header.used_bytes),
            ("dirty_bytes", &header.dirty_bytes),
            ("purged_bytes", &header.purged_bytes),
            ("metadata_bytes", &header.metadata_bytes),
            ("large_objects", &header.large_objects),
            ("large_bytes", &header.large_bytes),
            ("large_allocs", &header.large_allocs),
        ] {
            writeln!(f, "  \"{name}\": {},", value.load(Relaxed))?;
        }
        f.write_str("  \"caches\": [")?;
        for (at, cache) in all_caches().enumerate() {
            f.write_str(if at == 0 { "\n" } else { ",\n" })?;
            json_cache(f, &cache)?;
        }
        f.write_str("\n  ]\n}\n")
    }
}

fn json_cache(f: &mut fmt::Formatter<'_>, cache: &CacheStats) -> fmt::Result {
    write!(f, "    {{\"id\": {}, \"name\": {}", cache.id, Quoted(cache.name.as_str()))?;
    write!(f, ", \"destroyed\": {}", cache.is_destroyed)?;
    for (name, value) in [
        ("user_bytes", cache.user_bytes),
        ("object_bytes", cache.object_bytes),
        ("objects_per_slab", cache.objects_per_slab),
        ("pages_per_slab", cache.pages_per_slab),
        ("sheaf_capacity", cache.sheaf_capacity),
        ("empty_target", cache.empty_target),
        ("active_objects", cache.active_objects),
        ("total_objects", cache.total_objects),
        ("slab_bytes", cache.slab_bytes),
        ("slabs", cache.slabs),
        ("partial_slabs", cache.partial_slabs),
        ("empty_slabs", cache.empty_slabs),
        ("slab_free", cache.slab_free),
        ("sheaf_free", cache.sheaf_free),
        ("alloc_slow", cache.alloc_slow),
        ("free_slow", cache.free_slow),
        ("refills", cache.refills),
        ("flushes", cache.flushes),
        ("drains", cache.drains),
        ("grows", cache.grows),
        ("shrinks", cache.shrinks),
        ("failures", cache.failures),
        ("home_objects", cache.home_objects),
        ("home_sheaves", cache.home_sheaves),
    ] {
        write!(f, ", \"{name}\": {value}")?;
    }
    f.write_str("}")
}

fn reason(reason: u32) -> Option<&'static str> {
    Some(match reason {
        layout::REASON_NONE => return None,
        layout::REASON_FORCED => "forced by USLAB_RSEQ=0",
        layout::REASON_NOT_BUILT => "the library was built without sequences",
        layout::REASON_UNREGISTERED => "threads are not registered",
        layout::REASON_NO_MEMBARRIER => "membarrier cannot restart sequences",
        layout::REASON_TOO_MANY_CPUS => "too many CPUs, or an unknown number",
        _ => "sequences are not trusted on this machine",
    })
}

/// The figures of all live caches in the format of `/proc/slabinfo`, version 2.1. Blanks in names
/// become `_`; `limit` and `batchcount` are the objects that a sheaf holds.
///
/// ```
/// let text = uslab::stats::slabinfo().to_string();
/// assert!(text.starts_with("slabinfo - version: 2.1\n"));
/// ```
pub fn slabinfo() -> Slabinfo {
    Slabinfo(())
}

/// Prints the figures as `/proc/slabinfo` does, as they are at that moment. Made by [`slabinfo`].
#[derive(Clone, Copy, Debug)]
pub struct Slabinfo(());

impl fmt::Display for Slabinfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "slabinfo - version: 2.1\n# name            <active_objs> <num_objs> <objsize> <objperslab> \
             <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> \
             <num_slabs> <sharedavail>\n",
        )?;
        let page_bytes = u64::from(header().page_bytes.load(Relaxed)).max(PAGE_BYTES as u64);
        for cache in caches() {
            let mut width = 0;
            let name = cache.name.as_str();
            for c in if name.is_empty() { "?" } else { name }.chars() {
                f.write_char(if c.is_whitespace() { '_' } else { c })?;
                width += 1;
            }
            write!(f, "{:1$}", "", 17usize.saturating_sub(width))?;
            let pages = (cache.pages_per_slab * PAGE_BYTES as u64).div_ceil(page_bytes);
            writeln!(
                f,
                " {:>6} {:>6} {:>6} {:>4} {pages:>4} : tunables {:>4} {:>4} {:>4} : slabdata {:>6} {:>6} {:>6}",
                cache.active_objects,
                cache.total_objects,
                cache.object_bytes,
                cache.objects_per_slab,
                cache.sheaf_capacity,
                cache.sheaf_capacity,
                0,
                cache.slabs.saturating_sub(cache.empty_slabs),
                cache.slabs,
                0
            )?;
        }
        Ok(())
    }
}

/// A string as JSON writes it, quotes included.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
