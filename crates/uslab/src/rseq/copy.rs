//! Copies of pointers between a sheaf and a caller's array.

/// Pointers from which on a processor's wide registers are worth their set-up.
#[cfg(target_arch = "x86_64")]
const WIDE: usize = 24;

/// Copies `n` pointers. Each call copies the same parts by the same instructions, so that a pop
/// finds what a push just stored by store forwarding. `memcpy` shifts its loads and stores to the
/// alignment of the destination, and then waits for its own stores.
///
/// # Safety
/// As [`core::ptr::copy_nonoverlapping`].
#[inline(always)]
pub unsafe fn copy(from: *const *mut u8, to: *mut *mut u8, n: usize) {
    const PART: usize = 8;
    #[cfg(target_arch = "x86_64")]
    if super::arch::SUPPORTED && n >= WIDE {
        // SAFETY: the caller's promise.
        unsafe { super::arch::copy(from, to, n) };
        return;
    }
    let mut at = 0;
    // SAFETY: the caller's promise, for each part.
    unsafe {
        while at + PART <= n {
            let (from, to) = (from.add(at), to.add(at));
            let part = [*from, *from.add(1), *from.add(2), *from.add(3)];
            let next = [*from.add(4), *from.add(5), *from.add(6), *from.add(7)];
            [*to, *to.add(1), *to.add(2), *to.add(3)] = part;
            [*to.add(4), *to.add(5), *to.add(6), *to.add(7)] = next;
            at += PART;
        }
        while at < n {
            *to.add(at) = *from.add(at);
            at += 1;
        }
    }
}
