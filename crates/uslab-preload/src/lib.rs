//! `libuslab_malloc.so`: the malloc family and `operator new`/`delete`, for `LD_PRELOAD`.
//!
//! The library consists of exported symbols. Each is a thin wrapper of `uslab::internal::entry`,
//! with the errors that POSIX and C23 require. Only `realloc` to 0 bytes sets none, as in glibc.
//!
//! No symbol here may panic, or use Rust's global allocator, which would call these symbols.

mod c;
mod caller;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod clone;
mod cxx;
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod dlopen;
#[cfg(target_env = "gnu")]
mod glibc;
mod lifecycle;
#[cfg(target_env = "gnu")]
mod signal;
#[cfg(target_env = "gnu")]
mod stream;
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod unwind;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vfork;
mod weak;
