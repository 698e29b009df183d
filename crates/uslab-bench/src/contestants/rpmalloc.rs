//! rpmalloc, from rpmalloc-sys. The crate holds version 1.4 (2.0 is in no crate); its build script compiles
//! at -O2 whatever the profile says, as rpmalloc's own build does, with thread and global caches on and
//! asserts, statistics and overrides off. The library wants to be set up once, and each thread to announce
//! itself before its first call and after its last: without that it crashes. It has no sized free.

use super::{About, Contestant};
use rpmalloc_sys as rp;
use std::ffi::c_int;
use std::sync::Once;

// SAFETY: the signature of rpmalloc.h; the crate's own declaration lacks the argument.
unsafe extern "C" {
    fn rpmalloc_thread_finalize(release_caches: c_int);
}

static SET_UP: Once = Once::new();

pub struct Rpmalloc;

impl Contestant for Rpmalloc {
    const NAME: &'static str = "rpmalloc";

    fn about() -> About {
        About {
            name: Self::NAME,
            version: concat!("1.4 (rpmalloc-sys ", env!("USLAB_BENCH_RPMALLOC_SYS"), ")").into(),
            build: "static, -O2".into(),
            warning: String::new(),
        }
    }

    fn enter_thread() {
        SET_UP.call_once(|| {
            // SAFETY: once in the process, before any other call.
            let failed = unsafe { rp::rpmalloc_initialize() };
            assert_eq!(failed, 0, "rpmalloc_initialize failed");
        });
        // SAFETY: the library is set up; a thread that is known already changes nothing.
        unsafe { rp::rpmalloc_thread_initialize() };
    }

    fn leave_thread() {
        // SAFETY: this thread announced itself, and has freed what it allocated or handed it on.
        unsafe { rpmalloc_thread_finalize(1) };
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        // SAFETY: `enter_thread` ran in this thread.
        unsafe { rp::rpmalloc(size).cast() }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        // SAFETY: the caller's pointer is live and from rpmalloc; `enter_thread` ran in this thread.
        unsafe { rp::rpfree(pointer.cast()) }
    }
}
