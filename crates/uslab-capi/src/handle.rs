//! The targets of the header's opaque pointers: a word that names the kind, then the value, in
//! memory of the library's own malloc.
//!
//! Every function but the fast ones tests the word. The end of a handle clears it, and the
//! allocator never writes to free objects. So a handle used after its end is recognised until its
//! memory is allocated again.

use core::ffi::{CStr, c_char};
use uslab::internal::entry as malloc;

/// A type that C programs hold by a handle.
pub trait Kind {
    /// A number that no other type has.
    const KIND: u64;
}

/// The target of a handle.
///
/// The kind comes first, so that the value is not the first word of its cache line. The fast
/// functions load the value's first word and store a sheaf's count, which is the first word of its
/// line. If the two addresses agree in their low twelve bits, the processor takes the load for
/// dependent on the store. A pair of calls then takes up to three times as long (5 to 14 ns on Zen
/// 4). No fast function stores to the second word of a sheaf's line.
#[repr(C, align(64))]
pub struct Handle<T> {
    kind: u64,
    pub value: T,
}

impl<T: Kind> Handle<T> {
    /// Moves `value` behind a new handle. Without memory, returns it as the error.
    pub fn make(value: T) -> Result<*mut Handle<T>, T> {
        // SAFETY: null, or fresh memory of that size and alignment.
        unsafe { Self::make_in(malloc::aligned_alloc(align_of::<Self>(), size_of::<Self>()), value) }
    }

    /// As [`Handle::make`], without reclaim: no callback of a shrinker runs.
    pub fn make_noreclaim(value: T) -> Result<*mut Handle<T>, T> {
        // SAFETY: as above.
        unsafe {
            Self::make_in(malloc::aligned_alloc_noreclaim(align_of::<Self>(), size_of::<Self>()), value)
        }
    }

    /// # Safety
    /// `place` must be null or free memory of a handle's size and alignment.
    unsafe fn make_in(place: *mut u8, value: T) -> Result<*mut Handle<T>, T> {
        let place = place.cast::<Handle<T>>();
        if place.is_null() {
            return Err(value);
        }
        // SAFETY: the caller's promise.
        unsafe { place.write(Handle { kind: T::KIND, value }) };
        Ok(place)
    }

    /// The value behind the caller's pointer, if that is a live handle.
    ///
    /// # Safety
    /// `handle` must be null, a handle that `make` made, or one that has ended.
    pub unsafe fn get<'a>(handle: *const Handle<T>) -> Option<&'a T> {
        if handle.is_null() || !handle.is_aligned() {
            return None;
        }
        // SAFETY: the caller's promise: memory of a handle. It stays readable, as the allocator's
        // pages do.
        unsafe { ((&raw const (*handle).kind).read() == T::KIND).then(|| &(*handle).value) }
    }

    /// As [`Handle::get`], with the right to change the value.
    ///
    /// # Safety
    /// As [`Handle::get`], and no other thread may use the handle meanwhile.
    pub unsafe fn get_mut<'a>(handle: *mut Handle<T>) -> Option<&'a mut T> {
        // SAFETY: the caller's promise.
        unsafe { Self::get(handle).is_some().then(|| &mut (*handle).value) }
    }

    /// Ends a handle: the value moves out.
    ///
    /// # Safety
    /// As [`Handle::get_mut`].
    pub unsafe fn take(handle: *mut Handle<T>) -> Option<T> {
        // SAFETY: the caller's promise; a live handle holds a value. It is read once, since the
        // kind is cleared with it.
        unsafe {
            Self::get(handle)?;
            let value = (&raw const (*handle).value).read();
            Self::release(handle);
            Some(value)
        }
    }

    /// Ends a handle whose value was moved out, or is never dropped.
    ///
    /// # Safety
    /// `handle` must be a live handle that no thread uses any more.
    pub unsafe fn release(handle: *mut Handle<T>) {
        // SAFETY: the caller's promise; the memory is of this library's malloc.
        unsafe {
            (&raw mut (*handle).kind).write(0);
            malloc::free(handle.cast());
        }
    }
}

/// The caller's name, up to its first byte that is not UTF-8.
///
/// # Safety
/// `name` must be null or NUL-terminated, and must not change while the result lives.
pub unsafe fn name<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    Some(match core::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
    })
}
