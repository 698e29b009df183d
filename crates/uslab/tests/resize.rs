//! `realloc` in place: an object of more than 32 KiB stays wherever the pages behind it are free.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use modes::in_both_modes;
use uslab::malloc::{free, malloc, realloc};

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { uslab::malloc::usable_size(pointer) }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A block that is resized, and how many times it moved.
struct Block {
    start: *mut u8,
    bytes: usize,
    moves: usize,
}

impl Block {
    fn new(bytes: usize) -> Block {
        let block = Block { start: malloc(bytes), bytes, moves: 0 };
        block.mark();
        block
    }

    /// Writes the first and the last word.
    fn mark(&self) {
        for at in [0, self.bytes - 8] {
            // SAFETY: within the block, which this test owns.
            unsafe { self.start.add(at).cast::<usize>().write_unaligned(at ^ 0x5eed) };
        }
    }

    fn resize(&mut self, bytes: usize) {
        // SAFETY: the old address is not used any more.
        let now = unsafe { realloc(self.start, bytes) };
        assert!(usable_size(now) >= bytes, "{bytes}");
        self.moves += usize::from(now != self.start);
        let last = self.bytes - 8;
        for at in [0, last].into_iter().filter(|at| at + 8 <= bytes) {
            // SAFETY: within the block.
            let word = unsafe { now.add(at).cast::<usize>().read_unaligned() };
            assert_eq!(word, at ^ 0x5eed, "the contents stay");
        }
        (self.start, self.bytes) = (now, bytes);
        self.mark();
    }

    /// Resizes step by step until it has `bytes`; returns how many steps moved it.
    fn reach(&mut self, bytes: usize, step: impl Fn(usize) -> usize) -> usize {
        let before = self.moves;
        while self.bytes != bytes {
            let next = step(self.bytes);
            self.resize(if self.bytes < bytes { next.min(bytes) } else { next.max(bytes) });
        }
        self.moves - before
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by this test, and unused from here on.
        unsafe { free(self.start) };
    }
}

#[test]
fn a_block_that_grows_alone_never_moves() {
    in_both_modes("a_block_that_grows_alone_never_moves", &[], || {
        let mut block = Block::new(40 * KIB);
        // Medium, then large, then many chunks: the arena grows behind it.
        assert_eq!(block.reach(MIB, |bytes| bytes + 8 * KIB), 0);
        assert_eq!(block.reach(64 * MIB, |bytes| bytes + 64 * KIB), 0);
        assert_eq!(block.reach(200 * MIB, |bytes| bytes + bytes / 2), 0);
        // Back, and once more over the pages that it left.
        assert_eq!(block.reach(40 * KIB, |bytes| bytes - bytes / 3), 0);
        assert_eq!(block.reach(64 * MIB, |bytes| bytes + bytes / 2), 0);
    });
}

#[test]
fn a_block_moves_only_from_before_pages_in_use() {
    in_both_modes("a_block_moves_only_from_before_pages_in_use", &[], || {
        let mut block = Block::new(4 * MIB);
        let wall = Block::new(4 * MIB);
        let is_before = block.start < wall.start;
        assert_eq!(block.reach(3 * MIB, |bytes| bytes - 100 * KIB), 0);
        assert_eq!(block.reach(4 * MIB, |bytes| bytes + 100 * KIB), 0);
        assert_eq!(block.reach(20 * MIB, |bytes| bytes + MIB), usize::from(is_before));
        // The wall shrinks to a medium size where it stands, and grows again.
        let mut wall = wall;
        assert_eq!(wall.reach(50 * KIB, |bytes| bytes - bytes / 3), 0);
        assert_eq!(wall.reach(4 * MIB, |bytes| bytes + bytes / 2), 0);
    });
}
