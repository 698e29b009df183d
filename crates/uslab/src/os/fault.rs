//! Faults of memory accesses: the library's handler of SIGSEGV, in front of the program's.
//!
//! ```text
//!   fault ──▶ kernel ──▶ on_signal ──▶ the library's page? ── repaired ──▶ the access again
//!                                           │ no, or reported
//!                                           └──▶ the program's handler, or the default action
//! ```
//!
//! The kernel has one action for a signal. While the handler is installed, this module keeps the
//! program's action: [`sigaction`] exchanges it, and the preload library gives the program that
//! function. The kernel's action has the program's mask and flags, so that the program's handler
//! runs as the kernel would have run it: on the same stack, with the same signals blocked. A
//! program that makes the system call itself replaces the library's handler; it then gets its
//! faults without a report.
//!
//! A child that shares the memory (`vfork`, `clone(CLONE_VM)`) has a table of actions of its own in
//! the kernel, while the action kept here is the parent's. So the child's actions go to the kernel.
//!
//! All of it is async-signal-safe. The handler takes no lock: the thread may hold any.

use super::process::{Relation, THREADS, relation};
use super::unwind::Registers;
use super::{calls, signal, weak};
use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
    fence,
};
use libc::{SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_DFL, SIG_IGN, SIGSEGV};

/// The kind of an access that faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store, or a load that also stores.
    Write,
    /// The processor does not tell.
    Unknown,
}

/// A fault, as the kernel describes it.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The address of the access.
    pub address: usize,
    /// Its kind.
    pub access: Access,
    /// The registers at the instruction.
    pub registers: Registers,
    /// Bytes left of the alternative signal stack, if the handler runs on it; `usize::MAX` on other
    /// stacks.
    pub stack_left_bytes: usize,
}

/// The reaction to a fault. The function must be async-signal-safe. It returns true if the access
/// can be repeated, and false if the program's action is next.
pub type OnFault = fn(&Fault) -> bool;

static ON_FAULT: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// The program's action. A writer fills the copy that is not in use, and then makes it the one in
/// use; so at any instant one copy is whole, in a fork child too. Writers hold
/// `THREADS.writes_action` with all signals blocked.
struct Action {
    /// Changes so far; the lowest bit is the number of the copy in use.
    version: AtomicU32,
    copies: [Fields; 2],
}

struct Fields {
    handler: AtomicUsize,
    flags: AtomicU32,
    mask: AtomicU64,
}

static PROGRAM: Action = Action {
    version: AtomicU32::new(0),
    copies: [const {
        Fields { handler: AtomicUsize::new(SIG_DFL), flags: AtomicU32::new(0), mask: AtomicU64::new(0) }
    }; 2],
};

#[derive(Clone, Copy)]
struct Copied {
    handler: usize,
    flags: c_int,
    mask: signal::Mask,
}

impl Action {
    /// The action. Repeats only if another thread changed it meanwhile.
    fn load(&self) -> Copied {
        loop {
            let version = self.version.load(Acquire);
            let fields = &self.copies[version as usize % 2];
            let copied = Copied {
                handler: fields.handler.load(Relaxed),
                flags: fields.flags.load(Relaxed) as c_int,
                mask: fields.mask.load(Relaxed),
            };
            fence(Acquire);
            if self.version.load(Relaxed) == version {
                return copied;
            }
        }
    }

    fn store(&self, action: Copied) {
        let version = self.version.load(Relaxed).wrapping_add(1);
        // A reader that sees a field of this change sees the version of the last one as well.
        fence(Release);
        let fields = &self.copies[version as usize % 2];
        fields.handler.store(action.handler, Relaxed);
        fields.flags.store(action.flags as u32, Relaxed);
        fields.mask.store(action.mask, Relaxed);
        self.version.store(version, Release);
    }
}

impl Copied {
    fn of(action: &libc::sigaction) -> Copied {
        // SAFETY: the kernel's mask is the first 64 bits of the C library's set.
        let mask = unsafe { (&raw const action.sa_mask).cast::<signal::Mask>().read_unaligned() };
        Copied { handler: action.sa_sigaction, flags: action.sa_flags, mask }
    }

    fn to_system(self) -> libc::sigaction {
        // SAFETY: all zeroes are a valid action: the default one.
        let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
        action.sa_sigaction = self.handler;
        action.sa_flags = self.flags;
        // SAFETY: as in `of`.
        unsafe { (&raw mut action.sa_mask).cast::<signal::Mask>().write_unaligned(self.mask) };
        action
    }

    fn is_function(self) -> bool {
        self.handler != SIG_DFL && self.handler != SIG_IGN
    }
}

/// Whether [`install`] succeeded.
pub fn is_installed() -> bool {
    !ON_FAULT.load(Acquire).is_null()
}

/// Installs the handler, in front of the action that the program has now. False if the kernel
/// refuses. May be called again.
pub fn install(on_fault: OnFault) -> bool {
    exclusively(|| {
        if is_installed() {
            return true;
        }
        let mut old = Copied { handler: SIG_DFL, flags: 0, mask: 0 }.to_system();
        // SAFETY: `old` is a valid place.
        if unsafe { weak::sigaction(SIGSEGV, ptr::null(), &mut old) } != 0 {
            return false;
        }
        let old = Copied::of(&old);
        PROGRAM.store(old);
        ON_FAULT.store(on_fault as *mut (), Release);
        let done = put_in_front(old);
        if !done {
            ON_FAULT.store(ptr::null_mut(), Release);
        }
        done
    })
}

/// `sigaction(2)` of SIGSEGV for the program: exchanges the action that runs behind the library's
/// handler.
///
/// # Safety
/// As `sigaction`; the handler must be installed.
pub unsafe fn sigaction(new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let errno = super::errno::Preserved::new();
    if relation() == Relation::Sharing {
        drop(errno);
        // SAFETY: the caller's promise.
        return unsafe { sigaction_of_sharing_child(new, old) };
    }
    // SAFETY: the caller's promise. Copied first: both may be one place.
    let new = unsafe { new.as_ref() }.map(Copied::of);
    let before = exclusively(|| {
        let before = PROGRAM.load();
        if let Some(new) = new {
            // The kernel first: it must never run a handler that the program has replaced.
            put_in_front(new);
            PROGRAM.store(new);
        }
        before
    });
    // SAFETY: the caller's promise.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before.to_system();
    }
    0
}

/// `sigaction` in a child that shares the memory: by the kernel, but the library's handler stands
/// for the program's action.
///
/// # Safety
/// As `sigaction`.
unsafe fn sigaction_of_sharing_child(new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { weak::sigaction(SIGSEGV, new, old) };
    // SAFETY: the caller's promise.
    let old = unsafe { old.as_mut() };
    if result == 0
        && let Some(old) = old
        && old.sa_sigaction == on_signal as *const () as usize
    {
        *old = PROGRAM.load().to_system();
    }
    result
}

/// `sigaction(2)` of the C library by its second name, past other libraries' `sigaction`.
///
/// # Safety
/// As `sigaction`.
pub unsafe fn system_sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { weak::sigaction(signal, new, old) }
}

/// Runs `with` on one thread at a time, with all signals blocked: a handler that interrupted it
/// could otherwise wait for it. The kernel wipes the lock in a fork child.
fn exclusively<R>(with: impl FnOnce() -> R) -> R {
    let _errno = super::errno::Preserved::new();
    let mask = signal::block_all();
    while THREADS.writes_action.swap(true, Acquire) {
        core::hint::spin_loop();
    }
    let result = with();
    THREADS.writes_action.store(false, Release);
    signal::restore(mask);
    result
}

/// Releases the lock in a fork child, where the kernel may have left it as another thread of the
/// parent held it: with system pages of more than 4 KiB.
pub fn reset_in_child() {
    THREADS.writes_action.store(false, Relaxed);
}

/// Makes [`on_signal`] the kernel's action, with mask and flags of the program's action. A program
/// without a handler has no stack for it either: then the alternative stack serves, if there is
/// one.
fn put_in_front(program: Copied) -> bool {
    let kept = SA_NODEFER | SA_ONSTACK | SA_RESTART;
    let (flags, mask) =
        if program.is_function() { (program.flags & kept, program.mask) } else { (SA_ONSTACK, 0) };
    let ours = Copied { handler: on_signal as *const () as usize, flags: flags | SA_SIGINFO, mask };
    // SAFETY: the handler has the signature that the flags ask for.
    unsafe { weak::sigaction(SIGSEGV, &ours.to_system(), ptr::null_mut()) == 0 }
}

/// The handler that the kernel calls.
///
/// # Safety
/// Only the kernel may call it.
unsafe extern "C-unwind" fn on_signal(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: null, or the function that `install` stored.
    let on_fault: Option<OnFault> = unsafe { transmute(ON_FAULT.load(Acquire)) };
    // SAFETY: the kernel passes a valid description and context.
    let is_fault = unsafe { (*info).si_code > 0 };
    if is_fault && let Some(on_fault) = on_fault {
        // SAFETY: as above; a positive code of SIGSEGV comes with an address.
        let fault = unsafe { describe((*info).si_addr() as usize, context) };
        let errno = super::errno::Preserved::new();
        if on_fault(&fault) {
            return;
        }
        drop(errno);
    }
    // SAFETY: as above.
    unsafe { run_program_action(number, info, context, is_fault) };
}

/// Does what the kernel would have done without the library's handler.
///
/// # Safety
/// As a signal handler, with the arguments of one.
unsafe fn run_program_action(
    number: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    is_fault: bool,
) {
    let program = PROGRAM.load();
    if program.is_function() {
        if program.flags & SA_RESETHAND != 0 {
            // As the kernel, which leaves flags and mask.
            let reset = Copied { handler: SIG_DFL, ..program }.to_system();
            // SAFETY: a valid action, which replaces that of the program.
            unsafe { sigaction(&reset, ptr::null_mut()) };
        }
        // SAFETY: the program's handler takes these arguments, or only the first.
        let handler: extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { transmute(program.handler) };
        return handler(number, info, context);
    }
    if program.handler == SIG_IGN && !is_fault {
        return;
    }
    // The default action ends the process, with the registers of the access: once the kernel has
    // it, the access faults again. A signal that another process sent is sent again.
    let default = Copied { handler: SIG_DFL, flags: 0, mask: 0 };
    // SAFETY: a valid action; a valid description, of the calling thread's own signal.
    unsafe {
        weak::sigaction(SIGSEGV, &default.to_system(), ptr::null_mut());
        if !is_fault {
            let (process, thread) = (calls::getpid(), libc::syscall(libc::SYS_gettid));
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, number, info);
        }
    }
}

/// See [`Fault`]. The kernel has put the context on the stack that the handler runs on.
///
/// # Safety
/// `context` must be the kernel's.
unsafe fn stack_left_bytes(context: *const c_void) -> usize {
    // SAFETY: the caller's promise.
    let stack = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_stack };
    let left = (context as usize).wrapping_sub(stack.ss_sp as usize);
    if stack.ss_flags & libc::SS_DISABLE == 0 && left < stack.ss_size { left } else { usize::MAX }
}

/// # Safety
/// `context` must be the kernel's, of a fault at `address`.
#[cfg(target_arch = "x86_64")]
unsafe fn describe(address: usize, context: *const c_void) -> Fault {
    /// Bit of the page fault's error code: a write.
    const WRITE: i64 = 2;
    // SAFETY: the caller's promise.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    Fault {
        address,
        access: if registers[libc::REG_ERR as usize] & WRITE != 0 { Access::Write } else { Access::Read },
        registers: Registers {
            pc: registers[libc::REG_RIP as usize] as usize,
            sp: registers[libc::REG_RSP as usize] as usize,
            fp: registers[libc::REG_RBP as usize] as usize,
            link: 0,
        },
        // SAFETY: the caller's promise.
        stack_left_bytes: unsafe { stack_left_bytes(context) },
    }
}

/// # Safety
/// `context` must be the kernel's, of a fault at `address`.
#[cfg(target_arch = "aarch64")]
unsafe fn describe(address: usize, context: *const c_void) -> Fault {
    // SAFETY: the caller's promise.
    let machine = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    Fault {
        address,
        access: Access::Unknown,
        registers: Registers {
            pc: machine.pc as usize,
            sp: machine.sp as usize,
            fp: machine.regs[29] as usize,
            link: machine.regs[30] as usize,
        },
        // SAFETY: the caller's promise.
        stack_left_bytes: unsafe { stack_left_bytes(context) },
    }
}

/// # Safety
/// `context` must be the kernel's, of a fault at `address`.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn describe(address: usize, context: *const c_void) -> Fault {
    Fault {
        address,
        access: Access::Unknown,
        registers: Registers { pc: 0, sp: 0, fp: 0, link: 0 },
        // SAFETY: the caller's promise.
        stack_left_bytes: unsafe { stack_left_bytes(context) },
    }
}
