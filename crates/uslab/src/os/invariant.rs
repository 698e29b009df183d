//! Invariants that running code checks, and the end of a process in which one does not hold.
//!
//! ```text
//!   invariant!(holds, "…")             a step states what it may assume       debug builds
//!   Subject::equal(found, expected, …) a structure compares itself            every build
//!     └─ assert_valid(|| x.check())    the same after a change, under a lock  debug builds
//! ```
//!
//! A `check` returns the first invariant that does not hold. So [`crate::debug::validate`] and the
//! assertions of debug builds share one description of each structure, and a test that breaks a
//! structure looks at the result.
//!
//! A failed assertion writes one line and aborts. It does not panic: the allocator may hold locks,
//! and the panic machinery allocates, in a preloaded library from this very allocator. Unit tests
//! of the library panic instead, as the harness asks.
//!
//! These functions never allocate and never take a lock. Release builds evaluate only [`Subject`]'s
//! comparisons.

use super::report;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// States what a step may assume: aborts, in debug builds, where `$holds` is false. Release builds
/// do not evaluate it. The optional address or number is shown.
macro_rules! invariant {
    ($holds:expr, $text:literal) => {
        $crate::os::invariant::invariant!($holds, $text, 0usize)
    };
    ($holds:expr, $text:literal, $about:expr) => {
        if cfg!(debug_assertions) {
            let holds: bool = $holds;
            if !holds {
                $crate::os::invariant::broken($text, $crate::os::invariant::Number::number($about));
            }
        }
    };
}
pub(crate) use invariant;

/// An invariant that does not hold: the structure, and both sides of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Invalid {
    /// The kind of structure, as ARCHITECTURE.md calls it.
    pub structure: &'static str,
    /// Its address.
    pub address: usize,
    /// The invariant, as a statement that should be true.
    pub invariant: &'static str,
    /// The value that the invariant asks for: a count, a number or an address.
    pub expected: i64,
    /// The value found instead.
    pub found: i64,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Invalid { structure, address, invariant, expected, found } = *self;
        write!(f, "{structure} at {address:#x}: {invariant}: expected {expected} ({expected:#x}), ")?;
        write!(f, "found {found} ({found:#x})")
    }
}

impl core::error::Error for Invalid {}

/// The result of a check of a structure: its counts, or the first invariant that is violated.
pub type Checked<T = ()> = Result<T, Invalid>;

/// A value that can be compared: a count, or an address by its number.
pub trait Number: Copy {
    /// The number, as two's complement where it is a large address.
    fn number(self) -> i64;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            #[inline]
            fn number(self) -> i64 {
                self as i64
            }
        }
    )*};
}
numbers!(bool u8 u16 u32 i32 u64 i64 usize);

impl<T> Number for *mut T {
    #[inline]
    fn number(self) -> i64 {
        self as usize as i64
    }
}

/// Nothing is -1.
impl<N: Number> Number for Option<N> {
    #[inline]
    fn number(self) -> i64 {
        self.map_or(-1, Number::number)
    }
}

/// The structure that a check is about.
#[derive(Clone, Copy)]
pub struct Subject {
    structure: &'static str,
    address: usize,
}

impl Subject {
    /// The structure `structure` at `address`.
    #[inline]
    pub fn new<T>(structure: &'static str, address: *const T) -> Subject {
        Subject { structure, address: address as usize }
    }

    /// `found` is `expected`.
    #[inline]
    pub fn equal<N: Number>(self, found: N, expected: N, invariant: &'static str) -> Checked {
        let (found, expected) = (found.number(), expected.number());
        if found == expected { Ok(()) } else { self.invalid(invariant, expected, found) }
    }

    /// `found` is `most` or less.
    #[inline]
    pub fn at_most<N: Number>(self, found: N, most: N, invariant: &'static str) -> Checked {
        let (found, most) = (found.number(), most.number());
        if found <= most { Ok(()) } else { self.invalid(invariant, most, found) }
    }

    /// `found` is `least` or more.
    #[inline]
    pub fn at_least<N: Number>(self, found: N, least: N, invariant: &'static str) -> Checked {
        let (found, least) = (found.number(), least.number());
        if found >= least { Ok(()) } else { self.invalid(invariant, least, found) }
    }

    /// `holds` is true.
    #[inline]
    pub fn holds(self, holds: bool, invariant: &'static str) -> Checked {
        if holds { Ok(()) } else { self.invalid(invariant, 1, 0) }
    }

    #[cold]
    fn invalid(self, invariant: &'static str, expected: i64, found: i64) -> Checked {
        let Subject { structure, address } = self;
        Err(Invalid { structure, address, invariant, expected, found })
    }
}

static IS_OFF: AtomicBool = AtomicBool::new(false);

/// Switches these checks off for the rest of the process, for a test whose figure depends on how
/// long the library holds its locks.
pub fn switch_off() {
    IS_OFF.store(true, Relaxed);
}

/// Aborts, in debug builds, where `check` finds an invariant that does not hold. The caller holds
/// the lock that the check needs.
#[inline(always)]
pub fn assert_valid(check: impl FnOnce() -> Checked) {
    if cfg!(debug_assertions)
        && !IS_OFF.load(Relaxed)
        && let Err(invalid) = check()
    {
        end(format_args!("{invalid}"));
    }
}

/// One call in this many is sampled.
const SAMPLED: u32 = 64;

/// Whether to walk the whole structure after this change: true for one change in 64, in debug
/// builds. The sample follows a low-discrepancy sequence, so no pattern of callers escapes it.
#[inline(always)]
pub fn is_sampled() -> bool {
    static CHANGES: AtomicU32 = AtomicU32::new(0);
    cfg!(debug_assertions) && CHANGES.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9) < u32::MAX / SAMPLED
}

/// Ends the process: a step found its assumption wrong.
#[cold]
#[inline(never)]
#[track_caller]
pub fn broken(text: &str, about: i64) -> ! {
    let place = core::panic::Location::caller();
    end(format_args!("{text} ({about:#x}; {}:{})", place.file(), place.line()))
}

/// Writes the line and ends the process.
#[cold]
#[inline(never)]
fn end(message: fmt::Arguments<'_>) -> ! {
    #[cfg(test)]
    if std::env::var_os("USLAB_TEST_CHILD").is_none() {
        panic!("broken invariant: {message}");
    }
    report::print(format_args!("broken invariant: {message}"));
    report::abort();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};

    #[test]
    #[should_panic(expected = "two is one")]
    fn a_step_that_assumes_wrongly_ends_the_process() {
        invariant!(core::hint::black_box(2) == 1, "two is one");
    }

    #[test]
    #[should_panic(expected = "table at 0x10: as many entries as are counted: expected 3 (0x3), found 2")]
    fn a_structure_that_does_not_add_up_ends_the_process() {
        let table = Subject::new("table", 16 as *const u8);
        assert_valid(|| table.equal(2, 3, "as many entries as are counted"));
    }

    #[test]
    fn comparisons_say_both_sides() {
        let subject = Subject::new("x", core::ptr::null::<u8>());
        assert_eq!(subject.at_most(3, 3, "i"), Ok(()));
        assert_eq!(subject.at_least(-3, -3, "i"), Ok(()));
        let invalid = subject.at_most(4u32, 3, "small").unwrap_err();
        assert_eq!((invalid.expected, invalid.found, invalid.invariant), (3, 4, "small"));
        assert!(subject.at_least(2, 3, "i").is_err() && subject.holds(false, "i").is_err());
        assert!(invalid.to_string().starts_with("x at 0x0: small: expected 3"));
    }

    #[test]
    fn one_change_in_about_64_is_sampled() {
        let sampled = (0..6400).filter(|_| is_sampled()).count();
        // Other tests change structures meanwhile.
        assert!((20..500).contains(&sampled), "{sampled}");
    }

    /// The form that a program sees: a line on standard error, and SIGABRT.
    #[test]
    fn outside_of_unit_tests_it_reports_and_aborts() {
        const NAME: &str = "os::invariant::tests::outside_of_unit_tests_it_reports_and_aborts";
        if std::env::var_os("USLAB_TEST_CHILD").is_some() {
            invariant!(core::hint::black_box(2) == 1, "two is one", 0x1234usize);
            return;
        }
        let mut again = std::process::Command::new(std::env::current_exe().expect("there is a path"));
        again.args([NAME, "--exact", "--nocapture"]).env("USLAB_TEST_CHILD", "1");
        let output = again.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("uslab: broken invariant: two is one (0x1234; "), "{text}");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(libc::SIGABRT));
    }
}
