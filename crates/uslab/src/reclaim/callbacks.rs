//! What the library and a shrinker's callbacks say to each other.

/// The argument of a callback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct ShrinkControl {
    /// Entries to free; 0 when they are only counted.
    pub nr_to_scan: usize,
    /// How hard memory is wanted: 12 (light) to 0 (everything).
    pub priority: i32,
    /// None are defined yet.
    pub flags: u32,
}

/// What a callback came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// So many entries.
    Entries(usize),
    /// Not now.
    Stop,
    /// It panicked.
    #[cfg_attr(
        not(feature = "std"),
        expect(dead_code, reason = "only the standard library can catch a panic")
    )]
    Panicked,
}

/// The callbacks of a shrinker, their types forgotten.
#[derive(Clone, Copy)]
pub struct Callbacks {
    pub context: *mut u8,
    /// Entries that could go now.
    pub count: unsafe fn(*mut u8, &ShrinkControl) -> Outcome,
    /// Frees some of them.
    pub scan: unsafe fn(*mut u8, &ShrinkControl) -> Outcome,
    /// Ends the life of the context.
    pub dispose: unsafe fn(*mut u8),
}
