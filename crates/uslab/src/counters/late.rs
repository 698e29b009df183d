//! Publication that begins while the process runs.
//!
//! The figures move from the private block to the file:
//!
//! ```text
//!   private ── changes since `seen` ──▶ file      1. all of it
//!                                                 2. from now on, figures go to the file
//!                                                 3. what changed meanwhile
//!                                                 4. the same, half a second later, twice
//! ```
//!
//! A thread that found the private block just before step 2 may add to it for as long as it is
//! interrupted there. Step 4 moves such additions. It needs the background thread; without that
//! thread they are missing.

use super::layout::{
    Header, MAGIC, MAX_SHRINKERS, Record, SEGMENT_BYTES, SETTINGS, SETTINGS_OFFSET, SHRINKERS_OFFSET,
    SOURCES, SOURCES_OFFSET, Setting, Shrinker, Source,
};
use super::{place, publish, segments};
use crate::os::directory::Refusal;
use crate::os::{self, sharing};
use core::fmt;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Why a process does not publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PublishError {
    /// The directory cannot be opened or made; the error number of the system.
    Directory(i32),
    /// The directory belongs to another user, other users may write there, or it is a link.
    Untrusted,
    /// The file cannot be created or mapped, or there is no memory for the move.
    File,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::Directory(number) => write!(f, "the directory cannot be opened: error {number}"),
            PublishError::Untrusted => f.write_str("other users can change the directory"),
            PublishError::File => f.write_str("the file cannot be created"),
        }
    }
}

impl core::error::Error for PublishError {}

impl From<Refusal> for PublishError {
    fn from(refusal: Refusal) -> PublishError {
        match refusal {
            Refusal::Error(number) => PublishError::Directory(number),
            _ => PublishError::Untrusted,
        }
    }
}

/// The private block as the last step found it; null while no move is under way.
static SEEN: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// Segments of that block.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Steps 4 that are left.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Publishes from now on. Does nothing if the process publishes already.
///
/// The caller holds the lock under which caches are made.
pub fn begin() -> Result<(), PublishError> {
    if publish::is_shared() {
        return Ok(());
    }
    let pid = os::file::process_id();
    let header = publish::header();
    if header.pid.swap(pid, Relaxed) != pid {
        // Start-up was the parent's.
        header.start_ns.store(os::clock::boot_ns(), Relaxed);
    }
    header.pid_namespace.store(os::file::pid_namespace(), Relaxed);
    let directory = place::open_or_choose()?;
    // A step that is left from a file before.
    end();
    let count = segments::used();
    let seen = os::memory::map_private(count * SEGMENT_BYTES).ok_or(PublishError::File)?;
    let Some(file) = publish::create(&directory, count) else {
        // SAFETY: mapped above, and no other code knows it.
        unsafe { os::memory::unmap(seen, count * SEGMENT_BYTES) };
        return Err(PublishError::File);
    };
    COUNT.store(count, Relaxed);
    SEEN.store(seen, Release);
    LEFT.store(2, Relaxed);
    // The private block is a segment, and the others are `count` of them, aligned to pages, and
    // zero or valid.
    // SAFETY: as said; the private block and the file stay for ever, and `seen` until `end`, below
    // or after this call.
    let step = || unsafe { Block(publish::private()).move_changes(Block(seen), Block(file), count) };
    step();
    segments::use_shared(file, count);
    publish::use_shared(file);
    // A thread that runs, and found the private block, is beyond it behind the barrier.
    let _: bool = os::membarrier::restart_all();
    step();
    // Last: a reader that finds it finds complete figures.
    publish::header().magic.store(MAGIC, Release);
    os::sleep::wake();
    Ok(())
}

/// Moves what threads added to the private block since. The background thread calls it at each of
/// its ticks; the caller holds the lock under which caches are made.
pub fn settle() {
    let seen = SEEN.load(Acquire);
    if seen.is_null() {
        return;
    }
    let count = COUNT.load(Relaxed);
    // SAFETY: as in `begin`, which mapped so many segments of the file in one piece; the lock keeps
    // `end` out.
    unsafe { Block(publish::private()).move_changes(Block(seen), Block(publish::base()), count) };
    if LEFT.fetch_sub(1, Relaxed) == 1 {
        end();
    }
}

/// Whether [`settle`] has something to do.
#[inline]
pub fn is_moving() -> bool {
    !SEEN.load(Relaxed).is_null()
}

/// In a fork child: moves the figures to a file of the child's own. A move that is under way is the
/// parent's. If no other thread worked there, a handler may have interrupted it, and forked: the
/// memory for it stays mapped for the code that goes on.
pub fn publish_in_child(was_alone: bool) {
    if was_alone {
        SEEN.store(core::ptr::null_mut(), Relaxed);
    } else {
        end();
    }
    let leave = || {
        segments::restore_large();
        segments::leave_file()
    };
    publish::publish_in_child(segments::used_at_fork(), leave, segments::enter_file);
}

fn end() {
    let seen = SEEN.swap(core::ptr::null_mut(), Acquire);
    if !seen.is_null() {
        // SAFETY: mapped by `begin`, and the pointer to it is gone.
        unsafe { os::memory::unmap(seen, COUNT.load(Relaxed) * SEGMENT_BYTES) };
    }
}

/// A block of figures: the private one, the file, or a copy.
#[derive(Clone, Copy)]
struct Block(*mut u8);

impl Block {
    /// The `index`th of the parts of type `T` at `offset`.
    ///
    /// # Safety
    /// The block must be valid for 'static or for the use of the result, and the part inside it.
    unsafe fn part<T>(self, offset: usize, index: usize) -> &'static T {
        // SAFETY: the caller's promise; the parts are atomics, valid when zero.
        unsafe { &*self.0.add(offset).cast::<T>().add(index) }
    }

    /// Adds to `to` what changed here since `seen`, and notes that in `seen`.
    ///
    /// # Safety
    /// This must be the private block, and the others `count` segments, which live as long as the
    /// call.
    unsafe fn move_changes(self, seen: Block, to: Block, count: usize) {
        // SAFETY: the caller's promise; the layout has these parts at these offsets.
        unsafe {
            let header: &Header = self.part(0, 0);
            let shrinkers = (header.shrinkers_used.load(Relaxed) as usize).min(MAX_SHRINKERS);
            segments::for_each_private(count, |here, offset| {
                here.move_changes(seen.part(offset, 0), to.part(offset, 0));
            });
            self.move_parts::<Shrinker>(seen, to, SHRINKERS_OFFSET, shrinkers);
            self.move_parts::<Source>(seen, to, SOURCES_OFFSET, SOURCES.len());
            self.move_parts::<Setting>(seen, to, SETTINGS_OFFSET, SETTINGS.len());
            self.move_parts::<Header>(seen, to, 0, 1);
        }
    }

    /// # Safety
    /// As for [`Block::move_changes`]; `count` parts of type `T` must be at `offset`.
    unsafe fn move_parts<T: Figures + 'static>(self, seen: Block, to: Block, offset: usize, count: usize) {
        for index in 0..count {
            // SAFETY: the caller's promise.
            let [here, seen, to] = unsafe { [self, seen, to].map(|block| block.part::<T>(offset, index)) };
            here.move_changes(seen, to);
        }
    }
}

/// A part of a block.
trait Figures {
    /// Adds to `to` what changed here since `seen`, and notes that in `seen`.
    fn move_changes(&self, seen: &Self, to: &Self);
}

/// Implements [`Figures`]. Of a sum, the difference is added; a fact is stored if it changed, so it
/// may be old until its owner stores it again; of lists, each element is such a sum or fact. What
/// goes by groups of CPUs is stored where there is one group, and added to where there are several.
/// What is left stays here.
macro_rules! figures {
    ($part:ident {
        sums: $($sum:ident),*; facts: $($fact:ident),*; lists_of_sums: $($sums:ident),*;
        lists_of_facts: $($facts:ident),*; by_groups: $($by_groups:ident),*; left: $($left:ident),*;
    }) => {
        impl Figures for $part {
            fn move_changes(&self, seen: &Self, to: &Self) {
                // Every field is named.
                let $part {
                    $($sum: _,)* $($fact: _,)* $($sums: _,)* $($facts: _,)* $($by_groups: _,)* $($left: _,)*
                } = self;
                $(figures!(sum &self.$sum, &seen.$sum, &to.$sum);)*
                $(self.$sums.iter().zip(&seen.$sums).zip(&to.$sums)
                    .for_each(|((here, seen), to)| figures!(sum here, seen, to));)*
                $(self.$facts.iter().zip(&seen.$facts).zip(&to.$facts)
                    .for_each(|((here, seen), to)| figures!(fact here, seen, to));)*
                $(if sharing::count() > 1 {
                    figures!(sum &self.$by_groups, &seen.$by_groups, &to.$by_groups);
                } else {
                    figures!(fact &self.$by_groups, &seen.$by_groups, &to.$by_groups);
                })*
                // After the texts that they announce.
                $(figures!(fact &self.$fact, &seen.$fact, &to.$fact);)*
            }
        }
    };
    (sum $here:expr, $seen:expr, $to:expr) => {{
        let now = $here.load(Relaxed);
        let before = $seen.load(Relaxed);
        if now != before {
            $seen.store(now, Relaxed);
            $to.fetch_add(now.wrapping_sub(before), Relaxed);
        }
    }};
    (fact $here:expr, $seen:expr, $to:expr) => {{
        let now = $here.load(Acquire);
        if now != $seen.load(Relaxed) {
            $seen.store(now, Relaxed);
            $to.store(now, Release);
        }
    }};
}

// `begin` stores the magic last.
figures!(Header {
    sums: purged_bytes, large_objects, large_bytes, large_allocs, passes_bytes,
        shrinkers_used;
    facts: used_bytes, dirty_bytes, version, pid, mode, mode_reason, cpus, nodes, page_bytes, records_used,
        finished, library_version, start_ns, reserved_bytes, committed_bytes, metadata_bytes, arena_start,
        arena_base, soft_limit_bytes, hard_limit_bytes, last_pass_ns, pid_namespace;
    lists_of_sums: passes;
    lists_of_facts:;
    by_groups:;
    left: magic;
});
figures!(Source {
    sums: reports;
    facts: state, last_ns, asked_bytes, limit_bytes, used_bytes;
    lists_of_sums:;
    lists_of_facts:;
    by_groups:;
    left:;
});
figures!(Setting { sums:; facts: origin; lists_of_sums:; lists_of_facts: text; by_groups:; left:; });
figures!(Shrinker {
    sums: asked, freed, scans;
    facts: stop, batch, priority, worth, freeable, deferred, last_ns, state;
    lists_of_sums:;
    lists_of_facts: name;
    by_groups:;
    left:;
});
figures!(Record {
    sums: slabs, slab_free, sheaf_free, alloc_slow, free_slow, refills, flushes,
        drains, grows, shrinks, failures, home_objects, home_sheaves;
    facts: id, user_bytes, object_bytes, objects_per_slab, pages_per_slab, sheaf_capacity, state;
    lists_of_sums: node_slabs;
    lists_of_facts: name;
    by_groups: partial_slabs, empty_slabs, empty_target;
    left:;
});
