//! Lending the thread's registration to a `vfork` child, which runs on the same thread control
//! block while its parent is suspended.
//!
//! ```text
//!   parent: block signals ── vfork ┄┄┄┄┄┄┄┄┄┄┄ suspended ┄┄┄┄┄┄┄┄┄┄┄▶ unregister, register, unblock
//!   child:                     └─▶ register, unblock ── runs ── exec
//! ```
//!
//! The kernel does not register a child of `vfork`. It would neither restart the child's sequences
//! nor update the CPU number in the area, and the child could take an object at the same instant as
//! another thread of the parent. Registered with the suspended thread's area, the child is one more
//! thread.
//!
//! When the parent resumes, the area contains the child's numbers. A kernel that remembers the
//! parent's last values may not write them again. So the parent unregisters and registers, which
//! forces the write.
//!
//! Signals are blocked while the area names no CPU or another thread's CPU, because a handler may
//! allocate.
//!
//! No function here returns to a child that is not registered.

use super::detect::{Mode, area_offset, mode};
use super::own;
use crate::os::rseq::Area;
use crate::os::{errno, report, signal};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};

/// The values that parent and child need after the system call. The caller must keep them in
/// registers, because the child writes to the parent's stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The thread's signal mask before.
    pub signals: signal::Mask,
    /// The address of the area; 0 in locked mode, which has no sequences to protect.
    pub area: usize,
    /// The registered length of the area in bytes.
    pub bytes: usize,
}

impl Lent {
    fn area(&self) -> Area {
        Area { address: self.area, bytes: self.bytes as u32, signature: super::arch::SIGNATURE }
    }
}

/// The length with which threads are registered, in bytes; 0 if not known yet.
static REGISTERED_BYTES: AtomicU32 = AtomicU32::new(0);

/// The area of a thread whose child could not be registered, until the parent has read it; 0
/// otherwise.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// Must be called before `vfork`: blocks the thread's signals. `None`, with nothing changed, where
/// a child could not be protected; then the caller must use `fork`.
pub fn begin() -> Option<Lent> {
    let _errno = errno::Preserved::new();
    if mode() == Mode::Locked {
        // The locks lie in the memory that both share, and their futexes work across both.
        return Some(Lent { signals: 0, area: 0, bytes: 0 });
    }
    if super::arch::area_cpu() < 0 {
        own::register()?;
    }
    let area = super::arch::thread_pointer().wrapping_add(area_offset());
    let bytes = registered_bytes(area)?;
    Some(Lent { signals: signal::block_all(), area, bytes: bytes as usize })
}

/// The length with which the thread is registered, in bytes. The kernel reveals it by the error
/// with which it refuses the same registration again. `None` if no length that glibc uses matches,
/// or if a seccomp filter hides the answer.
fn registered_bytes(address: usize) -> Option<u32> {
    let known = REGISTERED_BYTES.load(Relaxed);
    if known != 0 && is_registered(address, known) {
        return Some(known);
    }
    let stated = super::arch::registered_bytes();
    // glibc 2.35 to 2.39 use the first version's size, 32. Later ones use the kernel's size, at
    // least 32, rounded up to the alignment.
    let found = [32, stated.max(32), stated.max(32).next_multiple_of(32)]
        .into_iter()
        .find(|&bytes| is_registered(address, bytes))?;
    REGISTERED_BYTES.store(found, Relaxed);
    Some(found)
}

fn is_registered(address: usize, bytes: u32) -> bool {
    let area = Area { address, bytes, signature: super::arch::SIGNATURE };
    // SAFETY: the area is the calling thread's own, registered by glibc or by `own`. If it is not,
    // the first call registers it, and the next one finds it registered.
    unsafe { area.is_registered() }
}

/// Must be called first in the child: registers it. Ends the child if the kernel refuses; then
/// [`in_parent`] returns false.
pub fn in_child(lent: &Lent) {
    if lent.area == 0 {
        return;
    }
    // SAFETY: the area belongs to the parent's thread, which is suspended until this process ends
    // or runs another program. The memory is the parent's and stays valid.
    if !unsafe { lent.area().register() } {
        while REFUSED.compare_exchange(0, lent.area, AcqRel, Relaxed).is_err() {
            crate::os::sleep::pause(1);
        }
        crate::os::process::end_at_once();
    }
    signal::restore(lent.signals);
}

/// Must be called when the parent resumes, even if `vfork` failed. False if the child ended in
/// [`in_child`]: then the caller must wait for that child and use `fork`.
pub fn in_parent(lent: &Lent) -> bool {
    if lent.area == 0 {
        return true;
    }
    let area = lent.area();
    // SAFETY: the area is the thread's own, and the thread is registered with it.
    let registered = area.unregister() && unsafe { area.register() };
    if !registered {
        // From here on the thread's sequences would run without protection.
        report::print(format_args!("the kernel refused to register a thread for rseq again after vfork"));
        report::abort();
    }
    signal::restore(lent.signals);
    REFUSED.load(Relaxed) != lent.area || REFUSED.swap(0, AcqRel) != lent.area
}
