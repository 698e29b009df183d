//! A `clone` whose child shares the memory and the thread control block of a suspended parent
//! (`CLONE_VM | CLONE_VFORK`), as programs start others with: the child may allocate, as that of
//! [`vfork`](super::vfork) may, and takes over the thread's registration in the same way.
//!
//! ```text
//!   clone: lent = begin() ── __clone ─┬─ parent, when the child has ended: in_parent(lent)
//!                                     └─ child, on a stack of its own: in_child(lent) ─ function
//! ```
//!
//! All other calls go to the C library as they are.

use core::ffi::{c_int, c_void};
use uslab::internal::entry as malloc;
use uslab::internal::lend::{self, Lent};

type Start = extern "C" fn(*mut c_void) -> c_int;

unsafe extern "C" {
    /// The C library's `clone`. Its further arguments are variadic there, in registers or on the
    /// stack as those of this declaration.
    fn __clone(
        start: Option<Start>,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        parent_id: *mut c_void,
        tls: *mut c_void,
        child_id: *mut c_void,
    ) -> c_int;
}

/// What the child begins with. It lies on the stack of the parent, which is suspended.
struct Child {
    lent: Lent,
    start: Start,
    argument: *mut c_void,
}

/// `clone(2)` of the C library. Where the kernel, or a filter of system calls, refuses to register
/// threads, a child that would share the memory of a suspended parent gets a copy of it.
///
/// # Safety
/// As the C library's. A call with fewer arguments passes others that nothing reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    start: Option<Start>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_id: *mut c_void,
    tls: *mut c_void,
    child_id: *mut c_void,
) -> c_int {
    const SHARES: c_int = libc::CLONE_VM | libc::CLONE_VFORK;
    let shares_block = flags & (SHARES | libc::CLONE_SETTLS | libc::CLONE_THREAD) == SHARES;
    let call = |start, flags, argument| {
        // SAFETY: the caller's promise.
        unsafe { __clone(start, stack, flags, argument, parent_id, tls, child_id) }
    };
    let Some(function) = start.filter(|_| shares_block && !stack.is_null()) else {
        return call(start, flags, argument);
    };
    malloc::choose_mode();
    let copied = flags & !(libc::CLONE_VM | libc::CLONE_SIGHAND);
    let Some(lent) = lend::begin() else { return call(start, copied, argument) };
    let child = Child { lent, start: function, argument };
    let id = call(Some(begin_child), flags, (&raw const child).cast_mut().cast());
    // SAFETY: the calling thread's own cell.
    let errno = unsafe { *libc::__errno_location() };
    if !lend::in_parent(&lent) {
        // The child has ended before it called the function.
        uslab::internal::calls::wait_for(id, &mut 0, libc::__WALL);
        return call(start, copied, argument);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    id
}

extern "C" fn begin_child(child: *mut c_void) -> c_int {
    // SAFETY: `clone` passes a `Child`, on the stack of the parent, which is suspended until this
    // process ends or runs another program.
    let Child { lent, start, argument } = unsafe { child.cast::<Child>().read() };
    lend::in_child(&lent);
    start(argument)
}
