//! Real programs, unmodified, under `uslab run`: each in both modes, with results compared to a run without the
//! allocator where there is something to compare.
//!
//! One file a program. `both_modes!` makes two tests of each check, `CHECK::rseq` and `CHECK::locked`, so that a
//! failure says at once which of them it concerns. `packages.txt` lists the Debian packages that hold the programs.

/// Makes the tests `rseq` and `locked`, in a module with the check's name, of the function `check(Mode)` beside it.
macro_rules! both_modes {
    ($($name:ident => $check:ident),+ $(,)?) => {$(
        mod $name {
            #[test]
            fn rseq() {
                super::$check(uslab_tests::harness::Mode::Rseq);
            }

            #[test]
            fn locked() {
                super::$check(uslab_tests::harness::Mode::Locked);
            }
        }
    )+};
}

mod apt;
mod cpp;
mod ffmpeg;
mod git;
mod java;
mod limits;
mod memcached;
mod nginx;
mod node;
mod openssl;
mod php;
mod postgres;
mod python;
mod redis;
mod ruby;
mod shell;
mod shells;
mod sqlite;
mod start;
mod stress_ng;
