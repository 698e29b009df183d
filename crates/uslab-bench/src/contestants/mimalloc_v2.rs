//! mimalloc v2, which many programs still ship: compiled by our build script from the sources in
//! libmimalloc-sys, with the flags of mimalloc's release build, its symbols renamed so that v3 can stand
//! beside it. See build.rs.

use super::mimalloc::version_text;
use super::{About, Contestant};
use std::ffi::{c_int, c_void};

// SAFETY: aliases of mi_malloc, mi_free, mi_free_size and mi_version, with their signatures in mimalloc.h.
unsafe extern "C" {
    fn uslab_peer_mi2_malloc(size: usize) -> *mut c_void;
    fn uslab_peer_mi2_free(pointer: *mut c_void);
    fn uslab_peer_mi2_free_size(pointer: *mut c_void, size: usize);
    fn uslab_peer_mi2_version() -> c_int;
}

pub struct MimallocV2;

impl Contestant for MimallocV2 {
    const NAME: &'static str = "mimalloc v2";

    fn about() -> About {
        // SAFETY: it returns a constant.
        let version = unsafe { uslab_peer_mi2_version() };
        About {
            name: Self::NAME,
            version: version_text(version),
            build: concat!(
                "from libmimalloc-sys ",
                env!("USLAB_BENCH_LIBMIMALLOC_SYS"),
                ", static, -O3 -DNDEBUG"
            )
            .into(),
            warning: String::new(),
        }
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        // SAFETY: malloc has no conditions.
        unsafe { uslab_peer_mi2_malloc(size).cast() }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        // SAFETY: the caller's pointer is live and from the malloc above.
        unsafe { uslab_peer_mi2_free(pointer.cast()) }
    }

    #[inline(always)]
    unsafe fn free_sized(pointer: *mut u8, size: usize) {
        // SAFETY: as for `free`, and `size` is what was asked for.
        unsafe { uslab_peer_mi2_free_size(pointer.cast(), size) }
    }
}
