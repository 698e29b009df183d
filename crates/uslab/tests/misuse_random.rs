//! Random frees, half of them misuse, compared with an oracle of live objects. Each misuse that
//! must be recognised at once is reported exactly once, and nothing else is. Every allocated object
//! is aligned, overlaps no other, and keeps its bytes.
//!
//! It runs in a child process for each mode, under `USLAB_ON_MISUSE=report`, and counts the
//! reports.

#[path = "support/again.rs"]
mod again;
#[path = "support/pinned.rs"]
mod pinned;
#[path = "storm/random.rs"]
mod random;

use again::again;
use random::Random;
use std::collections::BTreeMap;
use uslab::internal::entry::{ANY, free_aligned_sized_tested};
use uslab::malloc::{aligned_alloc, free, free_bulk, malloc, realloc};

/// As the library's, for an object that no other thread frees meanwhile.
fn usable_size(pointer: *const u8) -> usize {
    // SAFETY: the thread that asks frees the object, later.
    unsafe { uslab::malloc::usable_size(pointer) }
}

const STEPS: usize = 60_000;
const EXPECTED: &str = "reports expected: ";

/// Live objects by address: the requested layout, and the stamp in each byte.
#[derive(Default)]
struct Oracle {
    live: BTreeMap<usize, (usize, usize, u8)>,
    misuses: usize,
}

impl Oracle {
    fn take(&mut self, object: *mut u8, size: usize, align: usize, stamp: u8) {
        let address = object as usize;
        assert!(address != 0 && address.is_multiple_of(align), "{object:p} is not aligned to {align}");
        let before = self.live.range(..address + size).next_back();
        assert!(
            before.is_none_or(|(&start, &(bytes, ..))| start + bytes <= address),
            "{object:p} overlaps another object"
        );
        assert_eq!(usable_size(object).max(size), usable_size(object));
        // SAFETY: the test owns the object, of that many bytes.
        unsafe { object.write_bytes(stamp, size) };
        self.live.insert(address, (size, align, stamp));
    }

    /// A random live object.
    fn any(&self, random: &mut Random) -> Option<(usize, usize, usize)> {
        let (&lowest, _) = self.live.first_key_value()?;
        let (&highest, _) = self.live.last_key_value()?;
        let from = lowest + random.below(highest - lowest + 1);
        self.live.range(from..).next().map(|(&address, &(size, align, _))| (address, size, align))
    }

    /// Removes an object, and checks its bytes.
    fn give_up(&mut self, address: usize) -> *mut u8 {
        let (size, _, stamp) = self.live.remove(&address).expect("it lives");
        // SAFETY: the test owns the object, of that many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, size) };
        assert!(bytes.iter().all(|&byte| byte == stamp), "{address:#x} was written to");
        address as *mut u8
    }
}

fn size(random: &mut Random) -> usize {
    match random.below(20) {
        0 => random.below(300_000),
        1..=3 => random.below(40_000),
        _ => random.below(600),
    }
}

/// # Safety
/// The function misuses objects on purpose: no other code in the process may use them.
unsafe fn step(oracle: &mut Oracle, random: &mut Random) {
    let stamp = random.below(256) as u8;
    let live = oracle.any(random).filter(|_| random.below(100) < oracle.live.len());
    let Some((address, bytes, align)) = live else {
        let (size, align) = (size(random), 16 << random.below(12).saturating_sub(6));
        return oracle.take(aligned_alloc(align, size), size, align, stamp);
    };
    let object = address as *mut u8;
    let offset = 1 + random.below(usable_size(object) - 1);
    let inside = object.wrapping_add(offset);
    // SAFETY: the caller's promise.
    unsafe {
        match random.below(10) {
            0 | 1 => free(oracle.give_up(address)),
            2 => free_aligned_sized_tested::<ANY>(oracle.give_up(address), align, bytes),
            3 => {
                let twice = oracle.give_up(address);
                free(twice);
                free(twice);
                oracle.misuses += 1;
            }
            4 => {
                free(inside);
                oracle.misuses += 1;
            }
            5 => {
                free_aligned_sized_tested::<ANY>(inside, align, bytes);
                oracle.misuses += 1;
            }
            6 => {
                assert!(realloc(inside, size(random)).is_null());
                oracle.misuses += 1;
            }
            7 => {
                free_bulk(&[oracle.give_up(address), inside, malloc(100)]);
                oracle.misuses += 1;
            }
            8 => {
                let mut word = 0_u64;
                free((&raw mut word).cast());
                oracle.misuses += 1;
            }
            _ => {
                let new = size(random);
                let moved = realloc(oracle.give_up(address), new);
                oracle.take(moved, new, 16, stamp);
            }
        }
    }
}

fn run(name: &str, environment: &[(&str, &str)]) {
    let mut all = vec![("USLAB_ON_MISUSE", "report"), ("USLAB_REAPER", "0")];
    all.extend_from_slice(environment);
    let Some(child) = again(name, &all) else {
        pinned::stay_on_this_cpu();
        let (mut oracle, mut random) = (Oracle::default(), Random::new(0x5eed));
        for _ in 0..STEPS {
            // SAFETY: no other code in the process uses these objects.
            unsafe { step(&mut oracle, &mut random) };
        }
        eprintln!("{EXPECTED}{}", oracle.misuses);
        return;
    };
    let text = String::from_utf8_lossy(&child.stderr);
    let last = &text[text.len().saturating_sub(2000)..];
    assert!(child.status.success(), "{}\n{last}", child.status);
    let expected =
        text.lines().find_map(|line| line.strip_prefix(EXPECTED)).expect("the child reaches its end");
    let reports = text.lines().filter(|line| line.starts_with("uslab: ")).count();
    assert_eq!(reports.to_string(), expected, "{last}");
}

#[test]
fn each_misuse_is_reported_once_with_sequences() {
    run("each_misuse_is_reported_once_with_sequences", &[]);
}

#[test]
fn each_misuse_is_reported_once_with_locks() {
    run("each_misuse_is_reported_once_with_locks", &[("USLAB_RSEQ", "0")]);
}
