//! The arguments and results of a shrinker's callbacks.

/// The argument of a callback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct ShrinkControl {
    /// Entries to free; 0 in a call that only counts.
    pub nr_to_scan: usize,
    /// The severity of the shortage: 12 (light) to 0 (take everything).
    pub priority: i32,
    /// No flags are defined yet.
    pub flags: u32,
}

/// The result of a callback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The number of entries counted or freed.
    Entries(usize),
    /// Not now.
    Stop,
    /// The callback panicked.
    #[cfg_attr(
        not(feature = "std"),
        expect(dead_code, reason = "only the standard library can catch a panic")
    )]
    Panicked,
}

/// The callbacks of a shrinker, type-erased.
#[derive(Clone, Copy)]
pub struct Callbacks {
    pub context: *mut u8,
    /// Returns the number of entries that could go now.
    pub count: unsafe fn(*mut u8, &ShrinkControl) -> Outcome,
    /// Frees entries.
    pub scan: unsafe fn(*mut u8, &ShrinkControl) -> Outcome,
    /// Drops the context.
    pub dispose: unsafe fn(*mut u8),
}
