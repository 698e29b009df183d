//! What the opaque pointers of the header point to: a value in memory of the library's own malloc, behind a word that says what it is.
//!
//! The word is looked at by every function but the fast ones. It is taken away when a handle ends, and the allocator never writes to
//! free objects, so that a handle used after its end is mostly recognised: until its memory is somebody else's.

use core::ffi::{CStr, c_char};
use uslab::internal::entry as malloc;

/// A type with a handle.
pub trait Kind {
    /// A number of its own.
    const KIND: u64;
}

/// What a handle points to.
///
/// The fast functions load the value's first word, and store the count of a sheaf, the first word of some cache line. Where the two addresses agree in
/// their low twelve bits, processors take the load for dependent on the store, and a pair takes up to three times as long (5 to 14 ns on Zen 4). So the
/// kind stands first, and the value in the line's second word: that of a sheaf's line is never stored to.
#[repr(C, align(64))]
pub struct Handle<T> {
    kind: u64,
    pub value: T,
}

impl<T: Kind> Handle<T> {
    /// Moves `value` behind a handle; gives it back without memory.
    pub fn make(value: T) -> Result<*mut Handle<T>, T> {
        // SAFETY: memory of that size and alignment, nobody else's.
        unsafe { Self::make_in(malloc::aligned_alloc(align_of::<Self>(), size_of::<Self>()), value) }
    }

    /// As [`Handle::make`], but no memory is reclaimed for it: no callback of a shrinker runs.
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

    /// The value behind a pointer of the caller's, if it is a handle.
    ///
    /// # Safety
    /// `handle` must be null, a handle that `make` made, or one that has ended.
    pub unsafe fn get<'a>(handle: *const Handle<T>) -> Option<&'a T> {
        if handle.is_null() || !handle.is_aligned() {
            return None;
        }
        // SAFETY: the caller's promise: memory of a handle, which stays mapped or readable as the allocator's pages do.
        unsafe { ((&raw const (*handle).kind).read() == T::KIND).then(|| &(*handle).value) }
    }

    /// As [`Handle::get`], to change it.
    ///
    /// # Safety
    /// As [`Handle::get`], and nobody else may use the handle meanwhile.
    pub unsafe fn get_mut<'a>(handle: *mut Handle<T>) -> Option<&'a mut T> {
        // SAFETY: the caller's promise.
        unsafe { Self::get(handle).is_some().then(|| &mut (*handle).value) }
    }

    /// Ends a handle: the value moves out.
    ///
    /// # Safety
    /// As [`Handle::get_mut`].
    pub unsafe fn take(handle: *mut Handle<T>) -> Option<T> {
        // SAFETY: the caller's promise; a handle that is one holds a value, which is read once, as the kind goes with it.
        unsafe {
            Self::get(handle)?;
            let value = (&raw const (*handle).value).read();
            (&raw mut (*handle).kind).write(0);
            malloc::free(handle.cast());
            Some(value)
        }
    }
}

/// The name that a caller gave, up to what is not UTF-8.
///
/// # Safety
/// `name` must be null or NUL-terminated, and stay as it is while the result lives.
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
