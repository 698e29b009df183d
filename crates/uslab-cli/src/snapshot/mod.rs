//! One process's snapshot, read and checked.
//!
//! The file belongs to another process, which may be writing it, cutting it short, or out to harm
//! the reader. It is therefore copied with pread(2) and never mapped (a mapping of a file that
//! shrinks is a SIGBUS). Every length is checked against what was read, counts are capped, sums
//! saturate, and names are made safe to print: the rest of the program can format the result as it
//! is.
//!
//! Fields are fetched by their offsets in the layout that the allocator uses; words are of this
//! machine's byte order.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use serde::Serialize;

use crate::layout::{self, HEADER_BYTES, Header, Record};
use crate::process::{self, printable};
use crate::snapdir;
pub use parts::{Setting, Shrinker, Source};

/// The first bytes of a heap profile that a process wrote.
const PROFILE_START: &[u8] = b"uslab-profile";
const RECORD_BYTES: usize = size_of::<Record>();
/// `Record::pages_per_slab` counts pages of this size on every machine.
pub const SLAB_PAGE_BYTES: u64 = 4096;

/// Why a file is not a snapshot that can be shown.
#[derive(Debug)]
pub enum Trouble {
    /// There is no such file.
    Missing,
    /// It may not be read.
    Denied,
    /// A link, a pipe, a directory: nothing that the allocator makes.
    NotAFile,
    /// It belongs to this user, who is neither the process's, nor ours, nor root.
    Foreign(u32),
    /// It does not begin as a snapshot does, or not yet.
    NotASnapshot,
    /// It is shorter than it says.
    Truncated,
    /// It was written to another layout version.
    Version(u32),
    /// Another process wrote it.
    OtherProcess(u32),
    /// The system's answer.
    Io(io::Error),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Missing => write!(f, "there is no snapshot"),
            Trouble::Denied => write!(f, "permission denied"),
            Trouble::NotAFile => write!(f, "it is not a regular file"),
            Trouble::Foreign(user) => write!(f, "it belongs to user {user}"),
            Trouble::NotASnapshot => write!(f, "it is not a snapshot, or the process is still starting"),
            Trouble::Truncated => write!(f, "it is shorter than it says"),
            Trouble::Version(found) => {
                write!(f, "it is of version {found}, and this program reads version {}", layout::VERSION)
            }
            Trouble::OtherProcess(pid) => write!(f, "process {pid} wrote it"),
            Trouble::Io(error) => error.fmt(f),
        }
    }
}

/// How the fast path of a process works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Unknown,
    Rseq,
    Locked,
}

/// Reads the field of a structure that starts at the front of a buffer.
macro_rules! field {
    ($bytes:expr, $structure:ty, $name:ident, $word:ty) => {{
        let mut word = [0; size_of::<$word>()];
        word.copy_from_slice(&$bytes[offset_of!($structure, $name)..][..size_of::<$word>()]);
        <$word>::from_ne_bytes(word)
    }};
}

/// Declares a copy of some fields of a structure of the layout, by type, and what is known besides.
/// Counters that were caught below zero are zero.
macro_rules! copy {
    (
        $(#[$meta:meta])* $name:ident of $structure:ty,
        $([$word:ident as $shown:ident] $($field:ident)+;)+
        $($(#[$other_meta:meta])* $other:ident: $type:ty,)+
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct $name {
            $($(pub $field: $shown,)+)+
            $($(#[$other_meta])* pub $other: $type,)+
        }

        impl $name {
            #[allow(clippy::too_many_arguments, reason = "the fields, one by one")]
            fn copy(bytes: &[u8], $($other: $type),+) -> Self {
                $($(let $field = $shown::try_from(field!(bytes, $structure, $field, $word)).unwrap_or(0);)+)+
                $name { $($($field,)+)+ $($other),+ }
            }
        }
    };
}

copy! {
    /// Facts about a process and its page layer.
    Snapshot of Header,
    [u32 as u32] pid mode_reason cpus nodes page_bytes;
    [u64 as u64] start_ns reserved_bytes committed_bytes used_bytes dirty_bytes purged_bytes
        metadata_bytes large_objects large_bytes large_allocs soft_limit_bytes hard_limit_bytes
        passes_bytes last_pass_ns;
    finished: bool,
    /// Passes, by cause.
    passes: BTreeMap<&'static str, u64>,
    settings: Vec<Setting>,
    sources: Vec<Source>,
    /// Shrinkers that are registered, or were.
    shrinkers: Vec<Shrinker>,
    /// Shrinkers beyond the file's room.
    shrinkers_left_out: u64,
    /// The inode of the writer's pid namespace; 0 if it is not known.
    #[serde(skip)]
    pid_namespace: u64,
    /// Version of the library, as the layout packs it.
    #[serde(skip)]
    library_version: u32,
    /// Addresses of the arena: start of its tables, start of its data.
    #[serde(skip)]
    arena: (u64, u64),
    /// Which of the library's copies in the process wrote it, from 1.
    #[serde(skip_serializing_if = "is_one")]
    copy: u32,
    /// The number of copies that publish.
    #[serde(skip_serializing_if = "is_one")]
    copies: u32,
    /// Those among them whose files this program cannot read: another version, for example.
    #[serde(skip)]
    unread_copies: u32,
    #[serde(skip)]
    mode: Mode,
    /// Caches that exist, or did, by id.
    #[serde(skip)]
    caches: Vec<Cache>,
}

copy! {
    /// Figures of one cache.
    Cache of Record,
    [u32 as u32] user_bytes object_bytes objects_per_slab pages_per_slab sheaf_capacity empty_target;
    [i64 as u64] slabs partial_slabs empty_slabs slab_free sheaf_free;
    [u64 as u64] alloc_slow free_slow refills flushes drains grows shrinks failures
        home_objects home_sheaves;
    /// The record's index: what the record itself says could repeat.
    id: u32,
    name: String,
    destroyed: bool,
    /// Its slabs on each node, as far as the record has room for nodes; empty where the library
    /// heeds one node.
    node_slabs: Vec<u64>,
    /// A count of slabs or of objects was below zero.
    #[serde(skip)]
    is_below_zero: bool,
}

impl Cache {
    /// Objects that its slabs have room for.
    pub fn total_objects(&self) -> u64 {
        self.slabs.saturating_mul(self.objects_per_slab.into())
    }

    /// Objects in users' hands: those neither in slabs nor in sheaves, as far as the counters agree
    /// with each other.
    pub fn active_objects(&self) -> u64 {
        self.total_objects().saturating_sub(self.slab_free.saturating_add(self.sheaf_free))
    }

    /// Bytes of its slabs.
    pub fn slab_bytes(&self) -> u64 {
        self.bytes_of_slabs(self.slabs)
    }

    /// Bytes of so many of its slabs.
    pub fn bytes_of_slabs(&self, slabs: u64) -> u64 {
        slabs.saturating_mul(u64::from(self.pages_per_slab) * SLAB_PAGE_BYTES)
    }

    /// Its slabs that no node is known for: interleaved ones, and those of nodes that the record
    /// has no room for.
    pub fn slabs_on_no_node(&self) -> u64 {
        self.node_slabs.iter().fold(self.slabs, |left, slabs| left.saturating_sub(*slabs))
    }

    /// Whether the counters, which were loaded one by one, contradict each other: more objects are
    /// free than there are, or fewer than none. Each counter lags by itself, so one below zero
    /// means that another has counted what it has not.
    pub fn is_torn(&self) -> bool {
        self.is_below_zero || self.slab_free.saturating_add(self.sheaf_free) > self.total_objects()
    }

    /// Whether it ever had a slab.
    pub fn was_used(&self) -> bool {
        self.slabs > 0 || self.grows > 0
    }
}

impl Snapshot {
    /// Version of the library in the process: `0.1.0`.
    pub fn library(&self) -> String {
        let version = self.library_version;
        format!("{}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff)
    }

    /// The caches that exist now.
    pub fn live_caches(&self) -> impl Iterator<Item = &Cache> {
        self.caches.iter().filter(|cache| !cache.destroyed)
    }

    /// The reason for the mode, in words; `None` if there is none to report.
    pub fn reason(&self) -> Option<&'static str> {
        Some(match self.mode_reason {
            layout::REASON_NONE => return None,
            layout::REASON_FORCED => "forced by USLAB_RSEQ=0",
            layout::REASON_NOT_BUILT => "the library was built without sequences",
            layout::REASON_UNREGISTERED => "threads are not registered",
            layout::REASON_NO_MEMBARRIER => "membarrier cannot restart sequences",
            layout::REASON_TOO_MANY_CPUS => "too many CPUs, or an unknown number",
            layout::REASON_UNSUPPORTED => "sequences are not trusted on this machine",
            _ => "for a reason that this program does not know",
        })
    }
}

/// Opens the snapshot that process `pid` writes to `file`, also for writing if the caller wants to
/// ask the process for something. Returns it with what it contains.
pub fn open(file: &Path, pid: i32, writes: bool) -> Result<(File, Snapshot), Trouble> {
    // Neither follow a link that another user planted nor wait for the other end of a pipe.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let options = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(file);
    let file = options.map_err(|error| match error {
        error if error.kind() == io::ErrorKind::NotFound => Trouble::Missing,
        error if error.kind() == io::ErrorKind::PermissionDenied => Trouble::Denied,
        error if error.raw_os_error() == Some(libc::ELOOP) => Trouble::NotAFile,
        error => Trouble::Io(error),
    })?;
    let data = file.metadata().map_err(Trouble::Io)?;
    if !data.is_file() {
        return Err(Trouble::NotAFile);
    }
    if !may_belong_to(data.uid(), process::owner(pid)) {
        return Err(Trouble::Foreign(data.uid()));
    }
    let mut snapshot = parse(|offset, bytes| {
        let mut buffer = vec![0; bytes];
        file.read_exact_at(&mut buffer, offset)?;
        Ok(buffer)
    })?;
    if i64::from(snapshot.pid) != i64::from(process::inner_pid(pid)) {
        return Err(Trouble::OtherProcess(snapshot.pid));
    }
    // From here on the id is the one that this program sees.
    snapshot.pid = pid.unsigned_abs();
    Ok((file, snapshot))
}

/// A file that the library made.
pub enum Origin {
    /// A snapshot, written in the pid namespace of this inode, or of an unknown one.
    Snapshot(Option<u64>),
    /// A heap profile.
    Profile,
}

/// Reads the first bytes of a file to find out whether the library made it. Returns `None` for
/// other files, and for one whose process was killed before it wrote these bytes.
pub fn origin(file: &Path) -> Option<Origin> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(file).ok()?;
    let mut bytes = [0; size_of::<Header>()];
    let is_whole = file.read_exact_at(&mut bytes, 0).is_ok();
    if is_whole && field!(bytes, Header, magic, u64) == layout::MAGIC {
        let is_known = field!(bytes, Header, version, u32) == layout::VERSION;
        let namespace = Some(field!(bytes, Header, pid_namespace, u64));
        return Some(Origin::Snapshot(namespace.filter(|&namespace| is_known && namespace != 0)));
    }
    bytes.starts_with(PROFILE_START).then_some(Origin::Profile)
}

/// Whether a snapshot of a process of user `owner` may be a file of `user`: root, where it gave up
/// its privileges after it started.
fn may_belong_to(user: u32, owner: Option<u32>) -> bool {
    user == 0 || user == snapdir::own_user() || Some(user) == owner
}

/// Makes a snapshot of what `fetch(offset, length)` returns: exactly that many bytes, or an error.
fn parse(fetch: impl Fn(u64, usize) -> io::Result<Vec<u8>>) -> Result<Snapshot, Trouble> {
    let short = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Trouble::Truncated,
        _ => Trouble::Io(error),
    };
    let header = fetch(0, HEADER_BYTES).map_err(|error| match short(error) {
        // A file that was just made has no length yet.
        Trouble::Truncated => Trouble::NotASnapshot,
        other => other,
    })?;
    if field!(header, Header, magic, u64) != layout::MAGIC {
        return Err(Trouble::NotASnapshot);
    }
    let version = field!(header, Header, version, u32);
    if version != layout::VERSION {
        return Err(Trouble::Version(version));
    }
    let used = (field!(header, Header, records_used, u32) as usize).min(layout::MAX_RECORDS);
    let records = fetch(HEADER_BYTES as u64, used * RECORD_BYTES).map_err(short)?;
    let caches = records.chunks_exact(RECORD_BYTES).enumerate();
    let mode = match field!(header, Header, mode, u32) {
        layout::MODE_RSEQ => Mode::Rseq,
        layout::MODE_LOCKED => Mode::Locked,
        _ => Mode::Unknown,
    };
    let finished = field!(header, Header, finished, u32) != 0;
    let nodes = field!(header, Header, nodes, u32) as usize;
    let caches = caches.filter_map(|(index, record)| parse_record(index, record, nodes)).collect();
    let library_version = field!(header, Header, library_version, u32);
    let arena = (field!(header, Header, arena_start, u64), field!(header, Header, arena_base, u64));
    let used = field!(header, Header, shrinkers_used, u64);
    Ok(Snapshot::copy(
        &header,
        finished,
        parts::passes(&header),
        parts::settings(&header),
        parts::sources(&header),
        parts::shrinkers(&header, used),
        used.saturating_sub(layout::MAX_SHRINKERS as u64),
        field!(header, Header, pid_namespace, u64),
        library_version,
        arena,
        1,
        1,
        0,
        mode,
        caches,
    ))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

/// One record of a process that heeds so many nodes; nothing when it was never used.
fn parse_record(index: usize, record: &[u8], nodes: usize) -> Option<Cache> {
    let state = field!(record, Record, state, u32);
    if state != layout::STATE_LIVE && state != layout::STATE_DESTROYED {
        return None;
    }
    let name = offset_of!(Record, name);
    let name = parse_name(&record[name..name + layout::NAME_BYTES]);
    let counts = [
        field!(record, Record, slabs, i64),
        field!(record, Record, partial_slabs, i64),
        field!(record, Record, empty_slabs, i64),
        field!(record, Record, slab_free, i64),
        field!(record, Record, sheaf_free, i64),
    ];
    let is_below_zero = counts.iter().any(|count| *count < 0);
    let is_destroyed = state == layout::STATE_DESTROYED;
    let node_slabs = parse_node_slabs(record, nodes);
    Some(Cache::copy(record, index as u32, name, is_destroyed, node_slabs, is_below_zero))
}

/// The slabs on each node: of a machine whose nodes all have CPUs, all nodes; else up to the last
/// node with a slab.
fn parse_node_slabs(record: &[u8], nodes: usize) -> Vec<u64> {
    let words =
        record[offset_of!(Record, node_slabs)..].chunks_exact(size_of::<i32>()).take(layout::RECORD_NODES);
    let count = |word: &[u8]| i32::from_ne_bytes(word.try_into().unwrap_or_default());
    let mut slabs: Vec<u64> = words.map(|word| u64::try_from(count(word)).unwrap_or(0)).collect();
    let used = slabs.iter().rposition(|&slabs| slabs > 0).map_or(0, |last| last + 1);
    slabs.truncate(if nodes > 1 { nodes.max(used) } else { used });
    slabs
}

fn parse_name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    printable(&String::from_utf8_lossy(&bytes[..end]))
}

mod parts;
#[cfg(test)]
pub mod tests;
