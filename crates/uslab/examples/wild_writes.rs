//! Wild writes: changes random bytes of the library's structures, and counts what comes of it.
//!
//! ```text
//!   parent   a heap of live objects
//!   └ fork   each child: write 1 to 32 random bytes into one structure, go on allocating and
//!            freeing against a shadow map, and end with the outcome
//! ```
//!
//! ```sh
//! cargo run --release -p uslab --example wild_writes -- 2000
//! ```
//!
//! Arguments: the number of writes, the first seed (0), and `verbose` for a line a write.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use uslab::internal::entry::{free, malloc};
use uslab::internal::{Region, for_each_region};

/// The outcomes, in the order of the table. The status of a child is the place.
const OUTCOMES: [&str; 6] = ["harmless", "caught", "crash", "no object", "no end", "silent"];
const HARMLESS: usize = 0;
const CAUGHT: usize = 1;
const CRASH: usize = 2;
const NO_OBJECT: usize = 3;
const NO_END: usize = 4;
const SILENT: usize = 5;

/// Objects that the heap has when the write comes.
const LIVE: usize = 6000;
/// Calls after it; the heap grows in every other phase, and shrinks in between.
const STEPS: usize = 30_000;
const PHASE: usize = 3000;
const SIZES: [usize; 12] = [16, 24, 48, 64, 100, 128, 250, 512, 1000, 2048, 9000, 40_000];

/// A generator of random numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// The program's view of the heap. Its own memory comes from the system's allocator.
#[derive(Default)]
struct Shadow {
    /// Start, then bytes and the value that fills the object.
    live: BTreeMap<usize, (usize, u8)>,
    starts: Vec<usize>,
    serial: u8,
    metadata: Vec<Region>,
}

impl Shadow {
    /// Allocates an object; the outcome is the first thing that is wrong with it.
    fn alloc(&mut self, random: &mut Random) -> Result<(), usize> {
        let bytes = SIZES[random.below(SIZES.len())];
        let start = malloc(bytes) as usize;
        if start == 0 {
            return Err(NO_OBJECT);
        }
        let before = self.live.range(..start + bytes).next_back();
        let overlaps = before.is_some_and(|(&other, &(length, _))| other + length > start);
        let in_metadata =
            self.metadata.iter().any(|it| it.start < start + bytes && start < it.start + it.bytes);
        if overlaps || in_metadata || !start.is_multiple_of(16) {
            return Err(SILENT);
        }
        self.serial = self.serial.wrapping_add(1);
        // SAFETY: an object that the library returned, of so many bytes. If it is none, this may
        // fault: one of the outcomes that the child is there for.
        unsafe { (start as *mut u8).write_bytes(self.serial, bytes) };
        self.live.insert(start, (bytes, self.serial));
        self.starts.push(start);
        Ok(())
    }

    fn free(&mut self, random: &mut Random) -> Result<(), usize> {
        if self.starts.is_empty() {
            return Ok(());
        }
        let at = random.below(self.starts.len());
        let start = self.starts.swap_remove(at);
        let Some((bytes, value)) = self.live.remove(&start) else { return Err(SILENT) };
        // SAFETY: an object of so many bytes, which `alloc` wrote.
        let contents = unsafe { std::slice::from_raw_parts(start as *const u8, bytes) };
        if contents.iter().any(|&byte| byte != value) {
            return Err(SILENT);
        }
        // SAFETY: no code uses the object any more.
        unsafe { free(start as *mut u8) };
        Ok(())
    }

    /// Steps of allocation and free, with phases in which the heap grows and shrinks.
    fn work(&mut self, random: &mut Random, steps: usize) -> Result<(), usize> {
        for step in 0..steps {
            let grows = (step / PHASE).is_multiple_of(2);
            let share = if grows { 65 } else { 35 };
            if random.below(100) < share { self.alloc(random)? } else { self.free(random)? }
        }
        // At the end no object may have been changed by another owner.
        while !self.starts.is_empty() {
            self.free(random)?;
        }
        Ok(())
    }
}

/// The words of a structure.
fn words_of(region: &Region) -> Vec<usize> {
    // SAFETY: a structure of the library, of so many bytes; structures are aligned to words.
    (0..region.bytes / 8)
        .map(|n| unsafe { ((region.start + n * 8) as *const usize).read_volatile() })
        .collect()
}

/// Prints the words that a write to a sheaf changed, and what each pointer leads to now.
fn tell_sheaf(region: &Region, before: &[usize], shadow: &Shadow) {
    let count = before[0] as u32 as usize;
    for (at, (old, new)) in before.iter().copied().zip(words_of(region)).enumerate() {
        let object =
            shadow.live.range(..=new).next_back().filter(|&(&start, &(bytes, _))| new < start + bytes);
        let leads = match object {
            _ if at < 2 => "count, capacity or sentinel",
            _ if at > count + 1 => "no object was here",
            Some((&start, _)) if start == new => "the start of a live object",
            Some(_) => "the inside of a live object",
            None if before[2..count + 2].contains(&new) => "another object of the sheaf",
            None => "no live object",
        };
        if old != new {
            eprintln!("  word {at} of {count} objects: {old:#x} -> {new:#x}: {leads}");
        }
    }
}

/// Prints the words that a write to a bitmap changed, and the bits set before and after.
fn tell_bitmap(region: &Region, before: &[usize]) {
    let bits = |words: &[usize]| words.iter().map(|word| word.count_ones()).sum::<u32>();
    let after = words_of(region);
    for (at, (old, new)) in before.iter().zip(&after).enumerate().filter(|(_, (old, new))| old != new) {
        eprintln!("  word {at} of {}: {old:#018x} -> {new:#018x}", before.len());
    }
    eprintln!("  {} bits were set, {} are", bits(before), bits(&after));
}

/// Writes to one structure.
fn write_wildly(random: &mut Random, regions: &Regions, shadow: &Shadow) {
    let (kind, region) = choose(random, regions);
    let before = words_of(&region);
    let at = random.below(region.bytes);
    let most = if random.below(2) == 0 { 1 } else { 32 };
    let bytes = (1 + random.below(most)).min(region.bytes - at);
    for n in 0..bytes {
        // SAFETY: bytes of a structure of the library. That it must not be written is the test.
        unsafe { ((region.start + at + n) as *mut u8).write_volatile(random.next() as u8) };
    }
    match kind {
        "sheaf" => tell_sheaf(&region, &before, shadow),
        "bitmap" => tell_bitmap(&region, &before),
        _ => {}
    }
}

/// The structures of each kind.
type Regions = BTreeMap<&'static str, Vec<Region>>;

/// One structure: the kind first, each as often as the others, then one of the kind.
fn choose(random: &mut Random, regions: &Regions) -> (&'static str, Region) {
    let kinds: Vec<_> = regions.keys().copied().collect();
    let kind = kinds[random.below(kinds.len())];
    (kind, regions[kind][random.below(regions[kind].len())])
}

/// One child's outcome.
fn child(seed: u64, steps: usize, shadow: &mut Shadow, regions: &Regions) -> usize {
    let mut random = Random(seed);
    write_wildly(&mut random, regions, shadow);
    match shadow.work(&mut random, steps) {
        Ok(()) => HARMLESS,
        Err(outcome) => outcome,
    }
}

fn outcome_of(status: i32) -> usize {
    if libc::WIFEXITED(status) {
        return match libc::WEXITSTATUS(status) as usize {
            code if code < OUTCOMES.len() => code,
            // A panic: a check of the library's, such as that of an index.
            _ => CAUGHT,
        };
    }
    match libc::WTERMSIG(status) {
        libc::SIGABRT => CAUGHT,
        libc::SIGALRM => NO_END,
        _ => CRASH,
    }
}

/// The heap's structures, and the program's view of it.
fn make_heap() -> (Shadow, Regions) {
    let (mut shadow, mut random) = (Shadow::default(), Random(42));
    while shadow.starts.len() < LIVE {
        let served = shadow.alloc(&mut random).and_then(|()| match random.below(3) {
            0 => shadow.free(&mut random),
            _ => Ok(()),
        });
        served.expect("the heap is whole");
    }
    let (mut regions, mut all) = (Regions::new(), Vec::with_capacity(1 << 16));
    for_each_region(|region| all.push(region));
    for region in all.iter().filter(|region| region.bytes > 0) {
        regions.entry(region.kind).or_default().push(*region);
    }
    let is_small = |region: &Region| ["sheaf", "slot", "barn"].contains(&region.kind);
    shadow.metadata = all.into_iter().filter(is_small).collect();
    (shadow, regions)
}

/// Makes the writes of `seeds`, each in a child that makes `steps` calls after it. Prints a table,
/// and returns how many writes were silent.
pub fn run(seeds: Range<u64>, steps: usize, is_verbose: bool) -> u32 {
    let (mut shadow, regions) = make_heap();
    let mut counts: BTreeMap<&'static str, [u32; OUTCOMES.len()]> = BTreeMap::new();
    for seed in seeds {
        std::io::stdout().flush().expect("standard output is open");
        // SAFETY: the child uses what the C library makes safe, and ends by `_exit` or a signal.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: a limit on the child's time, and an end without the parent's handlers.
            unsafe {
                if !is_verbose {
                    let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
                    libc::dup2(null, 2);
                }
                let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &limit);
                libc::alarm(5);
                libc::_exit(child(seed, steps, &mut shadow, &regions) as i32);
            }
        }
        let mut status = 0;
        // SAFETY: a child of this process.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        let outcome = outcome_of(status);
        // The same choice as the child made.
        let mut random = Random(seed);
        let (kind, region) = choose(&mut random, &regions);
        counts.entry(kind).or_default()[outcome] += 1;
        if is_verbose {
            let at = random.below(region.bytes);
            println!("{seed}: {kind} at {at} of {}: {}", region.bytes, OUTCOMES[outcome]);
        }
    }
    let mut sums = [0; OUTCOMES.len()];
    println!("{:<16} {}", "", OUTCOMES.map(|name| format!("{name:>9}")).join(" "));
    for (kind, of_kind) in &counts {
        println!("{kind:<16} {}", of_kind.map(|count| format!("{count:>9}")).join(" "));
        sums.iter_mut().zip(of_kind).for_each(|(sum, count)| *sum += count);
    }
    println!("{:<16} {}", "all", sums.map(|count| format!("{count:>9}")).join(" "));
    sums[SILENT]
}

#[allow(dead_code, reason = "the test has another entry")]
fn main() {
    let mut args = std::env::args().skip(1);
    let writes: u64 = args.next().map_or(200, |text| text.parse().expect("a number of writes"));
    let first: u64 = args.next().map_or(0, |text| text.parse().expect("a seed"));
    run(first..first + writes, STEPS, args.next().is_some_and(|word| word == "verbose"));
}
