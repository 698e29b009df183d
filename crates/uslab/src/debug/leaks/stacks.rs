//! The unused parts of stacks: words that finished calls left there would hide leaks.
//!
//! ```text
//!   stack of a thread:   │ guard │ unused │ frames │ TLS │ descriptor of the C library │
//!                        ▲ block          ▲ stack pointer                              ▲ block + bytes
//! ```
//!
//! The search leaves out the unused part of a stack only where the bounds are certain. The kernel
//! names the bounds of the first thread's stack. For another thread, glibc's thread descriptor
//! states the block; the search recognises its fields by their values. The whole stack of a thread
//! that has ended is unused: glibc keeps it for the next thread. Any other stack is searched whole.

use crate::os::maps::Mapping;
use crate::os::own_memory::OwnMemory;
use crate::os::stop::Thread;
use crate::os::thread;
use core::ops::Range;

/// Bytes below the stack pointer that a function may use.
const RED_ZONE_BYTES: usize = 128;
/// Words of glibc's descriptor that are looked at; it has 0x900 bytes.
const WORDS: usize = 0x900 / 8;
/// Bytes at the end of a stack in which its descriptor is sought.
const MAX_TOP_BYTES: usize = 64 << 10;
/// Upper bound on the unused parts of one mapping. Further stacks are searched whole.
const MAX_HOLES: usize = 64;

/// The stacks of the process.
pub struct Stacks<'a> {
    threads: &'a [Thread],
    are_all: bool,
    /// The caller's stack pointer.
    caller: usize,
    /// The end of the last mapping that could not be accessed: the guard of a stack, perhaps.
    guard_end: usize,
    holes: [Range<usize>; MAX_HOLES],
    used: usize,
}

impl<'a> Stacks<'a> {
    /// The stacks of the threads that were stopped, and of the caller, whose stack pointer is
    /// `caller`. `are_all`: there are no other threads.
    pub fn of(threads: &'a [Thread], are_all: bool, caller: usize) -> Stacks<'a> {
        Stacks { threads, are_all, caller, guard_end: 0, holes: [const { 0..0 }; MAX_HOLES], used: 0 }
    }

    /// The threads that were stopped.
    pub fn threads(&self) -> &'a [Thread] {
        self.threads
    }

    /// The ends of the unused parts: the stack pointers, the caller's last.
    fn pointers(&self) -> impl Iterator<Item = usize> + use<'a> {
        let others = self.threads.iter().map(|thread| thread.stack_pointer.saturating_sub(RED_ZONE_BYTES));
        others.chain([self.caller])
    }

    /// The descriptors of the same threads.
    fn descriptors(&self) -> impl Iterator<Item = usize> + use<'a> {
        let others = self.threads.iter().map(|thread| thread::descriptor_of(thread.thread_pointer));
        others.chain([thread::descriptor()])
    }

    /// Notes the next mapping, before the search comes to it.
    pub fn note(&mut self, mapping: &Mapping<'_>, memory: &OwnMemory) {
        self.used = 0;
        for (top, descriptor) in self.pointers().zip(self.descriptors()) {
            if !mapping.range.contains(&top) {
                continue;
            }
            let bottom = if mapping.name == b"[stack]" {
                // The kernel makes this mapping grow, so it contains nothing else.
                Some(mapping.range.start)
            } else {
                block_of(descriptor, top, memory).map(|block| block.start)
            };
            if let Some(bottom) = bottom {
                self.leave_out(bottom..top & !7);
            }
        }
        if !mapping.is_readable {
            self.guard_end = mapping.range.end;
        } else if self.guard_end == mapping.range.start && !mapping.is_shared {
            self.note_ended(mapping, memory);
        }
    }

    /// Leaves out the stack of a thread that has ended, if `mapping` ends with its descriptor.
    fn note_ended(&mut self, mapping: &Mapping<'_>, memory: &OwnMemory) {
        let Range { start, end } = mapping.range;
        let mut at = end.saturating_sub(MAX_TOP_BYTES).max(start);
        let mut words = [0usize; 512];
        while at < end {
            let n = (end - at).min(size_of_val(&words)) / 8;
            let n = memory.read_words(at, &mut words[..n]);
            for (index, &word) in words[..n].iter().enumerate() {
                let here = at + index * 8;
                if word == here
                    && self.has_ended(here, memory)
                    && let Some(block) = block_of(here, here - 1, memory)
                    && block.start <= start
                    && !self.pointers().any(|pointer| (start..end).contains(&pointer))
                {
                    self.leave_out(start..here);
                }
            }
            at += n.max(1) * 8;
        }
    }

    /// Whether `address` is the descriptor of a thread that has ended. In a fork child the numbers
    /// of the parent's threads may stay, of which the child has none.
    fn has_ended(&self, address: usize, memory: &OwnMemory) -> bool {
        let id = thread::id_of(address, |from, into| memory.read_words(from, into));
        let is_listed = || self.descriptors().any(|descriptor| descriptor == address);
        id.is_some_and(|id| if self.are_all { !is_listed() } else { id == 0 })
    }

    fn leave_out(&mut self, hole: Range<usize>) {
        if let Some(place) = self.holes.get_mut(self.used) {
            *place = hole;
            self.used += 1;
        }
    }

    /// The unused parts of stacks in the mapping that was noted last.
    pub fn unused(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.holes[..self.used].iter().cloned()
    }
}

/// The block of the stack that a descriptor names, if `inside` lies in it: three words of the
/// descriptor are the block's start, its length, and that of its guard.
fn block_of(descriptor: usize, inside: usize, memory: &OwnMemory) -> Option<Range<usize>> {
    let mut words = [0; WORDS];
    let n = memory.read_words(descriptor, &mut words);
    words[..n].windows(3).find_map(|fields| {
        let [start, bytes, guard] = *fields else { return None };
        let end = start.checked_add(bytes)?;
        let are_pages = [start, bytes, guard].iter().all(|word| word.is_multiple_of(4096));
        let is_inside = start > 0 && guard < bytes && start + guard <= inside && inside < descriptor;
        let is_at_top = descriptor < end && end - descriptor <= MAX_TOP_BYTES;
        (are_pages && is_inside && is_at_top).then_some(start..end)
    })
}
