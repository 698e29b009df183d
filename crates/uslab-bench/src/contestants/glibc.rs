//! The C library's malloc, as found on this machine: the allocator of whoever chose none. Called through the
//! program's own symbol, as every C program calls it; it is shared with the benchmark's own (untimed)
//! allocations.

use super::{About, Contestant};
use std::ffi::CStr;

pub struct Glibc;

impl Contestant for Glibc {
    const NAME: &'static str = "glibc";

    fn about() -> About {
        // SAFETY: it returns a static string and has no conditions.
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        About {
            name: Self::NAME,
            version: version.to_string_lossy().into_owned(),
            build: "the system's shared library".into(),
            warning: String::new(),
        }
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        // SAFETY: malloc has no conditions.
        unsafe { libc::malloc(size).cast() }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        // SAFETY: the caller's pointer is live and from the malloc above.
        unsafe { libc::free(pointer.cast()) }
    }
}
