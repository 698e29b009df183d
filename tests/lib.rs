//! Helpers of the cross-crate tests: they find the built library and command, run a program under
//! them with a time limit, and prove afterwards that the allocator served it.

pub mod harness;

/// Defines the tests `rseq` and `locked` of the function `check(Mode)`, in a module with the
/// check's name.
#[macro_export]
macro_rules! both_modes {
    ($($name:ident => $check:ident),+ $(,)?) => {$(
        mod $name {
            #[test]
            fn rseq() {
                super::$check($crate::harness::Mode::Rseq);
            }

            #[test]
            fn locked() {
                super::$check($crate::harness::Mode::Locked);
            }
        }
    )+};
}
