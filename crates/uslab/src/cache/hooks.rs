//! What this layer needs of those above it, whom it does not know: `lib.rs`, which knows all, fills the table in.

/// Doors upwards.
pub(crate) struct Hooks {
    /// Takes the locks of the layers above, between the barns' and the slab lists'.
    pub before_fork: fn(),
    /// Undoes it; true in the child.
    pub after_fork: fn(bool),
    /// The program has enough memory to be worth a background thread. No lock may be held, and the caller must be the program: not the C library, which may
    /// hold locks that a new thread needs.
    pub want_thread: fn(),
    /// There are no pages for so many bytes: frees some, bit by bit, by calling back into the program if need be, until the attempt succeeds. False if it
    /// never did. No lock may be held.
    pub short: fn(usize, &mut dyn FnMut() -> bool) -> bool,
}
