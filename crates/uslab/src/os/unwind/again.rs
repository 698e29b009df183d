//! Stacks seen before: a thread recognises one by the words that a walk would read.
//!
//! A walk follows from the registers that it starts from and from the words that it reads. So the
//! table keeps, of each walk, these words, where they lie, and the number that the caller gave the
//! stack. If all of them are the same, so is the stack. The comparison goes in the walk's order, so
//! each place lies in a frame that the words before it led to. It is fast because the processor
//! knows all places at once: in a walk, each word leads to the next place.
//!
//! ```text
//!   sp ──▶ entry { sp, (place, word), (place, word), … } ── all the same ──▶ number of the stack
//!            │ the word at a place differs
//!            ▼
//!          entry of (this entry, that word) ──▶ …                 PROBES at most
//! ```
//!
//! So the calls of one function, which differ in a return address, find entries of their own.
//!
//! Threads share the entries. A writer makes the version odd. A reader looks at the version again
//! after each place that it read, before it uses the place: the place may be one of another
//! thread's stack otherwise, which no longer exists.

use super::Registers;
use core::cell::Cell;
use core::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

const ENTRIES: usize = 512;
/// Entries that one stack may lie in.
const PROBES: usize = 4;
/// Words of the longest walk that is kept: 16 frames of the program and the library's.
const MAX_WORDS: usize = 32;

/// A word that a walk read.
struct Read {
    place: AtomicUsize,
    word: AtomicUsize,
}

/// A walk, and the number of its stack; 0 for none.
struct Entry {
    /// Odd while a thread writes. In a fork child it may stay so, and the entry then has no use.
    version: AtomicU32,
    number: AtomicU32,
    pc: AtomicUsize,
    sp: AtomicUsize,
    fp: AtomicUsize,
    /// Whether the walk depends on the first frame pointer.
    needs_fp: AtomicBool,
    count: AtomicUsize,
    reads: [Read; MAX_WORDS],
}

#[unsafe(link_section = ".bss.uslab_tables")]
static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        version: AtomicU32::new(0),
        number: AtomicU32::new(0),
        pc: AtomicUsize::new(0),
        sp: AtomicUsize::new(0),
        fp: AtomicUsize::new(0),
        needs_fp: AtomicBool::new(false),
        count: AtomicUsize::new(0),
        reads: [const { Read { place: AtomicUsize::new(0), word: AtomicUsize::new(0) } }; MAX_WORDS],
    }
}; ENTRIES];

/// By stack pointer, the place of the entry that was found last. A loop finds it at once.
#[unsafe(link_section = ".bss.uslab_tables")]
static LAST: [AtomicU16; ENTRIES] = [const { AtomicU16::new(0) }; ENTRIES];

/// What an entry says of a stack.
enum Found {
    /// It is the one of this number.
    Number(u32),
    /// It is another one: the first word that differs.
    Other(usize),
    /// The entry is empty.
    Nothing,
    /// Another thread writes, or this one was interrupted while it did.
    Busy,
}

impl Entry {
    /// Compares the stack at `start` with the entry's.
    ///
    /// # Safety
    /// `start` must be the registers of a frame of the calling thread.
    #[inline]
    unsafe fn compare(&self, start: Registers) -> Found {
        let version = self.version.load(Acquire);
        let number = self.number.load(Relaxed);
        let count = self.count.load(Relaxed);
        let is_start = self.sp.load(Relaxed) == start.sp
            && self.pc.load(Relaxed) == start.pc
            && (!self.needs_fp.load(Relaxed) || self.fp.load(Relaxed) == start.fp);
        fence(Acquire);
        if version % 2 == 1 || self.version.load(Relaxed) != version {
            return Found::Busy;
        }
        if number == 0 {
            return Found::Nothing;
        }
        if !is_start {
            return Found::Other(start.sp ^ start.fp.rotate_left(32));
        }
        for read in self.reads.iter().take(count) {
            let expected = read.word.load(Relaxed);
            let place = read.place.load(Acquire);
            if self.version.load(Relaxed) != version {
                return Found::Busy;
            }
            // SAFETY: the version is still that of a walk from `start`, and the place was read
            // before the version was. A walk from `start` reads this word now, too, because all
            // that it read until here is the same. So it lies in a frame of the calling thread.
            let word = unsafe { (place as *const usize).read() };
            if word != expected {
                return Found::Other(word);
            }
        }
        // The version did not change since `number` was read, and the words are those that belong
        // to it: only the last `expected` may be newer, and then some place before it was.
        fence(Acquire);
        if self.version.load(Relaxed) == version { Found::Number(number) } else { Found::Busy }
    }

    /// Replaces the walk by that of `walk`, unless another thread writes. Returns its number.
    fn replace(&self, start: Registers, walk: &impl Fn(Option<&Trail<'_>>) -> u32) -> Option<u32> {
        let version = self.version.load(Relaxed);
        if version % 2 == 1 || self.version.compare_exchange(version, version + 1, Acquire, Relaxed).is_err()
        {
            return None;
        }
        // A reader that finds a store from here on finds the odd version, or a later one.
        fence(Release);
        self.pc.store(start.pc, Relaxed);
        self.sp.store(start.sp, Relaxed);
        self.fp.store(start.fp, Relaxed);
        self.needs_fp.store(false, Relaxed);
        let trail = Trail { entry: self, count: Cell::new(0), fp: Cell::new(None) };
        let number = walk(Some(&trail));
        let count = trail.count.get();
        self.count.store(count.min(MAX_WORDS), Relaxed);
        self.number.store(if count <= MAX_WORDS { number } else { 0 }, Relaxed);
        self.version.store(version.wrapping_add(2), Release);
        Some(number)
    }
}

/// Records in an entry what a walk depends on.
pub struct Trail<'a> {
    entry: &'a Entry,
    count: Cell<usize>,
    /// Place and value of the present frame pointer; `None` while it is the first one.
    fp: Cell<Option<(usize, usize)>>,
}

impl Trail<'_> {
    /// The walk read a return address.
    #[inline]
    pub fn read(&self, place: usize, word: usize) {
        let count = self.count.get();
        if let Some(next) = self.entry.reads.get(count) {
            next.place.store(place, Relaxed);
            next.word.store(word, Relaxed);
        }
        self.count.set(count + 1);
    }

    /// The walk read a frame pointer. Its value may be any: only a frame that is found by it
    /// depends on it.
    #[inline]
    pub fn read_fp(&self, place: usize, word: usize) {
        self.fp.set(Some((place, word)));
    }

    /// The walk finds the next frame by the frame pointer.
    #[inline]
    pub fn use_fp(&self) {
        match self.fp.get() {
            Some((place, word)) => self.read(place, word),
            None => self.entry.needs_fp.store(true, Relaxed),
        }
    }
}

/// The number of the stack at `start`. If the table has none, calls `walk`, which must record all
/// that it reads in the trail, if there is one, and return the number, or 0 for none.
///
/// # Safety
/// `start` must be the registers of a frame of the calling thread.
#[inline]
pub unsafe fn number(start: Registers, walk: impl Fn(Option<&Trail<'_>>) -> u32) -> u32 {
    let mut hash = mixed(0, start.sp);
    let last = &LAST[place_of(hash)];
    // SAFETY: the caller's promise.
    if let Found::Number(number) = unsafe { TABLE[usize::from(last.load(Relaxed)) % ENTRIES].compare(start) }
    {
        return number;
    }
    let mut chosen = None;
    for _ in 0..PROBES {
        let place = place_of(hash);
        let entry = &TABLE[place];
        // SAFETY: the caller's promise.
        match unsafe { entry.compare(start) } {
            Found::Number(number) => {
                last.store(place as u16, Relaxed);
                return number;
            }
            Found::Other(word) => hash = mixed(hash, word),
            Found::Nothing => {
                chosen = Some(entry);
                break;
            }
            Found::Busy => break,
        }
        // Any of them: of two stacks that take turns, each is to stay.
        if chosen.is_none() || hash >> 62 == 0 {
            chosen = Some(entry);
        }
    }
    let kept = chosen.and_then(|entry| entry.replace(start, &walk));
    kept.unwrap_or_else(|| walk(None))
}

/// The place in the tables for a hash.
#[inline]
fn place_of(hash: u64) -> usize {
    (hash >> 32) as usize % ENTRIES
}

/// The hash of a word behind those of `hash`.
#[inline]
fn mixed(hash: u64, word: usize) -> u64 {
    (hash.rotate_left(23) ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
