//! Reads the process's own memory through the kernel. So no address faults, whether the program
//! mapped nothing there, protected the page, or truncated the file behind it.

use super::calls;
use super::memory::page_bytes;
use core::ops::Range;

/// Bits of an entry of `/proc/self/pagemap`: the page has memory; its contents are in swap space;
/// they are those of a file, or shared.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// Entries that are read at once.
const ENTRIES: usize = 512;

/// The files that show the memory; closed on drop.
pub struct OwnMemory {
    memory: i32,
    /// -1 where the kernel has none: all pages then count as written to.
    pages: i32,
    page_bytes: usize,
}

/// Opens a file of `/proc`; -1 if that fails.
fn open(path: &core::ffi::CStr) -> i32 {
    calls::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0)
}

impl OwnMemory {
    /// Opens the files; `None` where the kernel refuses.
    pub fn open() -> Option<OwnMemory> {
        let memory = open(c"/proc/self/mem");
        (memory >= 0).then(|| OwnMemory {
            memory,
            pages: open(c"/proc/self/pagemap"),
            page_bytes: page_bytes(),
        })
    }

    /// Copies memory from `address` on to `into`; returns how many bytes, fewer where the rest
    /// cannot be read.
    pub fn read(&self, address: usize, into: &mut [u8]) -> usize {
        read(self.memory, address, into)
    }

    /// As [`OwnMemory::read`], in words.
    pub fn read_words(&self, address: usize, into: &mut [usize]) -> usize {
        // SAFETY: the bytes of `into`, of which all values are valid.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), size_of_val(into)) };
        self.read(address, bytes) / size_of::<usize>()
    }

    /// Calls `visit` with each run of pages of `range` that the process wrote to, clipped to the
    /// range. In `shared` mappings, with each that it touched.
    pub fn for_each_written(&self, range: Range<usize>, shared: bool, visit: &mut dyn FnMut(Range<usize>)) {
        let page = self.page_bytes;
        let end = range.end.next_multiple_of(page);
        let mut at = range.start / page * page;
        let mut run = range.start..range.start;
        let mut show = |run: Range<usize>| {
            let run = run.start..run.end.min(range.end);
            if !run.is_empty() {
                visit(run);
            }
        };
        while at < end {
            let mut entries = [0u64; ENTRIES];
            let n = ((end - at) / page).min(ENTRIES);
            self.load(at / page, &mut entries[..n]);
            for entry in &entries[..n] {
                let is_kept = entry & (PRESENT | SWAPPED) != 0 && (shared || entry & OF_FILE == 0);
                if is_kept && run.end >= at {
                    run.end = at + page;
                } else if is_kept {
                    show(run);
                    run = at..at + page;
                }
                at += page;
            }
        }
        show(run);
    }

    /// Fills `entries`, those of the pages from number `first` on.
    fn load(&self, first: usize, entries: &mut [u64]) {
        let wanted = size_of_val(entries);
        // SAFETY: the bytes of `entries`, of which all values are valid.
        let bytes = unsafe { core::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), wanted) };
        let got = if self.pages < 0 { 0 } else { read(self.pages, first * size_of::<u64>(), bytes) };
        entries[got / size_of::<u64>()..].fill(PRESENT);
    }
}

/// Reads from an offset on; returns how many bytes were read before the end or an error.
fn read(fd: i32, offset: usize, into: &mut [u8]) -> usize {
    let mut used = 0;
    while used < into.len() {
        let n = calls::read_at(fd, &mut into[used..], (offset + used) as i64);
        if n > 0 {
            used += n as usize;
        } else if n == 0 || super::errno::get() != libc::EINTR {
            break;
        }
    }
    used
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        // SAFETY: the descriptors are ours and are closed once; -1 is none.
        unsafe {
            calls::close(self.memory);
            if self.pages >= 0 {
                calls::close(self.pages);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn written_pages_are_found_and_read() {
        let page = page_bytes();
        // SAFETY: a fresh mapping, unmapped below.
        let start = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                8 * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        } as usize;
        for index in [1, 2, 5] {
            // SAFETY: inside the mapping.
            unsafe { ((start + index * page) as *mut u8).write_volatile(7) };
        }
        let own = OwnMemory::open().expect("/proc");
        let mut runs = Vec::new();
        own.for_each_written(start..start + 8 * page, false, &mut |run| {
            runs.push((run.start - start) / page..(run.end - start) / page);
        });
        // Kernels without a page map show all pages as one run.
        assert!(runs == [1..3, 5..6] || runs.len() == 1, "{runs:?}");
        let mut bytes = [0; 2];
        assert_eq!(own.read(start + 5 * page, &mut bytes), 2);
        assert_eq!(bytes, [7, 0]);
        // SAFETY: the mapping of this test.
        unsafe { libc::munmap(start as *mut _, 8 * page) };
        assert_eq!(own.read(start + 5 * page, &mut bytes), 0, "nothing is mapped there");
    }
}
