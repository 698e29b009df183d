//! jemalloc, from tikv-jemalloc-sys, which runs jemalloc's own configure and make: -O3, symbols prefixed
//! `_rjem_`, initial-exec TLS, statistics and checks off, options at their defaults. TUNING.md of jemalloc
//! advises background threads for tail latency; they are left off here, because on a machine of few CPUs they
//! would run beside the other contestants' rounds.

use super::{About, Contestant};
use std::ffi::{CStr, c_char};
use tikv_jemalloc_sys as je;

pub struct Jemalloc;

impl Contestant for Jemalloc {
    const NAME: &'static str = "jemalloc";

    fn about() -> About {
        About {
            name: Self::NAME,
            version: version().unwrap_or_else(|| "unknown".into()),
            build: "tikv-jemalloc-sys, static, prefixed, default options".into(),
            warning: String::new(),
        }
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        // SAFETY: malloc has no conditions.
        unsafe { je::malloc(size).cast() }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        // SAFETY: the caller's pointer is live and from the malloc above.
        unsafe { je::free(pointer.cast()) }
    }

    #[inline(always)]
    unsafe fn free_sized(pointer: *mut u8, size: usize) {
        // SAFETY: as for `free`, `size` is what was asked for, and no flag was given then.
        unsafe { je::sdallocx(pointer.cast(), size, 0) }
    }
}

/// The library's own word, up to the commit's hash.
fn version() -> Option<String> {
    let mut text: *const c_char = std::ptr::null();
    let mut length = size_of_val(&text);
    // SAFETY: "version" is read into a `const char *`, whose size is given; nothing is written to jemalloc.
    let failed = unsafe {
        je::mallctl(c"version".as_ptr(), (&raw mut text).cast(), &raw mut length, std::ptr::null_mut(), 0)
    };
    if failed != 0 || text.is_null() {
        return None;
    }
    // SAFETY: on success it points to a static string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    Some(text.split("-g").next().unwrap_or(&text).to_owned())
}
