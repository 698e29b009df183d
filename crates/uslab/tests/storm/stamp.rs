//! Stamped objects: each contains its owner's number, so that an object allocated twice is noticed
//! at once.
//!
//! The stamp is in the first and in the last word of an object. The allocator never writes to free
//! objects, so those words contain the mark of the last `unstamp`, or the page's earlier contents;
//! never the stamp of a live owner.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

/// The upper half of a stamp.
const LIVE: u64 = 0x6c69_7665 << 32;
const FREE: u64 = 0x6672_6565 << 32;

/// The first and the last word of an object of `bytes`.
fn words<'a>(object: NonNull<u8>, bytes: usize) -> [&'a AtomicU64; 2] {
    // SAFETY: the tests' objects are multiples of 8 bytes and aligned to 8, and stay mapped while a
    // test runs.
    unsafe { [object.cast::<AtomicU64>().as_ref(), object.add(bytes - 8).cast::<AtomicU64>().as_ref()] }
}

fn last_word(object: NonNull<u8>, owner: u32) -> u64 {
    object.addr().get() as u64 ^ u64::from(owner) << 40
}

/// Stamps an object with `owner`. `Err` is the owner that has it already.
pub fn stamp(object: NonNull<u8>, bytes: usize, owner: u32) -> Result<(), u32> {
    let [first, last] = words(object, bytes);
    let before = first.swap(LIVE | u64::from(owner), AcqRel);
    if bytes > 8 {
        last.store(last_word(object, owner), Release);
    }
    if before >> 32 == LIVE >> 32 { Err(before as u32) } else { Ok(()) }
}

/// Whether the object has `owner`'s stamp in both words.
pub fn is_owned_by(object: NonNull<u8>, bytes: usize, owner: u32) -> bool {
    let [first, last] = words(object, bytes);
    first.load(Acquire) == LIVE | u64::from(owner)
        && (bytes <= 8 || last.load(Acquire) == last_word(object, owner))
}

/// Removes the stamp, before the object is freed or passed on. False if it did not have `owner`'s
/// stamp in both words.
pub fn unstamp(object: NonNull<u8>, bytes: usize, owner: u32) -> bool {
    let whole = is_owned_by(object, bytes, owner);
    words(object, bytes)[0].swap(FREE | u64::from(owner), AcqRel) == LIVE | u64::from(owner) && whole
}
