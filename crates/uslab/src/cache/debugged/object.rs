//! The bytes of a debugged object: its record, its zones, its pattern.

use super::Debug;
pub use super::track::{Track, User};
use crate::os;
use crate::os::debugging::{RED_ZONE, USERS};
use crate::os::facts::{Fact, facts};
use crate::os::unwind::MAX_FRAMES;
use crate::report::Event;
use crate::report::depot::StackId;
use core::ops::Range;
use core::sync::atomic::{
    AtomicU8, AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release as ReleaseOrder},
};

/// The byte of a zone while its object is free.
pub const ZONE_FREE: u8 = 0xbb;
/// The byte of a zone while its object is in use.
pub const ZONE_USED: u8 = 0xcc;
/// The byte of an object that was never used.
pub const NEVER_USED: u8 = 0x5a;
/// The byte of a free object.
pub const FREED: u8 = 0x6b;
/// The last byte of a free object.
pub const FREED_END: u8 = 0xa5;

/// The states of an object. They are words that no pattern contains.
pub const NEVER: u32 = 0x4e45_5652;
/// Free.
pub const FREE: u32 = 0x4652_4545;
/// In use.
pub const LIVE: u32 = 0x4c49_5645;
/// A thread works on it.
pub const BUSY: u32 = 0x4255_5359;

/// The functions that memory came from, or goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Family {
    /// Any: functions that may free all.
    Any = 0,
    /// A cache's functions.
    Cache = 1,
    /// `malloc`, `calloc`, `realloc`, `free` and their relatives.
    Malloc = 2,
    /// `operator new` and `operator delete`.
    New = 3,
    /// `operator new[]` and `operator delete[]`.
    NewArray = 4,
}

impl Family {
    /// The family with this number; [`Family::Any`] for any other number.
    pub const fn of(number: u8) -> Family {
        match number {
            1 => Family::Cache,
            2 => Family::Malloc,
            3 => Family::New,
            4 => Family::NewArray,
            _ => Family::Any,
        }
    }

    /// Its name in reports, as memory of it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Any => "",
            Family::Cache => "a cache",
            Family::Malloc => "malloc",
            Family::New => "operator new",
            Family::NewArray => "operator new[]",
        }
    }

    /// The name of its functions that free.
    pub fn release_name(self) -> &'static str {
        match self {
            Family::Any | Family::Cache => "a free",
            Family::Malloc => "free",
            Family::New => "operator delete",
            Family::NewArray => "operator delete[]",
        }
    }

    /// Whether memory of this family may be freed by a function of `other`.
    pub fn takes(self, other: Family) -> bool {
        let is_strict = matches!(self, Family::Malloc | Family::New | Family::NewArray);
        !is_strict || other == Family::Any || other == self
    }
}

/// An allocation as the program asked for it.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub bytes: usize,
    pub family: Family,
}

/// A free as the program asked for it.
#[derive(Clone, Copy)]
pub(crate) struct Release {
    /// The size that the program named.
    pub bytes: Option<usize>,
    pub family: Family,
}

impl Release {
    /// A free of which only the pointer is known.
    pub const PLAIN: Release = Release { bytes: None, family: Family::Any };
}

/// The record at an object's start.
#[repr(C)]
pub struct Record {
    /// The bytes that the program asked for.
    pub asked: AtomicUsize,
    pub state: AtomicU32,
    pub family: AtomicU8,
    _unused: [AtomicU8; 3],
    /// Only with letter U.
    users: [Track; 2],
}

/// Records, for a debugger.
pub const FACTS: &[&[Fact]] = &[
    facts!(Record { asked, state, family, users }),
    super::track::FACTS,
    &[
        Fact::new("state.never", NEVER as usize),
        Fact::new("state.free", FREE as usize),
        Fact::new("state.live", LIVE as usize),
        Fact::new("state.busy", BUSY as usize),
        Fact::new("letter.users", USERS as usize),
    ],
];

pub const RECORD_BYTES: usize = core::mem::offset_of!(Record, users);
pub const RECORD_WITH_USERS_BYTES: usize = size_of::<Record>();
const _: () = assert!(RECORD_BYTES == 16 && RECORD_WITH_USERS_BYTES == 64);

/// An object of a debugged cache.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    pub debug: &'a Debug,
    /// The pointer of the program.
    pub pointer: usize,
}

impl<'a> Object<'a> {
    /// The record, whose tracks may be read only with letter U.
    ///
    /// The pointer lies in a slab of the cache, whose pages stay mapped for ever.
    pub fn record(&self) -> &'static Record {
        let start = self.pointer - self.debug.offset;
        // SAFETY: an object's start, aligned to 8, and at least RECORD_BYTES of it. The program may
        // overwrite it by mistake; its fields are atomics of which every value is valid. The tracks
        // are used with letter U alone, and otherwise lie in the object or the next one.
        unsafe { &*(start as *const Record) }
    }

    /// The bytes that the program asked for; never more than the object has.
    pub fn asked(&self) -> usize {
        self.record().asked.load(Relaxed).min(self.debug.bytes)
    }

    pub fn family(&self) -> Family {
        Family::of(self.record().family.load(Relaxed))
    }

    /// Takes the object for this thread, if it has one of the states `from`; returns that state.
    /// Otherwise returns the state as the error.
    ///
    /// Waits while another thread works on it, with growing sleeps, so that a real-time thread lets
    /// it run. After a second [`BUSY`] is the error: in a fork child that thread does not exist.
    #[inline]
    pub fn take(&self, from: &[u32]) -> Result<u32, u32> {
        let state = &self.record().state;
        let now = state.load(Relaxed);
        if from.contains(&now) && state.compare_exchange(now, BUSY, AcqRel, Relaxed).is_ok() {
            return Ok(now);
        }
        self.wait_and_take(from)
    }

    #[cold]
    fn wait_and_take(&self, from: &[u32]) -> Result<u32, u32> {
        let _errno = os::errno::Preserved::new();
        let state = &self.record().state;
        let (mut turns, mut pause_ms) = (0, 1);
        loop {
            let now = state.load(Acquire);
            if from.contains(&now) {
                if state.compare_exchange(now, BUSY, AcqRel, Relaxed).is_ok() {
                    return Ok(now);
                }
            } else if now == BUSY && turns < 100 {
                os::thread::give_way();
                turns += 1;
            } else if now == BUSY && pause_ms < 1024 {
                os::sleep::pause(pause_ms);
                pause_ms *= 2;
            } else {
                return Err(now);
            }
        }
    }

    /// Takes the object, whatever known state it has, if no other thread works on it.
    pub fn take_at_once(&self) -> Result<u32, u32> {
        let state = &self.record().state;
        let now = state.load(Acquire);
        let is_known = now == FREE || now == NEVER || now == LIVE;
        if !is_known {
            return Err(now);
        }
        state.compare_exchange(now, BUSY, AcqRel, Relaxed)
    }

    /// Ends [`Object::take`].
    pub fn put(&self, state: u32) {
        self.record().state.store(state, ReleaseOrder);
    }

    /// Records this thread as a user of the object, with letter U.
    pub fn note(&self, user: User) {
        if !self.debug.has(USERS) {
            return;
        }
        self.record().users[user as usize].note();
    }

    /// Forgets a user.
    pub fn forget(&self, user: User) {
        if self.debug.has(USERS) {
            self.record().users[user as usize].forget();
        }
    }

    /// The last user; its frames are copied to `frames`. `None` without letter U, and where there
    /// was none.
    pub fn user<'b>(&self, user: User, frames: &'b mut [usize; MAX_FRAMES]) -> Option<Event<'b>> {
        if !self.debug.has(USERS) {
            return None;
        }
        self.record().users[user as usize].event(frames)
    }

    /// The last allocation: stack, thread, CPU and time. Zeroes without letter U.
    pub fn allocated_by(&self) -> (StackId, u32, u32, u64) {
        if !self.debug.has(USERS) {
            return (StackId::NONE, 0, 0, 0);
        }
        self.record().users[User::Allocated as usize].words()
    }

    /// Fills the zones for an object of which the program uses `used` bytes.
    pub fn fill_zones(&self, used: usize, value: u8) {
        if !self.debug.has(RED_ZONE) || self.debug.is_secure() {
            return;
        }
        fill(self.debug.left_zone(self.pointer), value);
        fill(self.debug.right_zone(self.pointer, used), value);
    }

    /// The pattern's bytes.
    pub fn bytes(&self) -> Range<usize> {
        self.pointer..self.pointer + self.debug.bytes
    }

    /// Fills the object with the pattern of a free one.
    pub fn poison(&self) {
        let bytes = self.bytes();
        fill(bytes.start..bytes.end - 1, FREED);
        fill(bytes.end - 1..bytes.end, FREED_END);
    }
}

/// Fills a range of an object's memory.
pub fn fill(range: Range<usize>, value: u8) {
    // SAFETY: the range lies in an object of a debugged cache, whose pages are mapped, and which
    // the calling thread has taken.
    unsafe { (range.start as *mut u8).write_bytes(value, range.len()) };
}

/// The bytes of `range` that are not 0, as [`differing`]. Most ranges are all zero.
pub fn not_zero(range: Range<usize>) -> Option<Range<usize>> {
    // SAFETY: as in `differing`.
    let bytes = unsafe { core::slice::from_raw_parts(range.start as *const u8, range.len()) };
    // SAFETY: every value is a valid number.
    let (start, words, end) = unsafe { bytes.align_to::<u64>() };
    let (blocks, rest) = words.as_chunks::<8>();
    let is_zero = |block: &[u64; 8]| block.iter().fold(0, |all, &word| all | word) == 0;
    let is_same = blocks.iter().all(is_zero)
        && rest.iter().all(|&word| word == 0)
        && start.iter().chain(end).all(|&byte| byte == 0);
    if is_same { None } else { differing(range, 0) }
}

/// The bytes of `range` that are not `value`: from the first to the last of them.
pub fn differing(range: Range<usize>, value: u8) -> Option<Range<usize>> {
    // SAFETY: as in `fill`. The program may write to it meanwhile, by mistake: any bytes are valid.
    let bytes = unsafe { core::slice::from_raw_parts(range.start as *const u8, range.len()) };
    // 32 bytes at a time: the compiler uses vectors.
    let (blocks, rest) = bytes.as_chunks::<32>();
    let is_whole = |block: &[u8; 32]| block.iter().fold(0, |changed, &byte| changed | byte ^ value) == 0;
    let is_same = blocks.iter().all(is_whole) && rest.iter().all(|&byte| byte == value);
    if is_same {
        return None;
    }
    let first = bytes.iter().position(|&byte| byte != value)?;
    let last = bytes.iter().rposition(|&byte| byte != value)?;
    Some(range.start + first..range.start + last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;
    use std::time::Duration;

    /// A thread that works on an object may be preempted for long.
    #[test]
    fn take_waits_for_the_thread_that_works_on_the_object() {
        let debug = Debug::new(crate::os::debugging::CHECKS, 64, 8, None);
        let memory = [const { AtomicU64::new(0) }; 16];
        let object = Object { debug: &debug, pointer: debug.pointer(memory.as_ptr() as *mut u8) as usize };
        object.put(FREE);
        assert_eq!(object.take(&[FREE]), Ok(FREE));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                object.put(LIVE);
            });
            assert_eq!(object.take(&[LIVE]), Ok(LIVE));
        });
        assert_eq!(object.take(&[LIVE]), Err(BUSY), "its thread never comes back");
    }
}
