//! Figures: of one cache, of the process, as JSON and as /proc/slabinfo has them.
//!
//! The names in the JSON are those of `uslab info --json`: scripts read both.

use crate::abi::{CacheStats, CacheVisitor, Usage};
use crate::cache::Cache;
use crate::handle::Handle;
use crate::text::{Json, Text};
use crate::{failure, versioned};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt::{self, Write};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI64, AtomicU64};
use uslab::pages::PAGE_BYTES;
use uslab::stats::layout::{self, MAX_RECORDS, NAME_BYTES, Record, STATE_LIVE, STATE_UNUSED};
use uslab::{Mode, stats};

/// # Safety
/// `cache` must be null or a cache; `out` as many bytes as its `type_size` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_get_stats(cache: *const Handle<Cache>, out: *mut CacheStats) -> c_int {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(cache) }) else { return failure::code(libc::EINVAL) };
    let id = inside.raw.core().id();
    if usize::from(id) >= MAX_RECORDS {
        return failure::code(libc::ENODATA);
    }
    uslab::cache::account_all();
    // SAFETY: the caller's promise.
    match unsafe { versioned::write(out, &figures(stats::record(id))) } {
        Ok(()) => 0,
        Err(error) => failure::code(error),
    }
}

/// Copies of the figures go to the visitor, so that it may do what it likes: no lock is held.
///
/// # Safety
/// `visit` must be null or callable with `context`.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_visit_caches(visit: Option<CacheVisitor>, context: *mut c_void) -> c_int {
    let Some(visit) = visit else { return failure::code(libc::EINVAL) };
    uslab::cache::account_all();
    for record in records().filter(|record| record.state.load(Relaxed) == STATE_LIVE) {
        let figures = CacheStats { type_size: size_of::<CacheStats>(), ..figures(record) };
        let mut name = [0; NAME_BYTES + 1];
        with_name(record, |text| name[..text.len()].copy_from_slice(text.as_bytes()));
        // SAFETY: the caller's promise; the name ends with a NUL, as there is one byte more than names have.
        let end = unsafe { visit(context, name.as_ptr().cast(), &raw const figures) };
        if end != 0 {
            return end;
        }
    }
    0
}

/// # Safety
/// `out` must be null or as many bytes as its `type_size` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_get_usage(out: *mut Usage) -> c_int {
    uslab::cache::account_all();
    let usage = stats::usage();
    let usage = Usage {
        type_size: 0,
        used_bytes: usage.used_bytes as u64,
        dirty_bytes: usage.dirty_bytes as u64,
        allocated_bytes: usage.allocated_bytes as u64,
        free_objects: usage.free_objects as u64,
        large_objects: usage.large_objects as u64,
        large_bytes: usage.large_bytes as u64,
    };
    // SAFETY: the caller's promise.
    match unsafe { versioned::write(out, &usage) } {
        Ok(()) => 0,
        Err(error) => failure::code(error),
    }
}

#[unsafe(no_mangle)]
extern "C" fn uslab_mode() -> *const c_char {
    mode_name().as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn uslab_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

fn mode_name() -> &'static CStr {
    match uslab::mode() {
        Mode::Rseq => c"rseq",
        Mode::Locked => c"locked",
    }
}

#[unsafe(no_mangle)]
extern "C" fn uslab_stats_json() -> *mut c_char {
    print(json)
}

#[unsafe(no_mangle)]
extern "C" fn uslab_stats_slabinfo() -> *mut c_char {
    print(slabinfo)
}

fn print(write: fn(&mut Text) -> fmt::Result) -> *mut c_char {
    uslab::cache::account_all();
    let mut text = Text::new();
    let whole = write(&mut text).is_ok();
    let text = if whole { text.finish() } else { core::ptr::null_mut() };
    if text.is_null() { failure::null(libc::ENOMEM) } else { text }
}

/// All records that ever were a cache's.
fn records() -> impl Iterator<Item = &'static Record> {
    let used = stats::header().records_used.load(Relaxed).min(MAX_RECORDS as u32) as u16;
    (0..used).map(stats::record).filter(|record| record.state.load(Relaxed) != STATE_UNUSED)
}

/// The figures of one cache, made consistent: counters that change meanwhile may say less than nothing.
fn figures(record: &Record) -> CacheStats {
    let signed = |counter: &AtomicI64| counter.load(Relaxed).max(0) as u64;
    let plain = |counter: &AtomicU64| counter.load(Relaxed);
    let word = |counter: &core::sync::atomic::AtomicU32| u64::from(counter.load(Relaxed));
    let slabs = signed(&record.slabs);
    let total_objects = slabs * word(&record.objects_per_slab);
    let (slab_free, sheaf_free) = (signed(&record.slab_free), signed(&record.sheaf_free));
    CacheStats {
        type_size: 0,
        user_bytes: word(&record.user_bytes),
        object_bytes: word(&record.object_bytes),
        objects_per_slab: word(&record.objects_per_slab),
        slab_bytes: slabs * word(&record.pages_per_slab) * PAGE_BYTES as u64,
        sheaf_capacity: word(&record.sheaf_capacity),
        slabs,
        partial_slabs: signed(&record.partial_slabs),
        empty_slabs: signed(&record.empty_slabs),
        total_objects,
        active_objects: total_objects.saturating_sub(slab_free + sheaf_free),
        slab_free,
        sheaf_free,
        alloc_slow: plain(&record.alloc_slow),
        free_slow: plain(&record.free_slow),
        refills: plain(&record.refills),
        flushes: plain(&record.flushes),
        drains: plain(&record.drains),
        grows: plain(&record.grows),
        shrinks: plain(&record.shrinks),
        failures: plain(&record.failures),
    }
}

/// Calls `show` with the name in the record.
fn with_name<R>(record: &Record, show: impl FnOnce(&str) -> R) -> R {
    let mut bytes = [0; NAME_BYTES];
    for (place, byte) in bytes.iter_mut().zip(&record.name) {
        *place = byte.load(Relaxed);
    }
    let used = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    // A name that is being replaced may be half of each.
    show(core::str::from_utf8(&bytes[..used]).unwrap_or("?"))
}

fn reason(reason: u32) -> Option<&'static str> {
    Some(match reason {
        layout::REASON_NONE => return None,
        layout::REASON_FORCED => "forced by USLAB_RSEQ=0",
        layout::REASON_NO_SYMBOL => "the C library has no registration",
        layout::REASON_UNREGISTERED => "the C library could not register",
        layout::REASON_NO_MEMBARRIER => "membarrier cannot restart sequences",
        layout::REASON_TOO_MANY_CPUS => "too many CPUs, or an unknown number",
        _ => "sequences are not trusted on this machine",
    })
}

fn json(text: &mut Text) -> fmt::Result {
    let header = stats::header();
    write!(text, "{{\n  \"format\": 1,\n  \"pid\": {},\n", uslab::os::file::process_id())?;
    writeln!(text, "  \"mode\": {},", Json(mode_name().to_str().unwrap_or("?")))?;
    match reason(header.mode_reason.load(Relaxed)) {
        Some(reason) => writeln!(text, "  \"mode_reason\": {},", Json(reason))?,
        None => writeln!(text, "  \"mode_reason\": null,")?,
    }
    for (name, value) in
        [("cpus", &header.cpus), ("nodes", &header.nodes), ("page_bytes", &header.page_bytes)]
    {
        writeln!(text, "  \"{name}\": {},", value.load(Relaxed))?;
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
        writeln!(text, "  \"{name}\": {},", value.load(Relaxed))?;
    }
    text.write_str("  \"caches\": [")?;
    for (at, record) in records().enumerate() {
        text.write_str(if at == 0 { "\n" } else { ",\n" })?;
        json_cache(text, record)?;
    }
    text.write_str("\n  ]\n}\n")
}

fn json_cache(text: &mut Text, record: &Record) -> fmt::Result {
    let all = figures(record);
    write!(text, "    {{\"id\": {}, \"name\": ", record.id.load(Relaxed))?;
    with_name(record, |name| write!(text, "{}", Json(name)))?;
    write!(text, ", \"destroyed\": {}", record.state.load(Relaxed) != STATE_LIVE)?;
    for (name, value) in [
        ("user_bytes", all.user_bytes),
        ("object_bytes", all.object_bytes),
        ("objects_per_slab", all.objects_per_slab),
        ("pages_per_slab", u64::from(record.pages_per_slab.load(Relaxed))),
        ("sheaf_capacity", all.sheaf_capacity),
        ("empty_target", u64::from(record.empty_target.load(Relaxed))),
        ("active_objects", all.active_objects),
        ("total_objects", all.total_objects),
        ("slab_bytes", all.slab_bytes),
        ("slabs", all.slabs),
        ("partial_slabs", all.partial_slabs),
        ("empty_slabs", all.empty_slabs),
        ("slab_free", all.slab_free),
        ("sheaf_free", all.sheaf_free),
        ("alloc_slow", all.alloc_slow),
        ("free_slow", all.free_slow),
        ("refills", all.refills),
        ("flushes", all.flushes),
        ("drains", all.drains),
        ("grows", all.grows),
        ("shrinks", all.shrinks),
        ("failures", all.failures),
    ] {
        write!(text, ", \"{name}\": {value}")?;
    }
    text.write_str("}")
}

/// As `uslab info` prints it: names are one word; `limit` and `batchcount` are what a CPU keeps and moves at once.
fn slabinfo(text: &mut Text) -> fmt::Result {
    text.write_str(
        "slabinfo - version: 2.1\n# name            <active_objs> <num_objs> <objsize> <objperslab> \
         <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> \
         <sharedavail>\n",
    )?;
    let page_bytes = (stats::header().page_bytes.load(Relaxed) as usize).max(PAGE_BYTES);
    for record in records().filter(|record| record.state.load(Relaxed) == STATE_LIVE) {
        let all = figures(record);
        with_name(record, |name| -> fmt::Result {
            let mut width = 0;
            let name = if name.is_empty() { "?" } else { name };
            for c in name.chars() {
                text.write_char(if c.is_whitespace() { '_' } else { c })?;
                width += 1;
            }
            write!(text, "{:1$}", "", 17usize.saturating_sub(width))
        })?;
        let pages = (record.pages_per_slab.load(Relaxed) as usize * PAGE_BYTES).div_ceil(page_bytes);
        writeln!(
            text,
            " {:>6} {:>6} {:>6} {:>4} {pages:>4} : tunables {:>4} {:>4} {:>4} : slabdata {:>6} {:>6} {:>6}",
            all.active_objects,
            all.total_objects,
            all.object_bytes,
            all.objects_per_slab,
            all.sheaf_capacity,
            all.sheaf_capacity,
            0,
            all.slabs.saturating_sub(all.empty_slabs),
            all.slabs,
            0
        )?;
    }
    Ok(())
}
