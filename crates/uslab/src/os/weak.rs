//! Weak references to functions that some C libraries or programs lack, and to the program's own
//! settings; a missing one is null.
//!
//! The linker and the loader resolve each name when they bind this library; in a static program,
//! the linker alone. `dlsym` takes the loader's lock and may allocate, so only code that runs
//! inside the loader may call it.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// `dlmopen`: namespace, file, flags.
pub type Dlmopen = unsafe extern "C" fn(c_long, *const c_char, c_int) -> *mut c_void;
type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The functions, in the order of the assembly below.
#[repr(C)]
struct Functions {
    lock_streams: Option<unsafe extern "C" fn()>,
    unlock_streams: Option<unsafe extern "C" fn()>,
    reset_streams: Option<unsafe extern "C" fn()>,
    dlsym: Option<Dlsym>,
    sigaction: Option<Sigaction>,
    processor_leaf: Option<unsafe extern "C" fn(u32) -> *const [u32; 8]>,
    find_object: Option<unsafe extern "C" fn(*const c_void, *mut Found) -> c_int>,
    conf: *const AtomicPtr<c_char>,
}

core::arch::global_asm!(
    ".weak _IO_list_lock",
    ".weak _IO_list_unlock",
    ".weak _IO_list_resetlock",
    ".weak dlsym",
    ".weak __sigaction",
    ".weak __x86_get_cpuid_feature_leaf",
    ".weak _dl_find_object",
    // Not `.weak`: with LTO this text and the program's own definition of the variable come to lie
    // in one module, whose assembler refuses a name that is weak and global.
    ".weakref uslab_weak_conf, uslab_conf",
    ".pushsection .data.rel.ro.uslab_weak, \"aw\", @progbits",
    ".hidden uslab_weak_functions",
    ".globl uslab_weak_functions",
    ".balign 8",
    "uslab_weak_functions:",
    ".quad _IO_list_lock, _IO_list_unlock, _IO_list_resetlock, dlsym",
    ".quad __sigaction",
    ".quad __x86_get_cpuid_feature_leaf, _dl_find_object",
    ".quad uslab_weak_conf",
    ".popsection",
);

unsafe extern "C" {
    static uslab_weak_functions: Functions;
}

fn functions() -> &'static Functions {
    // SAFETY: the table above has as many words as fields. The loader binds it before any code of
    // the library runs, and it is never written afterwards. A null word is `None`.
    unsafe { &uslab_weak_functions }
}

/// The program's settings: the string behind its variable `const char *uslab_conf`; empty if it has
/// no such variable.
pub fn program_conf() -> &'static [u8] {
    // SAFETY: null, or the address of the program's variable, a pointer that lives for ever.
    let text = unsafe { functions().conf.as_ref() }.map_or(core::ptr::null_mut(), |text| text.load(Relaxed));
    if text.is_null() {
        return &[];
    }
    // SAFETY: the variable's meaning: a string that ends with a zero and stays.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Takes glibc's recursive lock of the list of open streams. Does nothing with other C libraries.
pub fn lock_streams() {
    if let Some(lock) = functions().lock_streams {
        // SAFETY: no preconditions.
        unsafe { lock() };
    }
}

/// Releases the lock that [`lock_streams`] took.
///
/// # Safety
/// The thread must hold it, by [`lock_streams`].
pub unsafe fn unlock_streams() {
    if let Some(unlock) = functions().unlock_streams {
        // SAFETY: the caller's promise.
        unsafe { unlock() };
    }
}

/// Resets that lock to free, whichever thread held it.
///
/// # Safety
/// No other thread may exist, as in a fork child.
pub unsafe fn reset_streams() {
    if let Some(reset) = functions().reset_streams {
        // SAFETY: the caller's promise.
        unsafe { reset() };
    }
}

/// glibc's `dlmopen`; `None` with other C libraries. `dlopen` does not serve: the preload library
/// defines its own. It is found by `dlsym`, because linkers warn about static programs that
/// reference it.
///
/// # Safety
/// The loader must be running on this thread and hold its lock.
pub unsafe fn dlmopen() -> Option<Dlmopen> {
    // SAFETY: the name is NUL-terminated.
    let found = unsafe { functions().dlsym?(libc::RTLD_DEFAULT, c"dlmopen".as_ptr()) };
    // SAFETY: the function of that name has that type; null is `None`.
    unsafe { core::mem::transmute::<*mut c_void, Option<Dlmopen>>(found) }
}

/// `sigaction(2)` by the C library's second name for it, if it has one: the preload library defines
/// the first, and so may other libraries, whose functions this call passes by.
///
/// # Safety
/// As `sigaction`.
pub unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let function = functions().sigaction.unwrap_or(libc::sigaction);
    // SAFETY: the caller's promise.
    unsafe { function(signal, new, old) }
}

/// ECX of `cpuid` leaf 1: the features that the processor has and the system enables, as glibc
/// (2.33) found them. `None` elsewhere. The instruction itself would exit a virtual machine, at the
/// cost of a few system calls.
#[allow(dead_code, reason = "asked where sequences run on x86-64")]
pub fn usable_features() -> Option<u32> {
    let leaf = functions().processor_leaf?;
    // SAFETY: leaf 1 has the index 0. The result is static: four registers of present features,
    // then four of usable ones, in the order EAX, EBX, ECX, EDX.
    unsafe { leaf(0).as_ref() }.map(|registers| registers[6])
}

/// glibc's `struct dl_find_object`, with room for the fields that some machines add.
#[repr(C)]
pub struct Found {
    flags: u64,
    /// The first mapped byte of the object.
    pub start: *const c_void,
    /// The end of the mapping.
    pub end: *const c_void,
    /// The object.
    pub map: *const Map,
    /// Its `.eh_frame_hdr`.
    pub frame_header: *const c_void,
    reserved: [u64; 8],
}

/// The public fields of glibc's `struct link_map`.
#[repr(C)]
pub struct Map {
    /// The difference between addresses in memory and in the file.
    pub base: usize,
    /// The path.
    pub name: *const c_char,
    /// The dynamic section.
    pub dynamic: *const c_void,
}

/// The object that contains `pc`, by glibc's `_dl_find_object`: without a lock or an allocation,
/// and in signal handlers too. The outer `None` stands for C libraries without that function.
pub fn find_object(pc: usize) -> Option<Option<Found>> {
    let find = functions().find_object?;
    let null = core::ptr::null();
    let mut found = Found {
        flags: 0,
        start: null,
        end: null,
        map: core::ptr::null(),
        frame_header: null,
        reserved: [0; 8],
    };
    // SAFETY: the function takes any address, and fills in a structure that is no larger.
    let is_found = unsafe { find(pc as *const c_void, &raw mut found) } == 0;
    Some(is_found.then_some(found))
}
