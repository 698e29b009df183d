//! The core of a cache: what both kinds of handle point to, at an address that never changes.

use super::builder::{CacheBuilder, Flags};
use super::raw::CreateError;
use super::{background, hooks, registry, start};
use crate::os;
use crate::pages::{self, PAGE_BYTES, Temperature};
use crate::percpu::{CpuCache, Parts};
use crate::rseq::Slot;
use crate::slab::{Geometry, GeometryOptions, Layout, Misuse, NodeMemory, Slabs, report_misuse};
use crate::stats::{self, layout};
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A live cache.
pub struct Core {
    pub(super) cpu: CpuCache,
    name: [u8; layout::NAME_BYTES],
    name_len: usize,
    user_bytes: usize,
    constructed: bool,
    /// Made by the program and not for `malloc`: so whoever allocates from it is the program.
    programs_own: bool,
    /// The memory of all this, for the next cache when this one goes; and then a link. Under the registry's lock: who walks without it may still look at the rest.
    spare: UnsafeCell<Spare>,
}

/// The memory of one cache, whichever: all need the same.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    core: *mut Core,
    slots: *mut u8,
    lists: *mut u8,
    barns: *mut u8,
}

/// Memory that no cache uses, in a list.
pub(super) struct Spare {
    memory: Memory,
    next: *mut Spare,
}

impl Memory {
    /// Pushes memory that no cache uses onto the list `head`, whose links lie in the memory itself.
    pub fn push(self, head: &mut *mut Spare) {
        // SAFETY: memory of a core, which may never have been one. The field is the registry's, whose lock the caller holds with the list.
        let place = unsafe { UnsafeCell::raw_get(&raw const (*self.core).spare) };
        // SAFETY: as above.
        unsafe { place.write(Spare { memory: self, next: *head }) };
        *head = place;
    }

    /// Takes memory off the list.
    pub fn pop(head: &mut *mut Spare) -> Option<Memory> {
        // SAFETY: the list holds what `push` wrote.
        let spare = unsafe { head.as_ref()? };
        *head = spare.next;
        Some(spare.memory)
    }

    /// Memory for a cache that is never given back to the system; `None` if there is no more.
    fn new() -> Option<Memory> {
        let (cpus, nodes) = (start::cpus(), start::nodes());
        let memory = Memory {
            core: pages::boot::alloc(size_of::<Core>(), 64).cast(),
            slots: pages::boot::alloc(CpuCache::slot_bytes(cpus), 64),
            lists: pages::boot::alloc(Slabs::node_bytes(nodes), 64),
            barns: pages::boot::alloc(CpuCache::barn_bytes(nodes), 64),
        };
        let all = [memory.core.cast(), memory.slots, memory.lists, memory.barns];
        (!all.iter().any(|part| part.is_null())).then_some(memory)
    }
}

impl Core {
    /// Makes a cache. Under the registry's lock, after start-up.
    pub(super) fn create(
        options: &CacheBuilder<'_>,
        size: usize,
        align: usize,
        programs_own: bool,
        registry: &mut registry::Registry,
    ) -> Result<&'static Core, CreateError> {
        let geometry = geometry(options, size, align)?;
        let parts = match registry.spare_memory() {
            Some(parts) => parts,
            None => Memory::new().ok_or(CreateError::OutOfMemory)?,
        };
        let Some(id) = registry.new_id() else {
            registry.keep_memory(parts);
            return Err(CreateError::TooManyCaches);
        };
        let mut name = [0; layout::NAME_BYTES];
        let mut name_len = options.name.len().min(layout::NAME_BYTES - 1);
        while !options.name.is_char_boundary(name_len) {
            name_len -= 1;
        }
        name[..name_len].copy_from_slice(&options.name.as_bytes()[..name_len]);
        let temperature =
            if options.flags.contains(Flags::COLD) { Temperature::Cold } else { Temperature::Hot };
        publish(id, &name, size, &geometry);

        // SAFETY: the memory is the cache's alone, of the sizes that `Memory::new` asked for, and lives for ever; the name lies in the
        // core itself, which is written below before anybody can use the slabs.
        let core = unsafe {
            let text = core::slice::from_raw_parts((&raw const (*parts.core).name).cast::<u8>(), name_len);
            let text: &'static str = core::str::from_utf8_unchecked(text);
            let nodes = start::nodes();
            let memory = NodeMemory { start: parts.lists, nodes, shared: None };
            let owner = CpuCache::owner(parts.slots, id);
            let slabs = Slabs::new(owner, text, geometry, temperature, options.constructor, memory);
            let cpu = CpuCache::new(
                slabs,
                Parts {
                    barns: parts.barns,
                    cpus: start::cpus(),
                    nodes,
                    sheaf_capacity: options.sheaf_capacity,
                    caching: !options.flags.contains(Flags::NO_CACHING),
                },
            );
            let constructed = options.constructor.is_some();
            parts.core.write(Core {
                cpu,
                name,
                name_len,
                user_bytes: size,
                constructed,
                programs_own,
                spare: UnsafeCell::new(Spare { memory: parts, next: core::ptr::null_mut() }),
            });
            &*parts.core
        };
        // SAFETY: the core stays where it is until `retire`.
        unsafe { core.cpu.enter() };
        registry.enter(id, core);
        Ok(core)
    }

    /// Takes a cache that holds no objects out of the registry; its memory serves the next one. Under the registry's lock.
    pub(super) fn retire(&'static self, registry: &mut registry::Registry) {
        self.cpu.retire();
        self.cpu.slabs().shrink();
        let id = self.id();
        registry.leave(id);
        stats::record(id).state.store(layout::STATE_DESTROYED, Relaxed);
        // SAFETY: under the registry's lock the field is the caller's.
        registry.keep_memory(unsafe { (*self.spare.get()).memory });
    }

    /// The id in the page map and in statistics.
    pub fn id(&self) -> u16 {
        self.cpu.slabs().id()
    }

    /// The name, cut to what fits.
    pub fn name(&self) -> &str {
        core::str::from_utf8(&self.name[..self.name_len]).unwrap_or("?")
    }

    /// The size that was asked for, in bytes.
    pub fn user_bytes(&self) -> usize {
        self.user_bytes
    }

    /// Bytes that an object may use: up to the next one.
    pub fn usable_bytes(&self) -> usize {
        self.cpu.slabs().geometry().object_bytes
    }

    /// Whether a constructor makes the objects.
    pub fn is_constructed(&self) -> bool {
        self.constructed
    }

    /// The slots for the fast path.
    pub fn slots(&self) -> *mut Slot {
        self.cpu.fast_slots()
    }

    /// The slow path of allocation, for one object.
    #[cold]
    #[inline(never)]
    pub extern "C" fn alloc_slow(&self) -> *mut u8 {
        let mut out = [core::ptr::null_mut()];
        if self.fill(&mut out) { out[0] } else { core::ptr::null_mut() }
    }

    /// The same, but memory is not reclaimed for it: it fails where there is none.
    #[cold]
    #[inline(never)]
    pub extern "C" fn alloc_slow_noreclaim(&self) -> *mut u8 {
        let mut out = [core::ptr::null_mut()];
        if self.cpu.alloc_slow(&mut out) { out[0] } else { core::ptr::null_mut() }
    }

    /// Fills all of `out` or nothing, and reclaims if it must.
    pub(super) fn fill(&self, out: &mut [*mut u8]) -> bool {
        if self.programs_own {
            background::begin_if_large();
        }
        if self.cpu.alloc_slow(out) {
            return true;
        }
        let _errno = os::errno::Preserved::new();
        let bytes = out.len().saturating_mul(self.usable_bytes());
        // What can never be had is not worth anybody's entries.
        if !pages::is_possible(bytes.div_ceil(PAGE_BYTES), 0) {
            return false;
        }
        let bytes = bytes.max(self.slab_bytes());
        (hooks::get().short)(bytes, &mut || self.cpu.alloc_slow(out))
    }

    fn slab_bytes(&self) -> usize {
        self.cpu.slabs().geometry().pages() * PAGE_BYTES
    }

    /// The slow path of free, for one object. A pointer that is none of the cache's is reported here.
    ///
    /// # Safety
    /// The object must be one of this cache that nobody uses.
    #[cold]
    #[inline(never)]
    pub unsafe extern "C" fn free_slow(&self, object: *mut u8) {
        match self.misuse_of(object) {
            // SAFETY: the caller's promise.
            None => unsafe { self.cpu.free_slow(&[object]) },
            Some(misuse) => report_misuse(misuse, object, self.name()),
        }
    }

    /// What is wrong with freeing `object` into this cache, as far as its address tells.
    pub fn misuse_of(&self, object: *const u8) -> Option<Misuse> {
        self.cpu.slabs().misuse_of(object)
    }

    /// Reports an object that was freed twice in a row, on behalf of [`crate::rseq::push_tested`].
    #[cold]
    #[inline(never)]
    pub extern "C" fn report_double_free(&self, object: *mut u8) {
        report_misuse(Misuse::DoubleFree, object, self.name());
    }

    /// All of `out`, or nothing and false.
    pub fn alloc_bulk(&self, out: &mut [*mut u8]) -> bool {
        self.bulk(out, Self::fill)
    }

    /// The same, but memory is not reclaimed for it.
    pub fn alloc_bulk_noreclaim(&self, out: &mut [*mut u8]) -> bool {
        self.bulk(out, |core, out| core.cpu.alloc_slow(out))
    }

    #[inline]
    fn bulk(&self, out: &mut [*mut u8], fill: impl Fn(&Self, &mut [*mut u8]) -> bool) -> bool {
        // SAFETY: the slots are the cache's.
        let got = unsafe { crate::rseq::pop_bulk(self.slots(), out.len(), out.as_mut_ptr()) };
        if got == out.len() || fill(self, &mut out[got..]) {
            return true;
        }
        // SAFETY: just popped, used by nobody.
        unsafe { self.free_bulk(&out[..got]) };
        false
    }

    /// Takes all of `objects` back.
    ///
    /// # Safety
    /// They must be objects of this cache that nobody uses.
    pub unsafe fn free_bulk(&self, objects: &[*mut u8]) {
        // SAFETY: the slots are the cache's; the caller's promise.
        unsafe {
            let put = crate::rseq::push_bulk(self.slots(), objects.len(), objects.as_ptr());
            if put < objects.len() {
                self.cpu.free_slow(&objects[put..]);
            }
        }
    }

    /// Objects in use; exact only while nobody else uses the cache, after a drain.
    pub(super) fn live_objects(&self) -> usize {
        self.cpu.slabs().taken()
    }
}

/// How objects lie in the slabs of a cache with these options.
pub(super) fn geometry(
    options: &CacheBuilder<'_>,
    size: usize,
    align: usize,
) -> Result<Geometry, CreateError> {
    let mut align = align.max(options.align);
    if options.flags.contains(Flags::HWCACHE_ALIGN) {
        // As the kernel: small objects share lines in whole parts of one.
        let mut line = 64;
        while line > 8 && size <= line / 2 {
            line /= 2;
        }
        align = align.max(line);
    }
    let geometry = GeometryOptions {
        min_objects: options.min_objects,
        min_order: options.min_order,
        max_order: options.max_order,
    };
    Ok(Geometry::new(Layout { size, align }, geometry, start::cpus())?)
}

/// Fills in the facts of a record that slabs without a cache share, if that has not been done.
pub(crate) fn publish_shared(id: u16, name: &str, size: usize, geometry: &Geometry) {
    if stats::record(id).state.load(Acquire) == layout::STATE_LIVE {
        return;
    }
    let _registry = registry::lock();
    if stats::record(id).state.load(Acquire) != layout::STATE_LIVE {
        let mut text = [0; layout::NAME_BYTES];
        let len = name.len().min(layout::NAME_BYTES - 1);
        text[..len].copy_from_slice(&name.as_bytes()[..len]);
        publish(id, &text, size, geometry);
    }
}

/// Fills in the facts of the cache's record.
fn publish(id: u16, name: &[u8; layout::NAME_BYTES], size: usize, geometry: &Geometry) {
    let record = stats::record(id);
    for (place, &byte) in record.name.iter().zip(name) {
        place.store(byte, Relaxed);
    }
    record.id.store(u32::from(id), Relaxed);
    record.user_bytes.store(size as u32, Relaxed);
    record.object_bytes.store(geometry.object_bytes as u32, Relaxed);
    record.objects_per_slab.store(geometry.objects as u32, Relaxed);
    record.pages_per_slab.store(geometry.pages() as u32, Relaxed);
    let counters =
        [&record.slabs, &record.partial_slabs, &record.empty_slabs, &record.slab_free, &record.sheaf_free];
    counters.iter().for_each(|counter| counter.store(0, Relaxed));
    record.state.store(layout::STATE_LIVE, Release);
    let listed = (u32::from(id) + 1).min(layout::MAX_RECORDS as u32);
    stats::header().records_used.fetch_max(listed, Relaxed);
}
