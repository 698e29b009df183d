//! Caches: `uslab_cache_*`.

use crate::abi::{
    CacheOptions, ObjectVisitor, USLAB_COLD, USLAB_CONSISTENCY_CHECKS, USLAB_HWCACHE_ALIGN, USLAB_NO_CACHING,
    USLAB_NORECLAIM, USLAB_NUMA_BIND, USLAB_NUMA_INTERLEAVE, USLAB_NUMA_LOCAL, USLAB_POISON, USLAB_RED_ZONE,
    USLAB_STORE_USER, USLAB_TRACE, USLAB_ZERO,
};
use crate::handle::{self, Handle, Kind};
use crate::malloc::{ALLOC_FLAGS, refuse};
use crate::{failure, versioned};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ops::ControlFlow;
use core::ptr;
use uslab::internal::{self as rseq, Constructor, Pushed, Slot, errno, report};
use uslab::{CacheBuilder, CreateError, Flags, NumaPolicy, RawCache};

/// The target of a `uslab_cache *`.
#[repr(C)]
pub struct Cache {
    /// The slots of `raw`; the first word, which the fast functions load.
    slots: *const Slot,
    /// Its slots for bulk frees.
    bulk_slots: *const Slot,
    pub raw: RawCache,
    /// The name, NUL-terminated.
    name: [u8; uslab::internal::layout::NAME_BYTES],
}

impl Kind for Cache {
    const KIND: u64 = u64::from_le_bytes(*b"uslabcch");
}

/// The C type.
pub type Object = Handle<Cache>;

// The fast functions load this word; handle.rs gives the reason for its place.
const _: () = assert!(core::mem::offset_of!(Object, value.slots) == size_of::<u64>());

/// The flags of a cache, and those of Rust's builder.
const FLAGS: [(c_uint, Flags); 8] = [
    (USLAB_HWCACHE_ALIGN, Flags::HWCACHE_ALIGN),
    (USLAB_NO_CACHING, Flags::NO_CACHING),
    (USLAB_COLD, Flags::COLD),
    (USLAB_RED_ZONE, Flags::RED_ZONE),
    (USLAB_POISON, Flags::POISON),
    (USLAB_STORE_USER, Flags::STORE_USER),
    (USLAB_CONSISTENCY_CHECKS, Flags::CONSISTENCY_CHECKS),
    (USLAB_TRACE, Flags::TRACE),
];
const CACHE_FLAGS: c_uint = {
    let (mut all, mut n) = (0, 0);
    while n < FLAGS.len() {
        all |= FLAGS[n].0;
        n += 1;
    }
    all
};

/// # Safety
/// `name` must be a string; `options` null, or as many bytes as their `type_size` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_create(
    name: *const c_char,
    size: usize,
    options: *const CacheOptions,
) -> *mut Object {
    // SAFETY: the caller's promise.
    match unsafe { create(name, size, options) } {
        Ok(cache) => cache,
        Err(error) => failure::null(error),
    }
}

/// # Safety
/// As [`uslab_cache_create`].
unsafe fn create(
    name: *const c_char,
    size: usize,
    options: *const CacheOptions,
) -> Result<*mut Object, c_int> {
    // SAFETY: the caller's promise.
    let name = unsafe { handle::name(name) }.ok_or(libc::EINVAL)?;
    let mut builder = CacheBuilder::new(name);
    if !options.is_null() {
        // SAFETY: the caller's promise; the options are valid as zeroes.
        let options = unsafe { versioned::read(options) }?;
        if options.flags & !CACHE_FLAGS != 0 {
            return Err(libc::EINVAL);
        }
        builder = builder
            .align(options.align)
            .min_objects(options.min_objects as usize)
            .min_order(options.min_order)
            .max_order(options.max_order)
            .sheaf_capacity(options.sheaf_capacity as usize)
            .numa(numa_policy(&options)?);
        for (flag, known) in FLAGS {
            if options.flags & flag != 0 {
                builder = builder.flags(known);
            }
        }
        if let Some(ctor) = options.ctor {
            let constructor = Constructor { call: construct, data: ctor as usize, release: None };
            // SAFETY: the header requires of the caller's function what `raw_constructor` does.
            builder = unsafe { builder.raw_constructor(constructor) };
        }
    }
    let raw = builder.build_raw(size).map_err(|error| match error {
        CreateError::Invalid => libc::EINVAL,
        CreateError::TooLarge => libc::E2BIG,
        CreateError::OutOfMemory => libc::ENOMEM,
        CreateError::TooManyCaches => libc::ENFILE,
        CreateError::NumaRefused => libc::ENODEV,
    })?;
    let mut text = [0; uslab::internal::layout::NAME_BYTES];
    let shown = raw.name().as_bytes();
    text[..shown.len()].copy_from_slice(shown);
    // Without memory, `make` returns the cache, and its drop destroys it, since no object lives.
    let (slots, bulk_slots) = (raw.core().slots(), raw.core().bulk_slots());
    Handle::make(Cache { slots, bulk_slots, raw, name: text }).map_err(|_| libc::ENOMEM)
}

/// The policy that the options name. A node without [`USLAB_NUMA_BIND`] is a mistake.
fn numa_policy(options: &CacheOptions) -> Result<NumaPolicy, c_int> {
    match (options.numa_policy, options.numa_node) {
        (USLAB_NUMA_LOCAL, 0) => Ok(NumaPolicy::Local),
        (USLAB_NUMA_BIND, node) => Ok(NumaPolicy::Bind(node as usize)),
        (USLAB_NUMA_INTERLEAVE, 0) => Ok(NumaPolicy::Interleave),
        _ => Err(libc::EINVAL),
    }
}

/// # Safety
/// `data` must be the caller's constructor, `object` fresh memory for an object.
unsafe fn construct(object: *mut u8, data: usize) {
    // SAFETY: `data` is the function given in `create`, of this type.
    unsafe {
        let ctor = core::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(data);
        ctor(object.cast());
    }
}

/// # Safety
/// `cache` must be null or a cache that no other thread uses any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_destroy(cache: *mut Object) -> c_int {
    if cache.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get_mut(cache) }) else { return failure::code(libc::EINVAL) };
    // SAFETY: the handle's copy is not used again: `destroy` succeeds and the handle is taken
    // without a drop, or the copy that `destroy` returns is forgotten.
    match unsafe { ptr::read(&raw const inside.raw) }.destroy() {
        Ok(()) => {
            // An allocation from the ended handle finds no object, and its slow path then fails.
            inside.slots = rseq::dummy_slots();
            inside.bulk_slots = rseq::dummy_slots();
            // SAFETY: `get_mut` found a live handle above.
            core::mem::forget(unsafe { Handle::take(cache) });
            0
        }
        Err((raw, busy)) => {
            report::print(format_args!("cache {} is not destroyed: {busy}", raw.name()));
            core::mem::forget(raw);
            failure::code(libc::EBUSY)
        }
    }
}

/// # Safety
/// `cache` must be null or a cache.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_alloc(cache: *const Object, flags: c_uint) -> *mut c_void {
    // A pop never reclaims, so USLAB_NORECLAIM concerns the slow path alone.
    if flags & !USLAB_NORECLAIM == 0 && !cache.is_null() {
        // SAFETY: a cache of the caller's, whose slots are never freed.
        let object = unsafe { rseq::pop((*cache).value.slots) };
        if !object.is_null() {
            return object.cast();
        }
    }
    // SAFETY: the caller's promise.
    unsafe { alloc_slow(cache, flags) }
}

/// An allocation with flags, from slabs, or from a handle that is no cache.
///
/// # Safety
/// As [`uslab_cache_alloc`].
#[cold]
#[inline(never)]
unsafe extern "C" fn alloc_slow(cache: *const Object, flags: c_uint) -> *mut c_void {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(cache) }) else { return failure::null(libc::EINVAL) };
    if refuses_flags(inside, flags) {
        return failure::null(libc::EINVAL);
    }
    let raw = &inside.raw;
    let object = if flags & USLAB_NORECLAIM != 0 { raw.alloc_noreclaim() } else { raw.alloc() };
    let Some(object) = object else { return failure::null(libc::ENOMEM) };
    if flags & USLAB_ZERO != 0 {
        // SAFETY: a fresh object of at least that many bytes.
        unsafe { object.write_bytes(0, inside.raw.core().user_bytes()) };
    }
    object.as_ptr().cast()
}

/// Whether `flags` has an unknown flag, or asks for zeroes of a cache with a constructor.
pub fn refuses_flags(cache: &Cache, flags: c_uint) -> bool {
    has_unknown_flags(flags) || (flags & USLAB_ZERO != 0 && cache.raw.core().is_constructed())
}

/// Whether `flags` has a flag that no allocation knows.
pub fn has_unknown_flags(flags: c_uint) -> bool {
    flags & !ALLOC_FLAGS != 0
}

/// The visitor runs with no lock held, so it may call any function.
///
/// # Safety
/// `cache` must be null or a cache, `visit` null or callable with `context`.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_visit(
    cache: *const Object,
    visit: Option<ObjectVisitor>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(cache) }) else { return failure::code(libc::EINVAL) };
    let Some(visit) = visit else { return failure::code(libc::EINVAL) };
    let mut end = 0;
    inside.raw.for_each_live(|object| {
        // SAFETY: the caller's promise.
        end = unsafe { visit(context, object.as_ptr().cast()) };
        if end == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    end
}

/// # Safety
/// `cache` must be null or a cache, `object` null or an object of it that no thread uses.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_free(cache: *const Object, object: *mut c_void) {
    if !cache.is_null() && !object.is_null() {
        // SAFETY: a cache of the caller's, whose slots are never freed; the caller's promise.
        match unsafe { rseq::push_tested((*cache).value.slots, object.cast()) } {
            Pushed::Done => return,
            // SAFETY: the caller's promise.
            Pushed::Twice => return unsafe { free_twice(cache, object) },
            Pushed::Slow => {}
        }
    }
    // SAFETY: the caller's promise.
    unsafe { free_slow(cache, object) }
}

/// # Safety
/// `cache` must be a cache.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_twice(cache: *const Object, object: *mut c_void) {
    // SAFETY: the caller's promise.
    if let Some(inside) = unsafe { Handle::get(cache) } {
        inside.raw.core().report_double_free(object.cast());
    }
}

/// # Safety
/// As [`uslab_cache_free`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(cache: *const Object, object: *mut c_void) {
    if object.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(cache) }) else { return errno::set(libc::EINVAL) };
    let _errno = errno::Preserved::new();
    // SAFETY: the caller's promise.
    unsafe { inside.raw.core().free_slow(object.cast()) };
}

/// # Safety
/// `cache` must be null or a cache; `objects` must have room for `n` pointers.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_alloc_bulk(
    cache: *const Object,
    flags: c_uint,
    n: usize,
    objects: *mut *mut c_void,
) -> bool {
    let mut got = 0;
    if flags & !USLAB_NORECLAIM == 0 && !cache.is_null() && !objects.is_null() {
        // SAFETY: a cache of the caller's, whose slots are never freed; there is room for `n`.
        got = unsafe { rseq::pop_bulk((*cache).value.slots, n, objects.cast()) };
        if got == n {
            return true;
        }
    }
    // SAFETY: the caller's promise; `got` objects are popped.
    unsafe { alloc_bulk_slow(cache, flags, n, objects, got) }
}

/// # Safety
/// As [`uslab_cache_alloc_bulk`]; the first `got` pointers are objects of the cache.
#[cold]
#[inline(never)]
unsafe extern "C" fn alloc_bulk_slow(
    cache: *const Object,
    flags: c_uint,
    n: usize,
    objects: *mut *mut c_void,
    got: usize,
) -> bool {
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(cache) }) else { return failure::no(libc::EINVAL) };
    if refuses_flags(inside, flags) {
        return failure::no(libc::EINVAL);
    }
    if n == 0 {
        return true;
    }
    if let Some(error) = refuse(objects, n) {
        for at in 0..got {
            // SAFETY: the fast function popped it, and no thread has it.
            unsafe { inside.raw.core().free_bulk(&[objects.add(at).cast::<*mut u8>().read_unaligned()]) };
        }
        return failure::no(error);
    }
    // SAFETY: the caller's promise; nulls first, since the caller's array need not be initialised.
    let all: &mut [*mut u8] = unsafe {
        objects.add(got).write_bytes(0, n - got);
        core::slice::from_raw_parts_mut(objects.cast(), n)
    };
    let rest = &mut all[got..];
    let noreclaim = flags & USLAB_NORECLAIM != 0;
    if !(if noreclaim { inside.raw.alloc_bulk_noreclaim(rest) } else { inside.raw.alloc_bulk(rest) }) {
        // SAFETY: the fast function popped them, and no thread has them.
        unsafe { inside.raw.free_bulk(&all[..got]) };
        return failure::no(libc::ENOMEM);
    }
    if flags & USLAB_ZERO != 0 {
        let bytes = inside.raw.core().user_bytes();
        // SAFETY: fresh objects of the cache, of at least that many bytes.
        all.iter().for_each(|object| unsafe { object.write_bytes(0, bytes) });
    }
    true
}

/// # Safety
/// `cache` must be null or a cache; at `objects` must be `n` objects of it that no thread uses.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_free_bulk(cache: *const Object, n: usize, objects: *const *mut c_void) {
    let mut put = 0;
    if !cache.is_null() && !objects.is_null() {
        // SAFETY: a cache of the caller's, whose slots are never freed; the caller's promise.
        put = unsafe { rseq::push_bulk((*cache).value.bulk_slots, n, objects.cast()) };
        if put == n {
            return;
        }
    }
    // SAFETY: the caller's promise; `put` objects are pushed.
    unsafe { free_bulk_slow(cache, n, objects, put) }
}

/// # Safety
/// As [`uslab_cache_free_bulk`], except the first `put` objects, which are free already.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_bulk_slow(cache: *const Object, n: usize, objects: *const *mut c_void, put: usize) {
    if n == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    let Some(inside) = (unsafe { Handle::get(cache) }) else { return errno::set(libc::EINVAL) };
    if let Some(error) = refuse(objects, n) {
        return errno::set(error);
    }
    let _errno = errno::Preserved::new();
    // SAFETY: the caller's promise.
    unsafe {
        inside.raw.free_bulk(core::slice::from_raw_parts(objects.add(put).cast(), n - put));
    }
}

/// # Safety
/// `cache` must be null or a cache.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_shrink(cache: *const Object) -> usize {
    // SAFETY: the caller's promise.
    match unsafe { Handle::get(cache) } {
        Some(inside) => inside.raw.shrink(),
        None => {
            errno::set(libc::EINVAL);
            0
        }
    }
}

/// # Safety
/// As [`uslab_cache_shrink`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_name(cache: *const Object) -> *const c_char {
    // SAFETY: the caller's promise.
    match unsafe { Handle::get(cache) } {
        Some(inside) => CStr::from_bytes_until_nul(&inside.name).map_or(ptr::null(), CStr::as_ptr),
        None => failure::null(libc::EINVAL),
    }
}

/// # Safety
/// As [`uslab_cache_shrink`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_object_size(cache: *const Object) -> usize {
    // SAFETY: the caller's promise.
    unsafe { Handle::get(cache) }.map_or(0, |inside| inside.raw.core().user_bytes())
}

/// # Safety
/// As [`uslab_cache_shrink`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_cache_usable_size(cache: *const Object) -> usize {
    // SAFETY: the caller's promise.
    unsafe { Handle::get(cache) }.map_or(0, |inside| inside.raw.usable_bytes())
}
