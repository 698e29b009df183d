//! Stacks seen before: a thread recognises one by the words that a walk would read.
//!
//! A walk follows from the registers that it starts from and from the words that it reads. So the
//! table keeps, of each walk, these words, where they lie, and the number that the caller gave the
//! stack. If all of them are the same, so is the stack. The comparison goes in the walk's order, so
//! each place lies in a frame that the words before it led to. It is fast because the processor
//! knows all places at once: in a walk, each word leads to the next place.
//!
//! ```text
//!   sp ──▶ entry { sp, (place, word), … } ─ all the same ─▶ number of the stack
//!            │ the word at a place differs
//!            ▼
//!          entry of (this entry, that word) ──▶ …       PROBES at most
//! ```
//!
//! So the calls of one function, which differ in a return address, find entries of their own.
//!
//! Threads share the entries. One thread at a time uses an entry; another one that wants it walks.

use super::Registers;
use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicU16,
    Ordering::{Acquire, Relaxed, Release},
};

const ENTRIES: usize = 512;
/// Entries that one stack may lie in.
const PROBES: usize = 4;
/// Words of the longest walk that is kept: 16 frames of the program and the library's.
const MAX_WORDS: usize = 32;

/// A word that a walk read.
#[derive(Clone, Copy)]
struct Read {
    place: usize,
    word: usize,
}

/// What a walk depends on.
pub struct Trail {
    /// The number of the stack; 0 for none.
    number: u32,
    start: Registers,
    /// Whether the walk depends on the first frame pointer.
    needs_fp: bool,
    count: usize,
    reads: [Read; MAX_WORDS],
    /// Where the present frame pointer was saved; `None` while it is the first one.
    fp: Option<Read>,
}

/// What an entry says of a stack.
enum Found {
    /// It is the one of this number.
    Number(u32),
    /// It is another one: the first word that differs.
    Other(usize),
    /// The entry has none.
    Nothing,
}

impl Trail {
    const NONE: Trail = Trail {
        number: 0,
        start: Registers { pc: 0, sp: 0, fp: 0, link: 0 },
        needs_fp: false,
        count: 0,
        reads: [Read { place: 0, word: 0 }; MAX_WORDS],
        fp: None,
    };

    /// The walk read a return address.
    #[inline]
    pub fn read(&mut self, place: usize, word: usize) {
        if let Some(next) = self.reads.get_mut(self.count) {
            *next = Read { place, word };
        }
        self.count += 1;
    }

    /// The walk read a frame pointer. Its value may be any: only a frame that is found by it
    /// depends on it.
    #[inline]
    pub fn read_fp(&mut self, place: usize, word: usize) {
        self.fp = Some(Read { place, word });
    }

    /// The walk finds the next frame by the frame pointer.
    #[inline]
    pub fn use_fp(&mut self) {
        match self.fp {
            Some(Read { place, word }) => self.read(place, word),
            None => self.needs_fp = true,
        }
    }

    /// Compares the stack at `start` with that of the trail, which is whole if it has a number.
    ///
    /// # Safety
    /// `start` must be the registers of a frame of the calling thread.
    #[inline]
    unsafe fn compare(&self, start: Registers) -> Found {
        if self.number == 0 {
            return Found::Nothing;
        }
        if self.start.sp != start.sp || self.start.pc != start.pc {
            return Found::Other(start.sp);
        }
        if self.needs_fp && self.start.fp != start.fp {
            return Found::Other(start.fp);
        }
        for read in self.reads.iter().take(self.count) {
            // SAFETY: a walk from `start` reads this word, too, because all that it has read until
            // here is what the walk of the trail read. So it lies in a frame of the calling thread.
            let word = unsafe { (read.place as *const usize).read() };
            if word != read.word {
                return Found::Other(word);
            }
        }
        Found::Number(self.number)
    }

    /// Becomes the trail of `walk`; returns its number.
    fn replace(&mut self, start: Registers, walk: &impl Fn(Option<&mut Trail>) -> u32) -> u32 {
        (self.start, self.needs_fp, self.count, self.fp) = (start, false, 0, None);
        let number = walk(Some(self));
        // A search for leaks reads this memory. What the walk does not depend on may be a pointer
        // to an object.
        if !self.needs_fp {
            self.start.fp = 0;
        }
        self.fp = None;
        self.number = if self.count <= MAX_WORDS { number } else { 0 };
        number
    }
}

/// A place for a trail.
struct Entry {
    /// Whether a thread uses it. In a fork child it may stay so, and the entry then has no use.
    is_taken: AtomicBool,
    trail: UnsafeCell<Trail>,
}

// SAFETY: only the thread that set `is_taken` uses the trail.
unsafe impl Sync for Entry {}

#[unsafe(link_section = ".bss.uslab_tables")]
static TABLE: [Entry; ENTRIES] =
    [const { Entry { is_taken: AtomicBool::new(false), trail: UnsafeCell::new(Trail::NONE) } }; ENTRIES];

/// By stack pointer, the place of the entry that was found last. A loop finds it at once.
#[unsafe(link_section = ".bss.uslab_tables")]
static LAST: [AtomicU16; ENTRIES] = [const { AtomicU16::new(0) }; ENTRIES];

impl Entry {
    /// Calls `use_trail` with the trail; `None` if another thread uses it, or if this one was
    /// interrupted while it did.
    #[inline]
    fn with<R>(&self, use_trail: impl FnOnce(&mut Trail) -> R) -> Option<R> {
        if self.is_taken.swap(true, Acquire) {
            return None;
        }
        // SAFETY: this thread has taken the entry.
        let result = use_trail(unsafe { &mut *self.trail.get() });
        self.is_taken.store(false, Release);
        Some(result)
    }

    /// [`Trail::compare`]; `None` if the entry is taken.
    ///
    /// # Safety
    /// As there.
    #[inline]
    unsafe fn compare(&self, start: Registers) -> Option<Found> {
        // SAFETY: the caller's promise.
        self.with(|trail| unsafe { trail.compare(start) })
    }
}

/// The number of the stack at `start`. If the table has none, calls `walk`, which must record all
/// that it reads in the trail, if there is one, and return the number, or 0 for none.
///
/// # Safety
/// `start` must be the registers of a frame of the calling thread.
#[inline]
pub unsafe fn number(start: Registers, walk: impl Fn(Option<&mut Trail>) -> u32) -> u32 {
    let mut hash = mixed(0, start.sp);
    let last = &LAST[place_of(hash)];
    // SAFETY: the caller's promise.
    let found = unsafe { TABLE[usize::from(last.load(Relaxed)) % ENTRIES].compare(start) };
    if let Some(Found::Number(number)) = found {
        return number;
    }
    let mut chosen = None;
    for _ in 0..PROBES {
        let place = place_of(hash);
        let entry = &TABLE[place];
        // SAFETY: the caller's promise.
        match unsafe { entry.compare(start) } {
            Some(Found::Number(number)) => {
                last.store(place as u16, Relaxed);
                return number;
            }
            Some(Found::Other(word)) => hash = mixed(hash, word),
            Some(Found::Nothing) => {
                chosen = Some(entry);
                break;
            }
            None => break,
        }
        // Any of them: of two stacks that take turns, each is to stay.
        if chosen.is_none() || hash >> 62 == 0 {
            chosen = Some(entry);
        }
    }
    let kept = chosen.and_then(|entry| entry.with(|trail| trail.replace(start, &walk)));
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
