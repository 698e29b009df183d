//! Shrinkers and the calls that run them: `uslab_shrinker_*`, `uslab_reclaim`, `uslab_set_limit`.

use crate::abi::{
    self, ShrinkCallback, ShrinkerOptions, USLAB_HUGE_PAGES_ALWAYS, USLAB_HUGE_PAGES_AUTO,
    USLAB_HUGE_PAGES_NEVER, USLAB_SEEKS_NONE, USLAB_SHRINK_STOP,
};
use crate::handle::{self, Handle, Kind};
use crate::{failure, versioned};
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};
use core::time::Duration;
use uslab::internal::errno;
use uslab::{HugePages, Registration, Scan, ShrinkControl, Shrinker};

/// The caller's two functions, as a [`Shrinker`]. The library drops it when neither runs any more.
/// The handle ends then: a callback may use it for as long as it runs, also while another thread
/// unregisters the shrinker.
pub struct Callbacks {
    count: ShrinkCallback,
    scan: ShrinkCallback,
    context: *mut c_void,
    /// Null until registered.
    handle: AtomicPtr<Object>,
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut();
        if !handle.is_null() {
            // SAFETY: `register` stored the handle, and no other code ends it. The caller's
            // promise: the thread that unregisters is the last to use it, but for callbacks.
            unsafe { Handle::release(handle) };
        }
    }
}

/// A shrinker that a handle stands for.
pub struct Registered {
    registration: Registration<Callbacks>,
    /// Some thread unregisters it.
    is_ending: AtomicBool,
}

// SAFETY: the header requires that any thread may call the functions with the context.
unsafe impl Send for Callbacks {}
// SAFETY: as above.
unsafe impl Sync for Callbacks {}

impl Shrinker for Callbacks {
    fn count(&self, control: &ShrinkControl) -> usize {
        let control = as_c(control);
        // SAFETY: the caller's function with the caller's context.
        match unsafe { (self.count)(self.context, &control) } {
            USLAB_SHRINK_STOP => 0,
            entries => entries,
        }
    }

    fn scan(&self, control: &ShrinkControl) -> Scan {
        let control = as_c(control);
        // SAFETY: as above.
        match unsafe { (self.scan)(self.context, &control) } {
            USLAB_SHRINK_STOP => Scan::Stop,
            entries => Scan::Freed(entries),
        }
    }
}

fn as_c(control: &ShrinkControl) -> abi::ShrinkControl {
    abi::ShrinkControl { nr_to_scan: control.nr_to_scan, priority: control.priority, flags: control.flags }
}

impl Kind for Registered {
    const KIND: u64 = u64::from_le_bytes(*b"uslabshk");
}

/// The C type.
type Object = Handle<Registered>;

/// # Safety
/// `name` must be a string, `options` as many bytes as their `type_size` says, and their functions
/// callable on any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_shrinker_register(
    name: *const c_char,
    options: *const ShrinkerOptions,
) -> *mut Object {
    // SAFETY: the caller's promise.
    match unsafe { register(name, options) } {
        Ok(shrinker) => shrinker,
        Err(error) => failure::null(error),
    }
}

/// # Safety
/// As [`uslab_shrinker_register`].
unsafe fn register(name: *const c_char, options: *const ShrinkerOptions) -> Result<*mut Object, c_int> {
    // SAFETY: the caller's promise; the options are valid as zeroes.
    let (name, options) = unsafe { (handle::name(name), versioned::read(options)?) };
    let (Some(name), Some(count), Some(scan)) = (name, options.count, options.scan) else {
        return Err(libc::EINVAL);
    };
    let defaults = uslab::ShrinkerOptions::default();
    let known = uslab::ShrinkerOptions {
        seeks: match options.seeks {
            0 => defaults.seeks,
            USLAB_SEEKS_NONE => 0,
            seeks => seeks,
        },
        batch: if options.batch == 0 { defaults.batch } else { options.batch as usize },
    };
    let handle = AtomicPtr::new(ptr::null_mut());
    let callbacks = Callbacks { count, scan, context: options.context, handle };
    let registration = uslab::register_shrinker(name, known, callbacks).map_err(|_| libc::ENOMEM)?;
    let registered = Registered { registration, is_ending: AtomicBool::new(false) };
    // Without memory, `make` returns the registration, and its drop unregisters.
    let handle = Handle::make(registered).map_err(|_| libc::ENOMEM)?;
    // SAFETY: a live handle, which no other thread knows.
    let registered = unsafe { &(*handle).value };
    registered.registration.handle.store(handle, Relaxed);
    Ok(handle)
}

/// # Safety
/// `shrinker` must be null or a shrinker.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_shrinker_unregister(shrinker: *mut Object) {
    if shrinker.is_null() {
        return;
    }
    // SAFETY: the caller's promise: the handle is live until this call ends it.
    let registered = unsafe { Handle::get(shrinker) };
    let Some(registered) = registered.filter(|registered| !registered.is_ending.swap(true, Relaxed)) else {
        return errno::set(libc::EINVAL);
    };
    // SAFETY: it is moved out once, since the flag is set once, and the handle does not drop it.
    let registration = unsafe { (&raw const registered.registration).read() };
    // From here on the handle may end: the callbacks are dropped as soon as none runs.
    if !registration.unregister() {
        errno::set(libc::EDEADLK);
    }
}

/// # Safety
/// `shrinker` must be null or a shrinker.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_shrinker_set_miss_cost_ns(shrinker: *const Object, cost_ns: u64) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { Handle::get(shrinker) } {
        Some(registered) => {
            registered.registration.set_miss_cost_ns(cost_ns);
            0
        }
        None => failure::code(libc::EINVAL),
    }
}

/// # Safety
/// `shrinker` must be null or a shrinker.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_shrinker_note_refaults(shrinker: *const Object, entries: u64) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { Handle::get(shrinker) } {
        Some(registered) => {
            registered.registration.note_refaults(entries);
            0
        }
        None => failure::code(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
extern "C" fn uslab_reclaim(bytes: usize) -> usize {
    let _errno = errno::Preserved::new();
    uslab::reclaim(bytes)
}

#[unsafe(no_mangle)]
extern "C" fn uslab_trim(kept_bytes: usize) -> usize {
    let _errno = errno::Preserved::new();
    uslab::trim(kept_bytes)
}

#[unsafe(no_mangle)]
extern "C" fn uslab_set_decay_ms(ms: c_int) {
    let _errno = errno::Preserved::new();
    uslab::set_decay(u64::try_from(ms).ok().map(Duration::from_millis));
}

#[unsafe(no_mangle)]
extern "C" fn uslab_set_huge_pages(huge_pages: c_uint) -> c_int {
    let huge_pages = match huge_pages {
        USLAB_HUGE_PAGES_AUTO => HugePages::Auto,
        USLAB_HUGE_PAGES_NEVER => HugePages::Never,
        USLAB_HUGE_PAGES_ALWAYS => HugePages::Always,
        _ => return failure::code(libc::EINVAL),
    };
    uslab::set_huge_pages(huge_pages);
    0
}

#[unsafe(no_mangle)]
extern "C" fn uslab_release_memory() -> usize {
    uslab_trim(0)
}

#[unsafe(no_mangle)]
extern "C" fn uslab_set_limit(soft_bytes: usize, hard_bytes: usize) -> c_int {
    match uslab::set_limit(soft_bytes, hard_bytes) {
        Ok(()) => 0,
        Err(uslab::LimitError::OutOfMemory) => failure::code(libc::ENOMEM),
        Err(_) => failure::code(libc::EINVAL),
    }
}
