//! Helpers shared by the cross-crate tests: find the built library and command, run a program under them with a
//! time limit, and prove afterwards that the allocator really served it.

pub mod harness;

/// Makes the tests `rseq` and `locked`, in a module of the check's name, of the function
/// `check(Mode)` beside it.
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
