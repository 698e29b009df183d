//! oneTBB's scalable allocator: the system's libtbbmalloc, opened when the program runs, with its own functions
//! (`scalable_malloc`, `scalable_free`) and default settings: no huge pages, no limit. Its proxy, which takes
//! over malloc, is another library and is not touched. It has no sized free.

use super::found::{Call, Library};
use super::{About, Contestant, Entry};
use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub const NAME: &str = "TBB";

const FILE: &str = "libtbbmalloc.so.2";
const PACKAGE: &str = "libtbbmalloc2";

static MALLOC: Call<unsafe extern "C" fn(usize) -> *mut c_void> = Call::unbound();
static FREE: Call<unsafe extern "C" fn(*mut c_void)> = Call::unbound();
static PATH: OnceLock<PathBuf> = OnceLock::new();

struct Tbb;

/// The contestant, if the library is there.
pub fn find() -> Result<Entry, String> {
    let library = Library::open(FILE, PACKAGE)?;
    // SAFETY: oneapi/tbb/scalable_allocator.h declares them with these types.
    unsafe {
        MALLOC.bind(&library, c"scalable_malloc")?;
        FREE.bind(&library, c"scalable_free")?;
    }
    PATH.get_or_init(|| library.path(c"scalable_malloc").unwrap_or_else(|| FILE.into()));
    library.keep();
    Ok(Entry::of::<Tbb>())
}

/// What the library prints about itself under `TBB_VERSION=1`. It has no function for it (that of
/// `TBB_runtime_interface_version` is in libtbb), so its text is read from the file; or else the file's number.
fn version(path: &Path) -> String {
    let file = fs::read(path).unwrap_or_default();
    let said = version_in(&file);
    let number = || path.to_string_lossy().split_once(".so.").map(|(_, number)| format!(".so.{number}"));
    said.or_else(number).unwrap_or_else(|| "unknown".into())
}

fn version_in(file: &[u8]) -> Option<String> {
    const LABEL: &[u8] = b"TBBmalloc: VERSION";
    let start = file.windows(LABEL.len()).position(|window| window == LABEL)? + LABEL.len();
    let text = file[start..].split(|byte| matches!(byte, 0 | b'\n')).next()?;
    Some(std::str::from_utf8(text).ok()?.trim().to_owned()).filter(|version| !version.is_empty())
}

impl Contestant for Tbb {
    const NAME: &'static str = NAME;

    fn about() -> About {
        let path = PATH.get().map_or(Path::new(FILE), PathBuf::as_path);
        About {
            name: Self::NAME,
            version: version(path),
            build: format!("the system's {}, opened at run time, default options", path.display()),
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
        // SAFETY: bound as above; the caller's pointer is live and from scalable_malloc.
        unsafe { FREE.get()(pointer.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_what_the_library_says() {
        let file = b"\x7fELF\0TBBmalloc: VERSION\t\t2021.8\nTBBmalloc: INTERFACE VERSION\t12080\n";
        assert_eq!(version_in(file).as_deref(), Some("2021.8"));
        assert_eq!(version_in(b"TBBmalloc: VERSIO"), None);
        assert_eq!(version(Path::new("/nowhere/libtbbmalloc.so.2.8")), ".so.2.8");
        assert_eq!(version(Path::new("/nowhere")), "unknown");
    }

    #[test]
    fn it_is_found_or_there_is_a_line() {
        match find() {
            Ok(entry) => assert_eq!((entry.about)().name, NAME),
            Err(why) => assert!(why.contains(FILE) && !why.contains('\n'), "{why}"),
        }
    }
}
