//! The depot: each stack once, in memory of a fixed size.
//!
//! A stack is found by its hash, in a table of chains, without a lock. A new one goes behind the
//! last, and stays for ever. Two threads may add the same stack at once; one copy is then unused.
//! Once the memory is used up, new stacks are lost, and reports say so.

use crate::os;
use crate::os::facts::Fact;
use crate::os::unwind::MAX_FRAMES;
use crate::pages::{self, Fill, Temperature};
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Bytes of the depot: some 40 000 stacks of ten frames.
const BYTES: usize = 4 << 20;
/// Chains of the table.
const CHAINS: usize = 1 << 15;
const WORDS: usize = BYTES / 8;

/// A stack's number; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct StackId(pub u32);

impl StackId {
    /// No stack.
    pub const NONE: StackId = StackId(0);
}

/// The words of the depot: the heads of the chains, two in a word, then the stacks. A stack is a
/// word `next << 32 | frames` and the frames. A number is the index of that word.
static MEMORY: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// Words in use.
static USED: AtomicUsize = AtomicUsize::new(CHAINS / 2);
/// Stacks that found no room.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// The numbers of stacks, for a debugger.
pub const FACTS: &[Fact] = &[Fact::new("depot.first", CHAINS / 2), Fact::new("depot.words", WORDS)];

/// The place of the depot's address, for a debugger.
pub const fn place() -> *const () {
    (&raw const MEMORY).cast()
}

/// Keeps the calling thread's stack; returns its number. Allocates pages the first time; the caller
/// must hold no lock.
pub fn save_current() -> StackId {
    StackId(os::unwind::numbered(|frames| save(frames).0))
}

/// Keeps a stack; returns its number.
pub fn save(frames: &[usize]) -> StackId {
    if frames.is_empty() {
        return StackId::NONE;
    }
    let Some(memory) = memory() else {
        LOST.fetch_add(1, Relaxed);
        return StackId::NONE;
    };
    let hash = frames
        .iter()
        .fold(0u64, |hash, &pc| (hash.rotate_left(5) ^ pc as u64).wrapping_mul(0x517c_c1b7_2722_0a95));
    let head = half(memory, (hash >> 32) as usize % CHAINS);
    let first = head.load(Acquire);
    if let Some(found) = find(memory, first, frames) {
        return found;
    }
    let at = USED.fetch_add(1 + frames.len(), Relaxed);
    if at + 1 + frames.len() > WORDS {
        USED.store(WORDS, Relaxed);
        LOST.fetch_add(1, Relaxed);
        return StackId::NONE;
    }
    half(memory, 2 * at).store(frames.len() as u32, Relaxed);
    for (index, &pc) in frames.iter().enumerate() {
        half(memory, 2 * (at + 1 + index)).store(pc as u32, Relaxed);
        half(memory, 2 * (at + 1 + index) + 1).store((pc as u64 >> 32) as u32, Relaxed);
    }
    let mut next = first;
    loop {
        half(memory, 2 * at + 1).store(next, Relaxed);
        match head.compare_exchange(next, at as u32, Release, Acquire) {
            Ok(_) => return StackId(at as u32),
            Err(other) => next = other,
        }
    }
}

fn find(memory: *mut AtomicU32, mut at: u32, frames: &[usize]) -> Option<StackId> {
    while at != 0 {
        let word = 2 * at as usize;
        let is_same = half(memory, word).load(Relaxed) as usize == frames.len()
            && frames.iter().enumerate().all(|(index, &pc)| frame(memory, at as usize, index) == pc);
        if is_same {
            return Some(StackId(at));
        }
        at = half(memory, word + 1).load(Relaxed);
    }
    None
}

fn frame(memory: *mut AtomicU32, at: usize, index: usize) -> usize {
    let low = half(memory, 2 * (at + 1 + index)).load(Relaxed);
    let high = half(memory, 2 * (at + 1 + index) + 1).load(Relaxed);
    (u64::from(low) | u64::from(high) << 32) as usize
}

/// Copies the frames of a stack to `out`; returns how many. 0 for a number that is none: it may
/// come from memory that the program overwrote.
pub fn frames(id: StackId, out: &mut [usize; MAX_FRAMES]) -> usize {
    let memory = MEMORY.load(Acquire);
    let at = id.0 as usize;
    if memory.is_null() || !(CHAINS / 2..WORDS).contains(&at) {
        return 0;
    }
    let n = (half(memory, 2 * at).load(Relaxed) as usize).min(MAX_FRAMES).min(WORDS - at - 1);
    for (index, place) in out[..n].iter_mut().enumerate() {
        *place = frame(memory, at, index);
    }
    n
}

/// The reason why a stack has no frames; empty if it has.
pub fn why_empty(id: StackId, frames: usize) -> &'static str {
    match (frames, id) {
        (0, StackId::NONE) if is_full() => "the depot of stacks is full",
        (0, _) => "the stack is not known",
        _ => "",
    }
}

/// Upper bound on the numbers of stacks.
pub const IDS: usize = WORDS;

/// Whether stacks found no room.
fn is_full() -> bool {
    LOST.load(Relaxed) > 0
}

fn half(memory: *mut AtomicU32, index: usize) -> &'static AtomicU32 {
    debug_assert!(index < 2 * WORDS);
    // SAFETY: the memory has twice as many halves as words, lives for ever, and is zeroed at first.
    unsafe { &*memory.add(index) }
}

fn memory() -> Option<*mut AtomicU32> {
    let memory = MEMORY.load(Acquire);
    if memory.is_null() { make() } else { Some(memory) }
}

#[cold]
fn make() -> Option<*mut AtomicU32> {
    let _errno = os::errno::Preserved::new();
    let run = pages::alloc(BYTES / pages::PAGE_BYTES, 0, Temperature::Cold, Fill::Sparse)?;
    let start = pages::address_of(run.first);
    if !run.zeroed {
        // SAFETY: the run is this call's alone, of that size.
        unsafe { start.write_bytes(0, BYTES) };
    }
    match MEMORY.compare_exchange(core::ptr::null_mut(), start.cast(), AcqRel, Acquire) {
        Ok(_) => Some(start.cast()),
        Err(others) => {
            pages::free(run.first, run.pages, Temperature::Cold);
            Some(others)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_kept_once_and_found_again() {
        set_up!();
        let stack: [usize; 3] = [0x1111_2222_3333, 0x4444, 5];
        let id = save(&stack);
        assert_ne!(id, StackId::NONE);
        assert_eq!(save(&stack), id);
        assert_ne!(save(&stack[..2]), id);
        let mut out = [0; MAX_FRAMES];
        let n = frames(id, &mut out);
        assert_eq!(out[..n], stack);
        assert_eq!(frames(StackId(u32::MAX), &mut out), 0);
        assert_eq!(frames(StackId(1), &mut out), 0);
        assert_eq!(save(&[]), StackId::NONE);
    }

    #[test]
    fn threads_that_save_at_once_find_their_stacks() {
        set_up!();
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                scope.spawn(move || {
                    for n in 1..500usize {
                        let stack = [n % 50 + 1, 7, thread % 2];
                        let mut out = [0; MAX_FRAMES];
                        let kept = frames(save(&stack), &mut out);
                        assert_eq!(out[..kept], stack);
                    }
                });
            }
        });
    }
}
