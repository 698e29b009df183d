//! A thread's own slot: two sheaves that only this thread uses, on whatever CPU it runs.
//!
//! ```text
//!   slot of a CPU      pop, push ── a restartable sequence: other threads of the CPU use it, too
//!   slot of a thread   pop, push ── plain loads and stores ─▶ main │ spare ◀─▶ barn ◀─▶ slabs
//! ```
//!
//! The slow path is that of CPU slots: refill and flush reach a slot through `Access`, and a
//! [`Local`] is one more kind of access, without a sequence and without a lock. So the slot
//! exchanges whole sheaves with the barn, and its sheaves have the cache's capacity.
//!
//! **No other thread takes these sheaves.** A barrier cannot make plain loads and stores begin
//! again. So a shrink or a trim asks ([`ask`]): the slot's owner flushes both sheaves at its next
//! refill or flush. Other threads only read the counts, for statistics. A fork child has the slots
//! of the parent's other threads as the kernel happened to copy them, perhaps torn. Their objects
//! are lost to the child; its statistics count them as free in sheaves.
//!
//! In caches without sheaves, and in debugged and hardened ones, these slots have the dummy, as
//! those of CPUs do: each call takes the slow path. If a cache hides its sheaves for a while
//! ([`super::hidden_row`]), each of these slots does so from its next refill or flush on.

use super::CpuCache;
use super::access::{Access, exchange, home_of};
use super::counted::sheaf_region;
use super::drain::{BOTH, Keep};
use super::sheaf::{self, Owned, SIZES, Size};
use super::valid::check_slot;
use crate::counters::SlowCall;
use crate::os::facts::{Fact, facts};
use crate::os::invariant::{Checked, invariant};
use crate::os::region::{Region, Visit};
use crate::os::{self, Lock};
use crate::rseq::{Cpu, Exchanged, Sheaf, Slot, Which, copy, dummy, is_dummy};
use crate::sync::list::{Linked, Links, List};
use crate::sync::{CachePadded, Rank};
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// A thread's own slot of a cache. It stays at its address while it stands in the list of all.
///
/// Between two slow paths the [`Window`] knows the main sheaf's objects, and the sheaf's count is
/// that of the last slow path.
#[repr(C, align(64))]
pub struct Local {
    /// The main sheaf, for pops and pushes.
    window: Window,
    /// The cache; null once that is gone. It changes under [`LOCALS`].
    cache: AtomicPtr<CpuCache>,
    /// Whether a shrink asked for the objects since the owner's last slow path.
    is_asked: AtomicBool,
    /// The two sheaves, for the slow path.
    slot: Slot,
    /// Neighbours in the list of all, guarded by [`LOCALS`].
    links: UnsafeCell<Links<*const Local>>,
}

impl Linked for Local {
    type Name = *const Local;

    unsafe fn links(local: *const Local) -> *mut Links<*const Local> {
        // SAFETY: the caller's promise.
        unsafe { (*local).links.get() }
    }
}

#[repr(transparent)]
struct All(List<Local>);
// SAFETY: threads use the pointers only under the lock, and a slot leaves the list, under the same
// lock, before it is freed.
unsafe impl Send for All {}

static LOCALS: CachePadded<Lock<All>> = CachePadded(Lock::new(Rank::Locals, All(List::new())));

/// The facts of slots of threads, for a debugger.
pub(super) const FACTS: &[&[Fact]] = &[
    facts!(Local { window, cache, slot, links }),
    &[
        Fact::new("Window.top", offset_of!(Window, top)),
        Fact::new("Window.bottom", offset_of!(Window, bottom)),
        Fact::new("Links.next", Links::<*const Local>::NEXT_OFFSET),
    ],
];

/// The place of the pointer to the first slot, for a debugger: the list has no other word.
pub const fn first_place() -> *const () {
    const _: () = assert!(size_of::<All>() == size_of::<*const Local>());
    (&raw const LOCALS).cast::<u8>().wrapping_add(Lock::<All>::VALUE_OFFSET).cast()
}

/// Slots in the list, for readers without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Takes the list's lock for the duration of a fork.
pub fn lock_for_fork() {
    LOCALS.acquire_for_fork();
}

/// Undoes [`lock_for_fork`].
pub fn unlock_after_fork(child: bool) {
    if child { LOCALS.reset_in_child() } else { LOCALS.release_after_fork() }
}

/// Calls `visit` for each slot, with its cache, under the list's lock.
fn for_each(mut visit: impl FnMut(&Local, &CpuCache)) {
    if COUNT.load(Acquire) == 0 {
        return;
    }
    let all = LOCALS.lock();
    let first = all.0.first();
    let mut at = first;
    while !at.is_null() {
        // SAFETY: a slot of the list lives while the lock is held, and its cache, if there is one.
        unsafe {
            if let Some(cache) = (*at).cache.load(Relaxed).as_ref() {
                visit(&*at, cache);
            }
            at = all.0.after(at);
        }
        if at == first {
            break;
        }
    }
}

/// Asks the owners of slots of `cache`, or of all caches, to flush their sheaves. Each does so at
/// its next refill or flush.
pub fn ask(cache: Option<&CpuCache>) {
    for_each(|local, of| {
        let is_meant = cache.is_none_or(|cache| core::ptr::eq(cache, of));
        if is_meant && local.held() > 0 && !local.is_asked.load(Relaxed) {
            local.is_asked.store(true, Relaxed);
        }
    });
}

/// Updates the counts of free objects in sheaves by what the slots of threads hold now.
pub fn account_all() {
    for_each(|local, cache| cache.recount_to(&local.slot, local.held()));
}

/// Calls `visit` for the slots of `cache`, and for the sheaves in them. No other thread may use the
/// cache.
pub(super) fn for_each_region(cache: &CpuCache, visit: &mut Visit<'_>) {
    for_each(|local, of| {
        if core::ptr::eq(cache, of) {
            visit(Region::of("slot of a thread", local));
            let sheaves = BOTH.map(|which| local.slot.place(which).load(Relaxed));
            sheaves.into_iter().filter_map(sheaf_region).for_each(&mut *visit);
        }
    });
}

/// Checks the invariants of these slots that hold while their owners use them.
pub fn check() -> Checked {
    let mut checked = Ok(());
    for_each(|local, _| {
        if checked.is_ok() {
            checked = check_slot(&local.slot);
        }
    });
    checked
}

/// Notes that `cache`, of which no object is in use, is about to go.
pub fn forget_cache(cache: &CpuCache) {
    for_each(|local, of| {
        if core::ptr::eq(cache, of) {
            invariant!(
                local.held() == 0,
                "a cache that goes has no objects in slots of threads",
                local.held()
            );
            local.cache.store(core::ptr::null_mut(), Relaxed);
        }
    });
}

impl Local {
    /// Makes a slot for `cache`, without sheaves; null if there is no memory. [`Local::end`] frees
    /// it.
    pub fn make(cache: &CpuCache) -> *mut Local {
        let memory = sheaf::alloc_memory(size_of::<Local>(), Cpu::current().node()).cast::<Local>();
        if memory.is_null() {
            return memory;
        }
        // SAFETY: fresh memory, large enough, aligned to 64. The list has it until `end`.
        unsafe {
            memory.write(Local {
                window: Window::closed(),
                slot: Slot::holding(dummy()),
                cache: AtomicPtr::new((&raw const *cache).cast_mut()),
                is_asked: AtomicBool::new(false),
                links: UnsafeCell::new(Links::OUTSIDE),
            });
            (*memory).open();
            LOCALS.lock().0.link_last(memory);
        }
        COUNT.fetch_add(1, Release);
        memory
    }

    /// Gives the slot's sheaves back to its cache, full ones to the barn, and frees the slot.
    ///
    /// # Safety
    /// `local` must come from [`Local::make`], and no thread may use it any more.
    pub unsafe fn end(local: *mut Local) {
        // SAFETY: the caller's promise.
        let this = unsafe { &*local };
        // SAFETY: a cache lives while there are objects of it in sheaves; else the word is null.
        let cache = unsafe { this.cache.load(Relaxed).as_ref() };
        for sheaf in this.take_both() {
            match cache {
                Some(cache) if cache.has_sheaves() => cache.put_in_barn(sheaf, home_of(this)),
                Some(cache) => cache.flush_and_free(&mut Owned(sheaf), Keep::Target),
                // SAFETY: owned, and without objects, as `forget_cache` found it.
                None => unsafe { sheaf::free(sheaf) },
            }
        }
        {
            // Under one lock: statistics, which count the slots of the list, may have counted this
            // one before it was empty, and must not count it after this.
            let mut all = LOCALS.lock();
            // SAFETY: under the lock the word is null, or a cache that lives.
            if let Some(cache) = unsafe { this.cache.load(Relaxed).as_ref() } {
                cache.recount(&this.slot);
            }
            // SAFETY: it stands in the list since `make`.
            unsafe { all.0.unlink(local) };
        }
        COUNT.fetch_sub(1, Release);
        // SAFETY: the caller's promise; no thread finds it in the list any more.
        unsafe { sheaf::free_memory(local.cast(), size_of::<Local>()) };
        os::sleep::note_activity();
    }

    /// The window on the main sheaf.
    #[inline(always)]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Objects in the two sheaves.
    pub fn held(&self) -> usize {
        let spare = self.slot.spare.load(Acquire);
        // SAFETY: sheaves lie in the arena or are the dummy; both stay mapped, and the count is an
        // atomic.
        self.in_main() + unsafe { (*spare).count.load(Relaxed) } as usize
    }

    /// Takes both sheaves out of the slot; the dummies stay there.
    fn take_both(&self) -> impl Iterator<Item = *mut Sheaf> {
        self.close();
        let take = |which| match self.swap(which, dummy()) {
            sheaf if is_dummy(sheaf) => None,
            sheaf => Some(sheaf),
        };
        let both = BOTH.map(take);
        self.open();
        both.into_iter().flatten()
    }

    fn swap(&self, which: Which, new: *mut Sheaf) -> *mut Sheaf {
        // SAFETY: the dummy, or a sheaf that the caller owns, which is of this slot's cache.
        match unsafe { exchange(self, which, new) } {
            Exchanged::Old(old) => old,
            Exchanged::GateClosed | Exchanged::Taken => dummy(),
        }
    }

    /// Flushes both sheaves to the slabs; returns the number of objects. The slot has dummies then.
    pub fn flush(&self, cache: &CpuCache) -> usize {
        let mut freed = 0;
        for sheaf in self.take_both() {
            freed += Owned(sheaf).count();
            cache.flush_and_free(&mut Owned(sheaf), Keep::Target);
        }
        cache.recount(&self.slot);
        os::sleep::note_activity();
        freed
    }
}

/// The places of a sheaf's objects, for a thread to which the sheaf belongs: a pop or a push
/// changes one word, and finds its bounds beside it.
#[repr(C)]
pub struct Window {
    /// The place of the newest object.
    top: AtomicPtr<*mut u8>,
    /// The place before the first object: `top` of an empty sheaf.
    bottom: AtomicPtr<*mut u8>,
    /// The last place: `top` of a full sheaf.
    end: AtomicPtr<*mut u8>,
}

impl Window {
    /// A window without places: pops and pushes fail.
    pub const fn closed() -> Window {
        let [top, bottom, end] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 3];
        Window { top, bottom, end }
    }

    /// Points the window to a sheaf, or to the dummy.
    ///
    /// # Safety
    /// The sheaf must be the caller's, or the dummy.
    pub unsafe fn open(&self, sheaf: *mut Sheaf) {
        // SAFETY: the caller's promise. The dummy, too, has the place before the first object. The
        // window touches later places only if the sheaf has them.
        let [count, capacity] = unsafe { [(*sheaf).count.load(Relaxed), (*sheaf).capacity.load(Relaxed)] };
        let bottom = sheaf.cast::<*mut u8>().wrapping_add(1);
        self.bottom.store(bottom, Relaxed);
        self.end.store(bottom.wrapping_add(capacity as usize), Relaxed);
        self.top.store(bottom.wrapping_add(count as usize), Relaxed);
    }

    /// Whether it was pointed to a sheaf.
    pub fn is_open(&self) -> bool {
        !self.bottom.load(Relaxed).is_null()
    }

    /// The number of objects. A thread that the sheaf does not belong to may read a wrong one.
    #[inline]
    pub fn count(&self) -> usize {
        let bytes = (self.top.load(Relaxed) as usize).wrapping_sub(self.bottom.load(Relaxed) as usize);
        bytes / size_of::<*mut u8>()
    }

    /// Pops an object; `None` if the sheaf has none.
    ///
    /// # Safety
    /// The sheaf must be the calling thread's.
    #[inline(always)]
    pub unsafe fn pop(&self) -> Option<NonNull<u8>> {
        let top = self.top.load(Relaxed);
        if top == self.bottom.load(Relaxed) {
            return None;
        }
        // SAFETY: above the bottom, `top` is the place of an object, which is not null; the place
        // before it is the bottom at least.
        unsafe {
            let object = NonNull::new_unchecked(*top);
            self.top.store(top.sub(1), Relaxed);
            Some(object)
        }
    }

    /// Pushes an object; returns false if the main sheaf has no room for it.
    ///
    /// # Safety
    /// `object` must be a free object of the slot's cache that the caller owns.
    #[inline(always)]
    pub unsafe fn push(&self, object: NonNull<u8>) -> bool {
        let top = self.top.load(Relaxed);
        if top == self.end.load(Relaxed) {
            return false;
        }
        // SAFETY: below the end there is one more place.
        unsafe {
            *top.add(1) = object.as_ptr();
            self.top.store(top.add(1), Relaxed);
        }
        true
    }

    /// Pops up to `n` objects to `out`; returns how many.
    ///
    /// # Safety
    /// `out` must have room for `n` pointers.
    #[inline(always)]
    pub unsafe fn pop_bulk(&self, n: usize, out: *mut *mut u8) -> usize {
        let top = self.top.load(Relaxed);
        // SAFETY: the places from the bottom to the top are those of one sheaf.
        unsafe {
            let got = n.min(top.offset_from_unsigned(self.bottom.load(Relaxed)));
            let left = top.sub(got);
            copy(left.add(1), out, got);
            self.top.store(left, Relaxed);
            got
        }
    }

    /// Pushes as many of the `n` objects at `objects` as there is room for; returns how many.
    ///
    /// # Safety
    /// As [`Window::push`], for each of the `n` objects.
    #[inline(always)]
    pub unsafe fn push_bulk(&self, n: usize, objects: *const *mut u8) -> usize {
        let top = self.top.load(Relaxed);
        // SAFETY: the places from the top to the end are those of one sheaf.
        unsafe {
            let put = n.min(self.end.load(Relaxed).offset_from_unsigned(top));
            copy(objects, top.add(1), put);
            self.top.store(top.add(put), Relaxed);
            put
        }
    }
}

impl Local {
    /// Brings the main sheaf's count up to date, for the slow path.
    fn close(&self) {
        let main = self.slot.main.load(Relaxed);
        if !is_dummy(main) {
            Owned(main).set_count(self.window.count());
        }
    }

    /// Points the window to the main sheaf.
    fn open(&self) {
        // SAFETY: the owner's, or the dummy.
        unsafe { self.window.open(self.slot.main.load(Relaxed)) };
    }

    /// Objects in the main sheaf. While the owner exchanges sheaves another thread reads a wrong
    /// number, but none that a sheaf could not hold.
    fn in_main(&self) -> usize {
        match self.window.count() {
            n if n <= Size(SIZES as u8 - 1).capacity() => n,
            _ => 0,
        }
    }
}

/// Access by the only thread that uses the slot, so no step finds the slot taken. The window is
/// closed: the main sheaf has its count.
impl Access for Local {
    fn pop_bulk(&self, out: &mut [*mut u8]) -> usize {
        match self.slot.main.load(Relaxed) {
            main if is_dummy(main) => 0,
            main => Owned(main).pop_into(out),
        }
    }

    unsafe fn push_bulk(&self, objects: &[*mut u8]) -> (usize, bool) {
        match self.slot.main.load(Relaxed) {
            main if is_dummy(main) => (0, false),
            main => (Owned(main).push_from(objects), false),
        }
    }

    unsafe fn exchange(&self, which: Which, new: *mut Sheaf) -> Exchanged {
        let place = self.slot.place(which);
        let old = place.load(Relaxed);
        // Readers of the count must find the sheaf's header written.
        place.store(new, Release);
        Exchanged::Old(old)
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    fn cpu(&self) -> Cpu {
        Cpu::current()
    }

    fn node(&self) -> Option<usize> {
        None
    }
}

impl CpuCache {
    /// Whether slots of threads have sheaves at present.
    fn has_local_sheaves(&self) -> bool {
        self.has_sheaves() && !self.hides && !self.is_hiding()
    }

    /// Begins a slow path of `local`: gives up its sheaves if a shrink asked for them, or if calls
    /// bypass sheaves. Returns whether the call may use sheaves.
    pub fn may_serve(&self, local: &Local) -> bool {
        let may = self.has_local_sheaves();
        let is_asked = local.is_asked.load(Relaxed);
        if is_asked || !may {
            local.is_asked.store(false, Relaxed);
            let _errno = os::errno::Preserved::new();
            local.flush(self);
        }
        may
    }

    /// As [`CpuCache::alloc_slow`], through a thread's own slot that may have sheaves.
    #[cold]
    #[inline(never)]
    pub fn alloc_slow_local(&self, local: &Local, out: &mut [*mut u8]) -> bool {
        let _errno = os::errno::Preserved::new();
        local.close();
        let mut got = 0;
        while got < out.len() {
            match self.refill(local, &mut out[got..]) {
                0 => break,
                n => got += n,
            }
        }
        local.open();
        self.count(None, SlowCall::Alloc);
        if got < out.len() {
            // SAFETY: these were just taken from this cache.
            unsafe { self.free_slow(&out[..got]) };
        }
        got == out.len()
    }

    /// As [`CpuCache::free_slow`], through a thread's own slot that may have sheaves.
    ///
    /// # Safety
    /// As [`CpuCache::free_slow`].
    #[cold]
    #[inline(never)]
    pub unsafe fn free_slow_local(&self, local: &Local, objects: &[*mut u8]) {
        let _errno = os::errno::Preserved::new();
        local.close();
        let mut rest = objects;
        while !rest.is_empty() {
            // SAFETY: the caller's promise, for each part.
            let n = unsafe { self.free_some(local, rest) };
            invariant!(n > 0 && n <= rest.len(), "each step takes an object back", n);
            rest = &rest[n..];
        }
        local.open();
        self.count(None, SlowCall::Free);
    }
}
