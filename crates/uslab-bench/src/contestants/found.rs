//! Peers that are shared libraries of the system: a table. They are found when the program runs,
//! and left out with a line when they are not there.
//!
//! * **gperftools**' tcmalloc, with caches per thread. Google's present one (caches per CPU) is
//!   left out: no Debian package has it. Builds of it from crates measured 20 ns a pair, where 4 ns
//!   is published.
//! * **TBB**, oneTBB's scalable allocator. Its proxy, which takes over malloc, is another library
//!   and is not touched. It has no sized free.
//!
//! Both are called by their own functions, with default options.
//!
//! ```text
//!   Library::open(file, package) ── dlopen, RTLD_NOW and RTLD_LOCAL; never closed again
//!         │                         an error is one line that says what to install
//!   Call::bind(library, symbol) ── the function's address in a static
//!         │
//!   (CALL.get())(…) ── in the loop: one load and an indirect call
//! ```
//!
//! Every call into a shared library has this load and indirect call (through the global offset
//! table, as for glibc's malloc here). So these peers are called as their users call them.
//!
//! RTLD_LOCAL keeps the library's `malloc`, where it has one, out of the global scope. Must never:
//! use RTLD_GLOBAL; unload a library, whose objects and threads' exit hooks may live on.

use super::{About, Contestant};
use libloading::os::unix;
use std::ffi::{CStr, c_void};
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A contestant of a library: its name, the library's file and Debian's package, its malloc, its
/// free, its sized free if it has one, and the words before the version in the file.
macro_rules! found {
    (
        $type:ident, $name:literal, $file:literal, $package:literal, $malloc:literal, $free:literal,
        sized: $sized:expr, version: $label:literal
    ) => {
        pub struct $type;

        const _: () = {
            static MALLOC: Call<unsafe extern "C" fn(usize) -> *mut c_void> = Call::unbound();
            static FREE: Call<unsafe extern "C" fn(*mut c_void)> = Call::unbound();
            const SIZED: Option<&CStr> = $sized;
            static FREE_SIZED: Call<unsafe extern "C" fn(*mut c_void, usize)> = Call::unbound();
            static PATH: OnceLock<PathBuf> = OnceLock::new();

            impl $type {
                /// Opens the library; the error is one line.
                pub fn open() -> Result<(), String> {
                    let library = Library::open($file, $package)?;
                    // SAFETY: the library's headers declare them with these types.
                    unsafe {
                        MALLOC.bind(&library, $malloc)?;
                        FREE.bind(&library, $free)?;
                        SIZED.map_or(Ok(()), |name| FREE_SIZED.bind(&library, name))?;
                    }
                    PATH.get_or_init(|| library.path($malloc).unwrap_or_else(|| $file.into()));
                    library.keep();
                    Ok(())
                }
            }

            impl Contestant for $type {
                const NAME: &'static str = $name;

                fn about() -> About {
                    let path = PATH.get().map_or(Path::new($file), PathBuf::as_path);
                    let build =
                        format!("the system's {}, opened at run time, default options", path.display());
                    About::new(Self::NAME, version(path, $label), build)
                }

                #[inline(always)]
                fn alloc(size: usize) -> *mut u8 {
                    // SAFETY: a contestant in use was opened; malloc has no conditions.
                    unsafe { MALLOC.get()(size).cast() }
                }

                #[inline(always)]
                unsafe fn free(pointer: *mut u8, _size: usize) {
                    // SAFETY: opened as above; the caller's pointer is live and from its malloc.
                    unsafe { FREE.get()(pointer.cast()) }
                }

                #[inline(always)]
                unsafe fn free_sized(pointer: *mut u8, size: usize) {
                    // SAFETY: as for `free`, and `size` is what was asked for.
                    unsafe {
                        match SIZED {
                            Some(_) => FREE_SIZED.get()(pointer.cast(), size),
                            None => Self::free(pointer, size),
                        }
                    }
                }
            }
        };
    };
}

found!(
    Gperftools, "gperftools", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4",
    c"tc_malloc", c"tc_free", sized: Some(c"tc_free_sized"), version: "gperftools "
);

found!(
    Tbb, "TBB", "libtbbmalloc.so.2", "libtbbmalloc2",
    c"scalable_malloc", c"scalable_free", sized: None, version: "TBBmalloc: VERSION"
);

/// The version in the library's file, behind `label`; or else the number in the file's name.
fn version(path: &Path, label: &str) -> String {
    let file = fs::read(path).unwrap_or_default();
    let number = || path.to_string_lossy().split_once(".so.").map(|(_, number)| format!(".so.{number}"));
    version_in(&file, label).or_else(number).unwrap_or_else(|| "unknown".into())
}

fn version_in(file: &[u8], label: &str) -> Option<String> {
    let mut places = file.windows(label.len()).enumerate().filter(|(_, bytes)| *bytes == label.as_bytes());
    places.find_map(|(at, _)| {
        let text = file[at + label.len()..].split(|byte| matches!(byte, 0 | b'\n')).next()?;
        let text = std::str::from_utf8(text).ok()?.trim();
        text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.to_owned())
    })
}

/// An open shared library.
pub struct Library {
    library: unix::Library,
    file: String,
}

impl Library {
    /// Opens `file`, which the loader finds on its search path. `package` is the Debian package
    /// that contains it. An error is one line.
    pub fn open(file: &str, package: &str) -> Result<Self, String> {
        // SAFETY: the library is an allocator, whose initialisers set up their own state only.
        let library = unsafe { unix::Library::open(Some(file), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let library = library.map_err(|error| {
            // The error's source has the loader's own words.
            let why = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
            let why = why.lines().next().unwrap_or_default().trim();
            // A message about another file is about one that this library needs.
            if why.starts_with(file) && why.contains("No such file") {
                format!("{file} is not installed (Debian: {package})")
            } else {
                format!("{file} cannot be loaded: {why}")
            }
        })?;
        Ok(Self { library, file: file.into() })
    }

    fn symbol(&self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the symbol is read as an address alone; nothing is called through it here.
        let symbol = unsafe { self.library.get::<*mut c_void>(name.to_bytes_with_nul()) };
        symbol
            .ok()
            .map(|symbol| symbol.into_raw())
            .filter(|address| !address.is_null())
            .ok_or_else(|| format!("{} has no function {}", self.file, name.to_string_lossy()))
    }

    /// The file that the loader took, behind all links.
    pub fn path(&self, some_symbol: &CStr) -> Option<PathBuf> {
        file_of(self.symbol(some_symbol).ok()?)
    }

    /// Keeps the library for as long as the program runs.
    pub fn keep(self) {
        std::mem::forget(self.library);
    }
}

/// The file, behind all links, of which `address` was loaded.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: a Dl_info is pointers; all null is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address and writes the given Dl_info.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: on success it is a string that lives as long as the library, which is open.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Path::new(name.to_str().ok()?).canonicalize().ok()
}

/// A function of a library that is found at run time. `F` is its type, an `unsafe extern "C" fn`.
pub struct Call<F> {
    address: AtomicPtr<c_void>,
    of: PhantomData<F>,
}

impl<F: Copy> Call<F> {
    pub const fn unbound() -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function pointer") };
        Self { address: AtomicPtr::new(null_mut()), of: PhantomData }
    }

    /// Looks the function up, and keeps its library.
    ///
    /// # Safety
    /// `F` is a function pointer type, and what is called `name` in `library` has that type.
    pub unsafe fn bind(&self, library: &Library, name: &CStr) -> Result<(), String> {
        self.address.store(library.symbol(name)?, Relaxed);
        Ok(())
    }

    /// # Safety
    /// It is bound, and its library is kept.
    #[inline(always)]
    pub unsafe fn get(&self) -> F {
        let address = self.address.load(Relaxed);
        // SAFETY: bound: not null, and of type F by the promise to `bind`; the sizes are equal
        // (`unbound`).
        unsafe { std::mem::transmute_copy(&address) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_one_line_that_names_the_package() {
        let why = Library::open("libno-such-allocator.so.7", "libno-such7").err().unwrap();
        assert_eq!(why, "libno-such-allocator.so.7 is not installed (Debian: libno-such7)");
    }

    #[test]
    fn a_file_that_is_no_library_is_one_line_too() {
        let why = Library::open("/proc/self/status", "none").err().unwrap();
        assert!(why.starts_with("/proc/self/status cannot be loaded: ") && !why.contains('\n'), "{why}");
    }

    #[test]
    fn a_function_is_called_and_one_that_is_missing_is_named() {
        type Abs = unsafe extern "C" fn(i32) -> i32;
        static ABS: Call<Abs> = Call::unbound();
        let library = Library::open("libc.so.6", "libc6").unwrap();
        // SAFETY: this is the type of abs.
        unsafe { ABS.bind(&library, c"abs") }.unwrap();
        assert!(library.path(c"abs").unwrap().is_absolute());
        // SAFETY: the same; it fails.
        let why = unsafe { ABS.bind(&library, c"no_such_function") }.unwrap_err();
        assert_eq!(why, "libc.so.6 has no function no_such_function");
        library.keep();
        // SAFETY: bound and kept above; abs has no conditions for -7.
        assert_eq!(unsafe { ABS.get()(-7) }, 7);
    }

    #[test]
    fn the_version_is_what_the_library_says() {
        let file = b"\x7fELF\0TBBmalloc: VERSION\t\t2021.8\nTBBmalloc: INTERFACE VERSION\t12080\n";
        assert_eq!(version_in(file, "TBBmalloc: VERSION").as_deref(), Some("2021.8"));
        assert_eq!(version_in(b"TBBmalloc: VERSIO", "TBBmalloc: VERSION"), None);
        assert_eq!(version(Path::new("/nowhere/libtbbmalloc.so.2.8"), "x"), ".so.2.8");
        assert_eq!(version(Path::new("/nowhere"), "x"), "unknown");
    }

    /// Where the process's own `malloc` is.
    fn malloc_of_the_process() -> *mut c_void {
        // SAFETY: a look-up of a constant name in the global scope.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) }
    }

    #[test]
    fn the_process_keeps_its_own_malloc() {
        let before = malloc_of_the_process();
        if let Err(why) = Gperftools::open() {
            // Nothing to show on this machine but that the reason is one line.
            assert!(!why.is_empty() && !why.contains('\n'), "{why}");
            return;
        }
        assert_eq!(malloc_of_the_process(), before);
        let theirs = Gperftools::alloc(100);
        // SAFETY: malloc has no conditions.
        let ours = unsafe { libc::malloc(100) };
        // glibc knows what it gave out: its usable size is that of its own chunk, a little above
        // what was asked. SAFETY: live, and glibc's if the process's malloc is.
        let usable = unsafe { libc::malloc_usable_size(ours) };
        assert!((100..128).contains(&usable), "{usable}");
        // SAFETY: each is live and goes back to where it came from.
        unsafe {
            libc::free(ours);
            Gperftools::free(theirs, 100);
        }
    }
}
