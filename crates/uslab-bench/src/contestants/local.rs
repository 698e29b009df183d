//! uslab's local caches: a sheaf of a typed cache for the thread that runs the loop.
//!
//! Each thread of the benchmark has one for each size, made before its first round and dropped
//! after its last one, as a program's thread would have. *Called* has each operation behind a C
//! function that gets the sheaf as an argument, as `uslab_sheaf_alloc` and `uslab_sheaf_free` do.
//!
//! Must never: count on objects in the sheaf at the begin of a round, or keep the sheaf of another
//! thread.

use super::uslab::{Cached, Object, about};
use super::{About, Contestant};
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::slice;
use std::thread::LocalKey;
use uslab::LocalCache;

/// A thread's sheaf of a size; none outside of [`enter_thread`] and [`leave_thread`]. Without a
/// destructor of its own, an access is one instruction.
type Place<const SIZE: usize> = UnsafeCell<Option<ManuallyDrop<LocalCache<'static, Object<SIZE>>>>>;

/// The place of the thread's sheaf.
pub trait Placed<const SIZE: usize>: Cached {
    fn place() -> &'static LocalKey<Place<SIZE>>;
}

macro_rules! places {
    ($($size:literal),*) => {
        $(
            impl Placed<$size> for Object<$size> {
                #[inline(always)]
                fn place() -> &'static LocalKey<Place<$size>> {
                    thread_local!(static PLACE: Place<$size> = const { UnsafeCell::new(None) });
                    &PLACE
                }
            }
        )*

        /// Makes the thread's sheaves.
        pub fn enter_thread() {
            $(enter::<$size>();)*
        }

        /// Drops the thread's sheaves.
        pub fn leave_thread() {
            $(leave::<$size>();)*
        }
    };
}

places!(16, 64, 256, 1024, 4096);

fn enter<const SIZE: usize>()
where
    Object<SIZE>: Placed<SIZE>,
{
    let local = Object::<SIZE>::cache().local().unwrap_or_else(|| super::out_of_memory("uslab"));
    leave::<SIZE>();
    // SAFETY: the place is this thread's, and no reference to it is in use between rounds.
    Object::<SIZE>::place().with(|place| unsafe { *place.get() = Some(ManuallyDrop::new(local)) });
}

fn leave<const SIZE: usize>()
where
    Object<SIZE>: Placed<SIZE>,
{
    // SAFETY: as above.
    let local = Object::<SIZE>::place().with(|place| unsafe { (*place.get()).take() });
    drop(local.map(ManuallyDrop::into_inner));
}

/// The sheaf of a size, inlined or called.
pub struct Local<const SIZE: usize, const CALLED: bool>;

#[inline(always)]
fn of_thread<const SIZE: usize>() -> &'static LocalCache<'static, Object<SIZE>>
where
    Object<SIZE>: Placed<SIZE>,
{
    // SAFETY: every thread that runs rounds enters first, and leaves after its last round.
    Object::<SIZE>::place().with(|place| unsafe { (*place.get()).as_ref().unwrap_unchecked() })
}

#[inline(always)]
fn allocate<const SIZE: usize>(local: &LocalCache<'_, Object<SIZE>>) -> *mut u8 {
    local.alloc().map_or(std::ptr::null_mut(), |object| object.as_ptr().cast())
}

/// # Safety
/// `object` is live and of the sheaf's cache.
#[inline(always)]
unsafe fn release<const SIZE: usize>(local: &LocalCache<'_, Object<SIZE>>, object: *mut u8) {
    // SAFETY: the caller's promise; a live object is not null.
    unsafe { local.free(NonNull::new_unchecked(object.cast())) }
}

#[inline(never)]
extern "C" fn called_alloc<const SIZE: usize>(local: &LocalCache<'_, Object<SIZE>>) -> *mut u8 {
    allocate(local)
}

/// # Safety
/// As for `release`.
#[inline(never)]
unsafe extern "C" fn called_free<const SIZE: usize>(local: &LocalCache<'_, Object<SIZE>>, object: *mut u8) {
    // SAFETY: the caller's promise is the same.
    unsafe { release(local, object) }
}

impl<const SIZE: usize, const CALLED: bool> Contestant for Local<SIZE, CALLED>
where
    Object<SIZE>: Placed<SIZE>,
{
    const NAME: &'static str = if CALLED { "uslab local cache, called" } else { "uslab local cache" };

    fn about() -> About {
        let way = if CALLED { "each operation behind a C function" } else { "inlined in Rust" };
        about(Self::NAME, &format!("LocalCache<T> of each thread, {way}"))
    }

    #[inline(always)]
    fn alloc(_size: usize) -> *mut u8 {
        let local = of_thread::<SIZE>();
        if CALLED { called_alloc(local) } else { allocate(local) }
    }

    #[inline(always)]
    unsafe fn free(pointer: *mut u8, _size: usize) {
        let local = of_thread::<SIZE>();
        // SAFETY: the caller's promise is the same.
        unsafe { if CALLED { called_free(local, pointer) } else { release(local, pointer) } }
    }

    #[inline(always)]
    fn alloc_bulk(_size: usize, objects: &mut [*mut u8]) -> bool {
        let (data, n) = (objects.as_mut_ptr().cast::<*mut Object<SIZE>>(), objects.len());
        // SAFETY: the same pointers, of another pointee; `objects` is borrowed for as long.
        of_thread::<SIZE>().alloc_bulk(unsafe { slice::from_raw_parts_mut(data, n) })
    }

    #[inline(always)]
    unsafe fn free_bulk(_size: usize, objects: &[*mut u8]) {
        let (data, n) = (objects.as_ptr().cast::<*mut Object<SIZE>>(), objects.len());
        // SAFETY: the same pointers, of another pointee; each is live and of the cache by the
        // caller's promise.
        unsafe { of_thread::<SIZE>().free_bulk(slice::from_raw_parts(data, n)) }
    }

    fn flush(_size: usize) {
        of_thread::<SIZE>().flush();
        Object::<SIZE>::cache().shrink();
    }
}
