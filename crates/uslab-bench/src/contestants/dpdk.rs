//! DPDK's mempool, the rival in bulk: objects of one size, got and put many at a time, with a cache
//! for each thread. It is no general allocator (a pool is made for so many objects, and never
//! grows), so it is compared in a column of its own and never is the best peer
//! ([`Role::Rival`](crate::results::Role::Rival)).
//!
//! Its bulk calls are inline functions of C headers. So the first row that has it compiles a shim
//! against the headers of this machine (dpdk_shim.c, -O3 and the flags that its package names),
//! opens it, and sets DPDK up: without huge pages or devices, on one thread. What is missing for
//! that leaves it out with a line. The rows of a run have one size of objects, so there is one
//! pool.
//!
//! A timed call is one C call of the shim: of N objects, one. The row "uslab malloc, bulk" is
//! called likewise; uslab's typed bulk is inlined in Rust, as DPDK's is in C programs, which for a
//! bulk of 64 is a few hundredths of a nanosecond an object. The shim's header says what of
//! rte_mempool_get_bulk is replaced, in DPDK's favour. The package's flags are for any processor
//! that DPDK supports, as everybody else here is built for any processor of its architecture. With
//! -march=native a bulk of 64 takes 0.21 ns an object on Zen 4 and not 0.31 (docs/adr/0011).
//!
//! Must never: be set up while rows are planned, since it takes half a second and memory; leave a
//! file behind.

use super::found::{Call, Library};
use super::{About, Contestant, out_of_memory};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::OnceLock;

const NAME: &str = "DPDK mempool";

const SHIM: &str = include_str!("dpdk_shim.c");
const MODULE: &str = "libdpdk";

/// Compiles shim.c into shim.so against the module $1, and prints where its libraries are.
const COMPILE: &str = r#"
say() { echo "$1" >&2; exit 1; }
: "${PKG_CONFIG:=pkg-config}" "${CC:=cc}"
command -v $PKG_CONFIG >/dev/null || say "pkg-config is needed to find it (Debian: pkg-config, libdpdk-dev)"
$PKG_CONFIG --exists $1 || say "$1 is not installed (Debian: libdpdk-dev)"
command -v $CC >/dev/null || say "a C compiler is needed for its inline functions (Debian: gcc)"
$CC -O3 -shared -fPIC $($PKG_CONFIG --cflags $1) -o shim.so shim.c $($PKG_CONFIG --libs $1) 2>log ||
    say "its inline functions do not compile: $(grep -m1 error log)"
$PKG_CONFIG --variable=libdir $1
"#;

/// Objects of the pool: the largest live set of the tables (4096) and a thread's cache beside it.
/// DPDK's ring is best used by one less than a power of two.
const POOL_OBJECTS: c_uint = 8191;

static START: Call<unsafe extern "C" fn() -> *const c_char> = Call::unbound();
static VERSION: Call<unsafe extern "C" fn() -> *const c_char> = Call::unbound();
static MAKE: Call<unsafe extern "C" fn(*const c_char, c_uint, c_uint) -> *mut c_void> = Call::unbound();
static CACHE: Call<unsafe extern "C" fn() -> *mut c_void> = Call::unbound();
static GET: Call<unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut c_void> = Call::unbound();
static PUT: Call<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void)> = Call::unbound();
static GET_BULK: Call<GetBulk> = Call::unbound();
static PUT_BULK: Call<PutBulk> = Call::unbound();

type GetBulk = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void, c_uint) -> c_int;
type PutBulk = unsafe extern "C" fn(*mut c_void, *mut c_void, *const *mut c_void, c_uint);

/// DPDK, set up once in the life of the process by its first use; or why it is not.
static STARTED: OnceLock<Result<About, String>> = OnceLock::new();

/// The pool's address, and the size of its objects.
static POOL: OnceLock<(usize, usize)> = OnceLock::new();

thread_local! {
    /// The pool, and this thread's cache for it; null before its first call. The cache is not freed
    /// when the thread ends: its objects are few, and the pool lasts as long as the process.
    static PLACES: Cell<(*mut c_void, *mut c_void)> = const { Cell::new((null_mut(), null_mut())) };
}

/// What the results say of it, if it took part.
pub fn took_part() -> Option<About> {
    STARTED.get()?.as_ref().ok().cloned()
}

/// Why it could not take part, if it should have.
pub fn why_not() -> Option<String> {
    STARTED.get()?.as_ref().err().cloned()
}

fn start() -> Result<About, String> {
    let folder = tempfile::Builder::new().prefix("uslab-bench-").tempdir();
    let folder = folder.map_err(|e| format!("no scratch folder: {e}"))?;
    let libraries = compile(SHIM, MODULE, folder.path())?;
    let library = Library::open_at(&folder.path().join("shim.so"))
        .map_err(|why| format!("its shim cannot be loaded: {why}"))?;
    // SAFETY: dpdk_shim.c, from which the library was compiled, defines them with these types.
    unsafe {
        START.bind(&library, c"uslab_peer_dpdk_start")?;
        VERSION.bind(&library, c"uslab_peer_dpdk_version")?;
        MAKE.bind(&library, c"uslab_peer_dpdk_pool")?;
        CACHE.bind(&library, c"uslab_peer_dpdk_cache")?;
        GET.bind(&library, c"uslab_peer_dpdk_get")?;
        PUT.bind(&library, c"uslab_peer_dpdk_put")?;
        GET_BULK.bind(&library, c"uslab_peer_dpdk_get_bulk")?;
        PUT_BULK.bind(&library, c"uslab_peer_dpdk_put_bulk")?;
    }
    library.keep();
    // SAFETY: bound and kept; called once, as STARTED is set.
    if let Some(why) = text(unsafe { START.get()() }) {
        return Err(format!("DPDK cannot be set up without huge pages and devices: {why}"));
    }
    // SAFETY: bound and kept; it has no conditions.
    let version = text(unsafe { VERSION.get()() }).unwrap_or_else(|| "unknown".into());
    let build = format!(
        "the system's {MODULE} in {libraries}, inline functions compiled at run time with -O3 and its \
         package's flags, no huge pages, a bulk is one C call"
    );
    Ok(About::new(NAME, version.trim_start_matches("DPDK").trim(), build))
}

/// The static string that a function of the shim returned; `None` for null.
fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: a string constant of DPDK or of the shim, neither of which is unloaded.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

/// Compiles `source` into shim.so in `folder`, and returns where the module's libraries are.
fn compile(source: &str, module: &str, folder: &Path) -> Result<String, String> {
    fs::write(folder.join("shim.c"), source).map_err(|e| format!("cannot write its shim: {e}"))?;
    let output = Command::new("/bin/sh").args(["-c", COMPILE, "sh", module]).current_dir(folder).output();
    let output = output.map_err(|e| format!("a shell is needed to compile its shim ({e})"))?;
    let said = if output.status.success() { &output.stdout } else { &output.stderr };
    let line = String::from_utf8_lossy(said).lines().next().unwrap_or("no reason given").trim().to_owned();
    if output.status.success() { Ok(line) } else { Err(line) }
}

/// A pool of objects of one size.
pub struct Mempool;

impl Mempool {
    /// The pool, and this thread's cache for it.
    #[inline(always)]
    fn pool_and_cache(size: usize) -> (*mut c_void, *mut c_void) {
        let places = PLACES.get();
        if places.0.is_null() { Self::first_call(size) } else { places }
    }

    /// A thread's first call; that of the first thread makes the pool.
    #[cold]
    #[inline(never)]
    fn first_call(size: usize) -> (*mut c_void, *mut c_void) {
        if let Err(why) = Self::ready() {
            eprintln!("uslab-bench: {NAME}: {why}");
            std::process::exit(1);
        }
        let &(pool, of) = POOL.get_or_init(|| {
            // SAFETY: bound, since it is ready; the name is a string.
            let made = unsafe { MAKE.get()(c"uslab-bench".as_ptr(), POOL_OBJECTS, size as c_uint) };
            (made.expose_provenance(), size)
        });
        assert_eq!(of, size, "a run has one size of pooled objects");
        // SAFETY: bound as above.
        let places = (std::ptr::with_exposed_provenance_mut(pool), unsafe { CACHE.get()() });
        if pool == 0 || places.1.is_null() {
            out_of_memory(NAME);
        }
        PLACES.set(places);
        places
    }
}

impl Contestant for Mempool {
    const NAME: &'static str = NAME;

    fn about() -> About {
        took_part().unwrap_or_else(|| About::new(NAME, "not set up", ""))
    }

    fn ready() -> Result<(), String> {
        STARTED.get_or_init(start).as_ref().map(drop).map_err(Clone::clone)
    }

    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        let (pool, cache) = Self::pool_and_cache(size);
        // SAFETY: bound, since there is a cache; both are of this pool, and the cache is this
        // thread's alone.
        unsafe { GET.get()(pool, cache).cast() }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, size: usize) {
        let (pool, cache) = Self::pool_and_cache(size);
        // SAFETY: as above; the caller's pointer is live and of this pool.
        unsafe { PUT.get()(pool, cache, pointer.cast()) }
    }

    #[inline(always)]
    fn alloc_bulk(size: usize, objects: &mut [*mut u8]) -> bool {
        let (pool, cache) = Self::pool_and_cache(size);
        let (data, count) = (objects.as_mut_ptr().cast(), objects.len() as c_uint);
        // SAFETY: as above; `data` has room for `count` pointers.
        unsafe { GET_BULK.get()(pool, cache, data, count) == 0 }
    }

    #[inline(always)]
    unsafe fn free_bulk(size: usize, objects: &[*mut u8]) {
        let (pool, cache) = Self::pool_and_cache(size);
        let (data, count) = (objects.as_ptr().cast(), objects.len() as c_uint);
        // SAFETY: as above; each of the `count` pointers is live and of this pool, by the caller's
        // promise.
        unsafe { PUT_BULK.get()(pool, cache, data, count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_does_not_compile_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let why = compile("", "libno-such-module", folder.path()).unwrap_err();
        assert!(why.contains("libdpdk-dev") && !why.contains('\n'), "{why}");
        let why = compile("#error not today\n", MODULE, folder.path()).unwrap_err();
        assert!(!why.is_empty() && !why.contains('\n'), "{why}");
    }
}
