//! The kernel's own `clock_gettime`: a function in the ELF image that it maps into each process
//! (vdso(7)), which reads most clocks without a system call.
//!
//! The C library's function calls it too. But another preloaded library may stand before that one:
//! see [`super::calls`].

use super::unwind;
use core::ffi::{CStr, c_int};
use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The kernel's function. It returns 0, or an error number below 0.
pub type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

#[cfg(target_arch = "aarch64")]
const NAME: &CStr = c"__kernel_clock_gettime";
#[cfg(not(target_arch = "aarch64"))]
const NAME: &CStr = c"__vdso_clock_gettime";

/// The function's address; [`UNKNOWN`] before the first search, [`ABSENT`] if there is none.
static FUNCTION: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = 0;
const ABSENT: usize = 1;

/// The function; `None` if the kernel gives none, as under valgrind.
#[inline]
pub fn clock_gettime() -> Option<ClockGettime> {
    let address = match FUNCTION.load(Relaxed) {
        UNKNOWN => search(),
        known => known,
    };
    // SAFETY: the address of the function, which stays mapped.
    (address != ABSENT).then(|| unsafe { transmute::<usize, ClockGettime>(address) })
}

/// Has the library read its clocks by another function, for models in which a clock stands still.
///
/// # Safety
/// The function must write a time to its second argument, as the kernel's does, on any thread.
pub unsafe fn replace(function: ClockGettime) {
    FUNCTION.store(function as usize, Relaxed);
}

/// Threads that search at once find the same.
#[cold]
fn search() -> usize {
    let address = find(NAME).unwrap_or(ABSENT);
    FUNCTION.store(address, Relaxed);
    address
}

fn find(name: &CStr) -> Option<usize> {
    // SAFETY: no preconditions.
    let image = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    // SAFETY: the kernel's image, which stays mapped.
    if image == 0 { None } else { unsafe { unwind::function_of_image(image, name) } }
}

#[cfg(test)]
mod tests {
    use super::super::calls;
    use super::*;

    #[test]
    fn the_kernels_clock_is_that_of_the_system_call() {
        let Some(function) = clock_gettime() else { return };
        let [mut before, mut now, mut after] = [libc::timespec { tv_sec: 0, tv_nsec: 0 }; 3];
        calls::clock_gettime(libc::CLOCK_MONOTONIC, &mut before);
        // SAFETY: the kernel's function, and a place for it to write to.
        assert_eq!(unsafe { function(libc::CLOCK_MONOTONIC, &mut now) }, 0);
        calls::clock_gettime(libc::CLOCK_MONOTONIC, &mut after);
        let time = |of: &libc::timespec| (of.tv_sec, of.tv_nsec);
        assert!(time(&before) <= time(&now) && time(&now) <= time(&after));
    }

    #[test]
    fn a_function_that_the_image_lacks_is_not_found() {
        assert_eq!(find(c"__vdso_no_such"), None);
    }
}
