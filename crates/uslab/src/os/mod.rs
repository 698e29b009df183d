//! Everything that the library asks of the system; no other module performs a system call.
//!
//! Each function says what it needs and what a refusal means. None allocates, and none touches `errno` in a way
//! that a caller could see (the slow paths keep it through [`errno::Preserved`]).

pub mod clock;
pub mod config;
#[cfg(test)]
mod config_tests;
pub mod cpu;
pub mod descriptors;
pub mod directory;
pub mod env;
pub mod errno;
pub mod file;
pub mod fork;
mod futex;
pub mod invariant;
pub mod membarrier;
pub mod memory;
pub mod pin;
pub mod pressure;
pub mod process;
pub mod report;
pub mod rseq;
pub mod scheduling;
pub mod signal;
pub mod sleep;
#[cfg(test)]
mod tests;
pub mod thread;
pub mod weak;

pub use futex::Futex;

/// The library's lock: ranked, parked with futexes.
pub type Lock<T> = crate::sync::Lock<T, Futex>;
/// Its guard.
pub type Guard<'a, T> = crate::sync::Guard<'a, T, Futex>;
