//! Huge pages for chunks that are old and dense: the kernel copies their pages together.
//!
//! The background thread looks at some chunks twice a second. One that was dense at four looks gets
//! a huge page, if its pages were all touched: the process then holds no more than before. The copy
//! takes a few hundred microseconds, in which a thread that touches the chunk waits. So a look asks
//! for a few at most.

use super::{CHUNK_BYTES, arena, buddy, huge, touched};
use crate::os;
use crate::os::config::HugePages;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Chunks that a look visits: 2 GiB.
const MOST_LOOKS: usize = 1024;
/// Huge pages that a look asks for.
const MOST_ASKED: usize = 4;

/// Where the next look starts. Only the background thread uses it.
static CURSOR: AtomicUsize = AtomicUsize::new(0);

/// Looks at some chunks; see above. Returns whether no chunk is waiting for its time. The background
/// thread calls it twice a second.
pub fn collapse_some() -> bool {
    let may_collapse = huge::mode() != HugePages::Never
        && os::huge::is_available()
        && !arena::is_populated()
        && !os::memory::is_mapping_limited();
    if !may_collapse {
        return true;
    }
    let mut dense = [0; MOST_ASKED];
    let looked = buddy::lock().look_for_dense(CURSOR.load(Relaxed), MOST_LOOKS, &mut dense);
    CURSOR.store(looked.cursor, Relaxed);
    for &index in &dense[..looked.found] {
        collapse(index);
    }
    !looked.is_waiting
}

fn collapse(index: usize) {
    if !buddy::lock().begin_collapse(index) {
        return;
    }
    let start = arena::address_of_chunk(index);
    // SAFETY: the chunk is mapped, and stays so until `end_collapse`.
    let is_advised = touched::is_touched(index) && unsafe { os::huge::advise(start, CHUNK_BYTES, true) };
    if is_advised {
        // Where the kernel cannot do it now, its own thread does it later, by the advice.
        // SAFETY: as above.
        unsafe { os::huge::collapse(start, CHUNK_BYTES) };
    }
    buddy::lock().end_collapse(index, is_advised);
}
