//! The life of a cache: created and retired under the registry's lock. A cache can be retired once
//! none of its objects is live.

use super::body::{Core, Memory, Spare};
use super::builder::{CacheBuilder, Flags};
use super::debugged::{self, Debug, quarantine};
use super::error::CreateError;
use super::followed::Followed;
use super::late::Late;
use super::{registry, state};
use crate::counters::{self, Tally, layout};
use crate::os;
use crate::os::invariant::{Subject, assert_valid, invariant};
use crate::os::numa::NumaPolicy;
use crate::pages::{self, Temperature};
use crate::percpu::{self, CpuCache, Parts, local};
use crate::report;
use crate::rseq::{self, Mode};
use crate::slab::{Constructor, Geometry, GeometryOptions, GroupMemory, Layout, Slabs};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Creates a cache, after start-up. `registry` is the locked registry.
pub(super) fn create(
    options: &CacheBuilder<'_>,
    size: usize,
    align: usize,
    programs_own: bool,
    registry: &mut registry::Registry,
) -> Result<&'static Core, CreateError> {
    if size > Geometry::MAX_OBJECT_BYTES && !options.is_run {
        return Err(CreateError::TooLarge);
    }
    let policy = policy_in_effect(options)?;
    let mut debug = debug(options, size, align);
    let geometry = geometry(options, size, align, debug.as_ref())?;
    if let Some(debug) = &mut debug {
        debug.set_stride(geometry.object_bytes);
    }
    let mut parts = match registry.spare_memory() {
        Some(parts) => parts,
        None => new_memory().ok_or(CreateError::OutOfMemory)?,
    };
    let Some(id) = registry.new_id() else {
        registry.keep_memory(parts);
        return Err(CreateError::TooManyCaches);
    };
    let has_quarantine = debug.as_ref().is_some_and(Debug::is_secure) && debugged::has_quarantine();
    if programs_own && has_quarantine && parts.quarantine.is_empty() {
        parts.quarantine = quarantine::new_places();
    }
    let own = programs_own.then_some(parts.quarantine);
    let quarantine = has_quarantine.then(|| quarantine::places_for(geometry.object_bytes, own));
    let (name, name_len) = short_name(options.name);
    let temperature = if options.flags.contains(Flags::COLD) { Temperature::Cold } else { Temperature::Hot };
    publish(id, &name, size, &geometry);

    // SAFETY: the memory is the cache's alone, of the sizes that `new_memory` asked for, and lives
    // for ever; the name lies in the core itself, which is written below before any thread can use
    // the slabs.
    let core = unsafe {
        let text = core::slice::from_raw_parts((&raw const (*parts.core).name).cast::<u8>(), name_len);
        let text: &'static str = core::str::from_utf8_unchecked(text);
        // Memory of a policy is no node's: objects have one home, and a cache one row of slots.
        let (groups, nodes) =
            if policy == NumaPolicy::Local { (state::groups(), state::nodes()) } else { (1, 1) };
        let tallies = Tally::lines(parts.tallies, state::cpus(), geometry.object_bytes);
        let memory = GroupMemory { start: parts.lists, groups, nodes, shared: None, tallies };
        let owner = CpuCache::owner(parts.slots, parts.locked_owner, id);
        // A cache that the program chose to debug has no sheaves where start-up hid none.
        let may_hide = percpu::may_hide();
        let hides = debug.is_some() && may_hide;
        let place = &raw mut (*parts.core).debug;
        place.write(debug);
        // The structure that the constructor of debugged objects gets.
        let constructor = match &*place {
            Some(debug) => Some(Constructor {
                call: Debug::construct,
                data: (&raw const *debug) as usize,
                release: Some(Debug::release),
            }),
            None => options.constructor,
        };
        let slabs = Slabs::new(owner, text, geometry, temperature, constructor, memory)
            .with_policy(policy)
            .with_owners_apart(CpuCache::owner_distance(state::cpus(), nodes, hides));
        // Caches of private heaps come and go.
        let slabs = if options.is_debuggable { slabs.with_own_addresses() } else { slabs };
        let cpu = CpuCache::new(
            slabs,
            Parts {
                slots: parts.slots,
                barns: parts.barns,
                cpus: state::cpus(),
                groups: state::groups(),
                nodes,
                sheaf_capacity: options.sheaf_capacity,
                caching: !options.flags.contains(Flags::NO_CACHING) && (debug.is_none() || may_hide),
                hides,
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
            is_followable: programs_own || options.is_of_heap,
            debug,
            late: Late::off(),
            followed: Followed::not(),
            pointer_offset: debug.as_ref().map_or(0, Debug::pointer_offset),
            record_offset: debug.as_ref().map_or(0, Debug::spill_bytes),
            has_users: debug.as_ref().is_some_and(Debug::has_users),
            quarantine,
            spare: UnsafeCell::new(Spare { memory: parts, next: core::ptr::null_mut() }),
        });
        &*parts.core
    };
    // SAFETY: the core stays where it is until `retire`.
    unsafe { core.cpu.enter() };
    core.begin_followed();
    registry.enter(id, core);
    Ok(core)
}

/// Takes a cache without live objects out of the registry, which keeps its memory for the next
/// cache. In a fork child a slab may be left: one with objects that another thread was taking at
/// the fork. The page map still names the cache's slots for it, so no other cache may have these.
pub(super) fn retire(core: &'static Core, registry: &mut registry::Registry) {
    core.end_followed();
    core.cpu.retire();
    core.cpu.slabs().shrink();
    invariant!(core.live_objects() == 0, "a cache that goes has no objects", core.id());
    local::forget_cache(&core.cpu);
    assert_valid(|| {
        let has_slabs = core.cpu.slabs().check()?.slabs > 0;
        Subject::new("cache", core)
            .holds(!has_slabs || os::fork::has_lost_threads(), "a cache that goes has no slabs")
    });
    let id = core.id();
    registry.leave(id);
    if counters::has_record(id) {
        counters::record(id).state.store(layout::STATE_DESTROYED, Relaxed);
    }
    if core.cpu.slabs().all_bytes() == 0 {
        // SAFETY: the registry's lock guards the field, and the caller holds it.
        registry.keep_memory(unsafe { (*core.spare.get()).memory });
    }
}

/// The policy of a cache with these options: the local one where the library heeds no nodes.
fn policy_in_effect(options: &CacheBuilder<'_>) -> Result<NumaPolicy, CreateError> {
    let (policy, nodes) = (options.numa, os::cpu::memory_nodes());
    if policy == NumaPolicy::Local || nodes == 1 {
        return Ok(NumaPolicy::Local);
    }
    if !os::numa::is_accepted(policy, nodes) {
        return Err(CreateError::NumaRefused);
    }
    if pages::make_policies(nodes) { Ok(policy) } else { Err(CreateError::OutOfMemory) }
}

/// Allocates memory for a cache, which is never released to the system. `None` if there is no more.
fn new_memory() -> Option<Memory> {
    let (cpus, nodes) = (state::cpus(), state::nodes());
    // A cache of one home may have words that one of several homes lacks: see `os::surplus`.
    let barn_bytes = [1, nodes].map(|nodes| CpuCache::barn_bytes(state::groups(), nodes));
    let barn_bytes = barn_bytes[0].max(barn_bytes[1]);
    let parts = [
        size_of::<Core>(),
        CpuCache::slot_bytes(cpus, nodes),
        Slabs::group_bytes(state::groups(), nodes),
        barn_bytes,
        Tally::bytes(cpus),
    ]
    .map(|bytes| bytes.next_multiple_of(64));
    let mut at = pages::boot::alloc(parts.iter().sum(), 64);
    if at.is_null() {
        return None;
    }
    let [core, slots, lists, barns, tallies] = parts.map(|bytes| {
        let part = at;
        at = at.wrapping_add(bytes);
        part
    });
    let locked_owner = match rseq::mode() {
        Mode::Rseq => core::ptr::null_mut(),
        Mode::Locked => NonNull::new(percpu::owners::take(cpus))?.as_ptr(),
    };
    let (hidden_row, quarantine) = (core::ptr::null_mut(), &[][..]);
    Some(Memory { core: core.cast(), slots, locked_owner, lists, barns, tallies, hidden_row, quarantine })
}

/// The debugging that a cache with these options gets.
fn debug(options: &CacheBuilder<'_>, size: usize, align: usize) -> Option<Debug> {
    if !options.is_debuggable {
        return None;
    }
    let letters = debugged::letters_of(options.flags) | debugged::letters_for(options.name);
    let letters = debugged::compatible(letters);
    let align = alignment(options, size, align);
    let is_possible = size > 0 && align <= Geometry::MAX_OBJECT_BYTES && align.is_power_of_two();
    if letters != 0 {
        report::set_detailed();
    }
    (letters != 0 && is_possible).then(|| Debug::new(letters, size, align, options.constructor))
}

/// The alignment of the objects of a cache with these options.
fn alignment(options: &CacheBuilder<'_>, size: usize, align: usize) -> usize {
    let align = align.max(options.align);
    if !options.flags.contains(Flags::HWCACHE_ALIGN) {
        return align;
    }
    // As in the kernel: small objects share a line in even fractions.
    let mut line = 64;
    while line > 8 && size <= line / 2 {
        line /= 2;
    }
    align.max(line)
}

/// The geometry of the slabs of a cache with these options.
pub(super) fn geometry(
    options: &CacheBuilder<'_>,
    size: usize,
    align: usize,
    debug: Option<&Debug>,
) -> Result<Geometry, CreateError> {
    if options.is_run {
        return Ok(Geometry::run(size.div_ceil(pages::PAGE_BYTES)));
    }
    let (size, spill_bytes) = debug.map_or((size, 0), |debug| (debug.slab_bytes(), debug.spill_bytes()));
    let align = alignment(options, size, align);
    // Debugged objects have a constructor of the library's own.
    let is_constructed = options.constructor.is_some() || debug.is_some();
    let max_order = match options.max_order {
        0 if is_constructed => Geometry::WHOLE_MAX_ORDER,
        order => order,
    };
    let geometry = GeometryOptions {
        min_objects: options.min_objects,
        min_order: options.min_order,
        max_order,
        tail_bytes: options.tail_bytes,
        spill_bytes,
    };
    Ok(Geometry::new(Layout { size, align }, geometry, state::cpus())?)
}

/// Describes a size class in the record that slabs without a cache share, unless that has been
/// done.
pub(crate) fn publish_shared(id: u16, name: &str, size: usize, geometry: &Geometry) {
    if counters::record(id).state.load(Acquire) == layout::STATE_LIVE {
        return;
    }
    let _registry = registry::lock();
    if counters::record(id).state.load(Acquire) != layout::STATE_LIVE {
        publish(id, &short_name(name).0, size, geometry);
    }
}

/// The start of a cache's name that its record has room for, in whole characters, with a zero byte
/// at the end; and its length.
fn short_name(name: &str) -> ([u8; layout::NAME_BYTES], usize) {
    let mut len = name.len().min(layout::NAME_BYTES - 1);
    while !name.is_char_boundary(len) {
        len -= 1;
    }
    let mut bytes = [0; layout::NAME_BYTES];
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    (bytes, len)
}

/// Describes the cache in its record and resets the record's counters. The caller holds the
/// registry's lock.
fn publish(id: u16, name: &[u8; layout::NAME_BYTES], size: usize, geometry: &Geometry) {
    counters::provide(id);
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
    // A cache that was destroyed may have had this record before.
    let events = [
        &record.alloc_slow,
        &record.free_slow,
        &record.refills,
        &record.flushes,
        &record.drains,
        &record.grows,
        &record.shrinks,
        &record.failures,
        &record.home_objects,
        &record.home_sheaves,
    ];
    events.iter().for_each(|counter| counter.store(0, Relaxed));
    record.node_slabs.iter().for_each(|counter| counter.store(0, Relaxed));
    record.empty_target.store(0, Relaxed);
    record.state.store(layout::STATE_LIVE, Release);
    counters::header().records_used.fetch_max(u32::from(id) + 1, Relaxed);
}
