//! DPDK's mempool, the rival in bulk: objects of one size, got and put many at a time, with a cache for each thread.
//! It is no general allocator (a pool is made for so many objects, and never grows), so it is compared in a column of
//! its own and never is the best peer ([`Role::Rival`](crate::results::Role::Rival)).
//!
//! Its bulk calls are inline functions of C headers. So the first row that has it compiles a shim against the
//! headers of this machine (dpdk_shim.c, -O3 and the flags that its package names), opens it, and sets DPDK up: without huge pages or
//! devices, on one thread. What is missing for that leaves it out with a line.
//!
//! A timed call is one C call of the shim: of N objects, one. The row "uslab malloc, bulk" is called likewise;
//! uslab's typed bulk is inlined in Rust, as DPDK's is in C programs, which for a bulk of 64 is a few hundredths of
//! a nanosecond an object. The shim's header says what of rte_mempool_get_bulk is replaced, in DPDK's favour. The package's
//! flags are for any processor that DPDK supports, as everybody else here is built for any processor of its
//! architecture. With -march=native a bulk of 64 takes 0.21 ns an object on Zen 4 and not 0.31 (docs/adr/0011).
//!
//! Must never: be set up while rows are planned, since it takes half a second and memory; leave a file behind.

use super::found::{Call, Library, Missing};
use super::{About, Contestant, Entry, uslab_cache};
use std::cell::Cell;
use std::env;
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};
use std::sync::{Mutex, OnceLock, PoisonError};

pub const NAME: &str = "DPDK mempool";

const SHIM: &str = include_str!("dpdk_shim.c");

/// Debian's name of what holds the headers and the libraries.
const PACKAGE: &str = "libdpdk-dev";
const MODULE: &str = "libdpdk";

/// Objects of a pool: the largest live set of the tables (4096) and a thread's cache beside it. DPDK's ring is best
/// used by one less than a power of two.
const POOL_OBJECTS: c_uint = 8191;

static START: Call<unsafe extern "C" fn() -> *const c_char> = Call::unbound();
static VERSION: Call<unsafe extern "C" fn() -> *const c_char> = Call::unbound();
static POOL: Call<unsafe extern "C" fn(*const c_char, c_uint, c_uint) -> *mut c_void> = Call::unbound();
static CACHE: Call<unsafe extern "C" fn() -> *mut c_void> = Call::unbound();
static GET: Call<unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut c_void> = Call::unbound();
static PUT: Call<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void)> = Call::unbound();
static GET_BULK: Call<GetBulk> = Call::unbound();
static PUT_BULK: Call<PutBulk> = Call::unbound();

type GetBulk = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void, c_uint) -> c_int;
type PutBulk = unsafe extern "C" fn(*mut c_void, *mut c_void, *const *mut c_void, c_uint);

const SIZES: usize = uslab_cache::SIZES.len();

/// The pool of each size; null before its first use.
static POOLS: [AtomicPtr<c_void>; SIZES] = [const { AtomicPtr::new(null_mut()) }; SIZES];

thread_local! {
    /// This thread's cache for each pool; null before its first use. Not freed when the thread ends: its objects
    /// are few, and the pools last as long as the process.
    static CACHES: [Cell<*mut c_void>; SIZES] = const { [const { Cell::new(null_mut()) }; SIZES] };
}

/// A pool of objects of SIZE bytes, one of those that there is a typed cache for.
struct Mempool<const SIZE: usize>;

/// The mempool of `size`. `None`: no pool of that size is foreseen. Whether DPDK is there shows at its first use.
pub fn entry(size: usize) -> Option<Entry> {
    Some(match size {
        16 => Entry::of::<Mempool<16>>(),
        64 => Entry::of::<Mempool<64>>(),
        256 => Entry::of::<Mempool<256>>(),
        1024 => Entry::of::<Mempool<1024>>(),
        4096 => Entry::of::<Mempool<4096>>(),
        _ => return None,
    })
}

/// How it is, if it has taken part.
pub fn about() -> Option<About> {
    let started = STARTED.get()?.as_ref().ok()?;
    Some(About {
        name: NAME,
        version: started.version.clone(),
        build: started.build.clone(),
        warning: String::new(),
    })
}

/// Why it could not take part, if it should have.
pub fn missing() -> Option<Missing> {
    let why = STARTED.get()?.as_ref().err()?.clone();
    Some(Missing { name: NAME, why })
}

struct Started {
    version: String,
    build: String,
}

/// Set by the first use, for good: DPDK is set up once in the life of a process.
static STARTED: OnceLock<Result<Started, String>> = OnceLock::new();

fn start() -> Result<Started, String> {
    let folder = tempfile::Builder::new()
        .prefix("uslab-bench-")
        .tempdir()
        .map_err(|e| format!("no scratch folder: {e}"))?;
    let flags = Flags::of(MODULE)?;
    let shim = compile(SHIM, &flags, folder.path())?;
    let library = Library::open_at(&shim).map_err(|why| format!("its shim cannot be loaded: {why}"))?;
    // SAFETY: dpdk_shim.c, from which the library was compiled a line above, defines them with these types.
    unsafe {
        START.bind(&library, c"uslab_peer_dpdk_start")?;
        VERSION.bind(&library, c"uslab_peer_dpdk_version")?;
        POOL.bind(&library, c"uslab_peer_dpdk_pool")?;
        CACHE.bind(&library, c"uslab_peer_dpdk_cache")?;
        GET.bind(&library, c"uslab_peer_dpdk_get")?;
        PUT.bind(&library, c"uslab_peer_dpdk_put")?;
        GET_BULK.bind(&library, c"uslab_peer_dpdk_get_bulk")?;
        PUT_BULK.bind(&library, c"uslab_peer_dpdk_put_bulk")?;
    }
    library.keep();
    // SAFETY: bound and kept; called once, by whoever sets STARTED.
    if let Some(why) = text(unsafe { START.get()() }) {
        return Err(format!("DPDK cannot be set up without huge pages and devices: {why}"));
    }
    // SAFETY: bound and kept; it has no conditions.
    let version = text(unsafe { VERSION.get()() }).unwrap_or_else(|| "unknown".into());
    let version = version.trim_start_matches("DPDK").trim().to_owned();
    let build = format!(
        "the system's {MODULE} in {}, inline functions compiled at run time with -O3 and its package's flags, no huge pages, a bulk is one C call",
        flags.folder
    );
    Ok(Started { version, build })
}

/// The static string that a function of the shim returned; `None` for null.
fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: a string constant of DPDK or of the shim, neither of which is unloaded.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

/// What pkg-config says about a module.
struct Flags {
    compile: Vec<String>,
    link: Vec<String>,
    /// Where its libraries are.
    folder: String,
}

impl Flags {
    fn of(module: &str) -> Result<Self, String> {
        let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
        let ask = |what: &str| -> Result<String, String> {
            let output = Command::new(&program).args([what, module]).output();
            let output = output.map_err(|e| {
                format!("pkg-config is needed to find it ({e}; Debian: pkg-config, {PACKAGE})")
            })?;
            if !output.status.success() {
                return Err(format!("{module} is not installed (Debian: {PACKAGE})"));
            }
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect();
        Ok(Self {
            compile: words(ask("--cflags")?),
            link: words(ask("--libs")?),
            folder: ask("--variable=libdir")?,
        })
    }
}

/// Compiles `source` into a shared library in `folder`.
fn compile(source: &str, flags: &Flags, folder: &Path) -> Result<PathBuf, String> {
    let (from, to) = (folder.join("shim.c"), folder.join("shim.so"));
    fs::write(&from, source).map_err(|e| format!("cannot write {}: {e}", from.display()))?;
    let compiler = env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    let output = Command::new(compiler)
        .args(["-O3", "-shared", "-fPIC"])
        .args(&flags.compile)
        .arg("-o")
        .args([&to, &from])
        .args(&flags.link)
        .output()
        .map_err(|e| format!("a C compiler is needed for its inline functions ({e}; Debian: gcc)"))?;
    if output.status.success() {
        return Ok(to);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line =
        said.lines().find(|line| line.contains("error")).or(said.lines().next()).unwrap_or("no reason given");
    Err(format!("its inline functions do not compile: {}", line.trim()))
}

/// Makes the pool of SIZE, and DPDK before it.
fn make_ready<const SIZE: usize>() -> Result<(), String> {
    static MAKING: Mutex<()> = Mutex::new(());
    STARTED.get_or_init(start).as_ref().map_err(Clone::clone)?;
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = &POOLS[Mempool::<SIZE>::AT];
    if pool.load(Acquire).is_null() {
        let name = CString::new(format!("uslab-bench-{SIZE}")).map_err(|e| e.to_string())?;
        // SAFETY: bound since STARTED is Ok; the name is a string and outlives the call, which copies it.
        let made = unsafe { POOL.get()(name.as_ptr(), POOL_OBJECTS, SIZE as c_uint) };
        if made.is_null() {
            return Err(format!("DPDK has no memory for a pool of {POOL_OBJECTS} objects of {SIZE} bytes"));
        }
        pool.store(made, Release);
    }
    Ok(())
}

impl<const SIZE: usize> Mempool<SIZE> {
    /// Its place among the sizes.
    const AT: usize = {
        let mut at = 0;
        while uslab_cache::SIZES[at] != SIZE {
            at += 1;
        }
        at
    };

    /// The pool, and this thread's cache for it.
    #[inline(always)]
    fn pool_and_cache() -> (*mut c_void, *mut c_void) {
        let cache = CACHES.with(|caches| caches[Self::AT].get());
        let cache = if cache.is_null() { Self::new_cache() } else { cache };
        // Relaxed would do: `new_cache` acquired it in this thread.
        (POOLS[Self::AT].load(Acquire), cache)
    }

    /// A thread's first call.
    #[cold]
    #[inline(never)]
    fn new_cache() -> *mut c_void {
        if let Err(why) = make_ready::<SIZE>() {
            eprintln!("uslab-bench: {NAME}: {why}");
            std::process::exit(1);
        }
        // SAFETY: bound, since it is ready.
        let cache = unsafe { CACHE.get()() };
        if cache.is_null() {
            crate::rounds::out_of_memory(NAME);
        }
        CACHES.with(|caches| caches[Self::AT].set(cache));
        cache
    }
}

impl<const SIZE: usize> Contestant for Mempool<SIZE> {
    const NAME: &'static str = NAME;

    fn about() -> About {
        let unready = || About {
            name: NAME,
            version: "not set up".into(),
            build: String::new(),
            warning: String::new(),
        };
        about().unwrap_or_else(unready)
    }

    fn ready() -> Result<(), String> {
        make_ready::<SIZE>()
    }

    #[inline(always)]
    fn alloc(_size: usize) -> *mut u8 {
        let (pool, cache) = Self::pool_and_cache();
        // SAFETY: bound, since there is a cache; both are of this pool, and the cache is this thread's alone.
        unsafe { GET.get()(pool, cache).cast() }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        let (pool, cache) = Self::pool_and_cache();
        // SAFETY: as above; the caller's pointer is live and of this pool.
        unsafe { PUT.get()(pool, cache, pointer.cast()) }
    }

    #[inline(always)]
    fn alloc_bulk(_size: usize, objects: &mut [*mut u8]) -> bool {
        let (pool, cache) = Self::pool_and_cache();
        let (data, count) = (objects.as_mut_ptr().cast(), objects.len() as c_uint);
        // SAFETY: as above; `data` has room for `count` pointers.
        unsafe { GET_BULK.get()(pool, cache, data, count) == 0 }
    }

    #[inline(always)]
    unsafe fn free_bulk(_size: usize, objects: &[*mut u8]) {
        let (pool, cache) = Self::pool_and_cache();
        let (data, count) = (objects.as_ptr().cast(), objects.len() as c_uint);
        // SAFETY: as above; each of the `count` pointers is live and of this pool, by the caller's promise.
        unsafe { PUT_BULK.get()(pool, cache, data, count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestants::tests::works;

    fn cpus() -> Vec<bool> {
        // SAFETY: a cpu_set_t is plain bits.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes at most the given size; 0 is the calling thread.
        let failed = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
        assert_eq!(failed, 0);
        // SAFETY: each number is below CPU_SETSIZE.
        (0..libc::CPU_SETSIZE as usize).map(|cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
    }

    #[test]
    fn pools_of_all_sizes_work_in_any_thread_or_there_is_a_line() {
        let before = cpus();
        for &size in uslab_cache::SIZES {
            let entry = entry(size).expect("a size of the typed caches has a pool");
            if let Err(why) = (entry.ready)() {
                assert!(!why.is_empty() && !why.contains('\n'), "{why}");
                assert_eq!(missing(), Some(Missing { name: NAME, why }));
                return;
            }
            works(&entry, size);
            std::thread::spawn(move || works(&entry, size))
                .join()
                .expect("a second thread has its own cache");
        }
        assert_eq!(cpus(), before, "the thread may use the CPUs it could use before");
        assert!(missing().is_none());
        assert!(about().is_some_and(|about| !about.version.is_empty()));
    }

    #[test]
    fn a_module_that_is_not_installed_is_a_line_that_names_the_package() {
        let why = Flags::of("libno-such-module").err().expect("there is no such module");
        assert!(why.contains("libdpdk-dev") && !why.contains('\n'), "{why}");
    }

    #[test]
    fn a_shim_that_does_not_compile_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let flags = Flags { compile: Vec::new(), link: Vec::new(), folder: String::new() };
        let why = compile("#error not today\n", &flags, folder.path()).unwrap_err();
        assert!(!why.contains('\n'), "{why}");
    }

    #[test]
    fn there_is_no_pool_of_other_sizes() {
        assert!(entry(7).is_none());
    }
}
