//! A plug-in whose allocator is uslab: a `cdylib` for a host that loads and unloads it.
//!
//! The host knows nothing of the allocator. `dlclose` leaves the plug-in mapped: the library pins
//! the object that contains it, because the kernel keeps addresses of sequences in it.

use std::ffi::c_int;

#[global_allocator]
static ALLOCATOR: uslab::Uslab = uslab::Uslab;

/// Allocates and frees; returns 1 on success.
#[unsafe(no_mangle)]
pub extern "C" fn plug() -> c_int {
    let kept: Vec<Vec<u8>> = (1..200).map(|n| vec![n as u8; n * 20]).collect();
    c_int::from(kept.iter().enumerate().all(|(n, bytes)| bytes.iter().all(|&byte| byte == n as u8 + 1)))
}
