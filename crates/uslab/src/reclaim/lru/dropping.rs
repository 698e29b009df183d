//! Dropping values of the program one by one, whatever the destructor of the one before did.
//!
//! Rust drops the rest of an array after one destructor panicked, but a second panic ends the
//! process. Here every value is dropped, and the first panic goes on when all of them are gone; not
//! where the thread is panicking already. Must never: be called with a lock held.

use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Drops all `values`.
///
/// # Panics
/// With what the first destructor panicked with.
pub(super) fn drop_each<T>(values: impl Iterator<Item = T>) {
    let mut first = Caught::default();
    values.for_each(|value| first.drop(value));
    first.go_on();
}

/// What the first destructor panicked with.
#[derive(Default)]
pub(super) struct Caught(Option<Box<dyn core::any::Any + Send>>);

impl Caught {
    /// Drops `value`.
    pub fn drop<T>(&mut self, value: T) {
        if !core::mem::needs_drop::<T>() {
            return;
        }
        // What is dropped is gone, so no code sees what the panic left half done.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value)))
            && let Some(another) = self.0.replace(panic)
        {
            // The first one is kept. This one's destructor may panic as well, so it is not run.
            core::mem::forget(self.0.replace(another));
        }
    }

    /// Goes on with the panic, if there was one.
    pub fn go_on(self) {
        match self.0 {
            // It is reported already, and its destructor may panic as well.
            Some(panic) if std::thread::panicking() => core::mem::forget(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}

/// Values that are dropped one by one when this is, even by a panic.
pub(super) struct EachDropped<T, const N: usize>(pub [Option<T>; N]);

impl<T, const N: usize> Drop for EachDropped<T, N> {
    fn drop(&mut self) {
        drop_each(self.0.iter_mut().filter_map(Option::take));
    }
}
