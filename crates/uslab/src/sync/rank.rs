//! Lock ranks: one total order of all locks, checked at run time in debug builds.
//!
//! A thread may take a lock only if its rank is above every rank that the thread holds. The one
//! exception: before `fork` the library takes all locks in rank order, several of one rank after
//! another.
//!
//! Release builds contain no check. Debug builds keep the ranks that each thread holds in a small
//! table keyed by the thread, because the library uses no thread-local storage.

/// The order of all locks, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// Serialises forks, and keeps slow paths out while the kernel copies the memory.
    Fork = 0,
    /// Start-up of the library; then changes of the hooks.
    Init,
    /// Creation and destruction of caches.
    Registry,
    /// The list of the slots that threads have to themselves.
    Locals,
    /// The list of caches that adapt their capacity.
    Adapt,
    /// The marks of the CPUs and groups that caches are used on.
    Marks,
    /// A CPU slot of one cache, in locked mode: a word in the slot. The rank check does not cover
    /// it.
    #[allow(dead_code, reason = "documents its place in the order")]
    Slot,
    /// The barn of one cache and group of CPUs.
    Barn,
    /// The marks of the groups whose slab lists are used.
    ListMarks,
    /// Tables above the slabs, of which a thread locks one at a time: large objects and owners of
    /// private heaps, fresh owners of slots, the heap profile, the guard pages.
    Heap,
    /// The slab lists of one cache and group of CPUs.
    SlabLists,
    /// The marks of the CPUs whose page lists are used.
    PageMarks,
    /// The page lists of one CPU.
    CpuPages,
    /// The buddy and the arena.
    Pages,
}

#[cfg(debug_assertions)]
mod held {
    use super::Rank;
    use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

    /// Most threads that the table tracks. A further thread goes unchecked.
    const SLOTS: usize = 512;
    static THREADS: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];
    /// Eight bits a rank: the number of locks of that rank that the thread holds. It saturates at
    /// 255. A fork may hold more; the count then reaches 0 before the last lock is released.
    static RANKS: [[AtomicU64; 2]; SLOTS] = [const { [const { AtomicU64::new(0) }; 2] }; SLOTS];

    fn slot_of(thread: usize, claim: bool) -> Option<usize> {
        let start = (thread >> 6).wrapping_mul(0x9e37_79b9) % SLOTS;
        for step in 0..SLOTS {
            let index = (start + step) % SLOTS;
            let key = THREADS[index].load(Relaxed);
            if key == thread {
                return Some(index);
            }
            if key == 0 {
                if !claim {
                    // Entries are never removed, so a hole ends the search.
                    return None;
                }
                if THREADS[index].compare_exchange(0, thread, Relaxed, Relaxed).is_ok() {
                    return Some(index);
                }
                if THREADS[index].load(Relaxed) == thread {
                    return Some(index);
                }
            }
        }
        None
    }

    fn cell(index: usize, rank: Rank) -> (&'static AtomicU64, u32) {
        (&RANKS[index][rank as usize / 8], (rank as u32 % 8) * 8)
    }

    pub fn acquire(thread: usize, rank: Rank, equal_allowed: bool) {
        let Some(index) = slot_of(thread, true) else { return };
        let words = [RANKS[index][0].load(Relaxed), RANKS[index][1].load(Relaxed)];
        for held in (rank as usize)..16 {
            let count = (words[held / 8] >> (held % 8 * 8)) & 0xff;
            assert!(
                count == 0 || (equal_allowed && held == rank as usize),
                "lock order: the thread takes {rank:?} while it holds rank {held}"
            );
        }
        let (word, shift) = cell(index, rank);
        if (word.load(Relaxed) >> shift) & 0xff < 255 {
            word.fetch_add(1 << shift, Relaxed);
        }
    }

    pub fn forget_all_but(thread: usize) {
        for (key, ranks) in THREADS.iter().zip(&RANKS) {
            if key.load(Relaxed) != thread {
                ranks.iter().for_each(|word| word.store(0, Relaxed));
            }
        }
    }

    pub fn release(thread: usize, rank: Rank) {
        let Some(index) = slot_of(thread, false) else { return };
        let (word, shift) = cell(index, rank);
        if (word.load(Relaxed) >> shift) & 0xff > 0 {
            word.fetch_sub(1 << shift, Relaxed);
        }
    }
}

/// Records that the thread takes a lock. Panics in debug builds if that breaks the order.
#[inline(always)]
pub fn acquired(_thread: impl FnOnce() -> usize, _rank: Rank, _equal_allowed: bool) {
    #[cfg(debug_assertions)]
    held::acquire(_thread(), _rank, _equal_allowed);
}

/// In a fork child: drops the table entries of the threads that do not exist there. A new thread
/// may get the key of one of them.
#[inline(always)]
pub fn only_thread_left(_thread: impl FnOnce() -> usize) {
    #[cfg(debug_assertions)]
    held::forget_all_but(_thread());
}

/// Records that the thread released a lock.
#[inline(always)]
pub fn released(_thread: impl FnOnce() -> usize, _rank: Rank) {
    #[cfg(debug_assertions)]
    held::release(_thread(), _rank);
}
