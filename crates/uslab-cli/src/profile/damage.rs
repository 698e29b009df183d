//! Calls code that maps files which may be damaged, or change while they are read.
//!
//! ```text
//!   the code panics                                                             ─▶ None
//!   a file is truncated, a read faults ─▶ SIGBUS ─▶ zeros, the code goes on     ─▶ None
//! ```
//!
//! Without the handler, the signal would end the program, and the samples that it holds be lost.

// SAFETY: each block of this file tells why it is sound.
#![allow(unsafe_code, reason = "a signal handler that maps pages")]

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use libc::{c_int, c_void, siginfo_t};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// What a thread does here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Outside,
    /// It is in [`caught`].
    Inside,
    /// It is in [`caught`], and read zeros instead of a page that was no longer there.
    HasReadZeros,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State::Outside) };
}

/// Calls `parse`; `None`, without a message, if it panics, or a file was truncated that it reads.
/// What `parse` returns must not refer to the file.
pub fn caught<T>(parse: impl FnOnce() -> T) -> Option<T> {
    install();
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    STATE.set(State::Inside);
    let result = catch_unwind(AssertUnwindSafe(parse));
    let state = STATE.replace(State::Outside);
    panic::set_hook(hook);
    result.ok().filter(|_| state == State::Inside)
}

/// Installs the handler, for the life of the program.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let handler = SigHandler::SigAction(on_lost_page);
        let action = SigAction::new(handler, SaFlags::SA_ONSTACK, SigSet::empty());
        // SAFETY: the handler calls only functions that handlers may call, and mmap, a system call.
        let _ = unsafe { sigaction(Signal::SIGBUS, &action) };
    });
}

extern "C" fn on_lost_page(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes the facts about the signal; SIGBUS has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // The kernel reports this code where a mapped file has no such page.
    if code == libc::BUS_ADRERR && STATE.get() != State::Outside && map_zeros(address) {
        STATE.set(State::HasReadZeros);
        return;
    }
    // SAFETY: the default action is no function; the signal is delivered when this one returns.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::raise(libc::SIGBUS);
    }
}

/// Replaces the page at an address by one of zeros.
fn map_zeros(address: usize) -> bool {
    // SAFETY: a read of this address has just faulted, and the page holds nothing that can be read.
    unsafe {
        let page_bytes = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let page = (address & !(page_bytes - 1)) as *mut c_void;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(page, page_bytes, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::ptr;

    #[test]
    fn a_panic_and_a_truncated_file_are_caught() {
        const BYTES: usize = 1 << 20;
        let file = tempfile::tempfile().expect("a file");
        file.set_len(BYTES as u64).expect("space");
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(ptr::null_mut(), BYTES, protection, flags, file.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the place lies in the mapping.
        let read = |place: usize| unsafe { start.cast::<u8>().add(place).read_volatile() };
        assert_eq!(caught(|| read(BYTES - 1)), Some(0));
        file.set_len(1).expect("truncated");
        assert_eq!(caught(|| read(0)), Some(0));
        assert_eq!(caught(|| read(BYTES - 1)), None);
        assert_eq!(caught(|| panic!("a damaged file")), None::<()>);
        assert_eq!(caught(|| 7), Some(7));
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(start, BYTES) };
    }
}
