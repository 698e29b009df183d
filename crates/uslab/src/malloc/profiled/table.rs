//! The memory of the heap profile: sites, their stacks, and the live samples.
//!
//! ```text
//!   5 MiB, once:  │ sites by hash │ sites │ frames of their stacks │ live samples │ scratch for ages │
//!                 │ labels: names of caches │ live samples by address
//! ```
//!
//! A site is a stack and a size class, or a stack and a label; it stays for ever. A label is the
//! name and the size of caches of the program, or of a private heap. What finds no room is counted
//! as dropped. All of it is guarded by one lock, which a thread takes once for a sample, and once
//! for its free.
//!
//! Objects of the program's caches are found by their addresses. The heads of these chains are
//! read without the lock first: most frees find none.

use super::state;
use crate::os::Lock;
use crate::pages::{self, Fill, PAGE_BYTES, Temperature};
use crate::sync::Rank;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Upper bound on the frames of a stack: a walk visits no more.
pub const MAX_FRAMES: usize = 48;
/// Sites, and chains of their table.
pub const SITES: usize = 8192;
/// Live samples: 24 GiB of them at the default period.
const SAMPLES: usize = 49_152;
/// Frames of all stacks together.
const FRAMES: usize = 190_000;
/// Places of the table of labels.
const LABELS: usize = 4096;
/// Labels in use at most, so that a search ends soon.
const MAX_LABELS: usize = LABELS / 8 * 7;
/// Labels in use beyond which private heaps get none of their own: a program may name a heap for
/// each of its requests.
const MAX_LABELS_FOR_HEAPS: usize = LABELS / 2;
/// The name of heaps without a label of their own.
const HEAPS: &str = "heap";
/// The index of the first label, above those of size classes.
pub const FIRST_LABEL: u16 = 1 << 8;
/// Chains of live samples by the addresses of their objects.
const CHAINS: usize = 1 << 16;

/// What is known of a site. Zeroed memory is one without a sample.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Site {
    /// The next site of the chain, plus 1.
    next: u32,
    first_frame: u32,
    frames: u16,
    /// The index of a size class, of large objects, or, from [`FIRST_LABEL`] on, of a label.
    pub cache: u16,
    pub live_samples: u32,
    pub samples: u64,
    /// Allocations, in units of 1 / 65 536.
    pub allocated: u64,
    pub allocated_bytes: u64,
    /// The same for those in use.
    pub live: u64,
    pub live_bytes: u64,
}

/// A sample in use, or a free place.
#[derive(Clone, Copy)]
#[repr(C)]
struct Sample {
    /// Its site, plus 1; 0 in a free place.
    site: u32,
    /// The time of its allocation, as [`state::now`]; in a free place the next one, plus 1.
    born: u32,
    bytes: u64,
    weight: u64,
    /// The complement of the object's address: the search for leaks is to find no pointer here. 0
    /// where frees find the sample otherwise.
    object: usize,
    /// The next sample of the chain, plus 1.
    next: u32,
    /// The id of the object's cache.
    owner: u16,
}

/// A free place.
const NO_SAMPLE: Sample = Sample { site: 0, born: 0, bytes: 0, weight: 0, object: 0, next: 0, owner: 0 };

/// The name and the size of caches; without a name, a free place.
#[derive(Clone, Copy)]
#[repr(C)]
struct Label {
    bytes: u64,
    name_bytes: u8,
    name: [u8; 47],
}

/// An object by which its sample is found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Object {
    pub address: usize,
    /// The id of its cache, or that of bare slabs of heaps.
    pub cache: u16,
    /// A number that few other caches and bare slabs share, for [`end_all`].
    pub tag: u16,
}

impl Object {
    /// None: the object itself has the sample's number.
    pub const NONE: Object = Object { address: usize::MAX, cache: 0, tag: 0 };

    fn key(self) -> usize {
        !self.address
    }

    fn chain(self) -> usize {
        (self.address as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 48
    }
}

/// The ages of a site's live samples, in milliseconds.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Ages {
    pub youngest_ms: u64,
    pub median_ms: u64,
    pub oldest_ms: u64,
}

/// The tables, one behind the other.
#[repr(C)]
struct Memory {
    chains: [u32; SITES],
    sites: [Site; SITES],
    frames: [usize; FRAMES],
    samples: [Sample; SAMPLES],
    /// [`Object::tag`] of each sample's object; any number where frees find the sample otherwise.
    tags: [u16; SAMPLES],
    /// Births of live samples, by site.
    births: [u32; SAMPLES],
    /// The end of each site's births.
    ends: [u32; SITES],
    ages: [Ages; SITES],
}

/// The tables that threads read without the lock, behind [`Memory`]. They change under the lock.
#[repr(C)]
struct Shared {
    /// The first sample of each chain, plus 1.
    heads: [AtomicU32; CHAINS],
    /// Each is written once, before its index is given out.
    labels: [UnsafeCell<Label>; LABELS],
}
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());

const PAGES: usize = (size_of::<Memory>() + size_of::<Shared>()).div_ceil(PAGE_BYTES);
const _: () = assert!(PAGES * PAGE_BYTES <= 5 << 20);

/// The tables and how much of them is in use.
struct Table {
    memory: *mut Memory,
    sites: usize,
    frames: usize,
    /// Places for samples that were ever in use, and the list of free ones below, plus 1.
    samples: usize,
    free: u32,
    labels: usize,
    dropped: u64,
}
// SAFETY: the memory is the table's alone, and lives for ever.
unsafe impl Send for Table {}

static TABLE: Lock<Table> = Lock::new(
    Rank::Heap,
    Table { memory: core::ptr::null_mut(), sites: 0, frames: 0, samples: 0, free: 0, labels: 0, dropped: 0 },
);

/// Makes the tables, if there are none; false without memory. The caller holds no lock.
pub fn make() -> bool {
    if !TABLE.lock().memory.is_null() {
        return true;
    }
    let Some(run) = pages::alloc(PAGES, 0, Temperature::Cold, Fill::Sparse) else { return false };
    let start = pages::address_of(run.first);
    if !run.zeroed {
        // SAFETY: the run is this call's alone, of that size.
        unsafe { start.write_bytes(0, PAGES * PAGE_BYTES) };
    }
    let mut table = TABLE.lock();
    if table.memory.is_null() {
        table.memory = start.cast();
        SHARED.store(start.wrapping_add(size_of::<Memory>()).cast(), Release);
    } else {
        drop(table);
        pages::free(run.first, run.pages, Temperature::Cold);
    }
    true
}

impl Table {
    fn memory(&mut self) -> Option<&mut Memory> {
        // SAFETY: null, or zeroed memory of that size, which the lock guards.
        unsafe { self.memory.as_mut() }
    }

    fn site(&mut self, cache: u16, stack: &[usize]) -> Option<usize> {
        let (sites, used) = (self.sites, self.frames);
        let memory = self.memory()?;
        let hash = stack.iter().fold(u64::from(cache), |hash, &pc| {
            (hash.rotate_left(5) ^ pc as u64).wrapping_mul(0x517c_c1b7_2722_0a95)
        });
        let chain = (hash >> 32) as usize % SITES;
        let mut at = memory.chains[chain];
        while at != 0 {
            let site = memory.sites[at as usize - 1];
            let frames = site.first_frame as usize..site.first_frame as usize + usize::from(site.frames);
            if site.cache == cache && memory.frames[frames] == *stack {
                return Some(at as usize - 1);
            }
            at = site.next;
        }
        if sites == SITES || used + stack.len() > FRAMES {
            return None;
        }
        memory.frames[used..used + stack.len()].copy_from_slice(stack);
        let site = &mut memory.sites[sites];
        (site.next, site.cache) = (memory.chains[chain], cache);
        (site.first_frame, site.frames) = (used as u32, stack.len() as u16);
        memory.chains[chain] = sites as u32 + 1;
        (self.sites, self.frames) = (sites + 1, used + stack.len());
        Some(sites)
    }
}

/// Notes a sample: an allocation of `bytes` bytes that stands for `weight` / 65 536. Returns its
/// number, which is not 0; `None` if it found no room. [`find`] finds it by `object`.
pub fn begin(
    cache: u16,
    bytes: usize,
    weight: u64,
    born: u32,
    stack: &[usize],
    object: Object,
) -> Option<u32> {
    let mut table = TABLE.lock();
    let has_place = table.free != 0 || table.samples < SAMPLES;
    let Some(site) = has_place.then(|| table.site(cache, stack)).flatten() else {
        table.dropped += 1;
        return None;
    };
    let (free, used) = (table.free, table.samples);
    let memory = table.memory()?;
    let number = if free == 0 { used as u32 + 1 } else { free };
    let place = &mut memory.samples[number as usize - 1];
    let next = place.born;
    let (site_number, key) = (site as u32 + 1, object.key());
    let mut sample = Sample { site: site_number, born, bytes: bytes as u64, weight, ..NO_SAMPLE };
    if key != 0 {
        let head = head_of(object)?;
        (sample.object, sample.owner, sample.next) = (key, object.cache, head.load(Relaxed));
        head.store(number, Relaxed);
        memory.tags[number as usize - 1] = object.tag;
    }
    *place = sample;
    let (site, bytes) = (&mut memory.sites[site], scaled(bytes as u64, weight));
    site.samples += 1;
    site.live_samples += 1;
    site.allocated = site.allocated.wrapping_add(weight);
    site.allocated_bytes = site.allocated_bytes.wrapping_add(bytes);
    site.live = site.live.wrapping_add(weight);
    site.live_bytes = site.live_bytes.wrapping_add(bytes);
    if free == 0 {
        table.samples = used + 1;
    } else {
        table.free = next;
    }
    Some(number)
}

fn scaled(bytes: u64, weight: u64) -> u64 {
    ((u128::from(bytes) * u128::from(weight)) >> 16) as u64
}

/// Whether a sample that ends was freed, or never existed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The program freed it.
    Freed,
    /// There was no memory for the object.
    Undone,
}

/// Ends a sample's life. Ignores 0, which is none.
pub fn end(number: u32, how: End) {
    TABLE.lock().end(number, how);
}

impl Table {
    /// See [`end`].
    fn end(&mut self, number: u32, how: End) {
        let free = self.free;
        let Some(memory) = self.memory() else { return };
        let Memory { samples, sites, .. } = memory;
        let Some(place) = samples.get_mut((number as usize).wrapping_sub(1)) else { return };
        let Some(site) = sites.get_mut((place.site as usize).wrapping_sub(1)) else { return };
        let bytes = scaled(place.bytes, place.weight);
        site.live_samples -= 1;
        site.live = site.live.wrapping_sub(place.weight);
        site.live_bytes = site.live_bytes.wrapping_sub(bytes);
        if how == End::Undone {
            site.samples -= 1;
            site.allocated = site.allocated.wrapping_sub(place.weight);
            site.allocated_bytes = site.allocated_bytes.wrapping_sub(bytes);
        }
        let ended = core::mem::replace(place, Sample { born: free, ..NO_SAMPLE });
        if ended.object != 0 {
            unchain(samples, number, ended);
        }
        self.free = number;
    }

    /// The number of the sample of an object, in the chain that starts at `head`.
    fn find(&mut self, object: Object, head: &AtomicU32) -> Option<u32> {
        let memory = self.memory()?;
        let mut at = head.load(Relaxed);
        while let Some(sample) = memory.samples.get((at as usize).wrapping_sub(1)) {
            if sample.object == object.key() && sample.owner == object.cache {
                return Some(at);
            }
            at = sample.next;
        }
        None
    }

    /// The first sample from the place `first` on that [`end_all`] is to end.
    fn find_of(&mut self, cache: u16, tag: u16, first: usize, is_its: impl Fn(usize) -> bool) -> Option<u32> {
        let used = self.samples;
        let memory = self.memory()?;
        let is_found = |&at: &usize| {
            let sample = &memory.samples[at];
            sample.object != 0 && sample.owner == cache && is_its(!sample.object)
        };
        with_tag(&memory.tags[..used], first, tag).find(is_found).map(|at| at as u32 + 1)
    }
}

/// Takes the sample with that number out of the chain of its object.
fn unchain(samples: &mut [Sample], number: u32, ended: Sample) {
    let Some(head) = head_of(Object { address: !ended.object, ..Object::NONE }) else { return };
    if head.load(Relaxed) == number {
        return head.store(ended.next, Relaxed);
    }
    let mut at = head.load(Relaxed);
    while let Some(sample) = samples.get_mut((at as usize).wrapping_sub(1)) {
        if sample.next == number {
            sample.next = ended.next;
            return;
        }
        at = sample.next;
    }
}

/// The tables of [`Shared`]; `None` before [`make`].
fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or zeroed memory of that size, which lives for ever.
    unsafe { SHARED.load(Acquire).as_ref() }
}

/// The first sample of the chain that an object belongs to.
fn head_of(object: Object) -> Option<&'static AtomicU32> {
    shared()?.heads.get(object.chain())
}

/// Ends the sample of an object that the program freed; returns whether it was one. Takes no lock
/// where the object's chain has none.
pub fn end_of(object: Object) -> bool {
    let Some(head) = head_of(object).filter(|head| head.load(Relaxed) != 0) else { return false };
    // In one hold: the number of a sample that ended goes to the next one.
    let mut table = TABLE.lock();
    let number = table.find(object, head);
    number.inspect(|&number| table.end(number, End::Freed)).is_some()
}

/// Ends the samples of the cache with the id `cache` and the tag `tag` whose address `is_its`
/// confirms. No thread uses their objects any more. `is_its` is called with the lock held.
///
/// This looks at the tags of all samples, 96 KiB. Lists by owner would need four times that.
pub fn end_all(cache: u16, tag: u16, is_its: impl Fn(usize) -> bool) {
    // In one hold, as in [`end_of`].
    let mut table = TABLE.lock();
    let mut first = 0;
    while let Some(number) = table.find_of(cache, tag, first, &is_its) {
        table.end(number, End::Freed);
        first = number as usize;
    }
}

/// The places from `first` on that have this tag.
fn with_tag(tags: &[u16], first: usize, tag: u16) -> impl Iterator<Item = usize> {
    // The compiler compares the tags of a block all at once.
    const BLOCK: usize = 128;
    let blocks = (first / BLOCK..tags.len().div_ceil(BLOCK)).map(|block| block * BLOCK);
    let has_tag = move |&start: &usize| {
        let block = &tags[start..tags.len().min(start + BLOCK)];
        block.iter().fold(false, |is_there, &other| is_there | (other == tag))
    };
    blocks.filter(has_tag).flat_map(move |start| {
        (start.max(first)..tags.len().min(start + BLOCK)).filter(move |&at| tags[at] == tag)
    })
}

/// The index of the label with the name and the size of a cache of the program; `None` without
/// room.
pub fn label(name: &str, bytes: usize) -> Option<u16> {
    let mut table = TABLE.lock();
    let found = label_within(&mut table, name, bytes, MAX_LABELS);
    table.dropped += u64::from(found.is_none());
    found
}

/// The same for a private heap. Heaps without room for a label of their own share one of each size.
pub fn label_of_heap(name: &str, bytes: usize) -> Option<u16> {
    let mut table = TABLE.lock();
    let found = label_within(&mut table, name, bytes, MAX_LABELS_FOR_HEAPS)
        .or_else(|| label_within(&mut table, HEAPS, bytes, MAX_LABELS));
    table.dropped += u64::from(found.is_none());
    found
}

/// The index of a label, which is made unless `most` of them are in use.
fn label_within(table: &mut Table, name: &str, bytes: usize, most: usize) -> Option<u16> {
    let name = if name.is_empty() { "?" } else { name };
    let labels = &shared()?.labels;
    let start = name.bytes().fold(bytes, |hash, byte| hash.wrapping_mul(31) ^ usize::from(byte));
    for at in (0..LABELS).map(|step| start.wrapping_add(step) % LABELS) {
        // SAFETY: the table's lock guards the place, of which no thread has the index while it is
        // free; the caller holds that lock.
        let has_name = unsafe { (*labels[at].get()).name_bytes != 0 };
        if !has_name {
            if table.labels >= most {
                return None;
            }
            let mut label = Label { bytes: bytes as u64, name_bytes: name.len() as u8, name: [0; 47] };
            label.name.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
            // SAFETY: as above.
            unsafe { labels[at].get().write(label) };
            table.labels += 1;
        }
        let index = FIRST_LABEL + at as u16;
        if label_at(index) == Some((name, bytes)) {
            return Some(index);
        }
    }
    None
}

/// The name and the size of a label; `None` if the index is not one.
pub fn label_at(index: u16) -> Option<(&'static str, usize)> {
    let place = shared()?.labels.get(usize::from(index.checked_sub(FIRST_LABEL)?))?;
    // SAFETY: a label is not written again after its index was given out.
    let label = unsafe { &*place.get() };
    Some((core::str::from_utf8(label.name.get(..usize::from(label.name_bytes))?).ok()?, label.bytes as usize))
}

/// Samples that found no room.
pub fn dropped() -> u64 {
    TABLE.lock().dropped
}

/// Determines the ages of the live samples at `now` ([`super::state::now`]), for [`site`]; returns
/// the number of sites.
pub fn find_ages(now: u32) -> usize {
    let mut table = TABLE.lock();
    let (sites, used) = (table.sites, table.samples);
    let Some(memory) = table.memory() else { return 0 };
    let Memory { sites: all, samples, births, ends, ages, .. } = memory;
    let mut end = 0;
    for (site, place) in all[..sites].iter().zip(&mut ends[..]) {
        // Here the start; each birth advances it to the end.
        *place = end;
        end += site.live_samples;
    }
    for sample in samples[..used].iter().filter(|sample| sample.site != 0) {
        let place = &mut ends[sample.site as usize - 1];
        births[*place as usize] = sample.born;
        *place += 1;
    }
    let mut start = 0;
    for (&end, ages) in ends[..sites].iter().zip(&mut ages[..]) {
        let births = &mut births[start..end as usize];
        births.sort_unstable();
        let age = |at: usize| births.get(at).map_or(0, |&born| state::age_ms(now, born));
        *ages = Ages {
            youngest_ms: age(births.len().wrapping_sub(1)),
            median_ms: age(births.len() / 2),
            oldest_ms: age(0),
        };
        start = end as usize;
    }
    sites
}

/// A copy of a site, with its ages and its stack; the number of frames is returned last.
pub fn site(at: usize, frames: &mut [usize; MAX_FRAMES]) -> Option<(Site, Ages, usize)> {
    let mut table = TABLE.lock();
    let memory = table.memory()?;
    let (site, ages) = (*memory.sites.get(at)?, *memory.ages.get(at)?);
    let (first, n) = (site.first_frame as usize, usize::from(site.frames));
    frames[..n].copy_from_slice(&memory.frames[first..first + n]);
    Some((site, ages, n))
}

pub fn lock_for_fork() {
    TABLE.acquire_for_fork();
}

pub fn unlock_after_fork(child: bool) {
    if child { TABLE.reset_in_child() } else { TABLE.release_after_fork() }
}

#[cfg(test)]
mod tests;
