//! CPU page lists: runs of up to eight pages that were just freed, last in first out.
//!
//! Each CPU's lists have a lock, which that CPU almost always takes without contention. A thread
//! that finds the lock taken does not wait: it uses the buddy instead.

use super::arena::{self, PageIndex};
use super::{PAGE_BYTES, Run, Temperature, boot, buddy, purge};
use crate::os::invariant::invariant;
use crate::os::{self, Lock};
use crate::rseq::{Cpu, Owner};
use crate::sync::Rank;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

mod valid;
pub(super) use valid::check_all;

/// Orders that the lists keep: runs of 1, 2, 4 and 8 pages.
const ORDERS: usize = 4;
/// Upper bound on the runs of order 0 in a list. Each next order keeps half as many, so that each
/// order keeps up to 128 KiB.
const RUNS: usize = 32;

struct Lists {
    count: [u8; ORDERS],
    runs: [[u32; RUNS]; ORDERS],
    /// A thread took or freed a run since [`begin_period`].
    used: bool,
}

const EMPTY: Lists = Lists { count: [0; ORDERS], runs: [[0; RUNS]; ORDERS], used: false };

impl Lists {
    fn all(&self) -> usize {
        self.count.iter().map(|&count| usize::from(count)).sum()
    }
}

/// One CPU's lists, on their own cache lines.
#[repr(align(64))]
struct CpuPages {
    lists: Lock<Lists>,
    /// Runs in the lists, for readers without the lock.
    runs: AtomicUsize,
}

static TABLE: AtomicPtr<CpuPages> = AtomicPtr::new(core::ptr::null_mut());
static CPUS: AtomicUsize = AtomicUsize::new(0);

/// Makes the lists of `cpus` CPUs. If there is no memory for them, the buddy serves every request.
pub fn init(cpus: usize) {
    let table = boot::alloc(cpus * size_of::<CpuPages>(), align_of::<CpuPages>()).cast::<CpuPages>();
    if table.is_null() {
        return;
    }
    for cpu in 0..cpus {
        // SAFETY: the table has room for `cpus` entries and no other thread sees it yet.
        unsafe {
            table
                .add(cpu)
                .write(CpuPages { lists: Lock::new(Rank::CpuPages, EMPTY), runs: AtomicUsize::new(0) })
        };
    }
    TABLE.store(table, Release);
    CPUS.store(cpus, Release);
}

fn table() -> &'static [CpuPages] {
    let cpus = CPUS.load(Acquire);
    match TABLE.load(Acquire) {
        table if table.is_null() || cpus == 0 => &[],
        // SAFETY: `init` wrote `cpus` entries, which live for ever.
        table => unsafe { core::slice::from_raw_parts(table, cpus) },
    }
}

/// The order of a run, if the lists keep such runs.
fn listed_order(pages: usize, align_order: u32) -> Option<usize> {
    let order = pages.trailing_zeros();
    (pages.is_power_of_two() && (order as usize) < ORDERS && align_order <= order).then_some(order as usize)
}

/// Allocates a run of `pages` pages on a boundary of `2^align_order` pages. `None` if memory or
/// address space is used up.
///
/// May make system calls. Holds locks for a few hundred nanoseconds at most, except while the arena
/// grows.
pub fn alloc(pages: usize, align_order: u32, temperature: Temperature) -> Option<Run> {
    if temperature == Temperature::Hot
        && let Some(order) = listed_order(pages, align_order)
        && let Some(cpu) = Cpu::current().shared(table())
        && let Some(mut lists) = cpu.lists.try_lock()
        && lists.count[order] > 0
    {
        lists.used = true;
        lists.count[order] -= 1;
        cpu.runs.store(lists.all(), Relaxed);
        cpu.assert_valid(&lists);
        let first = PageIndex(lists.runs[order][lists.count[order] as usize]);
        return Some(Run { first, pages, zeroed: false });
    }
    buddy::lock().alloc(pages, align_order)
}

/// Whether [`alloc`] could succeed if all other pages were free.
pub fn is_possible(pages: usize, align_order: u32) -> bool {
    buddy::lock().is_possible(pages, align_order)
}

/// Frees a run. The caller has cleared its owner in the page map.
pub fn free(first: PageIndex, pages: usize, temperature: Temperature) {
    assert_unowned(first, pages);
    os::sleep::note_activity();
    if temperature == Temperature::Hot
        && let Some(order) = listed_order(pages, 0)
        && (first.0 as usize).is_multiple_of(pages)
        && let Some(cpu) = Cpu::current().shared(table())
        && let Some(mut lists) = cpu.lists.try_lock()
    {
        lists.used = true;
        let most = RUNS >> order;
        if lists.count[order] as usize == most {
            let dirty = flush(&mut lists, order, most / 2);
            cpu.runs.store(lists.all(), Relaxed);
            cpu.assert_valid(&lists);
            drop(lists);
            free_to_buddy(first, pages);
            purge::after_free(dirty);
            return;
        }
        let at = lists.count[order] as usize;
        lists.runs[order][at] = first.0;
        lists.count[order] += 1;
        cpu.runs.store(lists.all(), Relaxed);
        cpu.assert_valid(&lists);
        return;
    }
    let dirty = free_to_buddy(first, pages);
    purge::after_free(dirty);
}

/// Upper bound on the pages of a freed run that an assertion checks.
const MAX_ASSERTED: usize = 64;

/// Asserts that freed pages have no owner any more: the first ones and the last.
#[inline(always)]
fn assert_unowned(first: PageIndex, pages: usize) {
    let has_owner = |page| arena::owner(first.plus(page)) != Owner::NONE;
    invariant!(pages > 0, "a run has a page", first.0);
    invariant!(arena::contains(first.plus(pages - 1)), "a run that is freed lies in the arena", first.0);
    invariant!(!(0..pages.min(MAX_ASSERTED)).any(has_owner), "a freed page has no owner", first.0);
    invariant!(!has_owner(pages - 1), "a freed page has no owner", first.0);
}

/// Frees a run that reads as zero and has no memory behind it.
pub fn free_zeroed(first: PageIndex, pages: usize) {
    assert_unowned(first, pages);
    let is_taken_back = buddy::lock().free(first, pages, true);
    invariant!(is_taken_back, "a run that is freed was in use", first.0);
}

/// Takes the `pages` pages from `first` on, if all are free; returns whether it did. A run grows in
/// place by taking the pages behind it.
pub fn extend(first: PageIndex, pages: usize) -> bool {
    buddy::lock().claim_at(first, pages)
}

fn free_to_buddy(first: PageIndex, pages: usize) -> usize {
    let mut buddy = buddy::lock();
    if !buddy.free(first, pages, false) {
        drop(buddy);
        let address = super::address_of(first);
        os::report::print(format_args!(
            "corrupted: pages at {address:p} ({} bytes) freed twice",
            pages * PAGE_BYTES
        ));
        os::report::abort();
    }
    buddy.dirty_pages
}

/// Moves the `n` oldest runs to the buddy; returns the number of dirty pages afterwards.
fn flush(lists: &mut Lists, order: usize, n: usize) -> usize {
    let mut buddy = buddy::lock();
    for at in 0..n {
        let is_taken_back = buddy.free(PageIndex(lists.runs[order][at]), 1 << order, false);
        invariant!(is_taken_back, "a run in a CPU's list was in use", lists.runs[order][at]);
    }
    let count = lists.count[order] as usize;
    lists.runs[order].copy_within(n..count, 0);
    lists.count[order] = (count - n) as u8;
    buddy.dirty_pages
}

/// Empties the lists of all CPUs into the buddy.
pub(super) fn drain_all() {
    table().iter().for_each(|cpu| drain(cpu, &mut cpu.lists.lock()));
}

/// True if no thread used the lists since [`begin_period`].
pub(super) fn rested() -> bool {
    table().iter().all(|cpu| !cpu.lists.lock().used)
}

/// Starts the period that [`rested`] looks back on.
pub(super) fn begin_period() {
    table().iter().for_each(|cpu| cpu.lists.lock().used = false);
}

fn drain(cpu: &CpuPages, lists: &mut Lists) {
    for order in 0..ORDERS {
        let count = lists.count[order] as usize;
        if count > 0 {
            flush(lists, order, count);
        }
    }
    cpu.runs.store(0, Relaxed);
    cpu.assert_valid(lists);
}

/// Runs in all lists. Takes no lock.
pub(super) fn runs() -> usize {
    table().iter().map(|cpu| cpu.runs.load(Relaxed)).sum()
}

pub(super) fn lock_for_fork() {
    for cpu in table() {
        cpu.lists.acquire_for_fork();
    }
}

pub(super) fn unlock_after_fork(child: bool) {
    for cpu in table() {
        if child { cpu.lists.reset_in_child() } else { cpu.lists.release_after_fork() }
    }
}

const _: () = assert!(RUNS <= u8::MAX as usize);
