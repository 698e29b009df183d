//! `rseq(2)`: the kernel's registration of the calling thread.

use super::errno;
use core::ffi::c_int;

const UNREGISTER: c_int = 1;

/// A thread's rseq area and the arguments of its registration. An area belongs to one thread
/// control block, which a `vfork` child shares with its parent.
#[derive(Clone, Copy)]
pub struct Area {
    /// The area's address.
    pub address: usize,
    /// The registered length in bytes.
    pub bytes: u32,
    /// The signature, the 4 bytes before each abort handler.
    pub signature: u32,
}

impl Area {
    /// Makes the system call. Returns 0, or the error number.
    fn call(&self, flags: c_int) -> c_int {
        // SAFETY: the kernel checks the address and the rest, and refuses what does not fit.
        let result =
            unsafe { libc::syscall(libc::SYS_rseq, self.address, self.bytes, flags, self.signature) };
        if result == 0 { 0 } else { errno::get() }
    }

    /// Whether the calling thread is registered with exactly these arguments. Changes `errno`.
    ///
    /// # Safety
    /// As for [`Area::register`]: the call registers a thread that has no registration.
    pub unsafe fn is_registered(&self) -> bool {
        self.call(0) == libc::EBUSY
    }

    /// Registers the calling thread, unless it is registered with exactly these arguments; false if
    /// the kernel refuses. Changes `errno`.
    ///
    /// # Safety
    /// As for [`Area::register`].
    pub unsafe fn ensure_registered(&self) -> bool {
        matches!(self.call(0), 0 | libc::EBUSY)
    }

    /// Registers the calling thread; false if the kernel refuses.
    ///
    /// # Safety
    /// The kernel may write to the area as long as the thread lives, so it must stay valid. No
    /// other running thread may be registered with it.
    pub unsafe fn register(&self) -> bool {
        self.call(0) == 0
    }

    /// Unregisters the calling thread; false if the kernel refuses. The kernel sets `cpu_id` to -1.
    /// So until it is registered again the thread may run sequences only on rows that have a slot
    /// for number -1 (`rseq::LEAD`).
    pub fn unregister(&self) -> bool {
        self.call(UNREGISTER) == 0
    }
}
