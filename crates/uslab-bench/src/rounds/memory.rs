//! Measures the memory of a contestant: it allocates a load, frees a part of it, and then idles.
//!
//! ```text
//!   baseline ── allocate, touch ── live ── free a part ── freed ── sleep ── idle
//!        └───── a second thread reads /proc/self/statm now and then: the course ┘
//! ```
//!
//! The part is a random one, freed in random order; or all but every n-th object, freed in the
//! order of allocation, which leaves one object on each page.
//!
//! This runs in a process of its own (child.rs), because the resident set is the process's. All
//! memory of this file (sizes, orders, addresses, the course) is touched before the baseline is
//! read. The contestant's own set-up comes later, and counts. Pages that were returned by MADV_FREE
//! count as long as the kernel counts them.
//!
//! Must never: allocate from the system between the baseline and the last reading; call the
//! contestant while it idles.

use super::Entry;
use super::crew::{self, Job};
use super::mixed::MixedRound;
use super::random::{Xorshift, shuffle, spread};
use crate::contestants::out_of_memory;
use crate::cpu::Cpus;
use crate::machine::page_size_bytes;
use crate::measure::Sample;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// The load: allocations, frees, and idle time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The sum of the requested sizes.
    pub live_bytes: usize,
    /// Sizes are spread evenly over the logarithms of these two.
    pub smallest_bytes: usize,
    pub largest_bytes: usize,
    pub freed_percent: usize,
    /// The objects that stay are evenly spaced in the order of allocation, not random.
    #[serde(default)]
    pub evenly: bool,
    pub idle_ms: u64,
}

/// The page size of [`LEFT_PAGES`]; larger kernel pages count as several.
const PAGE_BYTES: usize = 4096;

/// The interval of the course's points, and their most; room for all is made before the baseline is
/// read.
const COURSE_EVERY: Duration = Duration::from_millis(100);
const MAX_COURSE_POINTS: usize = 4096;

/// Names of the readings in [`Sample::extra`], each above the baseline.
pub const LIVE: &str = "resident_live_bytes";
pub const FREED: &str = "resident_freed_bytes";
pub const IDLE: &str = "resident_idle_bytes";
/// The most at any time.
pub const PEAK: &str = "resident_peak_bytes";
/// The bytes of all objects, and of those that are not freed.
pub const ASKED: &str = "live_bytes";
pub const LEFT: &str = "live_left_bytes";
/// Pages on which some object is left: an allocator that does not move objects cannot give these
/// back.
pub const LEFT_PAGES: &str = "live_left_pages_bytes";
/// When the objects are there, and when a part is freed again.
pub const ALLOCATED_AT: &str = "allocated_at_s";
pub const FREED_AT: &str = "freed_at_s";
/// The course.
pub const COURSE: &str = "resident_bytes_by_s";

/// Runs the load on `entry`. The value is the resident set above the baseline while everything is
/// live.
pub fn run(entry: &Entry, load: &Load) -> Result<Sample, String> {
    let objects = Objects::plan(load);
    let mut slots = vec![std::ptr::null_mut::<u8>(); objects.sizes.len()];
    slots.fill(std::ptr::dangling_mut());
    let mut course: Vec<(f64, u64)> = vec![(1.0, 1); MAX_COURSE_POINTS];
    let statm = Statm::open().map_err(|error| format!("cannot read /proc/self/statm: {error}"))?;
    let (ready, done, started) = (Barrier::new(2), AtomicBool::new(false), Instant::now());
    let (readings, points) = thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            ready.wait();
            let mut points = 0;
            while points < course.len() && !done.load(Relaxed) {
                course[points] = (started.elapsed().as_secs_f64(), statm.resident_bytes());
                points += 1;
                thread::sleep(COURSE_EVERY);
            }
            points
        });
        ready.wait();
        let readings = phases(entry, load, &objects, &mut slots, &statm, started);
        done.store(true, Relaxed);
        (readings, sampler.join().expect("the sampler does nothing that fails"))
    });
    // Before the pages are counted, which allocates.
    let peak = peak_bytes().map_err(|error| format!("cannot read /proc/self/status: {error}"))?;
    let left_pages = left_pages(&slots, &objects, load) * PAGE_BYTES as u64;
    let mut sample = readings.sample(&course[..points], peak, &objects, load);
    sample.extra.insert(LEFT_PAGES.into(), left_pages as f64);
    Ok(sample)
}

/// Resident bytes, as they were read, and when.
struct Readings {
    baseline: u64,
    live: u64,
    freed: u64,
    idle: u64,
    allocated_at: f64,
    freed_at: f64,
}

fn phases(
    entry: &Entry,
    load: &Load,
    objects: &Objects,
    slots: &mut [*mut u8],
    statm: &Statm,
    started: Instant,
) -> Readings {
    let baseline = statm.resident_bytes();
    (entry.enter_thread)();
    for (slot, &size) in slots.iter_mut().zip(&objects.sizes) {
        *slot = (entry.alloc)(size as usize);
        if slot.is_null() {
            out_of_memory(entry.name);
        }
        // SAFETY: fresh memory of `size` bytes.
        unsafe { slot.write_bytes(0xa5, size as usize) };
    }
    let (live, allocated_at) = (statm.resident_bytes(), started.elapsed().as_secs_f64());
    for &index in objects.freed(load) {
        let index = index as usize;
        // SAFETY: allocated above with this size; the order names each object once.
        unsafe { (entry.free)(slots[index], objects.sizes[index] as usize) };
    }
    let (freed, freed_at) = (statm.resident_bytes(), started.elapsed().as_secs_f64());
    thread::sleep(Duration::from_millis(load.idle_ms));
    Readings { baseline, live, freed, idle: statm.resident_bytes(), allocated_at, freed_at }
}

impl Readings {
    fn sample(&self, course: &[(f64, u64)], peak: u64, objects: &Objects, load: &Load) -> Sample {
        let above = |bytes: u64| bytes.saturating_sub(self.baseline) as f64;
        let left = objects.bytes() - objects.freed(load).iter().map(|&i| objects.size(i)).sum::<u64>();
        let extra = [
            (LIVE, above(self.live)),
            (FREED, above(self.freed)),
            (IDLE, above(self.idle)),
            (PEAK, above(peak)),
            (ASKED, objects.bytes() as f64),
            (LEFT, left as f64),
            (ALLOCATED_AT, self.allocated_at),
            (FREED_AT, self.freed_at),
        ];
        Sample {
            value: above(self.live),
            extra: extra.map(|(name, value)| (name.to_owned(), value)).into(),
            series: BTreeMap::from([(
                COURSE.to_owned(),
                course.iter().map(|&(at, bytes)| [at, above(bytes)]).collect(),
            )]),
        }
    }
}

/// The memory of a crowd of threads: those of mixed.rs, with one contestant, whose live sets are
/// filled and replaced at random. The threads' own memory (stacks, records) is above the baseline,
/// too; it is the same for every contestant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crowd {
    pub threads: usize,
    /// Objects of each thread.
    pub live: usize,
    /// Of a thousand replacements each.
    pub repeats: usize,
}

/// Runs the crowd on `entry`. The value is the resident set above the baseline, with all live sets
/// there.
pub fn run_crowd(entry: &Entry, crowd: Crowd) -> Result<Sample, String> {
    let statm = Arc::new(Statm::open().map_err(|error| format!("cannot read /proc/self/statm: {error}"))?);
    let resident = Arc::new(AtomicU64::new(0));
    let (arrived, reading, same) = (Barrier::new(crowd.threads), Arc::clone(&resident), Arc::clone(&statm));
    let with_live = move || {
        if arrived.wait().is_leader() {
            reading.store(same.resident_bytes(), Relaxed);
        }
        arrived.wait();
    };
    let round = MixedRound { repeats: crowd.repeats, live: crowd.live, with_live: Some(Box::new(with_live)) };
    let mixed = entry.mixed;
    let job: Job = Arc::new(move |seat| mixed(&round, seat));
    let cpus = Cpus::choose(None)?;
    let before = statm.resident_bytes();
    crew::fresh(crowd.threads, cpus, *entry, &job);
    let after = statm.resident_bytes();
    let above = |bytes: u64| bytes.saturating_sub(before) as f64;
    Ok(Sample {
        extra: [("resident_ended_bytes".to_owned(), above(after))].into(),
        ..Sample::of(above(resident.load(Relaxed)))
    })
}

/// The number of pages that hold an object that was not freed.
fn left_pages(slots: &[*mut u8], objects: &Objects, load: &Load) -> u64 {
    let mut pages: Vec<usize> = Vec::new();
    for &index in &objects.order[objects.freed(load).len()..] {
        let (first, size) = (slots[index as usize].addr(), objects.sizes[index as usize] as usize);
        pages.extend(first / PAGE_BYTES..=(first + size.max(1) - 1) / PAGE_BYTES);
    }
    pages.sort_unstable();
    pages.dedup();
    pages.len() as u64
}

/// The objects of a load, the same for every contestant.
struct Objects {
    sizes: Vec<u32>,
    /// Each object once, in the order in which they are freed, if they are.
    order: Vec<u32>,
}

impl Objects {
    fn plan(load: &Load) -> Self {
        // Objects are counted first, so that each array is made at its size. An array that grew
        // would leave freed memory in the system's malloc, which is a contestant.
        let count = Sizes::of(load).count();
        let mut sizes = Vec::with_capacity(count);
        sizes.extend(Sizes::of(load));
        let order = if load.evenly { spaced(count, load.freed_percent) } else { shuffle(count) };
        Self { sizes, order }
    }

    fn freed(&self, load: &Load) -> &[u32] {
        &self.order[..self.order.len() * load.freed_percent.min(100) / 100]
    }

    fn size(&self, index: u32) -> u64 {
        self.sizes[index as usize].into()
    }

    fn bytes(&self) -> u64 {
        self.sizes.iter().map(|&size| u64::from(size)).sum()
    }
}

/// The numbers below `n` in ascending order, but for those that stay when `freed_percent` is freed:
/// one in so many, at the end.
fn spaced(n: usize, freed_percent: usize) -> Vec<u32> {
    let one_in = 100 / 100usize.saturating_sub(freed_percent).max(1);
    // Made at its size, as in `shuffle`.
    let mut order = Vec::with_capacity(n);
    order.extend((0..n as u32).filter(|&at| !(at as usize).is_multiple_of(one_in)));
    order.extend((0..n as u32).step_by(one_in));
    order
}

/// Sizes until they come to the load's live bytes.
struct Sizes {
    random: Xorshift,
    left_bytes: usize,
    smallest: usize,
    largest: usize,
}

impl Sizes {
    fn of(load: &Load) -> Self {
        let (smallest, largest) = (load.smallest_bytes.max(1), load.largest_bytes.max(1));
        Self { random: Xorshift::new(0), left_bytes: load.live_bytes, smallest, largest }
    }
}

impl Iterator for Sizes {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.left_bytes == 0 {
            return None;
        }
        let size = spread(&mut self.random, self.smallest, self.largest);
        self.left_bytes = self.left_bytes.saturating_sub(size as usize);
        Some(size)
    }
}

/// The process's resident set, read without allocating.
pub struct Statm {
    file: File,
    page_bytes: u64,
}

impl Statm {
    pub fn open() -> io::Result<Self> {
        let statm = Self { file: File::open("/proc/self/statm")?, page_bytes: page_size_bytes() as u64 };
        if statm.resident_bytes() == 0 { Err(io::ErrorKind::InvalidData.into()) } else { Ok(statm) }
    }

    /// 0 if it cannot be read, which [`open`](Self::open) has ruled out.
    pub fn resident_bytes(&self) -> u64 {
        let mut text = [0; 128];
        let length = self.file.read_at(&mut text, 0).unwrap_or(0);
        second_number(&text[..length]) * self.page_bytes
    }
}

/// The second of numbers that are separated by blanks.
fn second_number(text: &[u8]) -> u64 {
    let digits = text.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
    digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

/// The most that was ever resident.
fn peak_bytes() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineup::MALLOC;
    use crate::rounds::crew::tests::all_that_malloc;

    const LOAD: Load = Load {
        live_bytes: 1 << 20,
        smallest_bytes: 16,
        largest_bytes: 1024,
        freed_percent: 90,
        evenly: false,
        idle_ms: 1,
    };

    #[test]
    fn sizes_stay_in_their_bounds_and_come_to_the_load() {
        let objects = Objects::plan(&LOAD);
        assert!(objects.sizes.iter().all(|size| (16..=1024).contains(size)));
        assert!((1 << 20..(1 << 20) + 1024).contains(&objects.bytes()));
        // Evenly over the logarithms: half of them below the geometric mean.
        let small = objects.sizes.iter().filter(|&&size| size <= 128).count();
        assert!((45..55).contains(&(small * 100 / objects.sizes.len())));
        let one = Load { smallest_bytes: 64, largest_bytes: 64, ..LOAD };
        assert_eq!(Objects::plan(&one).sizes, vec![64; 1 << 14]);
    }

    #[test]
    fn each_object_is_freed_once_at_most() {
        let objects = Objects::plan(&LOAD);
        let mut freed = objects.freed(&LOAD).to_vec();
        assert_eq!(freed.len(), objects.sizes.len() * 9 / 10);
        assert!(freed.windows(2).any(|pair| pair[0] > pair[1]));
        freed.sort_unstable();
        freed.dedup();
        assert_eq!(freed.len(), objects.sizes.len() * 9 / 10);
    }

    #[test]
    fn every_twentieth_object_stays_and_the_others_go_in_order() {
        let load = Load { live_bytes: 500 * 100, freed_percent: 95, evenly: true, ..LOAD };
        let objects = Objects::plan(&Load { smallest_bytes: 500, largest_bytes: 500, ..load.clone() });
        let freed = objects.freed(&load);
        assert_eq!(freed.len(), 95);
        assert!(freed.is_sorted() && freed.iter().all(|at| at % 20 != 0));
        assert_eq!(objects.order[95..], [0, 20, 40, 60, 80]);
    }

    #[test]
    fn a_load_has_every_reading_and_a_course() {
        let sample = run(&MALLOC, &LOAD).unwrap();
        for name in [LIVE, FREED, IDLE, PEAK, ASKED, LEFT, LEFT_PAGES, ALLOCATED_AT, FREED_AT] {
            assert!(sample.extra.contains_key(name), "no {name}");
        }
        assert!(sample.extra[LEFT] < sample.extra[ASKED]);
        assert!(sample.extra[LEFT] <= sample.extra[LEFT_PAGES]);
        assert!(!sample.series[COURSE].is_empty());
    }

    #[test]
    fn statm_has_the_resident_set_second() {
        assert_eq!(second_number(b"1000 234 5 6 0 7 0\n"), 234);
        assert_eq!(second_number(b""), 0);
        assert!(Statm::open().unwrap().resident_bytes() > 0);
    }

    #[test]
    fn a_crowd_tells_what_it_held() {
        for entry in all_that_malloc() {
            let sample = run_crowd(&entry, Crowd { threads: 5, live: 100, repeats: 1 }).unwrap();
            assert!(sample.extra.contains_key("resident_ended_bytes"), "{}", entry.name);
        }
    }
}
