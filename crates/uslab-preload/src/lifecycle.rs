//! Start and exit.

/// Sets the library up early, and with it the fork handlers: before the program's own, so that at a fork ours run last, after
/// handlers that still allocate, and in parent and child first. Earlier allocations set it up themselves.
extern "C" fn at_load() {
    uslab::reclaim::start();
    crate::caller::look_around();
    #[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
    crate::dlopen::at_load();
}

/// Leaves final figures for `uslab run --stats`. Allocation goes on working: other libraries' destructors come later.
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
