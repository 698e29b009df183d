//! The memory of the figures: a private block, or the file that `uslab info` reads.

use super::layout::{
    ANSWER_OFFSET, Answer, FILE_BYTES, FIRST_BYTES, FIRST_RECORDS, HEADER_BYTES, Header, MAGIC, MAX_COPIES,
    MAX_RECORDS, MAX_SHRINKERS, REQUEST_OFFSET, Record, Request, SEGMENT_BYTES, SEGMENTS, SETTINGS,
    SETTINGS_OFFSET, SHRINKERS_OFFSET, SOURCES, SOURCES_OFFSET, Setting, Shrinker, Source, VERSION,
};
use super::place;
use crate::os;
use crate::os::directory::{Directory, Identity, Part};
use crate::sync::CachePadded;
use core::ffi::CStr;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// The first segment while the process does not publish, and a record for caches that have none.
/// It stands in the image's zeroed memory: only written pages take memory.
#[repr(C, align(4096))]
struct Block([u8; SEGMENT_BYTES + size_of::<Record>()]);

/// Interior mutability for the static below.
struct Private(core::cell::UnsafeCell<Block>);
// SAFETY: all accesses to the block are atomic, through the pointers returned below.
unsafe impl Sync for Private {}
#[unsafe(link_section = ".bss.uslab_tables")]
static PRIVATE: Private =
    Private(core::cell::UnsafeCell::new(Block([0; SEGMENT_BYTES + size_of::<Record>()])));

/// The file's first segment, or null while the private block is used.
///
/// Padded: every slow path reads it.
static SHARED: CachePadded<AtomicPtr<u8>> = CachePadded(AtomicPtr::new(core::ptr::null_mut()));
/// The number of this copy of the library among those that publish in this process.
static COPY: AtomicU32 = AtomicU32::new(1);
static PUBLISHED: AtomicBool = AtomicBool::new(false);
/// Identity of the published file.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
/// `USLAB_SNAPSHOT_READER` at the start, or 0. At exit the environment may be gone: PHP frees the
/// memory in which it keeps the environment.
static READER: AtomicU32 = AtomicU32::new(0);

pub(super) fn base() -> *mut u8 {
    let shared = SHARED.load(Acquire);
    if shared.is_null() { private() } else { shared }
}

/// Whether the figures have moved to a file, which may be removed by now.
pub(super) fn is_shared() -> bool {
    !SHARED.load(Relaxed).is_null()
}

/// The private block, [`SEGMENT_BYTES`] long.
pub(super) fn private() -> *mut u8 {
    PRIVATE.0.get().cast()
}

/// The process-wide figures.
pub fn header() -> &'static Header {
    // SAFETY: the block starts with a header, all atomics, valid when zero, and is never unmapped.
    unsafe { &*base().cast::<Header>() }
}

/// Whether the process has a file, in which other processes can write a request.
pub fn is_published() -> bool {
    PUBLISHED.load(Relaxed)
}

/// The place for requests of other processes, and that of the answers. Without a file both stay
/// zero.
pub fn request() -> (&'static Request, &'static Answer) {
    let base = base();
    // SAFETY: as in `header`: both lie behind it, at their offsets, which are aligned.
    unsafe { (&*base.add(REQUEST_OFFSET).cast::<Request>(), &*base.add(ANSWER_OFFSET).cast::<Answer>()) }
}

/// The pressure sources, in the order of [`SOURCES`].
pub fn sources() -> &'static [Source; SOURCES.len()] {
    // SAFETY: as in `header`: they lie behind it, at their offset, which is aligned.
    unsafe { &*base().add(SOURCES_OFFSET).cast() }
}

/// The settings, in the order of [`SETTINGS`].
pub fn settings() -> &'static [Setting; SETTINGS.len()] {
    // SAFETY: as in `sources`.
    unsafe { &*base().add(SETTINGS_OFFSET).cast() }
}

/// The figures of the shrinker in entry `index` of the registry; `None` beyond the file's room.
pub fn shrinker(index: usize) -> Option<&'static Shrinker> {
    // SAFETY: as in `sources`; the file has room for that many.
    (index < MAX_SHRINKERS).then(|| unsafe { &*base().add(SHRINKERS_OFFSET).cast::<Shrinker>().add(index) })
}

/// The record that all caches share for which there was no memory.
pub(super) fn overflow() -> &'static Record {
    // SAFETY: as in `header`: it lies behind the private block.
    unsafe { &*private().add(SEGMENT_BYTES).cast::<Record>() }
}

/// Sets up the block. `directory` is the value of `USLAB_SNAPSHOT`, `reader` that of
/// `USLAB_SNAPSHOT_READER`. Must be called once, before the first use of a record.
///
/// Where another user can change the directory (see [`Directory`]), the library publishes nothing
/// and prints a message.
pub fn init(directory: Option<&[u8]>, reader: Option<u64>, facts: impl FnOnce(&Header)) {
    SHARED.whole();
    READER.store(reader.and_then(|id| u32::try_from(id).ok()).unwrap_or(0), Relaxed);
    if let Some(directory) = directory.filter(|d| !d.is_empty() && d.len() < os::env::VALUE_BYTES) {
        match place::choose(directory) {
            Ok(directory) => {
                if let Some(block) = create(&directory, 1) {
                    use_shared(block);
                    header().pid_namespace.store(os::file::pid_namespace(), Relaxed);
                }
            }
            Err(refusal) if refusal.is_distrust() => {
                os::report::print(format_args!("USLAB_SNAPSHOT: nothing is published: {refusal}"));
            }
            Err(_) => {}
        }
    }
    let header = header();
    header.version.store(VERSION, Relaxed);
    header.library_version.store(library_version(), Relaxed);
    header.pid.store(os::file::process_id(), Relaxed);
    header.start_ns.store(os::clock::boot_ns(), Relaxed);
    facts(header);
    header.magic.store(MAGIC, Release);
}

/// Creates the file of this copy of the library, and maps its first `count` segments.
///
/// A process may contain this library several times: the preloaded malloc, and a copy that it links
/// or loads. Each publishes, up to [`MAX_COPIES`]. The first file, that with the plain name, is the
/// first copy's, and the C interface makes sure that this is malloc's.
pub(super) fn create(directory: &Directory, count: usize) -> Option<*mut u8> {
    let is_free = |&copy: &u32| with_name(copy, |name| !is_of_this_process(directory, name));
    let has_leftover = with_name(1, |name| directory.has(name));
    let copy = (1..=MAX_COPIES).find(is_free)?;
    COPY.store(copy, Relaxed);
    let first = Part { offset: 0, bytes: count * SEGMENT_BYTES, at: None };
    let block = with_name(copy, |name| {
        let block = map(directory, name, &mut [first].into_iter())?;
        let header = header();
        let records = (header.records_used.load(Relaxed) as usize).min(MAX_RECORDS);
        if is_backed(block, &parts_in_use(header, records.max(RESERVED_RECORDS))) {
            return Some(block);
        }
        directory.remove(name, identity());
        // SAFETY: mapped above, and no other code knows it.
        unsafe { os::memory::unmap(block, count * SEGMENT_BYTES) };
        None
    });
    if copy == 1 && has_leftover {
        // Before an `exec` there may have been more copies.
        (2..=MAX_COPIES).filter(is_free).for_each(|copy| {
            with_name(copy, |name| directory.discard(name));
        });
    }
    block
}

/// Records at the start that are used without a call of [`provide`](super::provide): those of the
/// library's own caches and of heaps' bare slabs. Scans of all records read them, too.
pub const RESERVED_RECORDS: usize = 64;

/// Where what is in use stands in the first segments, with so many records: the start of each part
/// and its bytes.
fn parts_in_use(header: &Header, records: usize) -> [(usize, usize); 3] {
    let has_shrinkers = header.shrinkers_used.load(Relaxed) > 0;
    [
        (0, FIRST_BYTES),
        (SHRINKERS_OFFSET, if has_shrinkers { MAX_SHRINKERS * size_of::<Shrinker>() } else { 0 }),
        (HEADER_BYTES, records * size_of::<Record>()),
    ]
}

/// Whether the file system has memory for these parts of the file that is mapped at `block`.
fn is_backed(block: *mut u8, parts: &[(usize, usize)]) -> bool {
    // SAFETY: the library mapped the file there, and the parts lie inside.
    parts.iter().all(|&(start, bytes)| unsafe { os::memory::back(block.wrapping_add(start), bytes) })
}

/// Moves the figures to `block`, which [`create`] returned.
pub(super) fn use_shared(block: *mut u8) {
    SHARED.store(block, Release);
    PUBLISHED.store(true, Relaxed);
}

/// The crate's version as [`Header::library_version`] has it.
fn library_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// The identity of the file that was mapped last.
fn identity() -> Identity {
    Identity { device: DEVICE.load(Relaxed), inode: INODE.load(Relaxed) }
}

/// Creates the file and maps `parts` of it; in a fork child, in place of the parent's.
fn map(directory: &Directory, name: &CStr, parts: &mut dyn Iterator<Item = Part>) -> Option<*mut u8> {
    // SAFETY: fresh mappings, or ones in place of the parent's, which are as long.
    let (block, identity) = unsafe { directory.map_shared(name, FILE_BYTES, parts) }?;
    DEVICE.store(identity.device, Relaxed);
    INODE.store(identity.inode, Relaxed);
    Some(block)
}

/// Whether another copy of this library in this process publishes under `name`.
///
/// A file of that name may also be left from an earlier process with the same id, or from this one
/// before an `exec`. Such a file is not mapped here. Without `/proc` every file is taken for such a
/// leftover.
fn is_of_this_process(directory: &Directory, name: &CStr) -> bool {
    // The path may lead through links, which the kernel's list has resolved. So only the name with
    // its slash is compared.
    let mut ending = [0; NAME_BYTES + 1];
    let bytes = name.to_bytes();
    ending[0] = b'/';
    ending[1..=bytes.len()].copy_from_slice(bytes);
    directory.has(name)
        && os::file::Reader::open(c"/proc/self/maps")
            .is_some_and(|mut maps| maps_name(&mut |block| maps.read(block), &ending[..=bytes.len()]))
}

/// Whether `/proc/PID/maps`, which `read` returns piece by piece, lists a writable shared mapping
/// of a file whose path ends with `name`.
fn maps_name(read: &mut dyn FnMut(&mut [u8; 512]) -> usize, name: &[u8]) -> bool {
    let mut block = [0; 512];
    // A line can be of any length; its start and its end are enough.
    let mut start = [0u8; 48];
    let mut end = [0u8; 16];
    let mut used = 0;
    loop {
        let n = read(&mut block);
        if n == 0 {
            return false;
        }
        for &byte in &block[..n] {
            if byte == b'\n' {
                if start.windows(6).any(|part| part == b" rw-s ") && end.ends_with(name) {
                    return true;
                }
                (start, end, used) = ([0; 48], [0; 16], 0);
                continue;
            }
            if let Some(place) = start.get_mut(used) {
                *place = byte;
            }
            end.rotate_left(1);
            end[15] = byte;
            used += 1;
        }
    }
}

/// In a fork child: moves the figures to a file of the child's own, at the same address.
///
/// A child that cannot create a file keeps its figures in private memory, and `uslab info` does not
/// see it.
///
/// `records` were in use when the process was about to fork: the parent may have made more since.
/// `leave` copies the segments behind the first to private memory, and returns where the parent's
/// are mapped; `enter` copies them back to those addresses.
pub(super) fn publish_in_child(
    records: u32,
    leave: impl FnOnce() -> [*mut u8; SEGMENTS],
    enter: impl FnOnce(&[*mut u8; SEGMENTS]),
) {
    let shared = SHARED.load(Relaxed);
    if shared.is_null() {
        return;
    }
    // Only what is used, or the child would touch pages in vain.
    let in_use = parts_in_use(header(), (records as usize).clamp(RESERVED_RECORDS, FIRST_RECORDS));
    let copy = |from: *const u8, to: *mut u8| {
        for (start, bytes) in in_use {
            // SAFETY: both blocks are SEGMENT_BYTES long; the child has one thread, so no other
            // thread writes meanwhile.
            unsafe { core::ptr::copy_nonoverlapping(from.add(start), to.add(start), bytes) };
        }
    };
    // The copy goes through the private block, because the mapping at `shared` is the parent's
    // until it is replaced.
    let private = private();
    copy(shared, private);
    SHARED.store(core::ptr::null_mut(), Relaxed);
    header().records_used.store(records, Relaxed);
    let parents = leave();
    // The magic is stored last, so that no reader takes the incomplete file for the parent's.
    header().magic.store(0, Relaxed);
    header().pid.store(os::file::process_id(), Relaxed);
    header().pid_namespace.store(os::file::pid_namespace(), Relaxed);
    header().start_ns.store(os::clock::boot_ns(), Relaxed);
    header().finished.store(0, Relaxed);
    // A request to the parent is none to the child.
    request().0.number.store(0, Relaxed);
    request().1.accepted.store(0, Relaxed);
    request().1.answered.store(0, Relaxed);
    let segment = |(number, &at): (usize, &_)| Part {
        offset: number * SEGMENT_BYTES,
        bytes: SEGMENT_BYTES,
        at: Some(at),
    };
    let first = segment((0, &shared));
    let others = parents.iter().enumerate().filter(|(_, at)| !at.is_null()).map(segment);
    let parts = &mut core::iter::once(first).chain(others);
    let is_made = place::open().is_ok_and(|directory| {
        with_own_name(|name| {
            let Some(block) = map(&directory, name, parts) else { return false };
            let is_backed = is_backed(block, &in_use);
            if !is_backed {
                directory.remove(name, identity());
            }
            is_backed
        })
    });
    if is_made {
        copy(private, shared);
        enter(&parents);
        use_shared(shared);
    } else {
        PUBLISHED.store(false, Relaxed);
    }
    header().magic.store(MAGIC, Release);
}

/// Called at exit: marks the figures as final where a reader waits for them, and removes the file
/// otherwise.
///
/// `uslab run --stats` waits only for the process that it started, its child. It puts its own id
/// into `USLAB_SNAPSHOT_READER`.
pub fn finish() {
    // A `vfork` child that exits runs in its parent's memory, and the figures are the parent's. In
    // a pid namespace of its own it may have the same id.
    let is_own = || {
        header().pid.load(Relaxed) == os::file::process_id()
            && header().pid_namespace.load(Relaxed) == os::file::pid_namespace()
    };
    if !PUBLISHED.load(Relaxed) || !is_own() {
        return;
    }
    // A parent outside the pid namespace has no id here: the kernel says 0.
    let reader = READER.load(Relaxed);
    if reader != 0 && reader == os::file::parent_process_id() {
        header().finished.store(1, Release);
    } else {
        PUBLISHED.store(false, Relaxed);
        if let Ok(directory) = place::open() {
            with_own_name(|name| directory.remove(name, identity()));
        }
    }
}

/// Writes a file in the snapshot's directory, named like the snapshot with `suffix` behind: `fill`
/// writes it to a descriptor. It appears whole, or not at all.
///
/// # Errors
/// `errno`, or what `fill` returns; `EACCES` where the directory is not trusted.
pub fn write_beside(suffix: &str, fill: impl FnOnce(i32) -> Result<(), i32>) -> Result<(), i32> {
    let directory = place::open().map_err(|refusal| refusal.number())?;
    with_own_name(|name| {
        let [draft, whole] = [".new", ""].map(|end| {
            let mut bytes = [0; NAME_BYTES + 32];
            let parts = [name.to_bytes(), suffix.as_bytes(), end.as_bytes()];
            let all = parts.into_iter().flatten();
            // The last byte stays 0.
            bytes.iter_mut().take(NAME_BYTES + 31).zip(all).for_each(|(to, &from)| *to = from);
            bytes
        });
        let text = |bytes| CStr::from_bytes_until_nul(bytes).unwrap_or(c"");
        directory.write(text(&draft), text(&whole), fill)
    })
}

/// Bytes of a file's name, with its NUL: `4294967295.8`.
const NAME_BYTES: usize = 13;
const _: () = assert!(MAX_COPIES < 10);

/// Calls `run` with the name of this copy's file.
fn with_own_name<R>(run: impl FnOnce(&CStr) -> R) -> R {
    with_name(COPY.load(Relaxed), run)
}

/// Calls `run` with the name of the file of copy `copy`, built on the stack: the process's id, and
/// behind it the copy's number, unless that is 1.
fn with_name<R>(copy: u32, run: impl FnOnce(&CStr) -> R) -> R {
    let mut name = [0u8; NAME_BYTES];
    let mut first = NAME_BYTES - 1;
    if copy > 1 {
        first -= 2;
        name[first..first + 2].copy_from_slice(&[b'.', b'0' + copy as u8]);
    }
    let end = first;
    let mut rest = os::file::process_id();
    while first == end || rest > 0 {
        first -= 1;
        name[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // The last byte stays 0, so there is a NUL.
    run(CStr::from_bytes_until_nul(&name[first..]).unwrap_or(c"0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::ToOwned;
    use std::format;

    fn maps(text: &str, name: &str, piece: usize) -> bool {
        let mut rest = text.as_bytes();
        let mut read = |block: &mut [u8; 512]| {
            let n = rest.len().min(piece);
            block[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            n
        };
        maps_name(&mut read, name.as_bytes())
    }

    #[test]
    fn each_copy_has_a_name_of_its_own() {
        let pid = os::file::process_id();
        let name = |copy| with_name(copy, |name| name.to_str().expect("UTF-8").to_owned());
        assert_eq!([1, 2, MAX_COPIES].map(name), [format!("{pid}"), format!("{pid}.2"), format!("{pid}.8")]);
    }

    #[test]
    fn a_snapshot_that_is_mapped_is_found() {
        let long = "d/".repeat(2000);
        let text = format!(
            "7f00-7f01 r--p 00000000 08:01 17   /usr/lib/libc.so\n\
             7f0000000000-7f0000100000 rw-s 00000000 00:1a 3   /{long}12345\n\
             7f02-7f03 rw-s 00000000 00:1a 4   /dev/shm/uslab-0/777 (deleted)\n\
             7f04-7f05 r--s 00000000 00:1a 4   /dev/shm/uslab-0/888\n"
        );
        for piece in [1, 7, 512] {
            assert!(maps(&text, "/12345", piece));
            for other in ["/2345", "/777", "/888", "/libc.so", "/1"] {
                assert!(!maps(&text, other, piece), "{other}");
            }
        }
        assert!(!maps("", "/1", 512));
    }
}
