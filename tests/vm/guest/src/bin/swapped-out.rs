//! Measures the entries that one report of pressure requests from a shrinker: before memory is
//! swapped out, meanwhile, and afterwards.
//!
//! The guest's disk becomes its swap area. A report is a byte in the pipe that
//! `MEMORY_PRESSURE_WATCH` names, as from a service manager. The program prints the number of
//! entries requested after each of four reports: two without swapping, one while a thread makes the
//! kernel swap its pages out, and one after that. It must never run outside a guest.

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

use std::fs::OpenOptions;
use std::io::{Error, Write};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;
use uslab::{Scan, ShrinkControl, Shrinker, ShrinkerOptions};

const DISK: &std::ffi::CStr = c"/dev/nvme0n1";
const PAGE_BYTES: usize = 4096;
const MIB: usize = 1 << 20;
/// Memory that the program holds, so that a report requests more than the minimum.
const HELD_BYTES: usize = 128 * MIB;
/// Bytes swapped out at a time.
const REGION_BYTES: usize = 4 * MIB;
/// Time between reports: one within four seconds of the last would request more.
const APART: Duration = Duration::from_secs(6);

/// A shrinker that counts the requested entries, and claims to have freed them.
struct Asked(AtomicUsize);

impl Shrinker for Asked {
    fn count(&self, _: &ShrinkControl) -> usize {
        1 << 20
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        self.0.fetch_add(control.nr_to_scan, SeqCst);
        Scan::Freed(control.nr_to_scan)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the header of a swap area to the disk, as mkswap(8) does, and makes the kernel use it.
fn swap_on() -> Result<(), Error> {
    let disk = OpenOptions::new().read(true).write(true).open(DISK.to_str().expect("a name"))?;
    let mut bytes = 0u64;
    const BLKGETSIZE64: u32 = 0x8008_1272;
    // SAFETY: the descriptor is open; the call writes one number.
    let told = unsafe {
        use std::os::fd::AsRawFd;
        libc::ioctl(disk.as_raw_fd(), BLKGETSIZE64 as _, &raw mut bytes)
    };
    if told != 0 {
        return Err(Error::last_os_error());
    }
    let mut head = [0u8; PAGE_BYTES];
    let last_page = (bytes / PAGE_BYTES as u64 - 1) as u32;
    head[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    head[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    head[PAGE_BYTES - 10..].copy_from_slice(b"SWAPSPACE2");
    disk.write_all_at(&head, 0)?;
    disk.sync_all()?;
    // SAFETY: a NUL-terminated string; the disk is the guest's own.
    if unsafe { libc::swapon(DISK.as_ptr(), 0) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok(())
}

/// Writes a fresh region and makes the kernel swap it out; it stays swapped out.
fn swap_out_a_region() -> Result<(), Error> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping, written within its length and never unmapped.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), REGION_BYTES, access, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        start.cast::<u8>().write_bytes(1, REGION_BYTES);
        if libc::madvise(start, REGION_BYTES, libc::MADV_PAGEOUT) != 0 {
            return Err(Error::last_os_error());
        }
    }
    Ok(())
}

fn vm_swap() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("VmSwap:")).unwrap_or("VmSwap: unknown").replace('\t', " ")
}

fn run() -> Result<(), Error> {
    swap_on()?;
    let path = std::env::var("MEMORY_PRESSURE_WATCH").map_err(Error::other)?;
    let name = std::ffi::CString::new(path.as_str())?;
    // SAFETY: a string.
    if unsafe { libc::mkfifo(name.as_ptr(), 0o600) } != 0 {
        return Err(Error::last_os_error());
    }
    // Opened for reading and writing, so that the pipe always has a writer.
    let mut pipe = OpenOptions::new().read(true).write(true).open(&path)?;
    let held: Vec<Box<[u8; PAGE_BYTES]>> =
        (0..HELD_BYTES / PAGE_BYTES).map(|_| Box::new([1; PAGE_BYTES])).collect();
    let shrinker = uslab::register_shrinker("asked", ShrinkerOptions::default(), Asked(AtomicUsize::new(0)));
    let shrinker = shrinker.map_err(Error::other)?;
    sleep(APART);
    let mut report = || -> Result<usize, Error> {
        let before = shrinker.0.load(SeqCst);
        pipe.write_all(b"!")?;
        sleep(Duration::from_secs(2));
        Ok(shrinker.0.load(SeqCst) - before)
    };
    let mut asked = [0; 4];
    let swapping = AtomicBool::new(false);
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| -> Result<(), Error> {
            while !stop.load(SeqCst) {
                if swapping.load(SeqCst) {
                    swap_out_a_region()?;
                }
                sleep(Duration::from_millis(200));
            }
            Ok(())
        });
        for (number, place) in asked.iter_mut().enumerate() {
            swapping.store(number == 2, SeqCst);
            // Time for two checks of the swapped memory.
            sleep(Duration::from_secs(3));
            match report() {
                Ok(entries) => *place = entries,
                Err(error) => {
                    stop.store(true, SeqCst);
                    return Err(error);
                }
            }
            println!("report {}: {} entries asked for, {}", number + 1, *place, vm_swap());
            swapping.store(false, SeqCst);
            sleep(APART);
        }
        stop.store(true, SeqCst);
        swapper.join().map_err(|_| Error::other("the swapper failed"))?
    });
    result?;
    println!(r#"{{"asked":{asked:?},"held":{}}}"#, held.len() * PAGE_BYTES);
    Ok(())
}
