//! Load and unload of the library: early set-up, and final figures.

/// Sets the library up when it is loaded, before the program registers fork handlers. So at a fork
/// this library's prepare handler runs last, after handlers that still allocate. Its parent and
/// child handlers run first.
///
/// A preloaded `libuslab_malloc.so` must be set up before this library: the first to start
/// publishes the process's snapshot, which should be malloc's. The loader runs the constructors of
/// linked libraries before those of preloaded ones. An allocation of one byte sets the preloaded
/// one up first.
extern "C" fn at_load() {
    // SAFETY: `free` gets the memory of `malloc`. The black box keeps the compiler from removing
    // the pair.
    unsafe { libc::free(core::hint::black_box(libc::malloc(1))) };
    uslab::reclaim::start();
    uslab::debug::guard::start_from_environment();
    uslab::internal::start_profile();
}

/// Reports the figures and leaks where the user asks, and leaves figures for
/// `uslab run --stats` and the heap profile.
/// Allocation must keep working: other destructors run later.
extern "C" fn at_unload() {
    uslab::debug::check_objects();
    uslab::internal::report_stats_at_exit();
    uslab::internal::finish_at_exit();
    uslab::internal::write_profile_at_exit();
    uslab::internal::report_leaks_at_exit();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_UNLOAD: extern "C" fn() = at_unload;
