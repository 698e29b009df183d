//! `clone` with `CLONE_VM | CLONE_VFORK`, by which some programs start others: the child shares the
//! memory and the thread control block of its suspended parent. Such a child may allocate, as a
//! child of [`vfork`](super::vfork) may, and takes over the registration in the same way.
//!
//! ```text
//!   clone: lent = begin() ── __clone ─┬─ parent, when the child has ended: in_parent(lent)
//!                                     └─ child, on a stack of its own: in_child(lent) ─ function
//! ```
//!
//! A child with a copy of the memory may start the background thread. When the child's function
//! returns, the C library ends only that thread, and the background thread would keep the process
//! alive. So such a child ends the process itself when its function returns and the background
//! thread is the only other one, or where `/proc` cannot tell. All other calls go to the C library
//! as they are.

use core::ffi::{c_int, c_void};
use uslab::internal::entry as malloc;
use uslab::internal::lend::{self, Lent};

type Start = extern "C" fn(*mut c_void) -> c_int;

/// The C library's `clone`. Its further arguments are variadic there, in registers or on the stack
/// as those of this type.
type Clone = unsafe extern "C" fn(
    start: Option<Start>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_id: *mut c_void,
    tls: *mut c_void,
    child_id: *mut c_void,
) -> c_int;

/// The C library's function.
fn c_library() -> Option<Clone> {
    #[cfg(target_env = "gnu")]
    let address = {
        unsafe extern "C" {
            static __clone: c_void;
        }
        &raw const __clone
    };
    // musl exports it as `clone` alone, the name of the function below. A `dlsym` that succeeds
    // allocates nothing.
    #[cfg(not(target_env = "gnu"))]
    // SAFETY: the name ends with NUL.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"clone".as_ptr()) };
    // SAFETY: the C library's function has this type, and NULL becomes `None`.
    unsafe { core::mem::transmute(address) }
}

/// What a child with a copy of the memory begins with. It lies on the parent's stack, of which the
/// child has a copy, too.
struct Copied {
    start: Start,
    argument: *mut c_void,
}

/// What a child that shares the memory begins with. It lies on the stack of the parent, which is
/// suspended.
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
    let Some(clone) = c_library() else {
        // SAFETY: the calling thread's own cell.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    };
    let call = |start, flags, argument| {
        // SAFETY: the caller's promise.
        unsafe { clone(start, stack, flags, argument, parent_id, tls, child_id) }
    };
    let call_copied = |start: Option<Start>, flags| match start {
        Some(start) if !stack.is_null() => {
            let copied = Copied { start, argument };
            call(Some(begin_copied as Start), flags, (&raw const copied).cast_mut().cast())
        }
        _ => call(start, flags, argument),
    };
    if flags & (libc::CLONE_VM | libc::CLONE_THREAD) == 0 {
        return call_copied(start, flags);
    }
    let Some(function) = start.filter(|_| shares_block && !stack.is_null()) else {
        return call(start, flags, argument);
    };
    malloc::choose_mode();
    let copied = flags & !(libc::CLONE_VM | libc::CLONE_SIGHAND);
    let Some(lent) = lend::begin() else { return call_copied(start, copied) };
    let child = Child { lent, start: function, argument };
    let id = call(Some(begin_child), flags, (&raw const child).cast_mut().cast());
    // SAFETY: the calling thread's own cell.
    let errno = unsafe { *libc::__errno_location() };
    if !lend::in_parent(&lent) {
        // The child has ended before it called the function.
        uslab::internal::calls::wait_for(id, &mut 0, libc::__WALL);
        return call_copied(start, copied);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    id
}

extern "C" fn begin_copied(copied: *mut c_void) -> c_int {
    // SAFETY: `clone` passes a `Copied`, of which this process has a copy at the same address.
    let Copied { start, argument } = unsafe { copied.cast::<Copied>().read() };
    let status = start(argument);
    if uslab::internal::is_alone_with_background() {
        super::lifecycle::_exit(status);
    }
    status
}

extern "C" fn begin_child(child: *mut c_void) -> c_int {
    // SAFETY: `clone` passes a `Child`, on the stack of the parent, which is suspended until this
    // process ends or runs another program.
    let Child { lent, start, argument } = unsafe { child.cast::<Child>().read() };
    lend::in_child(&lent);
    start(argument)
}
