//! Bypass: for a while every call of a running cache goes to its slabs.
//!
//! ```text
//!   begin  flag ─▶ barrier ─▶ drain all slots and barns        slots keep the dummy
//!   call   finds the dummy ─▶ slow path ─▶ flag ─▶ slabs
//!   end    flag off                                            slow paths install sheaves again
//! ```
//!
//! The fast path has no test for a bypass: it finds the dummy. The slow path tests the flag before
//! it uses a sheaf. A thread may have passed that test before the flag was set, and install a sheaf
//! after the drain. So it tests the flag again after it installed a sheaf, and drains if the flag
//! is set. The barrier orders the two: either the drain finds that sheaf, or its thread finds the
//! flag.
//!
//! Slabs that become empty stay for a second or two, as they do after a flush of idle sheaves. So
//! the bit of a free object still shows a second free.
//!
//! In locked mode no barrier orders the two. There, and where a barrier is refused, the background
//! thread drains what is left at its next tick ([`super::flush_idle`]).

use super::CpuCache;
use super::access::Access;
use super::drain::Drain;
use crate::os;
use crate::rseq::{Mode, mode};
use core::sync::atomic::{Ordering::SeqCst, fence};

impl CpuCache {
    /// Whether every call goes to the slabs.
    pub fn is_bypassed(&self) -> bool {
        self.bypass.load(SeqCst) || self.lacks_hidden_row()
    }

    /// Sends every call to the slabs from now on, and flushes all sheaves. Returns false if the
    /// kernel refuses a barrier that this needs: then calls use sheaves as before, of which some
    /// may have been flushed.
    ///
    /// Objects that other threads are moving at the time reach the slabs moments later. Makes
    /// system calls. No other thread may call this or [`CpuCache::end_bypass`] meanwhile.
    pub fn begin_bypass(&self) -> bool {
        self.bypass.store(true, SeqCst);
        fence(SeqCst);
        let has_barrier = mode() == Mode::Locked || os::membarrier::restart_all();
        if !has_barrier || !self.drain_whole() {
            self.end_bypass();
            return false;
        }
        self.drain_barns();
        self.publish_capacity();
        true
    }

    /// Lets calls use sheaves again.
    pub fn end_bypass(&self) {
        self.bypass.store(false, SeqCst);
        self.publish_capacity();
    }

    /// Drains all slots; returns whether the kernel allowed it.
    pub(super) fn drain_whole(&self) -> bool {
        let mut drain = Drain::of_all();
        self.drain_slots(&mut drain);
        drain.finish();
        !drain.leaves_mains()
    }

    /// Ends a change of this CPU's slot: counts what the slot holds. If calls bypass sheaves or use
    /// another row by now, the slot must be empty again. Then this drains all CPUs, as the thread
    /// may have moved to another one.
    pub(super) fn settle(&self, access: &impl Access) {
        self.account(access);
        if self.is_bypassed() || self.is_stray(access.slot()) {
            self.drain_whole();
        }
    }
}
