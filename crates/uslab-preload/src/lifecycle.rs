//! Load and unload of the library: early set-up, and final figures.

use core::ffi::c_int;

unsafe extern "C" {
    /// C11's. The first 32 functions take no memory.
    fn at_quick_exit(function: extern "C" fn()) -> c_int;
}

/// Reads the environment and the system when the library is loaded: the program may forbid these
/// calls later. The first allocation maps memory. The core registers its fork handlers at load too,
/// before the program registers any: so at a fork its prepare handler runs last, after handlers
/// that still allocate, and its parent and child handlers run first.
extern "C" fn at_load() {
    #[cfg(target_env = "gnu")]
    crate::signal::at_load();
    // SAFETY: the library is never unloaded, so the function stays. A refusal leaves a file behind.
    unsafe { at_quick_exit(at_quick_end) };
    uslab::reclaim::start();
    uslab::debug::guard::start_from_environment();
    uslab::internal::start_profile();
    crate::caller::find_ranges();
    crate::cxx::check_replaced();
    #[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
    crate::dlopen::at_load();
}

/// Reports the figures and leaks where the user asks, and leaves figures for
/// `uslab run --stats` and the heap profile.
/// Allocation must keep working: destructors of other libraries run later.
extern "C" fn at_unload() {
    uslab::debug::check_objects();
    uslab::internal::report_stats_at_exit();
    uslab::internal::finish_at_exit();
    uslab::internal::write_profile_at_exit();
    uslab::internal::report_leaks_at_exit();
}

/// Removes the figures that the process has published. `quick_exit` runs no `.fini_array`.
extern "C" fn at_quick_end() {
    uslab::internal::finish_snapshot();
}

/// Ends the process at once, as the C library's function does, without the figures that it has
/// published: children of a fork end in this way, often thousands of them.
///
/// Safe for signals. Makes no further system call where the process publishes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    uslab::internal::finish_snapshot();
    uslab::internal::calls::end(status)
}

/// C99's name of [`_exit`].
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "its name in C")]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_UNLOAD: extern "C" fn() = at_unload;
