//! The life of a cache: made under the registry's lock, retired when no object of it lives.

use super::body::{Core, Memory, Spare};
use super::builder::{CacheBuilder, Flags};
use super::error::CreateError;
use super::{registry, state};
use crate::counters::{self, layout};
use crate::os::invariant::{Subject, assert_valid, invariant};
use crate::pages::{self, Temperature};
use crate::percpu::{CpuCache, Parts};
use crate::slab::{Geometry, GeometryOptions, Layout, NodeMemory, Slabs};
use core::cell::UnsafeCell;
use core::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

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
        None => new_memory().ok_or(CreateError::OutOfMemory)?,
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
    let temperature = if options.flags.contains(Flags::COLD) { Temperature::Cold } else { Temperature::Hot };
    publish(id, &name, size, &geometry);

    // SAFETY: the memory is the cache's alone, of the sizes that `new_memory` asked for, and lives
    // for ever; the name lies in the core itself, which is written below before any thread can use
    // the slabs.
    let core = unsafe {
        let text = core::slice::from_raw_parts((&raw const (*parts.core).name).cast::<u8>(), name_len);
        let text: &'static str = core::str::from_utf8_unchecked(text);
        let nodes = state::nodes();
        let memory = NodeMemory { start: parts.lists, nodes, shared: None };
        let owner = CpuCache::owner(parts.slots, id);
        let slabs = Slabs::new(owner, text, geometry, temperature, options.constructor, memory);
        let cpu = CpuCache::new(
            slabs,
            Parts {
                barns: parts.barns,
                cpus: state::cpus(),
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

/// Takes a cache that holds no objects out of the registry; its memory serves the next one. Under
/// the registry's lock.
pub(super) fn retire(core: &'static Core, registry: &mut registry::Registry) {
    core.cpu.retire();
    core.cpu.slabs().shrink();
    invariant!(core.live_objects() == 0, "a cache that goes has no objects", core.id());
    assert_valid(|| {
        let slabs = core.cpu.slabs().check()?.slabs;
        Subject::new("cache", core).equal(slabs, 0, "a cache that goes has no slabs")
    });
    let id = core.id();
    registry.leave(id);
    counters::record(id).state.store(layout::STATE_DESTROYED, Relaxed);
    // SAFETY: under the registry's lock the field is the caller's.
    registry.keep_memory(unsafe { (*core.spare.get()).memory });
}

/// Memory for a cache that is never given back to the system; `None` if there is no more.
fn new_memory() -> Option<Memory> {
    let (cpus, nodes) = (state::cpus(), state::nodes());
    let memory = Memory {
        core: pages::boot::alloc(size_of::<Core>(), 64).cast(),
        slots: pages::boot::alloc(CpuCache::slot_bytes(cpus), 64),
        lists: pages::boot::alloc(Slabs::node_bytes(nodes), 64),
        barns: pages::boot::alloc(CpuCache::barn_bytes(nodes), 64),
    };
    let all = [memory.core.cast(), memory.slots, memory.lists, memory.barns];
    (!all.iter().any(|part| part.is_null())).then_some(memory)
}

/// How objects lie in the slabs of a cache with these options.
pub(super) fn geometry(
    options: &CacheBuilder<'_>,
    size: usize,
    align: usize,
) -> Result<Geometry, CreateError> {
    if options.is_run {
        return Ok(Geometry::run(size.div_ceil(pages::PAGE_BYTES)));
    }
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
    Ok(Geometry::new(Layout { size, align }, geometry, state::cpus())?)
}

/// Fills in the facts of a record that slabs without a cache share, if that has not been done.
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

/// Fills in the facts of the cache's record.
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
