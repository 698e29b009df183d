//! snmalloc, from snmalloc-sys with its `build_cc` feature. Not through cmake, its default: that build takes
//! Cargo's line tables for a debug build and measured 110 ns a pair. `build_cc` compiles at the profile's
//! optimisation level but never defines NDEBUG, without which snmalloc keeps its assertions; the workspace's
//! .cargo/config.toml gives it through `CXXFLAGS_TARGET`, and where that was not in force the results carry a
//! warning. Called through `libc-api` (sn_malloc and sn_free, what a C program would call); the sized free is
//! the one its Rust binding uses.

use super::{About, Contestant};
use snmalloc_sys::{sn_free, sn_malloc};
use std::ffi::c_void;

// SAFETY: the signature of snmalloc's rust.cc; the crate's own declaration returns a `c_void`, an enum that a
// C void function never made.
unsafe extern "C" {
    fn sn_rust_dealloc(pointer: *mut c_void, alignment: usize, size: usize);
}

/// sn_malloc aligns at least so; the sized free is told the same, and rounds sizes as sn_malloc does.
const ALIGN: usize = 1;

pub struct Snmalloc;

impl Contestant for Snmalloc {
    const NAME: &'static str = "snmalloc";

    fn about() -> About {
        let warning = match env!("USLAB_BENCH_CXX_NDEBUG") {
            "1" => String::new(),
            _ => "built without -DNDEBUG, so with its assertions: slower than it is".into(),
        };
        About {
            name: Self::NAME,
            version: concat!("snmalloc-sys ", env!("USLAB_BENCH_SNMALLOC_SYS")).into(),
            build: "build_cc, static, C++20".into(),
            warning,
        }
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        // SAFETY: malloc has no conditions.
        unsafe { sn_malloc(size).cast() }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        // SAFETY: the caller's pointer is live and from the malloc above.
        unsafe { sn_free(pointer.cast()) }
    }

    #[inline(always)]
    unsafe fn free_sized(pointer: *mut u8, size: usize) {
        // SAFETY: as for `free`; with alignment 1 the size class is that of sn_malloc(size).
        unsafe { sn_rust_dealloc(pointer.cast(), ALIGN, size) }
    }
}
