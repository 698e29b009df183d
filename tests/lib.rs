//! Helpers of the cross-crate tests: they find the built library and command, run a program under
//! them with a time limit, and prove afterwards that the allocator served it.

pub mod harness;

/// Defines the tests `rseq` and `locked` of each check, in a module of the given name. A check is a
/// function of the mode, or a closure.
#[macro_export]
macro_rules! both_modes {
    ($($name:ident => $check:expr),+ $(,)?) => {$(
        mod $name {
            use super::*;

            fn in_mode<R>(mode: $crate::harness::Mode, check: impl Fn($crate::harness::Mode) -> R) {
                check(mode);
            }

            #[test]
            fn rseq() {
                in_mode($crate::harness::Mode::Rseq, $check);
            }

            #[test]
            fn locked() {
                in_mode($crate::harness::Mode::Locked, $check);
            }
        }
    )+};
}
