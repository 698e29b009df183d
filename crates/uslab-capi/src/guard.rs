//! Guard pages around sampled allocations.

use crate::failure;
use core::ffi::{c_int, c_uint};
use uslab::debug::guard;

#[unsafe(no_mangle)]
extern "C" fn uslab_guard_start(interval_ms: c_uint, slots: usize) -> c_int {
    let mut options = guard::Options::default();
    (options.interval_ms, options.slots) = (interval_ms.into(), slots);
    if guard::start(options) { 0 } else { failure::code(libc::ENOMEM) }
}

#[unsafe(no_mangle)]
extern "C" fn uslab_guard_stop() {
    guard::stop();
}
