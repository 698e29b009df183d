//! Drops values of the program one by one, even if a destructor panics.
//!
//! Rust drops the rest of an array after one destructor panicked, but a second panic ends the
//! process. The functions here drop every value, and then resume the first panic, unless the thread
//! is panicking already. Callers must hold no lock.

use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Drops all `values`.
///
/// # Panics
/// With the payload of the first destructor that panicked.
pub(super) fn drop_each<T>(values: impl Iterator<Item = T>) {
    let mut first = Caught::default();
    values.for_each(|value| first.drop(value));
    first.go_on();
}

/// The payload of the first destructor that panicked.
#[derive(Default)]
pub(super) struct Caught(Option<Box<dyn core::any::Any + Send>>);

impl Caught {
    /// Drops `value`.
    pub fn drop<T>(&mut self, value: T) {
        if !core::mem::needs_drop::<T>() {
            return;
        }
        // The dropped value is gone, so no code sees its unfinished changes.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value)))
            && let Some(another) = self.0.replace(panic)
        {
            // Only the first payload is kept. Dropping this one may panic, so forget it.
            core::mem::forget(self.0.replace(another));
        }
    }

    /// Resumes the panic, if there was one.
    pub fn go_on(self) {
        match self.0 {
            // The panic was reported already. Dropping its payload may panic, so forget it.
            Some(panic) if std::thread::panicking() => core::mem::forget(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}

/// Values that are dropped one by one when this is dropped, even by a panic.
pub(super) struct EachDropped<T, const N: usize>(pub [Option<T>; N]);

impl<T, const N: usize> Drop for EachDropped<T, N> {
    fn drop(&mut self) {
        drop_each(self.0.iter_mut().filter_map(Option::take));
    }
}
