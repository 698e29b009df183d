//! Lending the thread's registration to a `vfork` child, which runs on the same thread control
//! block while its parent is suspended.
//!
//! ```text
//!   parent: block signals ── vfork ┄┄┄┄┄┄┄┄┄┄┄ suspended ┄┄┄┄┄┄┄┄┄┄┄▶ unregister, register, unblock
//!   child:                     └─▶ register, unblock ── runs ── exec
//! ```
//!
//! The kernel does not register a child of `vfork`: it would neither restart the child's sequences
//! nor keep the CPU number in the area up to date, and the child could take an object at the same
//! instant as another thread of the parent. Registered by the area of the thread that it stands in
//! for, the child is one more thread. When the parent goes on, the area has the child's numbers. A
//! kernel that remembers what it wrote for the parent would leave them, so that the parent
//! registers anew, which writes them.
//!
//! Signals are blocked while the area names no CPU or another thread's: a handler may allocate.
//!
//! Must never: return to a child that is not registered.

use super::detect::{Mode, area_offset, mode};
use crate::os::rseq::Area;
use crate::os::{errno, report, signal};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};

/// What parent and child need after the system call. It must be kept in registers: the child writes
/// to the parent's stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// What the thread had blocked.
    pub signals: signal::Mask,
    /// The area; 0 where there are no sequences to protect.
    pub area: usize,
    /// Bytes of it that are registered.
    pub bytes: usize,
}

impl Lent {
    fn area(&self) -> Area {
        Area { address: self.area, bytes: self.bytes as u32, signature: super::arch::SIGNATURE }
    }
}

/// Bytes by which threads are registered; 0: not known yet.
static REGISTERED_BYTES: AtomicU32 = AtomicU32::new(0);

/// The area of the thread whose child could not be registered, until the parent has seen it.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// Before `vfork`: blocks the thread's signals. `None`, with nothing changed, where a child could
/// not be protected; then the caller must use `fork`.
pub fn begin() -> Option<Lent> {
    let _errno = errno::Preserved::new();
    if mode() == Mode::Locked {
        // Locks are words of the memory that both share, and so are their waiters.
        return Some(Lent { signals: 0, area: 0, bytes: 0 });
    }
    let area = super::arch::thread_pointer().wrapping_add(area_offset());
    let bytes = registered_bytes(area)?;
    Some(Lent { signals: signal::block_all(), area, bytes: bytes as usize })
}

/// By how many bytes of the area the thread is registered: the kernel tells by the error with which
/// it refuses to do it again. `None` if it is not registered by what glibc is known to use, or if
/// the kernel does not say (a seccomp filter).
fn registered_bytes(address: usize) -> Option<u32> {
    let known = REGISTERED_BYTES.load(Relaxed);
    if known != 0 && is_registered(address, known) {
        return Some(known);
    }
    let stated = super::arch::registered_bytes();
    // glibc 2.35 to 2.39: the size of the first version. Later: what the kernel asks for, rounded up
    // to the alignment, and at least the same.
    let found = [32, stated.max(32), stated.max(32).next_multiple_of(32)]
        .into_iter()
        .find(|&bytes| is_registered(address, bytes))?;
    REGISTERED_BYTES.store(found, Relaxed);
    Some(found)
}

fn is_registered(address: usize, bytes: u32) -> bool {
    let area = Area { address, bytes, signature: super::arch::SIGNATURE };
    // SAFETY: the area is the thread's own: sequences run in this process because glibc registered
    // threads by it. One that glibc could not register is by this call, as the next one finds.
    unsafe { area.is_registered() }
}

/// In the child, before it does anything else. Ends the child if it cannot be registered, which
/// [`in_parent`] tells.
pub fn in_child(lent: &Lent) {
    if lent.area == 0 {
        return;
    }
    // SAFETY: the parent's thread, which the area belongs to, is suspended until this process ends
    // or runs another program; the memory is the parent's and stays.
    if !unsafe { lent.area().register() } {
        while REFUSED.compare_exchange(0, lent.area, AcqRel, Relaxed).is_err() {
            crate::os::sleep::pause(1);
        }
        crate::os::process::end_at_once();
    }
    signal::restore(lent.signals);
}

/// In the parent when it goes on, whether there was a child or not. False if the child ended in
/// [`in_child`]: it is to be waited for, and the caller must use `fork`.
pub fn in_parent(lent: &Lent) -> bool {
    if lent.area == 0 {
        return true;
    }
    let area = lent.area();
    // SAFETY: the area is the thread's own, which is registered by it.
    let registered = area.unregister() && unsafe { area.register() };
    if !registered {
        // Its sequences would run without protection from here on.
        report::print(format_args!("the kernel took back a thread's registration for rseq in vfork"));
        report::abort();
    }
    signal::restore(lent.signals);
    REFUSED.load(Relaxed) != lent.area || REFUSED.swap(0, AcqRel) != lent.area
}
