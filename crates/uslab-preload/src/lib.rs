//! `libuslab_malloc.so`: the malloc family and `operator new`/`delete`, for `LD_PRELOAD`. Nothing but symbols: each is a line
//! on [`uslab::malloc`], with the errors that POSIX and C23 ask for.
//!
//! No symbol here may use Rust's own allocator, which would be itself, or panic.

mod c;
mod caller;
mod cxx;
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod dlopen;
#[cfg(target_env = "gnu")]
mod glibc;
mod lifecycle;
#[cfg(target_env = "gnu")]
mod stream;
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod unwind;
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod vfork;
