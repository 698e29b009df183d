//! The library's own area, for threads that the C library does not register: with musl, and with
//! glibc before 2.35. Only some builds have it: see `area`.
//!
//! ```text
//!   thread starts: cpu_id = -1 ── first slow call: rseq(2) ─┬─ the kernel keeps cpu_id
//!                                                           └─ refused: it stays -1
//! ```
//!
//! The kernel updates one area of each thread. Where the C library names none, each thread
//! registers one of this library, a thread-local variable, at its first slow call. So no hook of
//! the thread's start is needed.
//!
//! Before that, `cpu_id` is -1 and the thread's sequences find the slot *before* the first one of a
//! row ([`super::LEAD`]). It holds a dummy, so each call takes the slow path. If the kernel refuses
//! to register a thread, that stays so, and its calls go to the slabs.
//!
//! With glibc the thread needs no hook at its end either. The area lies in the memory of the stack,
//! which glibc keeps until the kernel has reported the thread's end. With musl a detached thread
//! unmaps its stack itself, and the kernel must not write there any more: see [`exit`].

use super::arch;
use crate::os::errno;
use crate::os::rseq::Area;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

#[cfg(target_env = "musl")]
mod exit;

/// `cpu_id_start` of a thread that is not registered, and will not be. No CPU has this number.
const REFUSED: u32 = u32::MAX;

/// Bytes of `struct rseq` as Linux 4.18 defined it, which every later kernel accepts.
const AREA_BYTES: u32 = 32;

/// Whether the library registers threads.
static IS_IN_USE: AtomicBool = AtomicBool::new(false);

/// Whether the library registers threads in this process.
pub(super) fn is_in_use() -> bool {
    IS_IN_USE.load(Relaxed)
}

/// The calling thread's area; `None` if the object has none.
fn area() -> Option<Area> {
    let address = arch::thread_pointer().wrapping_add(arch::own_offset()?);
    Some(Area { address, bytes: AREA_BYTES, signature: arch::SIGNATURE })
}

/// `cpu_id_start` of an area of the calling thread, which the library writes only while the kernel
/// does not.
fn cpu_id_start(area: Area) -> &'static AtomicU32 {
    // SAFETY: a word of the thread's own area, which lives as long as the thread. The reference
    // does not leave the thread, and the kernel stores whole words alone.
    unsafe { &*(area.address as *const AtomicU32) }
}

/// Has the library register threads, and registers the calling one. Returns the distance in bytes
/// from the thread pointer to the area; `None`, with nothing changed, if the object has none or the
/// kernel refuses. [`super::init`] calls it, before any slot is made.
pub(super) fn begin() -> Option<usize> {
    if !try_register(area()?) {
        return None;
    }
    IS_IN_USE.store(true, Relaxed);
    arch::own_offset()
}

/// Registers the calling thread, unless it is registered. Returns its CPU; `None` if the library
/// registers no threads, or the kernel refuses. May be called in a signal handler. One that
/// interrupts this call registers the same area; a sequence that it interrupts restarts.
#[cold]
#[inline(never)]
pub(super) fn register() -> Option<usize> {
    let area = area().filter(|_| is_in_use())?;
    if cpu_id_start(area).load(Relaxed) == REFUSED {
        return None;
    }
    if !try_register(area) {
        refuse(area);
        return None;
    }
    // The kernel has written the CPU on its way back from the call.
    usize::try_from(arch::area_cpu()).ok()
}

/// Registers the calling thread with its area. False if the kernel refuses, and with musl if the
/// thread cannot end its registration.
fn try_register(area: Area) -> bool {
    #[cfg(target_env = "musl")]
    if !exit::expect() {
        return false;
    }
    let _errno = errno::Preserved::new();
    // SAFETY: the area is the calling thread's own, and lives as long as the thread. With musl
    // `exit` ends the registration before the thread's memory goes.
    unsafe { area.ensure_registered() }
}

/// Keeps the calling thread, which is not registered, from being registered.
fn refuse(area: Area) {
    cpu_id_start(area).store(REFUSED, Relaxed);
}
