//! CPU page lists: runs of up to eight pages for slabs, last in first out.
//!
//! A list that runs empty is refilled from the buddy, and one that is full is flushed to it, in
//! batches under one hold of the buddy's lock. A batch starts at one run and doubles with each
//! refill, up to half of the list: so a process of few slabs takes no more than these. The runs of
//! a refill lie in one chunk and are handed out from the lowest address on.
//!
//! Each CPU's lists have a lock, which that CPU almost always takes without contention. A thread
//! that finds the lock taken does not wait: it uses the buddy instead.

use super::arena::{self, PageIndex};
use super::buddy::Buddy;
use super::home::Home;
use super::{Fill, PAGE_BYTES, Run, Temperature, boot, buddy, purge};
use crate::os::corruption::verify;
use crate::os::invariant::invariant;
use crate::os::numa::NumaPolicy;
use crate::os::{self, Lock};
use crate::rseq::{Cpu, MAX_CPUS};
use crate::sync::{Marks, Rank};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

mod valid;
pub(super) use valid::check_all;

/// Orders that the lists keep: runs of 1, 2, 4 and 8 pages. The runs of larger slabs come from the
/// buddy.
const ORDERS: usize = 4;
/// Upper bound on the runs of one order in a list.
const RUNS: usize = 32;
/// Runs of each order that a list keeps: 128 KiB.
const ROOM: [u8; ORDERS] = [32, 16, 8, 4];

/// The runs of one order.
struct List {
    count: u8,
    /// Runs of the next refill.
    batch: u8,
    /// The runs that are known to be zero, as bits.
    zero: u32,
    runs: [u32; RUNS],
}

impl List {
    /// Takes the run that came last, and says whether it is known to be zero.
    fn pop(&mut self) -> Option<(PageIndex, bool)> {
        self.count = self.count.checked_sub(1)?;
        let first = *self.runs.get(self.count as usize)?;
        Some((PageIndex(first), self.zero >> self.count & 1 != 0))
    }

    /// Adds a run that is not known to be zero. There must be room.
    fn push(&mut self, first: PageIndex) {
        self.zero &= !(1 << self.count);
        self.runs[self.count as usize] = first.0;
        self.count += 1;
    }

    /// Takes runs of `order` from the buddy into the empty list. False, with nothing taken, where a
    /// batch cannot serve: no chunk with memory has room, or a limit is near.
    fn refill(&mut self, order: usize, buddy: &mut Buddy) -> bool {
        let batch = usize::from(self.batch.max(1)).min((usize::from(ROOM[order]) / 2).max(1));
        let (count, zero) = buddy.alloc_batch(order as u32, &mut self.runs[..batch]);
        (self.count, self.zero) = (count as u8, zero);
        self.batch = (batch * 2) as u8;
        count > 0
    }

    /// Gives the `n` oldest runs of `order` to the buddy.
    fn flush(&mut self, order: usize, n: usize, buddy: &mut Buddy) {
        let list = core::ptr::from_ref(self);
        let are_pages = self.runs[..n].iter().all(|&first| arena::contains(PageIndex(first)));
        if !verify(
            are_pages && usize::from(self.count) <= RUNS,
            "CPU page list",
            list,
            "its runs lie in the arena",
        ) {
            self.count = 0;
            return;
        }
        let is_taken_back = buddy.free_batch(order as u32, &self.runs[..n], self.zero);
        verify(is_taken_back, "CPU page list", list, "its runs were in use");
        self.runs.copy_within(n..self.count as usize, 0);
        self.count -= n as u8;
        self.zero = self.zero.checked_shr(n as u32).unwrap_or(0);
    }
}

struct Lists {
    of_order: [List; ORDERS],
    /// A thread took or freed a run since [`begin_period`].
    used: bool,
}

const EMPTY: Lists = Lists {
    of_order: [const { List { count: 0, batch: 1, zero: 0, runs: [0; RUNS] } }; ORDERS],
    used: false,
};

impl Lists {
    fn all(&self) -> usize {
        self.of_order.iter().map(|list| usize::from(list.count)).sum()
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

/// Makes the lists of `cpus` CPUs, unless there are any. If there is no memory for them, the buddy
/// serves every request.
pub fn init(cpus: usize) {
    if !TABLE.load(Acquire).is_null() {
        return;
    }
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

/// The CPUs whose lists threads have used. A thread marks its CPU before it takes the lists' lock.
static USED: Marks = Marks::none(MAX_CPUS);
/// A thread that marks a CPU holds this lock, and so does a fork.
static MARKING: Lock<()> = Lock::new(Rank::PageMarks, ());

/// The lists of the CPU that the thread runs on, marked as used. May sleep until a fork has copied
/// the memory.
fn lists_of_this_cpu() -> Option<&'static CpuPages> {
    let (cpu, table) = (Cpu::current(), table());
    let index = cpu.number().checked_rem(table.len())?;
    USED.add(index, &MARKING);
    table.get(index)
}

/// The lists that threads have used. All others are empty, and their locks are free.
fn used() -> impl Iterator<Item = &'static CpuPages> {
    USED.of(table())
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
pub fn alloc(pages: usize, align_order: u32, temperature: Temperature, fill: Fill) -> Option<Run> {
    if temperature == Temperature::Hot
        && let Some(order) = listed_order(pages, align_order)
        && let Some(cpu) = lists_of_this_cpu()
        && let Some(mut lists) = cpu.lists.try_lock()
    {
        lists.used = true;
        let list = &mut lists.of_order[order];
        if list.count > 0 || list.refill(order, &mut buddy::lock()) {
            let run = list.pop();
            cpu.runs.store(lists.all(), Relaxed);
            cpu.assert_valid(&lists);
            let run = run.map(|(first, zeroed)| Run { first, pages, zeroed });
            return run.filter(|run| is_free_run(run.first, pages, pages));
        }
    }
    let run = buddy::lock().alloc(pages, align_order, fill, Home::here());
    run.filter(|run| is_free_run(run.first, pages, 1))
}

/// As [`alloc`], for a cache with `policy`: past the CPU's list, whose pages have none. At most a
/// chunk.
pub fn alloc_by(policy: NumaPolicy, pages: usize, align_order: u32, fill: Fill) -> Option<Run> {
    let run = buddy::lock().alloc(pages, align_order, fill, Home::of(policy));
    run.filter(|run| is_free_run(run.first, pages, 1))
}

/// Upper bound on the pages of which [`is_free_run`] reads the owner.
const MAX_CHECKED: usize = 32;

/// Whether a run that is about to be handed out lies in the arena on a multiple of `align` pages,
/// and its pages have no owner. If not, reports the run as corrupted.
pub(super) fn is_free_run(first: PageIndex, pages: usize, align: usize) -> bool {
    let last = PageIndex(first.0.saturating_add(pages as u32 - 1));
    let is_run = arena::contains(last) && (first.0 as usize).is_multiple_of(align);
    let are_free = || arena::are_unowned(last, 1) && arena::are_unowned(first, pages.min(MAX_CHECKED));
    verify(is_run && are_free(), "run", super::address_of(first), "pages that are handed out have no owner")
}

/// Whether [`alloc`] could succeed if all other pages were free.
pub fn is_possible(pages: usize, align_order: u32) -> bool {
    buddy::lock().is_possible(pages, align_order)
}

/// Frees a run. The caller has cleared its owner in the page map.
pub fn free(first: PageIndex, pages: usize, temperature: Temperature) {
    assert_unowned(first, pages);
    let dirty =
        free_to_this_cpu(first, pages, temperature).unwrap_or_else(|| Some(free_to_buddy(first, pages)));
    os::sleep::note_activity();
    if let Some(dirty) = dirty {
        purge::after_free(dirty);
    }
}

/// Whether the memory of a run has a policy, or is on another node than the CPU that the thread
/// runs on: the CPU's list would hand it out to any caller there.
fn is_of_another_home(first: PageIndex) -> bool {
    os::cpu::has_nodes() && arena::home_of(first) != Home::here()
}

/// Frees a run to this CPU's list. Returns the dirty pages of the buddy if that took some runs;
/// `None`, with nothing done, if the list does not take runs of this kind or of that node, or its
/// lock is taken.
fn free_to_this_cpu(first: PageIndex, pages: usize, temperature: Temperature) -> Option<Option<usize>> {
    if temperature == Temperature::Hot
        && let Some(order) = listed_order(pages, 0)
        && (first.0 as usize).is_multiple_of(pages)
        && !is_of_another_home(first)
        && let Some(cpu) = lists_of_this_cpu()
        && let Some(mut lists) = cpu.lists.try_lock()
    {
        lists.used = true;
        let list = &mut lists.of_order[order];
        let mut flushed = None;
        if list.count >= ROOM[order] {
            let mut buddy = buddy::lock();
            list.flush(order, usize::from(ROOM[order] / 2), &mut buddy);
            flushed = Some(buddy.dirty_pages);
        }
        list.push(first);
        cpu.runs.store(lists.all(), Relaxed);
        cpu.assert_valid(&lists);
        return Some(flushed);
    }
    None
}

/// Upper bound on the pages of a freed run that an assertion checks.
const MAX_ASSERTED: usize = 64;

/// Asserts that freed pages have no owner any more: the first ones and the last.
#[inline(always)]
fn assert_unowned(first: PageIndex, pages: usize) {
    let are_unowned = || arena::are_unowned(first, pages.min(MAX_ASSERTED));
    invariant!(pages > 0, "a run has a page", first.0);
    invariant!(arena::contains(first.plus(pages - 1)), "a run that is freed lies in the arena", first.0);
    invariant!(are_unowned(), "a freed page has no owner", first.0);
    invariant!(arena::are_unowned(first.plus(pages - 1), 1), "a freed page has no owner", first.0);
}

/// Frees a run that reads as zero and has no memory behind it.
pub fn free_zeroed(first: PageIndex, pages: usize) {
    assert_unowned(first, pages);
    let is_taken_back = buddy::lock().free(first, pages, true);
    invariant!(is_taken_back, "a run that is freed was in use", first.0);
}

/// Takes the `pages` pages from `first` on, if all are free; returns whether it did. A run grows in
/// place by taking the pages behind it. If it is the arena's last run, the arena grows.
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

/// Empties the lists of all CPUs into the buddy.
pub(super) fn drain_all() {
    used().for_each(|cpu| drain(cpu, &mut cpu.lists.lock()));
}

/// True if no thread used the lists since [`begin_period`].
pub(super) fn rested() -> bool {
    used().all(|cpu| !cpu.lists.lock().used)
}

/// Starts the period that [`rested`] looks back on.
pub(super) fn begin_period() {
    for cpu in used() {
        let mut lists = cpu.lists.lock();
        lists.used = false;
        lists.of_order.iter_mut().for_each(|list| list.batch /= 2);
    }
}

fn drain(cpu: &CpuPages, lists: &mut Lists) {
    for (order, list) in lists.of_order.iter_mut().enumerate().filter(|(_, list)| list.count > 0) {
        list.flush(order, usize::from(list.count), &mut buddy::lock());
    }
    cpu.runs.store(0, Relaxed);
    cpu.assert_valid(lists);
}

/// Calls `visit` for the lists of each CPU.
pub(super) fn for_each_region(visit: &mut os::region::Visit<'_>) {
    table().iter().for_each(|cpu| visit(os::region::Region::of("CPU page lists", &*cpu.lists.lock())));
}

/// Runs in all lists. Takes no lock.
pub(super) fn runs() -> usize {
    used().map(|cpu| cpu.runs.load(Relaxed)).sum()
}

pub(super) fn lock_for_fork() {
    MARKING.acquire_for_fork();
    used().for_each(|cpu| cpu.lists.acquire_for_fork());
}

pub(super) fn unlock_after_fork(child: bool) {
    for cpu in used() {
        if child { cpu.lists.reset_in_child() } else { cpu.lists.release_after_fork() }
    }
    if child { MARKING.reset_in_child() } else { MARKING.release_after_fork() }
}

const _: () = assert!(RUNS <= u32::BITS as usize && ROOM[0] as usize <= RUNS);
