//! Filters of system calls (seccomp): whether the program confines itself.
//!
//! A filter may end the program for a call that it does not know. Such a program allows what an
//! allocator needs, and `mincore` is not part of that: apt's methods die of it. A filter that was
//! there at the start is another matter: a container's refuses calls, and start-up made this one.

use super::answer::Answer;
use super::file::Reader;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

static WAS_FILTERED: AtomicBool = AtomicBool::new(false);
static HAS_OWN: Answer = Answer::unknown();

/// Whether the calling thread has a filter.
pub(super) fn is_on() -> bool {
    // SAFETY: reads the calling thread's mode.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) > 0 }
}

/// Records at the library's start whether there is a filter; safe before the C library is set up.
/// Returns the answer.
pub(super) fn note_first() -> bool {
    let is_on = is_on();
    WAS_FILTERED.store(is_on, Relaxed);
    is_on
}

/// Finds out, once, whether the program added a filter to what there was at its start.
///
/// Must not be called on the background thread: the program could take the descriptor for its own.
pub(super) fn learn() {
    HAS_OWN.learn(|| !Reader::open(c"/proc/self/status").is_some_and(|mut file| has_first_only(&mut file)));
}

/// Kernels before 5.9 do not tell how many filters there are.
fn has_first_only(status: &mut Reader) -> bool {
    let text: &[u8] = if WAS_FILTERED.load(Relaxed) { b"Seccomp_filters:\t1\n" } else { b"Seccomp:\t0\n" };
    status.contains(text)
}

/// Whether the kernel may be asked what is resident (`mincore`); false before [`learn`].
pub fn may_ask_residence() -> bool {
    HAS_OWN.is_no()
}
