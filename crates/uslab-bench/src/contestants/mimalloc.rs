//! mimalloc v3, from libmimalloc-sys. Its build script takes the flags of mimalloc's release build only where
//! Cargo's debug information is off; with line tables on (as in this workspace) it leaves out NDEBUG and
//! MI_BUILD_RELEASE, but sets MI_DEBUG=0 always, which is what decides over checks and padding. Either way it
//! is compiled at the profile's optimisation level, with initial-exec TLS.

use super::{About, Contestant};
use libmimalloc_sys::{mi_free, mi_free_size, mi_malloc, mi_version};

pub struct Mimalloc;

impl Contestant for Mimalloc {
    const NAME: &'static str = "mimalloc v3";

    fn about() -> About {
        // SAFETY: it returns a constant.
        let version = unsafe { mi_version() };
        About {
            name: Self::NAME,
            version: version_text(version),
            build: concat!("libmimalloc-sys ", env!("USLAB_BENCH_LIBMIMALLOC_SYS"), ", static").into(),
            warning: String::new(),
        }
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        // SAFETY: malloc has no conditions.
        unsafe { mi_malloc(size).cast() }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        // SAFETY: the caller's pointer is live and from mi_malloc.
        unsafe { mi_free(pointer.cast()) }
    }

    #[inline(always)]
    unsafe fn free_sized(pointer: *mut u8, size: usize) {
        // SAFETY: as for `free`, and `size` is what was asked for.
        unsafe { mi_free_size(pointer.cast(), size) }
    }
}

/// mimalloc writes its version as major, two digits of minor, two of patch; before v2.2 one digit of minor.
pub(super) fn version_text(version: i32) -> String {
    let digits = if version >= 10_000 { (10_000, 100) } else { (100, 10) };
    format!("{}.{}.{}", version / digits.0, version % digits.0 / digits.1, version % digits.1)
}

#[cfg(test)]
mod tests {
    use super::version_text;

    #[test]
    fn versions_of_both_forms() {
        assert_eq!(version_text(30_302), "3.3.2");
        assert_eq!(version_text(212), "2.1.2");
    }
}
