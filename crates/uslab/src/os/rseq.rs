//! `rseq(2)`: the kernel's registration of the calling thread.

use super::errno;
use core::ffi::c_int;

const UNREGISTER: c_int = 1;

/// A thread's rseq area with what it is registered by. An area belongs to one thread control block,
/// which a `vfork` child has in common with its parent.
#[derive(Clone, Copy)]
pub struct Area {
    /// Where it is.
    pub address: usize,
    /// Bytes that are registered.
    pub bytes: u32,
    /// What stands before each abort handler.
    pub signature: u32,
}

impl Area {
    /// 0, or the number of the error.
    fn call(&self, flags: c_int) -> c_int {
        // SAFETY: the kernel checks the address and the rest, and refuses what does not fit.
        let result =
            unsafe { libc::syscall(libc::SYS_rseq, self.address, self.bytes, flags, self.signature) };
        if result == 0 { 0 } else { errno::get() }
    }

    /// Whether the calling thread is registered by exactly this. Changes `errno`.
    ///
    /// # Safety
    /// A thread without any registration gets this one: see [`Area::register`].
    pub unsafe fn is_registered(&self) -> bool {
        self.call(0) == libc::EBUSY
    }

    /// Registers the calling thread; false if the kernel refuses.
    ///
    /// # Safety
    /// The area must be one that the kernel may write to as long as the thread lives, and no other
    /// thread that runs may be registered by it.
    pub unsafe fn register(&self) -> bool {
        self.call(0) == 0
    }

    /// Undoes it. The thread's sequences must not run until it is registered again.
    pub fn unregister(&self) -> bool {
        self.call(UNREGISTER) == 0
    }
}
