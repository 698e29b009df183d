//! Every system call of the library; no other module makes one.
//!
//! Each function documents what it requires and what a refusal means. No function allocates, unless
//! it says so. Functions may change `errno`: the slow paths preserve it for their callers by
//! [`errno::Preserved`].

mod answer;
pub mod background;
pub mod calls;
pub mod capacity;
pub mod checkers;
pub mod clock;
pub mod config;
#[cfg(test)]
mod config_tests;
pub mod corruption;
pub mod cpu;
pub mod debugging;
#[cfg(test)]
mod debugging_tests;
pub mod descriptors;
pub mod directory;
pub mod env;
pub mod errno;
pub mod facts;
pub mod fault;
pub mod file;
pub mod filter;
pub mod first;
pub mod fork;
mod futex;
pub mod hardening;
pub mod huge;
pub mod invariant;
pub mod maps;
pub mod membarrier;
pub mod memory;
pub mod numa;
pub mod own_memory;
pub mod path;
pub mod pin;
pub mod pressure;
pub mod probe;
pub mod process;
pub mod random;
pub mod region;
pub mod report;
mod rest;
pub mod rseq;
pub mod scheduling;
pub mod settings;
pub mod sharing;
pub mod signal;
pub mod sleep;
pub mod stop;
pub mod surplus;
#[cfg(test)]
mod tests;
pub mod thread;
#[cfg(target_env = "musl")]
pub mod thread_exit;
pub mod unwind;
pub mod vdso;
pub mod weak;

pub use futex::Futex;

/// The library's lock: ranked, with waiters parked on a futex.
pub type Lock<T> = crate::sync::Lock<T, Futex>;
/// The guard of a [`Lock`].
pub type Guard<'a, T> = crate::sync::Guard<'a, T, Futex>;
