//! The peers that are linked into this program: a table with a line or two a peer, and the
//! description of each.
//!
//! Each is called as its users call it: a plain call of the C function, linked statically, never
//! installed as the malloc of the process. Its build:
//!
//! * **mimalloc v3**, libmimalloc-sys. Its build script takes the flags of mimalloc's release build
//!   only where Cargo's debug information is off. With line tables on (as in this workspace) it
//!   leaves out NDEBUG and MI_BUILD_RELEASE, but always sets MI_DEBUG=0, which decides over checks
//!   and padding. It has the profile's optimisation level and initial-exec TLS.
//! * **mimalloc v2**, which many programs still ship. build.rs compiles it from the sources in
//!   libmimalloc-sys, and renames its symbols, because v3 is in the same program.
//! * **jemalloc**, tikv-jemalloc-sys, which runs jemalloc's own configure and make: -O3, symbols
//!   prefixed `_rjem_`, initial-exec TLS, statistics and checks off. Background threads, which its
//!   TUNING.md advises, stay off: on few CPUs they would run beside other contestants' rounds.
//! * **snmalloc**, snmalloc-sys with `build_cc`. cmake, its default, takes Cargo's line tables for
//!   a debug build and measured 110 ns a pair. `build_cc` never defines NDEBUG, without which
//!   snmalloc keeps its assertions; the workspace's .cargo/config.toml gives it through
//!   `CXXFLAGS_TARGET`. Where that was not in force, the results carry a warning. The sized free is
//!   that of its Rust binding.
//! * **rpmalloc**, rpmalloc-sys, version 1.4 (2.0 is in no crate), at -O2 as rpmalloc's own build.
//!   It wants each thread announced before its first call and after its last. No sized free.
//! * **glibc**, the malloc of the process, shared with this program's own, untimed, allocations.

use super::{About, Contestant};
use libmimalloc_sys as mi;
use rpmalloc_sys as rp;
use snmalloc_sys::{sn_free, sn_malloc};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;
use tikv_jemalloc_sys as je;

// SAFETY: each signature is that of the library's own header. The crates' declarations of the first
// two lack an argument and return a `c_void`; those of `mi2` are aliases that build.rs makes.
unsafe extern "C" {
    fn rpmalloc_thread_finalize(release_caches: c_int);
    fn sn_rust_dealloc(pointer: *mut c_void, alignment: usize, size: usize);
}

#[cfg(mimalloc_v2)]
// SAFETY: aliases of mi_malloc, mi_free, mi_free_size and mi_version, with their signatures.
unsafe extern "C" {
    fn uslab_peer_mi2_malloc(size: usize) -> *mut c_void;
    fn uslab_peer_mi2_free(pointer: *mut c_void);
    fn uslab_peer_mi2_free_size(pointer: *mut c_void, size: usize);
    fn uslab_peer_mi2_version() -> c_int;
}

/// A contestant of C functions: its name, its malloc, its free, its sized free if it has one, the
/// calls that each of its threads makes, and its description.
macro_rules! peer {
    (
        $type:ident, $name:literal, $malloc:path, $free:path,
        $(sized: $sized:expr,)? $(threads: $enter:expr, $leave:expr,)? about: $about:expr
    ) => {
        pub struct $type;

        impl Contestant for $type {
            const NAME: &'static str = $name;

            fn about() -> About {
                $about
            }

            $(
                fn enter_thread() {
                    $enter();
                }

                fn leave_thread() {
                    $leave();
                }
            )?

            #[inline(always)]
            fn alloc(size: usize) -> *mut u8 {
                // SAFETY: malloc has no conditions but, for rpmalloc, that `enter_thread` ran.
                unsafe { $malloc(size).cast() }
            }

            #[inline(always)]
            unsafe fn free(pointer: *mut u8, _size: usize) {
                // SAFETY: the caller's pointer is live and from the malloc above.
                unsafe { $free(pointer.cast()) }
            }

            $(
                #[inline(always)]
                unsafe fn free_sized(pointer: *mut u8, size: usize) {
                    ($sized)(pointer.cast::<c_void>(), size);
                }
            )?
        }
    };
}

peer!(
    Mimalloc, "mimalloc v3", mi::mi_malloc, mi::mi_free,
    // SAFETY: the caller's pointer is live and from the malloc above, asked for with `size`.
    sized: |pointer, size| unsafe { mi::mi_free_size(pointer, size) },
    about: {
        // SAFETY: it returns a constant.
        let version = mimalloc_version(unsafe { mi::mi_version() });
        let build = concat!("libmimalloc-sys ", env!("USLAB_BENCH_LIBMIMALLOC_SYS"), ", static");
        About::new(Self::NAME, version, build)
    }
);

#[cfg(mimalloc_v2)]
peer!(
    MimallocV2, "mimalloc v2", uslab_peer_mi2_malloc, uslab_peer_mi2_free,
    // SAFETY: the caller's pointer is live and from the malloc above, asked for with `size`.
    sized: |pointer, size| unsafe { uslab_peer_mi2_free_size(pointer, size) },
    about: {
        // SAFETY: it returns a constant.
        let version = mimalloc_version(unsafe { uslab_peer_mi2_version() });
        let source = env!("USLAB_BENCH_LIBMIMALLOC_SYS");
        let build = format!("from libmimalloc-sys {source}, static, -O3 -DNDEBUG");
        About::new(Self::NAME, version, build)
    }
);

peer!(
    Jemalloc, "jemalloc", je::malloc, je::free,
    // SAFETY: as above, and no flag was given to malloc.
    sized: |pointer, size| unsafe { je::sdallocx(pointer, size, 0) },
    about: {
        let version = jemalloc_version().unwrap_or_else(|| "unknown".into());
        About::new(Self::NAME, version, "tikv-jemalloc-sys, static, prefixed, default options")
    }
);

peer!(
    Snmalloc, "snmalloc", sn_malloc, sn_free,
    // SAFETY: as above; with alignment 1 the size class is that of sn_malloc(size).
    sized: |pointer, size| unsafe { sn_rust_dealloc(pointer, 1, size) },
    about: {
        let version = concat!("snmalloc-sys ", env!("USLAB_BENCH_SNMALLOC_SYS"));
        let mut about = About::new(Self::NAME, version, "build_cc, static, C++20");
        if env!("USLAB_BENCH_CXX_NDEBUG") != "1" {
            about.warning = "built without -DNDEBUG, so with its assertions: slower than it is".into();
        }
        about
    }
);

peer!(
    Rpmalloc, "rpmalloc", rp::rpmalloc, rp::rpfree,
    threads: enter_rpmalloc, leave_rpmalloc,
    about: {
        let version = concat!("1.4 (rpmalloc-sys ", env!("USLAB_BENCH_RPMALLOC_SYS"), ")");
        About::new(Self::NAME, version, "static, -O2")
    }
);

peer!(
    Glibc, "glibc", libc::malloc, libc::free,
    about: {
        // SAFETY: it returns a static string and has no conditions.
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        About::new(Self::NAME, version.to_string_lossy(), "the system's shared library")
    }
);

fn enter_rpmalloc() {
    static SET_UP: Once = Once::new();
    SET_UP.call_once(|| {
        // SAFETY: once in the process, before any other call.
        let failed = unsafe { rp::rpmalloc_initialize() };
        assert_eq!(failed, 0, "rpmalloc_initialize failed");
    });
    // SAFETY: the library is set up; a thread that is known already changes nothing.
    unsafe { rp::rpmalloc_thread_initialize() };
}

fn leave_rpmalloc() {
    // SAFETY: this thread announced itself, and has freed what it allocated or handed it on.
    unsafe { rpmalloc_thread_finalize(1) };
}

/// mimalloc writes its version as major, two digits of minor, two of patch; before v2.2 one of
/// minor.
fn mimalloc_version(version: i32) -> String {
    let digits = if version >= 10_000 { (10_000, 100) } else { (100, 10) };
    format!("{}.{}.{}", version / digits.0, version % digits.0 / digits.1, version % digits.1)
}

/// The library's own word, up to the commit's hash.
fn jemalloc_version() -> Option<String> {
    let mut text: *const c_char = std::ptr::null();
    let (mut length, none) = (size_of_val(&text), std::ptr::null_mut());
    // SAFETY: "version" is read into a `const char *`, whose size is given; nothing is written.
    let failed =
        unsafe { je::mallctl(c"version".as_ptr(), (&raw mut text).cast(), &raw mut length, none, 0) };
    if failed != 0 || text.is_null() {
        return None;
    }
    // SAFETY: on success it points to a static string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    Some(text.split("-g").next().unwrap_or(&text).to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_of_mimalloc_in_both_forms() {
        assert_eq!(super::mimalloc_version(30_302), "3.3.2");
        assert_eq!(super::mimalloc_version(212), "2.1.2");
    }
}
