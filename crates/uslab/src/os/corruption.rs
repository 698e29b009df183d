//! Corrupted structures: slow paths of every build check what they are about to use, and report a
//! structure that code outside of the library overwrote.
//!
//! Each comparison takes a few instructions of a call that takes hundreds (ADR 0046). The first
//! corrupted structure is reported; then the process ends or, by policy, goes on without it: the
//! caller leaves the structure alone.

use super::invariant::Invalid;
use super::report;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The function that reports, and ends the process if that is the policy.
type Report = fn(&Invalid);

static REPORT: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// Sets the function that reports. Until then a line is printed, and the process ends.
pub fn set_report(report: Report) {
    REPORT.store(report as *mut (), Release);
}

/// Returns `holds`; if it is false, reports the structure as corrupted. The caller may hold locks.
#[inline(always)]
pub fn verify<T: ?Sized>(
    holds: bool,
    structure: &'static str,
    place: *const T,
    invariant: &'static str,
) -> bool {
    if !holds {
        found(structure, place.addr(), invariant);
    }
    holds
}

#[cold]
#[inline(never)]
fn found(structure: &'static str, address: usize, invariant: &'static str) {
    #[cfg(test)]
    if std::env::var_os("USLAB_TEST_CHILD").is_none() {
        panic!("corrupted {structure} at {address:#x}: {invariant}");
    }
    if IS_REPORTED.swap(true, Relaxed) {
        return;
    }
    let invalid = Invalid { structure, address, invariant, expected: 1, found: 0 };
    let report = REPORT.load(Acquire);
    if report.is_null() {
        report::print(format_args!("corrupted: {structure} at {address:#x}: {invariant}"));
        report::abort();
    }
    // SAFETY: `set_report` stored a function of this type.
    unsafe { core::mem::transmute::<*mut (), Report>(report)(&invalid) };
}
