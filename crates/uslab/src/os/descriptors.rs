//! The descriptors that the library keeps open, so that a fork child can close its copies.
//!
//! A child that kept them would keep alive the kernel's trigger of a pressure file and a manager's
//! socket, one more set with each generation of children. The thread that opened the descriptors
//! does not exist in the child, so the child finds them in this list. The list also holds each
//! file's identity: a number that now names another file belongs to the program and stays open.

use super::calls;
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicI32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Enough for one thread's sources and for those that replace them.
const MAX_KEPT: usize = 8;

/// One place of the list. Its number is 0 if the place is free.
struct Kept {
    /// The descriptor's number plus 1.
    number: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

static KEPT: [Kept; MAX_KEPT] =
    [const { Kept { number: AtomicI32::new(0), device: AtomicU64::new(0), inode: AtomicU64::new(0) } };
        MAX_KEPT];

/// `number` of a place that a thread is filling in.
const CLAIMED: i32 = -1;

/// Adds a descriptor to the list. If the list is full, a fork child will keep its copy open.
pub(super) fn note(fd: i32, device: u64, inode: u64) {
    let claimed = KEPT.iter().find(|kept| kept.number.compare_exchange(0, CLAIMED, AcqRel, Relaxed).is_ok());
    if let Some(kept) = claimed {
        kept.device.store(device, Relaxed);
        kept.inode.store(inode, Relaxed);
        kept.number.store(fd + 1, Release);
    }
}

/// Removes a descriptor from the list. The caller calls this before it closes the descriptor, or
/// when it finds that the number names another file.
pub(super) fn forget(fd: i32, device: u64, inode: u64) {
    let is_it = |kept: &&Kept| {
        kept.number.load(Acquire) == fd + 1
            && (kept.device.load(Relaxed), kept.inode.load(Relaxed)) == (device, inode)
    };
    if let Some(kept) = KEPT.iter().find(is_it) {
        kept.number.store(0, Release);
    }
}

/// In a fork child: closes each listed descriptor that still names the file it was opened for.
pub fn close_in_child() {
    for kept in &KEPT {
        let number = kept.number.swap(0, AcqRel);
        if number > 0 {
            close_if(number - 1, kept.device.load(Relaxed), kept.inode.load(Relaxed));
        }
    }
}

/// Closes a descriptor if its number still names the file with this identity.
pub(super) fn close_if(fd: i32, device: u64, inode: u64) {
    if status(fd).is_some_and(|now| (now.st_dev, now.st_ino) == (device, inode)) {
        // SAFETY: the number is still the file that was opened.
        unsafe { super::calls::close(fd) };
    }
}

/// The status of the file that has the number now; `None` if it is closed.
pub(super) fn status(fd: i32) -> Option<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `status` is a place for the answer; a closed number is refused.
    let filled = unsafe { calls::fstat(fd, status.as_mut_ptr()) } == 0;
    // SAFETY: read only where the call filled it.
    filled.then(|| unsafe { status.assume_init() })
}
