//! Peers that are shared libraries of the system: found when the program runs, left out with a line when they
//! are not there.
//!
//! ```text
//!   Library::open(file, package) ── dlopen, RTLD_NOW and RTLD_LOCAL; never closed again
//!         │                         an error is one line that says what to install
//!   Call::bind(library, symbol) ── the function's address in a static
//!         │
//!   (CALL.get())(…) ── in the loop: one load and an indirect call
//! ```
//!
//! The load and the indirect call are what any program pays for a function of a shared library that it was
//! linked with (through the global offset table, as for glibc's malloc here). So a peer that was found is called
//! as its users call it.
//!
//! RTLD_LOCAL keeps the library's `malloc`, where it has one, out of the scope in which others look theirs up.
//! Must never: use RTLD_GLOBAL; unload a library, whose objects and threads' exit hooks may live on.

use libloading::os::unix;
use serde::Serialize;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A contestant that is not on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub name: &'static str,
    /// One line.
    pub why: String,
}

/// An open shared library.
pub struct Library {
    library: unix::Library,
    file: String,
}

impl Library {
    /// Opens `file`, which the loader looks for where it looks for libraries; `package` is Debian's name of what
    /// holds it.
    pub fn open(file: &str, package: &str) -> Result<Self, String> {
        Self::open_at(Path::new(file)).map_err(|why| {
            // Another file that is missing is one that this library needs.
            if why.starts_with(file) && why.contains("No such file") {
                format!("{file} is not installed (Debian: {package})")
            } else {
                format!("{file} cannot be loaded: {why}")
            }
        })
    }

    /// Opens the library at a path; the error is the loader's, in one line.
    pub fn open_at(path: &Path) -> Result<Self, String> {
        // SAFETY: what is opened here are allocators and shims of this benchmark, whose initialisers set up
        // their own state only.
        let library = unsafe { unix::Library::open(Some(path), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let library = library.map_err(|error| {
            // The loader's own words are the error's source.
            let said = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
            first_line(&said)
        })?;
        Ok(Self { library, file: path.display().to_string() })
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

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
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

/// A function of a library that is known when the program runs. `F` is its type, an `unsafe extern "C" fn`.
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
        // SAFETY: bound: not null, and of type F by the promise to `bind`; the sizes are equal (`unbound`).
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
}
