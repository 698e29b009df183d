//! Figures of one cache and of the process, as structures, as JSON and as `/proc/slabinfo` text.
//!
//! [`uslab::stats`] reads them; this file gives them their C types.

use crate::abi::{CacheStats, CacheVisitor, Usage};
use crate::cache::Cache;
use crate::handle::Handle;
use crate::text::Text;
use crate::{failure, versioned};
use core::ffi::{c_char, c_int, c_void};
use core::fmt::{self, Write};
use uslab::internal::layout::NAME_BYTES;
use uslab::stats::PublishError;
use uslab::{Mode, stats};

/// # Safety
/// `cache` must be null or a cache; `out` as many bytes as its `type_size` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_get_stats(cache: *const Handle<Cache>, out: *mut CacheStats) -> c_int {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(cache) }) else { return failure::code(libc::EINVAL) };
    let Some(figures) = inside.raw.stats() else { return failure::code(libc::ENODATA) };
    // SAFETY: the caller's promise.
    match unsafe { versioned::write(out, &figures.into()) } {
        Ok(()) => 0,
        Err(error) => failure::code(error),
    }
}

#[unsafe(no_mangle)]
extern "C" fn uslab_stats_publish() -> c_int {
    match stats::publish() {
        Ok(()) => 0,
        Err(PublishError::Directory(number)) => failure::code(number),
        Err(PublishError::Untrusted) => failure::code(libc::EACCES),
        Err(_) => failure::code(libc::EIO),
    }
}

/// The visitor gets copies and runs with no lock held, so it may call any function.
///
/// # Safety
/// `visit` must be null or callable with `context`.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_visit_caches(visit: Option<CacheVisitor>, context: *mut c_void) -> c_int {
    let Some(visit) = visit else { return failure::code(libc::EINVAL) };
    for cache in stats::caches() {
        let figures = CacheStats { type_size: size_of::<CacheStats>(), ..cache.into() };
        let mut name = [0; NAME_BYTES + 1];
        let text = cache.name.as_str();
        name[..text.len()].copy_from_slice(text.as_bytes());
        // SAFETY: the caller's promise; the name ends with a NUL, since the array is one byte
        // longer than any name.
        let end = unsafe { visit(context, name.as_ptr().cast(), &raw const figures) };
        if end != 0 {
            return end;
        }
    }
    0
}

impl From<stats::CacheStats> for CacheStats {
    fn from(cache: stats::CacheStats) -> CacheStats {
        CacheStats {
            type_size: 0,
            user_bytes: cache.user_bytes,
            object_bytes: cache.object_bytes,
            objects_per_slab: cache.objects_per_slab,
            slab_bytes: cache.slab_bytes,
            sheaf_capacity: cache.sheaf_capacity,
            slabs: cache.slabs,
            partial_slabs: cache.partial_slabs,
            empty_slabs: cache.empty_slabs,
            total_objects: cache.total_objects,
            active_objects: cache.active_objects,
            slab_free: cache.slab_free,
            sheaf_free: cache.sheaf_free,
            alloc_slow: cache.alloc_slow,
            free_slow: cache.free_slow,
            refills: cache.refills,
            flushes: cache.flushes,
            drains: cache.drains,
            grows: cache.grows,
            shrinks: cache.shrinks,
            failures: cache.failures,
        }
    }
}

/// # Safety
/// `out` must be null or as many bytes as its `type_size` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_get_usage(out: *mut Usage) -> c_int {
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
    let name = match uslab::mode() {
        Mode::Rseq => c"rseq",
        Mode::Locked => c"locked",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn uslab_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
extern "C" fn uslab_stats_json() -> *mut c_char {
    print(format_args!("{}", stats::json()))
}

#[unsafe(no_mangle)]
extern "C" fn uslab_stats_slabinfo() -> *mut c_char {
    print(format_args!("{}", stats::slabinfo()))
}

fn print(figures: fmt::Arguments<'_>) -> *mut c_char {
    let mut text = Text::new();
    let whole = text.write_fmt(figures).is_ok();
    let text = if whole { text.finish() } else { core::ptr::null_mut() };
    if text.is_null() { failure::null(libc::ENOMEM) } else { text }
}
