//! Load and unload of the library.

/// Sets the library up early, and with it the fork handlers: before the program's own, so that at a fork ours run last, after handlers that
/// still allocate, and in parent and child first.
///
/// Where `malloc` is a library of ours, preloaded, it must be set up before this one: the process's snapshot is that of the first, and should be
/// malloc's. The loader runs the constructors of what the program is linked with before those of what is preloaded, so it is asked for a byte.
extern "C" fn at_load() {
    // SAFETY: memory of `malloc`, given back to it. Not to be optimised away, as compilers do with such pairs.
    unsafe { libc::free(core::hint::black_box(libc::malloc(1))) };
    uslab::reclaim::start();
}

/// Leaves final figures for `uslab run --stats`. Allocation goes on working: other destructors come later.
extern "C" fn at_unload() {
    uslab::cache::account_all();
    uslab::stats::finish();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_UNLOAD: extern "C" fn() = at_unload;
