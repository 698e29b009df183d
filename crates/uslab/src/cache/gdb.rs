//! The table by which a debugger finds the caches of a process, or of its core, without debug
//! information.
//!
//! ```text
//!   section uslab_gdb ─▶ TABLE ─┬─▶ facts: names of structures and fields, with sizes and offsets
//!                               └─▶ roots: caches, used ids, arena, depot of stacks
//! ```
//!
//! The section has a name of its own, which `strip` keeps. So the script (`gdb/uslab.py`) finds the
//! table in every program: preloaded, linked, static, stripped. A process may have several, one for
//! each copy of the library. No code of the library reads them.

use super::body;
use super::debugged;
use super::registry::{self, FIRST_CACHE_ID, FIRST_HEAP_ID, LARGE_ID, SAMPLED_ID};
use crate::os::facts::Fact;
use crate::percpu::sheaf;
use crate::report::depot;
use crate::{counters, pages, percpu, rseq, slab};

/// The version of the script that reads this table; another version refuses it.
const VERSION: u32 = 3;

/// Offsets in memory of the layers above, which assert them.
pub const LARGE_PAGES: usize = 0;
/// The word of a large object's descriptor that tells how it is debugged: letters in the low byte,
/// above them the pages before it.
pub const LARGE_DEBUGGED: usize = 4;
/// The slabs in the structure to which an owner of bare slabs leads.
pub const BARE_SLABS: usize = 0;

const IDS: &[Fact] = &[
    Fact::new("id.large", LARGE_ID as usize),
    Fact::new("id.sampled", SAMPLED_ID as usize),
    Fact::new("id.first_sheaf", sheaf::FIRST_ID as usize),
    Fact::new("id.first_heap", FIRST_HEAP_ID as usize),
    Fact::new("id.first_cache", FIRST_CACHE_ID as usize),
    Fact::new("large.pages", LARGE_PAGES),
    Fact::new("large.debugged", LARGE_DEBUGGED),
    Fact::new("bare.slabs", BARE_SLABS),
];

const LISTS: &[&[Fact]] = &[
    IDS,
    body::FACTS,
    debugged::FACTS[0],
    debugged::FACTS[1],
    debugged::FACTS[2],
    depot::FACTS,
    percpu::FACTS[0],
    percpu::FACTS[1],
    percpu::FACTS[2],
    percpu::FACTS[3],
    percpu::FACTS[4],
    percpu::FACTS[5],
    counters::FACTS,
    slab::FACTS[0],
    slab::FACTS[1],
    slab::FACTS[2],
    slab::FACTS[3],
    slab::FACTS[4],
    pages::FACTS[0],
    pages::FACTS[1],
    rseq::FACTS[0],
    rseq::FACTS[1],
];

/// Read-only, and so never in the memory of a process: the table alone is relocated.
static FACTS: [Fact; Fact::count(LISTS)] = Fact::join(LISTS);

/// The start of the section.
#[repr(C)]
#[allow(dead_code, reason = "debuggers read it")]
pub struct Table {
    magic: [u8; 8],
    version: u32,
    facts_count: u32,
    facts: *const Fact,
    /// The pointers to caches, by id.
    cores: *const (),
    /// The number of ids ever used, 32 bits.
    used_ids: *const (),
    arena: *const (),
    /// The place of the depot's address.
    depot: *const (),
    /// The place of the pointer to the first slot of a thread's own.
    locals: *const (),
}

// SAFETY: the table and what it points to are statics; the library does not read it.
unsafe impl Sync for Table {}

/// Start-up refers to it, so that the linker keeps it.
#[used]
#[unsafe(link_section = "uslab_gdb")]
pub static TABLE: Table = Table {
    magic: *b"uslabgdb",
    version: VERSION,
    facts_count: FACTS.len() as u32,
    facts: FACTS.as_ptr(),
    cores: registry::cores(),
    used_ids: registry::used_ids(),
    arena: pages::arena::structure(),
    depot: depot::place(),
    locals: percpu::local::first_place(),
};

// The script reads these at fixed places.
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Table, version) == 8 && offset_of!(Table, facts_count) == 12);
    assert!(offset_of!(Table, facts) == 16 && offset_of!(Table, cores) == 24);
    assert!(offset_of!(Table, used_ids) == 32 && offset_of!(Table, arena) == 40);
    assert!(offset_of!(Table, depot) == 48 && offset_of!(Table, locals) == 56);
    assert!(size_of::<Table>() == 64);
};
