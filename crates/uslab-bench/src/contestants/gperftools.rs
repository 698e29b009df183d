//! gperftools' tcmalloc: the system's libtcmalloc_minimal, opened when the program runs, with its own prefixed
//! functions (`tc_malloc`, `tc_free`, `tc_free_sized`) and default options. The library also defines `malloc`;
//! opened locally, it is nobody's (found.rs), and a test holds that.
//!
//! This is the tcmalloc of 2005 and after, with caches per thread. Google's present one (caches per CPU) is left
//! out of the benchmark: no Debian package has it, and builds of it from crates measured 20 ns a pair where 4 ns
//! is published, so their figures would slander it.

use super::found::{Call, Library};
use super::{About, Contestant, Entry};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

pub const NAME: &str = "gperftools";

const FILE: &str = "libtcmalloc_minimal.so.4";
/// Debian 12's; from 13 on it is called libtcmalloc-minimal4t64.
const PACKAGE: &str = "libtcmalloc-minimal4";

static MALLOC: Call<unsafe extern "C" fn(usize) -> *mut c_void> = Call::unbound();
static FREE: Call<unsafe extern "C" fn(*mut c_void)> = Call::unbound();
static FREE_SIZED: Call<unsafe extern "C" fn(*mut c_void, usize)> = Call::unbound();
static VERSION: Call<Version> = Call::unbound();
static PATH: OnceLock<PathBuf> = OnceLock::new();

/// `const char* tc_version(int* major, int* minor, const char** patch)`.
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut *const c_char) -> *const c_char;

struct Gperftools;

/// The contestant, if the library is there.
pub fn find() -> Result<Entry, String> {
    let library = Library::open(FILE, PACKAGE)?;
    // SAFETY: gperftools/tcmalloc.h declares them with these types.
    unsafe {
        MALLOC.bind(&library, c"tc_malloc")?;
        FREE.bind(&library, c"tc_free")?;
        FREE_SIZED.bind(&library, c"tc_free_sized")?;
        VERSION.bind(&library, c"tc_version")?;
    }
    PATH.get_or_init(|| library.path(c"tc_malloc").unwrap_or_else(|| FILE.into()));
    library.keep();
    Ok(Entry::of::<Gperftools>())
}

fn version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, std::ptr::null());
    // SAFETY: an Entry exists, so `find` bound and kept it; it writes the three, and null is not among them.
    let text = unsafe { VERSION.get()(&raw mut major, &raw mut minor, &raw mut patch) };
    if text.is_null() {
        return format!("{major}.{minor}");
    }
    // SAFETY: a static string of the library: "gperftools 2.10".
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    text.trim_start_matches("gperftools").trim().to_owned()
}

impl Contestant for Gperftools {
    const NAME: &'static str = NAME;

    fn about() -> About {
        let path = PATH.get().map_or(FILE.into(), |path| path.display().to_string());
        About {
            name: Self::NAME,
            version: version(),
            build: format!("the system's {path}, opened at run time, default options"),
            warning: String::new(),
        }
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        // SAFETY: an Entry exists, so `find` bound and kept it; malloc has no conditions.
        unsafe { MALLOC.get()(size).cast() }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        // SAFETY: bound as above; the caller's pointer is live and from tc_malloc.
        unsafe { FREE.get()(pointer.cast()) }
    }

    #[inline(always)]
    unsafe fn free_sized(pointer: *mut u8, size: usize) {
        // SAFETY: as for `free`, and `size` is what was asked for.
        unsafe { FREE_SIZED.get()(pointer.cast(), size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the process's own `malloc` is.
    fn malloc_of_the_process() -> *mut c_void {
        // SAFETY: a look-up of a constant name in the global scope.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) }
    }

    #[test]
    fn the_process_keeps_its_own_malloc() {
        let before = malloc_of_the_process();
        if let Err(why) = find() {
            // Nothing to show on this machine but that the reason is one line.
            assert!(!why.is_empty() && !why.contains('\n'), "{why}");
            return;
        }
        assert_eq!(malloc_of_the_process(), before);
        // SAFETY: bound; malloc has no conditions.
        let theirs = unsafe { MALLOC.get()(100) };
        // SAFETY: malloc has no conditions.
        let ours = unsafe { libc::malloc(100) };
        // glibc knows what it gave out: its usable size is that of its own chunk, a little above what was asked.
        // SAFETY: live, and glibc's if the process's malloc is.
        let usable = unsafe { libc::malloc_usable_size(ours) };
        assert!((100..128).contains(&usable), "{usable}");
        // SAFETY: each is live and goes back to where it came from.
        unsafe {
            libc::free(ours);
            FREE.get()(theirs);
        }
    }
}
