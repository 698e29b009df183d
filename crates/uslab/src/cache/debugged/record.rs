//! The record of a debugged object: one word with its size, its state and a seal.
//!
//! ```text
//!   bit  0         24       28      32                          63
//!        │ asked   │ family │ state │ seal: secret bytes        ┃ zone, or the object
//!        └ bytes that the program asked for                     ▲ 8 bytes behind the record's start
//! ```
//!
//! The seal follows from the object's address and keys of the process, as canaries do, and never
//! changes. So a record that the program overwrote is told from every right one, and the seal of a
//! hardened object is the canary before it. The seal does not depend on the state and the size, so
//! one store, or one compare-exchange, changes both.

use super::family::Family;
use super::track::Track;
use crate::os;
use crate::os::debugging::USERS;
use crate::os::facts::{Fact, facts};
use core::sync::atomic::{AtomicU64, AtomicUsize};

/// The states of an object. Each differs from all others, from 0 and from 15 in two bits or more.
pub const NEVER: u32 = 0b0011;
/// Free.
pub const FREE: u32 = 0b0101;
/// In use.
pub const LIVE: u32 = 0b1001;
/// A thread works on it.
pub const BUSY: u32 = 0b0110;
/// A walk looks at the free object; the thread that allocates it waits, or takes it away.
pub const LOOKED_AT: u32 = 0b1010;
/// No state of a record: the program overwrote it.
pub const OVERWRITTEN: u32 = 0;

const ASKED_BITS: u32 = 24;
const FAMILY_SHIFT: u32 = ASKED_BITS;
const STATE_SHIFT: u32 = 28;
const FIELD: u64 = 15;
/// Bits of the seal.
pub const SEAL: u64 = u64::MAX << 32;

/// The layout of a record in memory: the word alone, or with the users behind it.
#[repr(C)]
pub struct Record {
    word: AtomicU64,
    /// Only with letter U.
    pub users: [Track; 2],
    /// Only of a run, whose size exceeds the word's bits.
    pub run_bytes: AtomicUsize,
}

/// Records, for a debugger.
pub const FACTS: &[&[Fact]] = &[
    facts!(Record { word, users, run_bytes }),
    super::track::FACTS,
    &[
        Fact::new("state.never", NEVER as usize),
        Fact::new("state.free", FREE as usize),
        Fact::new("state.live", LIVE as usize),
        Fact::new("state.busy", BUSY as usize),
        Fact::new("state.looked_at", LOOKED_AT as usize),
        Fact::new("letter.users", USERS as usize),
        Fact::new("word.asked_bits", ASKED_BITS as usize),
        Fact::new("word.family_shift", FAMILY_SHIFT as usize),
        Fact::new("word.state_shift", STATE_SHIFT as usize),
    ],
];

pub const RECORD_BYTES: usize = core::mem::offset_of!(Record, users);
pub const RECORD_WITH_USERS_BYTES: usize = core::mem::offset_of!(Record, run_bytes);
const _: () = assert!(RECORD_BYTES == 8 && RECORD_WITH_USERS_BYTES == 56);

/// The key of the object at `pointer`, for its seal and its canaries: none of its bytes is 0.
#[inline]
pub fn key(pointer: usize) -> u64 {
    os::random::keyed(pointer as u64) | 0x0101_0101_0101_0101
}

/// The value of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(pub u64);

impl Word {
    /// The record of an object with these fields, sealed by `key`. A run has its size elsewhere.
    #[inline]
    pub fn new(asked: usize, family: Family, state: u32, key: u64) -> Word {
        let asked = asked as u64 & ((1 << ASKED_BITS) - 1);
        Word(asked | (family as u64) << FAMILY_SHIFT | u64::from(state) << STATE_SHIFT | key & SEAL)
    }

    /// The same record with another state.
    #[inline]
    pub fn with_state(self, state: u32) -> Word {
        Word(self.0 & !(FIELD << STATE_SHIFT) | u64::from(state) << STATE_SHIFT)
    }

    #[inline]
    pub fn asked(self) -> usize {
        (self.0 & ((1 << ASKED_BITS) - 1)) as usize
    }

    #[inline]
    pub fn family(self) -> Family {
        Family::of((self.0 >> FAMILY_SHIFT & FIELD) as u8)
    }

    /// The bits of the state, whether or not the seal is right.
    #[inline]
    pub fn state(self) -> u32 {
        (self.0 >> STATE_SHIFT & FIELD) as u32
    }

    /// Whether the seal is that of `key`.
    #[inline]
    pub fn is_sealed_by(self, key: u64) -> bool {
        (self.0 ^ key) & SEAL == 0
    }

    /// Whether all fields but the seal are those of an object of `bytes` bytes.
    pub fn is_plausible(self, bytes: usize) -> bool {
        let is_state = matches!(self.state(), NEVER | FREE | LIVE | BUSY | LOOKED_AT);
        is_state && self.asked() <= bytes && self.0 >> FAMILY_SHIFT & FIELD <= Family::NewArray as u64
    }
}
