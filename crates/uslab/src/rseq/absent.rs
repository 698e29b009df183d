//! Targets without sequences: dynamically linked builds for musl without the feature
//! `register-threads`, and architectures without an implementation. Every step fails, so `percpu`
//! does it under the slot's lock.

use super::{Exchanged, Pushed, Sheaf, Slot, Which};
use crate::os;
use core::sync::atomic::AtomicU32;

/// Never used.
pub(super) const SIGNATURE: u32 = 0;

/// Sequences do not exist here.
pub(super) const SUPPORTED: bool = false;
/// Never used.
pub(super) const SCRATCH_OFFSET: usize = 0;
/// Never used.
pub(super) const LOCKED_OFFSET: usize = 0;

const HINTS: usize = 512;

/// The words of threads' hints. Threads may share them, and then have one hint.
static HINT_WORDS: [[AtomicU32; 2]; HINTS] = [const { [const { AtomicU32::new(0) }; 2] }; HINTS];

/// The words of the thread's hint, by a hash of the address of its `errno`. Control blocks lie
/// whole pages apart, often a power of two of them, so the hash is the upper bits of a product.
#[inline]
pub(super) fn hint_words() -> [&'static AtomicU32; 2] {
    let product = os::errno::location().addr().wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize);
    HINT_WORDS[product >> (usize::BITS - HINTS.ilog2())].each_ref()
}

/// Always null.
///
/// # Safety
/// None needed; other targets' functions of this name are unsafe.
#[inline(always)]
pub unsafe fn pop(_: *const Slot) -> *mut u8 {
    core::ptr::null_mut()
}

/// Always false.
///
/// # Safety
/// None needed.
#[inline(always)]
pub unsafe fn push(_: *const Slot, _: *mut u8) -> bool {
    false
}

/// Always [`Pushed::Slow`].
///
/// # Safety
/// None needed.
#[inline(always)]
pub unsafe fn push_tested(_: *const Slot, _: *mut u8) -> Pushed {
    Pushed::Slow
}

/// Always 0.
///
/// # Safety
/// None needed.
#[inline(always)]
pub unsafe fn pop_bulk(_: *const Slot, _: usize, _: *mut *mut u8) -> usize {
    0
}

/// Always 0.
///
/// # Safety
/// None needed.
#[inline(always)]
pub unsafe fn push_bulk(_: *const Slot, _: usize, _: *const *mut u8) -> usize {
    0
}

/// Never called: the locked path does not exchange through sequences.
///
/// # Safety
/// None needed.
#[inline(always)]
pub unsafe fn exchange(_: *const Slot, _: Which, _: *mut Sheaf, _: usize) -> Exchanged {
    Exchanged::GateClosed
}

pub(super) fn registered_offset() -> Option<usize> {
    None
}

pub(super) fn registered_bytes() -> u32 {
    0
}

pub(super) fn own_offset() -> Option<usize> {
    None
}

pub(super) fn area_cpu() -> i32 {
    0
}

pub(super) fn thread_pointer() -> usize {
    0
}

/// Does nothing.
pub(super) fn init() {}

/// Never called.
///
/// # Safety
/// None needed.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(_: *const *mut u8, _: *mut *mut u8, _: usize) {}
