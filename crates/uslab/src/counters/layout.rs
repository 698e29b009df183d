//! The shared-memory snapshot: the one data layout that the allocator and its observers agree on.
//!
//! The allocator updates these structures on its slow paths; the fast path does not touch them.
//! Where the environment variable `USLAB_SNAPSHOT` names a directory (`uslab run` sets it), they
//! live in the file `DIR/PID`, mapped shared. A tool then reads them without the process's help.
//! Otherwise they live in private memory, at the same cost.
//!
//! ```text
//!   offset 0      Header                      the first page has the parts up to the settings
//!   offset 512    Source[0 .. 3]              pressure sources
//!   offset 1024   Request                     the only part that other processes write
//!   offset 2048   Answer
//!   offset 3136   Setting[0 .. 20]            values of the variables, and where each came from
//!   offset 4096   Shrinker[0 .. 64]           128 bytes each, index = entry of the registry
//!   offset 12288  Record[0 .. 65536]          256 bytes each, index = cache id
//! ```
//!
//! The file is sparse, and has room for every cache. The process maps it in segments, the first at
//! the start and each further one when a cache first needs a record there (ADR 0063).
//!
//! This file is compiled into the library and, by path, into the command-line tool, which never
//! links the allocator that it observes. So it must depend on `core` only, and every change of the
//! layout raises [`VERSION`], but for a new field in bytes that were zero.
//!
//! Consistency: each field is one atomic word. A reader may see two fields at different instants:
//! in a running process each word is consistent, the whole is not. Figures of slow paths and of
//! free objects lag by some slow calls of each CPU (`counters/tally.rs`), until the background
//! thread's next visit or a question in the process.

use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64};

/// First eight bytes of a snapshot file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"uslabsnp");
/// Layout version; readers refuse any other.
pub const VERSION: u32 = 5;
/// Bytes before the first record.
pub const HEADER_BYTES: usize = SHRINKERS_OFFSET + MAX_SHRINKERS * core::mem::size_of::<Shrinker>();
/// Bytes of the first page, which every process uses.
pub const FIRST_BYTES: usize = 4096;
/// Copies of the library in one process that publish, each in a file of its own: the first in
/// `DIR/PID`, the others in `DIR/PID.2` and so on.
pub const MAX_COPIES: u32 = 8;
/// Records in a file: one for each id that a cache can have.
pub const MAX_RECORDS: usize = 1 << 16;
/// Bytes of a segment, which a process maps at once. A power of two, and whole system pages on
/// every machine.
pub const SEGMENT_BYTES: usize = 256 << 10;
/// Records in the first segment, behind the other parts.
pub const FIRST_RECORDS: usize = (SEGMENT_BYTES - HEADER_BYTES) / core::mem::size_of::<Record>();
/// Segments of a whole file.
pub const SEGMENTS: usize = record_offset(MAX_RECORDS).div_ceil(SEGMENT_BYTES);
/// Bytes of a whole file. It is sparse, so only records in use take memory.
pub const FILE_BYTES: usize = SEGMENTS * SEGMENT_BYTES;
/// Nodes for which a record counts slabs, from node 0 on.
pub const RECORD_NODES: usize = 8;
/// Bytes of a cache's name, NUL-padded; longer names are cut at a character boundary.
pub const NAME_BYTES: usize = 48;
/// Offset of the [`Request`].
pub const REQUEST_OFFSET: usize = 1024;
/// Bytes of a request's text, NUL-padded.
pub const REQUEST_TEXT_BYTES: usize = 256;
/// Offset of the [`Answer`].
pub const ANSWER_OFFSET: usize = 2048;
/// Bytes of an answer's text, NUL-padded; longer ones are cut.
pub const ANSWER_TEXT_BYTES: usize = 1024;

/// Offset of the [`Source`]s.
pub const SOURCES_OFFSET: usize = 512;
/// Names of the pressure sources, in the order of their [`Source`]s.
pub const SOURCES: [&str; 3] = ["systemd", "psi", "cgroup"];
/// Offset of the [`Setting`]s.
pub const SETTINGS_OFFSET: usize = 3136;
/// Room for settings.
pub const MAX_SETTINGS: usize = 20;
/// Bytes of a setting's text, NUL-padded; longer ones are cut.
pub const SETTING_TEXT_BYTES: usize = 44;
/// Offset of the [`Shrinker`]s.
pub const SHRINKERS_OFFSET: usize = FIRST_BYTES;
/// Shrinkers in a file. Further ones work, but are not listed.
pub const MAX_SHRINKERS: usize = 64;
/// One seek, in the unit of [`Shrinker::worth`].
pub const SEEK: u64 = 1024;

/// `Request::verb`: check the library's structures.
pub const VERB_VALIDATE: u32 = 1;
/// `Request::verb`: switch debugging of caches; the text is a block of `USLAB_DEBUG` with names.
pub const VERB_DEBUG: u32 = 2;
/// `Request::verb`: release free memory of the cache that the text names, or of all.
pub const VERB_SHRINK: u32 = 3;
/// `Request::verb`: set the limits to the values, soft and hard.
pub const VERB_LIMIT: u32 = 4;

/// `Request::verb`: the heap profile; the text is `start BYTES`, `stop` or `dump`. A dump goes to a
/// file with the name of the snapshot's and `.profile`.
pub const VERB_PROFILE: u32 = 5;

/// `Answer::outcome`: done; the text tells the result.
pub const OUTCOME_DONE: u32 = 1;
/// `Answer::outcome`: nothing was done; the text tells why.
pub const OUTCOME_REFUSED: u32 = 2;
/// `Answer::outcome`: the check found a fault; the text tells which.
pub const OUTCOME_FAULTY: u32 = 3;

/// `Header::mode`: not decided yet.
pub const MODE_UNKNOWN: u32 = 0;
/// `Header::mode`: restartable sequences carry the fast path.
pub const MODE_RSEQ: u32 = 1;
/// `Header::mode`: the locked fallback carries it.
pub const MODE_LOCKED: u32 = 2;

/// `Header::mode_reason`: nothing prevents the preferred mode.
pub const REASON_NONE: u32 = 0;
/// Forced by `USLAB_RSEQ=0`.
pub const REASON_FORCED: u32 = 1;
/// The library was built without sequences, as for musl where `dlopen` may load it.
pub const REASON_NOT_BUILT: u32 = 2;
/// The kernel registers no threads (valgrind, qemu-user, seccomp), or glibc was told not to have it
/// do so (`glibc.pthread.rseq=0`), or another library has registered the process's first thread, or
/// the C library registers none and this object has no area for threads.
pub const REASON_UNREGISTERED: u32 = 3;
/// `membarrier(2)` has no command that restarts sequences (Linux before 5.10, seccomp). In mode
/// [`MODE_RSEQ`]: the kernel refused the call after start, so main sheaves of other CPUs cannot be
/// drained.
pub const REASON_NO_MEMBARRIER: u32 = 4;
/// More possible CPUs than the slot tables are built for, or an unknown number of them.
pub const REASON_TOO_MANY_CPUS: u32 = 5;
/// An architecture or kernel whose restartable sequences are not trusted.
pub const REASON_UNSUPPORTED: u32 = 6;

/// `Record::state`: never used.
pub const STATE_UNUSED: u32 = 0;
/// `Record::state`: a live cache.
pub const STATE_LIVE: u32 = 1;
/// `Record::state`: destroyed; the record keeps its last figures until the id is used again.
pub const STATE_DESTROYED: u32 = 2;

/// `Shrinker::stop`: no pass has called it.
pub const STOP_NONE: u32 = 0;
/// `Shrinker::stop`: it freed its share, or the share was less than a call asks for.
pub const STOP_SHARE: u32 = 1;
/// `Shrinker::stop`: the callback answered that it can free nothing now.
pub const STOP_ANSWERED: u32 = 2;
/// `Shrinker::stop`: it used up its time in the round.
pub const STOP_TIME: u32 = 3;
/// `Shrinker::stop`: it had no entry that could go.
pub const STOP_EMPTY: u32 = 4;
/// `Shrinker::stop`: it was unregistered while the pass was inside, or panicked.
pub const STOP_GONE: u32 = 5;

/// `Header::passes`: for a call of the program.
pub const PASS_CALL: usize = 0;
/// `Header::passes`: for an allocation that found no memory, or the hard limit.
pub const PASS_ALLOCATION: usize = 1;
/// `Header::passes`: for a pressure source.
pub const PASS_PRESSURE: usize = 2;
/// `Header::passes`: for the soft limit.
pub const PASS_SOFT: usize = 3;
/// The causes of passes, in words.
pub const PASSES: [&str; 4] = ["call", "allocation", "pressure", "soft_limit"];

/// `Source::state`: not chosen, or not looked for yet.
pub const SOURCE_OFF: u32 = 0;
/// `Source::state`: watched.
pub const SOURCE_WATCHED: u32 = 1;
/// `Source::state`: chosen, but the system has none.
pub const SOURCE_MISSING: u32 = 2;

/// `Setting::origin`: this build has no such setting.
pub const ORIGIN_NONE: u32 = 0;
/// `Setting::origin`: not set anywhere.
pub const ORIGIN_DEFAULT: u32 = 1;
/// `Setting::origin`: the program's string `uslab_conf`.
pub const ORIGIN_PROGRAM: u32 = 2;
/// `Setting::origin`: the environment, by the variable `USLAB_CONF`.
pub const ORIGIN_CONF: u32 = 3;
/// `Setting::origin`: the environment, by the setting's own variable.
pub const ORIGIN_ENVIRONMENT: u32 = 4;
/// `Setting::origin`: a call of the program.
pub const ORIGIN_CALL: u32 = 5;
/// `Setting::origin`: a request of another process.
pub const ORIGIN_REQUEST: u32 = 6;
/// The origins, in words.
pub const ORIGINS: [&str; 7] =
    ["none", "default", "uslab_conf", "USLAB_CONF", "environment", "program", "request"];

/// The names of the settings, in the order of their [`Setting`]s: those of the variables, in lower
/// case and without `USLAB_`.
pub const SETTINGS: [&str; 16] = [
    "rseq",
    "reaper",
    "decay_ms",
    "huge_pages",
    "on_misuse",
    "cpu_bytes",
    "debug",
    "debug_report",
    "guard",
    "secure",
    "leaks",
    "limit",
    "stats",
    "profile",
    "profile_file",
    "numa",
];

/// Offset of the record with this index.
pub const fn record_offset(index: usize) -> usize {
    HEADER_BYTES + index * core::mem::size_of::<Record>()
}

/// Facts about the process and its page layer.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`], stored last when the file is created: a reader that finds it finds a complete
    /// header.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Id of the process that writes here.
    pub pid: AtomicU32,
    /// One of the `MODE_*` values.
    pub mode: AtomicU32,
    /// One of the `REASON_*` values.
    pub mode_reason: AtomicU32,
    /// Possible CPUs of the machine (highest id + 1); 0 if unknown.
    pub cpus: AtomicU32,
    /// NUMA nodes that are homes of objects: the highest node with CPUs plus 1, or 1 if the library
    /// heeds none.
    pub nodes: AtomicU32,
    /// Bytes of a system page.
    pub page_bytes: AtomicU32,
    /// Highest record index in use, plus one.
    pub records_used: AtomicU32,
    /// 1 after the process wrote its final figures at exit.
    pub finished: AtomicU32,
    /// Version of the library: `major << 16 | minor << 8 | patch`.
    pub library_version: AtomicU32,
    /// `CLOCK_BOOTTIME` at start, in nanoseconds.
    pub start_ns: AtomicU64,
    /// Bytes of the address range of the arena. Only `committed_bytes` of it are mapped.
    pub reserved_bytes: AtomicU64,
    /// Bytes of the arena that are mapped now.
    pub committed_bytes: AtomicU64,
    /// Bytes of pages that slabs and large objects hold now.
    pub used_bytes: AtomicU64,
    /// Bytes of free pages that still have memory behind them.
    pub dirty_bytes: AtomicU64,
    /// Bytes that purges returned to the system, in total.
    pub purged_bytes: AtomicU64,
    /// Bytes of metadata that the library has touched (an upper bound).
    pub metadata_bytes: AtomicU64,
    /// Large objects (page runs) alive now.
    pub large_objects: AtomicU64,
    /// Bytes of the live large objects.
    pub large_bytes: AtomicU64,
    /// Large objects allocated in total.
    pub large_allocs: AtomicU64,
    /// First address of the arena's tables, which end at `arena_base`; 0 before there is an arena.
    /// A reader finds the arena's mappings in `/proc/PID/smaps` by these two addresses.
    pub arena_start: AtomicU64,
    /// First address of the arena's data, which end `reserved_bytes` behind it.
    pub arena_base: AtomicU64,
    /// The soft limit in bytes; 0 for none.
    pub soft_limit_bytes: AtomicU64,
    /// The hard limit in bytes; 0 for none.
    pub hard_limit_bytes: AtomicU64,
    /// Passes that ended, by cause: the `PASS_*` values are the indices.
    pub passes: [AtomicU64; PASSES.len()],
    /// Bytes that these passes released, in total.
    pub passes_bytes: AtomicU64,
    /// `CLOCK_BOOTTIME` at the end of the last pass, in nanoseconds; 0 for none.
    pub last_pass_ns: AtomicU64,
    /// Highest index of a shrinker in use, plus one; it may exceed [`MAX_SHRINKERS`].
    pub shrinkers_used: AtomicU64,
    /// The inode of the pid namespace in which `pid` is the process's id; 0 if unknown.
    pub pid_namespace: AtomicU64,
}

/// A pressure source.
#[repr(C, align(64))]
pub struct Source {
    /// One of the `SOURCE_*` values.
    pub state: AtomicU32,
    /// Its reports that memory is short.
    pub reports: AtomicU64,
    /// `CLOCK_BOOTTIME` of the last report, in nanoseconds; 0 for none.
    pub last_ns: AtomicU64,
    /// Bytes that the last report asked for.
    pub asked_bytes: AtomicU64,
    /// The lowest limit that the source knows, in bytes; 0 for none.
    pub limit_bytes: AtomicU64,
    /// Bytes used below that limit, at the last poll.
    pub used_bytes: AtomicU64,
}

/// A setting.
#[repr(C)]
pub struct Setting {
    /// One of the `ORIGIN_*` values; stored last.
    pub origin: AtomicU32,
    /// The value as a variable has it, NUL-padded.
    pub text: [AtomicU8; SETTING_TEXT_BYTES],
}

/// Figures of one shrinker.
#[repr(C, align(128))]
pub struct Shrinker {
    /// One of the `STATE_*` values; stored last when a shrinker is registered.
    pub state: AtomicU32,
    /// Why its last scan ended: one of the `STOP_*` values.
    pub stop: AtomicU32,
    /// The shrinker's name, NUL-padded UTF-8.
    pub name: [AtomicU8; NAME_BYTES],
    /// Entries that one call asks for.
    pub batch: AtomicU32,
    /// The priority at which a pass asked last: 12 (light) to 0.
    pub priority: AtomicU32,
    /// The cost of making an entry again, in 1024ths of a seek.
    pub worth: AtomicU64,
    /// Entries that could go, as the last callback counted them.
    pub freeable: AtomicU64,
    /// Entries that passes asked for, and that are still owed.
    pub deferred: AtomicU64,
    /// Entries that passes asked it to free, in total.
    pub asked: AtomicU64,
    /// Entries that it freed, in total.
    pub freed: AtomicU64,
    /// Calls of its scan, in total.
    pub scans: AtomicU64,
    /// `CLOCK_BOOTTIME` at which a pass last called it, in nanoseconds; 0 for never.
    pub last_ns: AtomicU64,
}

/// A request of another process: one at a time, by the lock of the file (`flock`).
#[repr(C, align(64))]
pub struct Request {
    /// Differs from that of the request before. The requester stores it last.
    pub number: AtomicU32,
    /// One of the `VERB_*` values.
    pub verb: AtomicU32,
    /// `CLOCK_BOOTTIME` from which on the request is refused, in nanoseconds: its requester does
    /// not wait any longer.
    pub deadline_ns: AtomicU64,
    /// Numbers that go with the verb.
    pub values: [AtomicU64; 2],
    /// Text that goes with the verb, NUL-padded.
    pub text: [AtomicU8; REQUEST_TEXT_BYTES],
}

/// The answer to a [`Request`].
#[repr(C, align(64))]
pub struct Answer {
    /// Number of the request that the process took up last.
    pub accepted: AtomicU32,
    /// Number of the request that this answers; stored last.
    pub answered: AtomicU32,
    /// One of the `OUTCOME_*` values.
    pub outcome: AtomicU32,
    /// One sentence or several lines, NUL-padded UTF-8.
    pub text: [AtomicU8; ANSWER_TEXT_BYTES],
}

/// Figures of one cache.
#[repr(C, align(256))]
pub struct Record {
    /// One of the `STATE_*` values; stored last when a cache is created.
    pub state: AtomicU32,
    /// Cache id, equal to the record's index.
    pub id: AtomicU32,
    /// The cache's name, NUL-padded UTF-8.
    pub name: [AtomicU8; NAME_BYTES],
    /// Size the user asked for, in bytes.
    pub user_bytes: AtomicU32,
    /// Distance between two objects of a slab, in bytes.
    pub object_bytes: AtomicU32,
    /// Objects of one slab.
    pub objects_per_slab: AtomicU32,
    /// 4 KiB pages of one slab.
    pub pages_per_slab: AtomicU32,
    /// Objects that a sheaf holds at the present setting.
    pub sheaf_capacity: AtomicU32,
    /// Empty slabs that the cache keeps; adaptive.
    pub empty_target: AtomicU32,
    /// Slabs now.
    pub slabs: AtomicI64,
    /// Slabs with some objects free and some in use.
    pub partial_slabs: AtomicI64,
    /// Slabs with every object free.
    pub empty_slabs: AtomicI64,
    /// Objects free in slabs.
    pub slab_free: AtomicI64,
    /// Objects free in the sheaves of CPUs and barns, as of the last fold of each CPU's tally.
    pub sheaf_free: AtomicI64,
    /// Times a slow path of allocation ran.
    pub alloc_slow: AtomicU64,
    /// Times a slow path of free ran.
    pub free_slow: AtomicU64,
    /// Times that a CPU took objects from slabs.
    pub refills: AtomicU64,
    /// Times that objects of a sheaf went to slabs.
    pub flushes: AtomicU64,
    /// Sheaves that drains took out of slots, of any CPU.
    pub drains: AtomicU64,
    /// Slabs taken from the page layer.
    pub grows: AtomicU64,
    /// Slabs returned to the page layer.
    pub shrinks: AtomicU64,
    /// Allocations that failed for want of memory.
    pub failures: AtomicU64,
    /// Objects that CPUs of other nodes gave back to the barns and slabs of the objects' node; not
    /// those that drains moved.
    pub home_objects: AtomicU64,
    /// The sheaves by which the barns got theirs, whole.
    pub home_sheaves: AtomicU64,
    /// Slabs now by the node of their memory, as the page layer chose it. All are zero where the
    /// library heeds one node; interleaved slabs, and those of further nodes, are in none.
    pub node_slabs: [AtomicI32; RECORD_NODES],
}

const _: () = {
    assert!(core::mem::size_of::<Record>() == 256);
    assert!(core::mem::size_of::<Shrinker>() == 128);
    // No record lies in two segments.
    assert!((SEGMENT_BYTES - HEADER_BYTES).is_multiple_of(core::mem::size_of::<Record>()));
    assert!(core::mem::size_of::<Header>() <= SOURCES_OFFSET);
    assert!(SOURCES_OFFSET + SOURCES.len() * core::mem::size_of::<Source>() <= REQUEST_OFFSET);
    assert!(REQUEST_OFFSET + core::mem::size_of::<Request>() <= ANSWER_OFFSET);
    assert!(ANSWER_OFFSET + core::mem::size_of::<Answer>() <= SETTINGS_OFFSET);
    assert!(SETTINGS_OFFSET + MAX_SETTINGS * core::mem::size_of::<Setting>() <= FIRST_BYTES);
    assert!(SETTINGS.len() <= MAX_SETTINGS);
};
