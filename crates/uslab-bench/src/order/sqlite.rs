//! The system's SQLite, loaded when it is needed: seven functions, and an allocator of ours under
//! it.
//!
//! Loaded and not linked, so that a build needs no SQLite and no C compiler's minute. SQLite takes
//! its allocator once a process, before its first use: so a run that wants another one is a child
//! (child.rs).
//!
//! Must never: be used in a process where SQLite already runs with another allocator.

use super::Configuration;
use super::memory::AnySize;
use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

const FILE: &str = "libsqlite3.so.0";
const PACKAGE: &str = "libsqlite3-0";

/// From sqlite3.h, where they are promised never to change.
const OK: c_int = 0;
const CONFIG_MALLOC: c_int = 4;
const CONFIG_MEMSTATUS: c_int = 9;
const CONFIG_LOOKASIDE: c_int = 13;
const OPEN_READWRITE: c_int = 0x2;
const OPEN_CREATE: c_int = 0x4;
const OPEN_NOMUTEX: c_int = 0x8000;

/// `sqlite3_mem_methods`.
#[repr(C)]
struct Methods {
    malloc: unsafe extern "C" fn(c_int) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    realloc: unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void,
    size: unsafe extern "C" fn(*mut c_void) -> c_int,
    roundup: unsafe extern "C" fn(c_int) -> c_int,
    init: unsafe extern "C" fn(*mut c_void) -> c_int,
    shutdown: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

static METHODS: OnceLock<Shared> = OnceLock::new();
static MEMORY: OnceLock<AnySize> = OnceLock::new();

struct Shared(Methods);

// SAFETY: functions, and a null pointer.
unsafe impl Send for Shared {}
// SAFETY: as above; it does not change.
unsafe impl Sync for Shared {}

fn memory() -> &'static AnySize {
    MEMORY.get().expect("SQLite calls its allocator only after it was given one")
}

/// # Safety
/// None beyond that of SQLite's contract for `xMalloc`.
unsafe extern "C" fn malloc(bytes: c_int) -> *mut c_void {
    memory().alloc(bytes.max(1) as usize).cast()
}

/// # Safety
/// SQLite's contract: `object` is from `malloc` or `realloc`, and live.
unsafe extern "C" fn free(object: *mut c_void) {
    if !object.is_null() {
        // SAFETY: SQLite's contract.
        unsafe { memory().free(object.cast()) }
    }
}

/// # Safety
/// As for `free`.
unsafe extern "C" fn size(object: *mut c_void) -> c_int {
    // SAFETY: SQLite's contract.
    if object.is_null() { 0 } else { unsafe { memory().size(object.cast()) as c_int } }
}

/// # Safety
/// As for `free`.
unsafe extern "C" fn realloc(object: *mut c_void, bytes: c_int) -> *mut c_void {
    let fresh = memory().alloc(bytes.max(1) as usize);
    if !fresh.is_null() {
        // SAFETY: SQLite's contract; both hold the lesser of the two sizes, and are two objects.
        unsafe {
            let kept = memory().size(object.cast()).min(bytes.max(0) as usize);
            fresh.copy_from_nonoverlapping(object.cast(), kept);
            memory().free(object.cast());
        }
    }
    fresh.cast()
}

/// # Safety
/// None.
unsafe extern "C" fn roundup(bytes: c_int) -> c_int {
    memory().rounded(bytes.max(1) as usize) as c_int
}

/// # Safety
/// None.
unsafe extern "C" fn init(_: *mut c_void) -> c_int {
    OK
}

/// # Safety
/// None.
unsafe extern "C" fn shutdown(_: *mut c_void) {}

type Handle = *mut c_void;
type Row = unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type Open = unsafe extern "C" fn(*const c_char, *mut Handle, c_int, *const c_char) -> c_int;
type Exec = unsafe extern "C" fn(Handle, *const c_char, Option<Row>, *mut c_void, *mut *mut c_char) -> c_int;

/// SQLite, configured.
pub struct Sqlite {
    /// Open for as long as its functions are called.
    _library: Library,
    open: Open,
    exec: Exec,
    close: unsafe extern "C" fn(Handle) -> c_int,
    message: unsafe extern "C" fn(Handle) -> *const c_char,
}

impl Sqlite {
    /// Loads it and puts `configuration` under it. Its count of its own memory is off, for it takes
    /// a lock at every call; so is the store of small objects that each connection keeps, for it is
    /// an allocator.
    pub fn load(configuration: Configuration) -> Result<Self, String> {
        // SAFETY: the system's library, whose initialisers do nothing that this process does not
        // expect.
        let library = unsafe { Library::new(FILE) }
            .map_err(|_| format!("no {FILE}; on Debian: apt-get install {PACKAGE}"))?;
        let memory = AnySize::new(configuration)?;
        if MEMORY.set(memory).is_err() {
            return Err("SQLite has its allocator already".into());
        }
        let methods = METHODS.get_or_init(|| {
            Shared(Methods { malloc, free, realloc, size, roundup, init, shutdown, data: null_mut() })
        });
        // SAFETY: the types are those of sqlite3.h.
        let functions = unsafe {
            let config: Symbol<unsafe extern "C" fn(c_int, ...) -> c_int> =
                symbol(&library, "sqlite3_config")?;
            let set = config(CONFIG_MALLOC, &raw const methods.0) == OK
                && config(CONFIG_MEMSTATUS, 0 as c_int) == OK
                && config(CONFIG_LOOKASIDE, 0 as c_int, 0 as c_int) == OK;
            if !set {
                return Err(format!("{FILE} does not take an allocator"));
            }
            let start: Symbol<unsafe extern "C" fn() -> c_int> = symbol(&library, "sqlite3_initialize")?;
            if start() != OK {
                return Err(format!("{FILE} does not start"));
            }
            (
                *symbol(&library, "sqlite3_open_v2")?,
                *symbol(&library, "sqlite3_exec")?,
                *symbol(&library, "sqlite3_close")?,
                *symbol(&library, "sqlite3_errmsg")?,
            )
        };
        let (open, exec, close, message) = functions;
        Ok(Self { _library: library, open, exec, close, message })
    }

    /// A database of its own, in memory, for one thread.
    pub fn open(&self) -> Result<Database<'_>, String> {
        let mut handle = null_mut();
        let flags = OPEN_READWRITE | OPEN_CREATE | OPEN_NOMUTEX;
        // SAFETY: the name is a C string, the handle is valid for writing.
        let opened = unsafe { (self.open)(c":memory:".as_ptr(), &raw mut handle, flags, null()) };
        let database = Database { sqlite: self, handle };
        if opened == OK { Ok(database) } else { Err(database.error()) }
    }
}

/// # Safety
/// `T` is the type of what is called `name`.
unsafe fn symbol<'a, T>(library: &'a Library, name: &str) -> Result<Symbol<'a, T>, String> {
    // SAFETY: the caller's promise.
    unsafe { library.get(name.as_bytes()) }.map_err(|_| format!("{FILE} has no {name}"))
}

/// A connection, used by the thread that opened it.
pub struct Database<'a> {
    sqlite: &'a Sqlite,
    handle: Handle,
}

impl Database<'_> {
    /// Runs the statements and returns how many rows they answered.
    pub fn run(&self, statements: &str) -> Result<u64, String> {
        /// # Safety
        /// `rows` is the counter below.
        unsafe extern "C" fn count(
            rows: *mut c_void,
            _: c_int,
            _: *mut *mut c_char,
            _: *mut *mut c_char,
        ) -> c_int {
            // SAFETY: the caller's promise; no other thread uses it meanwhile.
            unsafe { *rows.cast::<u64>() += 1 };
            OK
        }
        let text = CString::new(statements).map_err(|_| String::from("a statement has a NUL in it"))?;
        let mut rows = 0u64;
        // SAFETY: the connection is open, the text a C string, the counter outlives the call.
        let done = unsafe {
            (self.sqlite.exec)(self.handle, text.as_ptr(), Some(count), (&raw mut rows).cast(), null_mut())
        };
        if done == OK { Ok(rows) } else { Err(self.error()) }
    }

    fn error(&self) -> String {
        // SAFETY: the handle is SQLite's, or null, which it answers too, with a C string.
        let text = unsafe { CStr::from_ptr((self.sqlite.message)(self.handle)) };
        format!("SQLite: {}", text.to_string_lossy())
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by this, and closed once; a null handle is allowed.
        unsafe { (self.sqlite.close)(self.handle) };
    }
}
