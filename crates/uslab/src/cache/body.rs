//! The core of a cache, to which both kinds of handle point; its address never changes.

use super::builder::{CacheBuilder, Flags};
use super::error::CreateError;
use super::{registry, start};
use crate::counters::{self, layout};
use crate::os;
use crate::os::invariant::{Checked, Subject, assert_valid, invariant};
use crate::pages::{self, PAGE_BYTES, Temperature};
use crate::percpu::{self, CpuCache, Parts};
use crate::rseq::Slot;
use crate::slab::{Geometry, GeometryOptions, Layout, Misuse, NodeMemory, Slabs, report_misuse};
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A live cache.
pub struct Core {
    pub(super) cpu: CpuCache,
    name: [u8; layout::NAME_BYTES],
    name_len: usize,
    user_bytes: usize,
    constructed: bool,
    /// Whether the program created the cache, rather than `malloc`: then every caller that
    /// allocates from it is the program.
    programs_own: bool,
    /// The memory of this cache, for reuse by the next one, and then a link of the registry's list.
    /// The registry's lock protects it; threads that walk the caches without that lock may read the
    /// other fields.
    spare: UnsafeCell<Spare>,
}

/// The memory of one cache. All caches need the same sizes, so any cache can reuse it.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    core: *mut Core,
    slots: *mut u8,
    lists: *mut u8,
    barns: *mut u8,
}

/// Memory that no cache uses, in the registry's list.
pub(super) struct Spare {
    memory: Memory,
    next: *mut Spare,
}

impl Memory {
    /// Pushes memory that no cache uses onto the list `head`, whose links lie in the memory itself.
    pub fn push(self, head: &mut *mut Spare) {
        // SAFETY: memory for a core, perhaps never initialised. The registry's lock protects the
        // field, and the caller, which has the list, holds it.
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

    /// Memory for a cache, never returned to the system. `None` if memory is used up.
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
    /// Creates a cache. The caller must hold the registry's lock, after start-up.
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

        // SAFETY: no other cache uses the memory, which has the sizes of `Memory::new` and lives
        // for ever. The name lies in the core, which is written below before any thread can use the
        // slabs.
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

    /// Removes a cache without live objects from the registry, and keeps its memory for the next
    /// one. The caller must hold the registry's lock.
    pub(super) fn retire(&'static self, registry: &mut registry::Registry) {
        self.cpu.retire();
        self.cpu.slabs().shrink();
        invariant!(self.live_objects() == 0, "a cache that goes has no objects", self.id());
        assert_valid(|| {
            let slabs = self.cpu.slabs().check()?.slabs;
            Subject::new("cache", self).equal(slabs, 0, "a cache that goes has no slabs")
        });
        let id = self.id();
        registry.leave(id);
        counters::record(id).state.store(layout::STATE_DESTROYED, Relaxed);
        // SAFETY: the caller holds the registry's lock, which protects the field.
        registry.keep_memory(unsafe { (*self.spare.get()).memory });
    }

    /// Checks the cache's structures; see [`CpuCache::check`].
    pub fn check(&self) -> Checked<percpu::Walked> {
        self.cpu.check()
    }

    /// The id in the page map and in statistics.
    pub fn id(&self) -> u16 {
        self.cpu.slabs().id()
    }

    /// The name, cut to its first 47 bytes at a character boundary.
    pub fn name(&self) -> &str {
        core::str::from_utf8(&self.name[..self.name_len]).unwrap_or("?")
    }

    /// The requested object size, in bytes.
    pub fn user_bytes(&self) -> usize {
        self.user_bytes
    }

    /// Usable bytes of an object: the distance to the next one.
    pub fn usable_bytes(&self) -> usize {
        self.cpu.slabs().geometry().object_bytes
    }

    /// Whether the cache has a constructor.
    pub fn is_constructed(&self) -> bool {
        self.constructed
    }

    /// The slots for the fast path.
    pub fn slots(&self) -> *mut Slot {
        self.cpu.fast_slots()
    }

    /// The slow path of allocation for one object; null if memory is used up. May reclaim.
    #[cold]
    #[inline(never)]
    pub extern "C" fn alloc_slow(&self) -> *mut u8 {
        let mut out = [core::ptr::null_mut()];
        if self.fill(&mut out) { out[0] } else { core::ptr::null_mut() }
    }

    /// [`Core::alloc_slow`] without reclaim.
    #[cold]
    #[inline(never)]
    pub extern "C" fn alloc_slow_noreclaim(&self) -> *mut u8 {
        let mut out = [core::ptr::null_mut()];
        if self.cpu.alloc_slow(&mut out) { out[0] } else { core::ptr::null_mut() }
    }

    /// Fills all of `out`, after a reclaim if necessary. On false it has allocated nothing.
    pub(super) fn fill(&self, out: &mut [*mut u8]) -> bool {
        if self.programs_own {
            start::start_thread_if_large();
        }
        if self.cpu.alloc_slow(out) {
            return true;
        }
        let _errno = os::errno::Preserved::new();
        let bytes = out.len().saturating_mul(self.usable_bytes());
        // Evict no entries for a request that can never succeed.
        if !pages::is_possible(bytes.div_ceil(PAGE_BYTES), 0) {
            return false;
        }
        let bytes = bytes.max(self.slab_bytes());
        (crate::wiring::HOOKS.short)(bytes, &mut || self.cpu.alloc_slow(out))
    }

    fn slab_bytes(&self) -> usize {
        self.cpu.slabs().geometry().pages() * PAGE_BYTES
    }

    /// The slow path of free for one object. Reports a pointer that is not an object of the cache.
    ///
    /// # Safety
    /// `object` must be an object of this cache that no thread uses.
    #[cold]
    #[inline(never)]
    pub unsafe extern "C" fn free_slow(&self, object: *mut u8) {
        match self.misuse_of(object) {
            // SAFETY: the caller's promise.
            None => unsafe { self.cpu.free_slow(&[object]) },
            Some(misuse) => report_misuse(misuse, object, self.name()),
        }
    }

    /// The misuse that freeing `object` into this cache would be; `None` if its address and its
    /// slab's bitmap allow the free.
    pub fn misuse_of(&self, object: *const u8) -> Option<Misuse> {
        self.cpu.slabs().misuse_of(object)
    }

    /// Reports an object freed twice in a row, which [`crate::rseq::push_tested`] found.
    #[cold]
    #[inline(never)]
    pub extern "C" fn report_double_free(&self, object: *mut u8) {
        report_misuse(Misuse::DoubleFree, object, self.name());
    }

    /// Fills all of `out`. On false it has allocated nothing.
    pub fn alloc_bulk(&self, out: &mut [*mut u8]) -> bool {
        self.bulk(out, Self::fill)
    }

    /// [`Core::alloc_bulk`] without reclaim.
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
        // SAFETY: just popped, and unused.
        unsafe { self.free_bulk(&out[..got]) };
        false
    }

    /// Frees all of `objects`.
    ///
    /// # Safety
    /// They must be objects of this cache that no thread uses.
    pub unsafe fn free_bulk(&self, objects: &[*mut u8]) {
        // SAFETY: the slots are the cache's; the caller's promise.
        unsafe {
            let put = crate::rseq::push_bulk(self.slots(), objects.len(), objects.as_ptr());
            if put < objects.len() {
                self.cpu.free_slow(&objects[put..]);
            }
        }
    }

    /// Objects in use. Exact only after a drain, and while no other thread uses the cache.
    pub(super) fn live_objects(&self) -> usize {
        self.cpu.slabs().taken()
    }
}

/// The slab geometry of a cache with these options.
pub(super) fn geometry(
    options: &CacheBuilder<'_>,
    size: usize,
    align: usize,
) -> Result<Geometry, CreateError> {
    let mut align = align.max(options.align);
    if options.flags.contains(Flags::HWCACHE_ALIGN) {
        // As in the kernel: small objects take an even fraction of a line, so that none crosses
        // two.
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

/// Fills in the constant fields of the record that slabs without a cache share, once.
pub(crate) fn publish_shared(id: u16, name: &str, size: usize, geometry: &Geometry) {
    if counters::record(id).state.load(Acquire) == layout::STATE_LIVE {
        return;
    }
    let _registry = registry::lock();
    if counters::record(id).state.load(Acquire) != layout::STATE_LIVE {
        let mut text = [0; layout::NAME_BYTES];
        let len = name.len().min(layout::NAME_BYTES - 1);
        text[..len].copy_from_slice(&name.as_bytes()[..len]);
        publish(id, &text, size, geometry);
    }
}

/// Fills in the constant fields of the cache's record, and resets its counters.
fn publish(id: u16, name: &[u8; layout::NAME_BYTES], size: usize, geometry: &Geometry) {
    let record = counters::record(id);
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
    counters::header().records_used.fetch_max(listed, Relaxed);
}
