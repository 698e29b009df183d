//! Runs a function while no other thread of the process runs.
//!
//! ```text
//!   one thread ─────────────────────▶ the function, at once
//!   more ──▶ clone(CLONE_VM) ──▶ the child stops each thread by ptrace, reads its registers,
//!     │                          calls the function, lets the threads go, and ends
//!     └─ refused ──▶ clone() ──▶ the child calls the function on its copy of the memory
//! ```
//!
//! This is LeakSanitizer's scheme, with a copy of the memory for containers and debuggers that
//! leave no room for ptrace. The copy is of one moment, but shows no registers of other threads.
//! The function must leave its results in memory that is shared with the child.
//!
//! The child runs on the thread control block of the caller, which waits. So it may use neither
//! sequences nor locks, and the threads that it stopped may hold any lock.

use super::{calls, errno, signal};
use core::ffi::{CStr, c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Words of registers that are kept of a thread.
const WORDS: usize = 508;

/// A thread that was stopped.
#[repr(C)]
pub struct Thread {
    id: u32,
    /// The signal that it was about to get; 0 for none.
    signal: u32,
    /// Its stack pointer.
    pub stack_pointer: usize,
    /// Its thread pointer; 0 if that is not known.
    pub thread_pointer: usize,
    used: usize,
    registers: [usize; WORDS],
}

const _: () = assert!(size_of::<Thread>() == 4096);

impl Thread {
    /// All of its registers, those of vectors included.
    pub fn registers(&self) -> &[usize] {
        &self.registers[..self.used.min(WORDS)]
    }
}

/// The function, and what it needs.
#[derive(Clone, Copy)]
pub struct Work {
    /// The function; called with the threads that were stopped, and whether these and the caller
    /// are all threads.
    pub body: fn(threads: &[Thread], are_all: bool, argument: usize),
    /// Its argument.
    pub argument: usize,
}

/// Memory for a run: shared with children, zeroed, and the caller's alone.
#[derive(Clone, Copy)]
pub struct Room {
    /// The stack of the child.
    pub stack: *mut u8,
    /// Its length.
    pub stack_bytes: usize,
    /// A place for each thread.
    pub threads: *mut Thread,
    /// The number of these places.
    pub max_threads: usize,
    /// The state of the child.
    pub state: *const AtomicU32,
}

/// The way in which a function ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// There was no other thread.
    Alone,
    /// The other threads were stopped.
    Stopped,
    /// On a copy of the memory, without the registers of other threads.
    Copied,
    /// Not at all, or not to its end.
    Failed,
}

/// The number of threads of the process; 0 if it is not known.
pub fn threads() -> usize {
    super::thread::count().unwrap_or(0)
}

/// Whether `/proc` numbers processes as this process does. A container may have the host's, where
/// the number of this process is that of another one.
fn has_own_numbers() -> bool {
    let mut text = [0; 16];
    let bytes = calls::readlink(c"/proc/self", &mut text).try_into().unwrap_or(0);
    let number = core::str::from_utf8(&text[..bytes]).ok().and_then(|text| text.parse().ok());
    number == Some(super::file::process_id())
}

/// States of the child.
const MAY_TRACE: u32 = 1;
const DONE: u32 = 2;

/// Calls the function of `work` while no other thread of the process runs. All signals are blocked
/// meanwhile.
///
/// # Safety
/// `room` must be as [`Room`] says. The function must use no lock, no sequence and no memory of the
/// C library, and write to memory that is shared with children only.
pub unsafe fn run(work: Work, room: &Room) -> Way {
    let mask = signal::block_all();
    let way = if threads() == 1 {
        (work.body)(&[], true, work.argument);
        Way::Alone
    // SAFETY: the caller's promise.
    } else if unsafe { run_in_child(work, room, libc::CLONE_VM) } {
        Way::Stopped
    // SAFETY: the caller's promise.
    } else if unsafe { run_in_child(work, room, 0) } {
        Way::Copied
    } else {
        Way::Failed
    };
    signal::restore(mask);
    way
}

/// What the child gets.
struct Job {
    work: Work,
    room: Room,
    process: u32,
    caller: u32,
    must_stop: bool,
}

/// Runs the function in a child; true if it ran to its end.
///
/// # Safety
/// As [`run`].
unsafe fn run_in_child(work: Work, room: &Room, sharing: c_int) -> bool {
    /// The kernel's flag against a debugger that follows children.
    const UNTRACED: c_int = 0x0080_0000;
    let job = Job {
        work,
        room: *room,
        process: super::file::process_id(),
        caller: super::thread::id(),
        must_stop: sharing != 0,
    };
    // SAFETY: the room has a state.
    let state = unsafe { &*room.state };
    state.store(0, Relaxed);
    let top = room.stack.wrapping_add(room.stack_bytes);
    let argument = (&raw const job).cast_mut().cast();
    // Without a signal at its end the child is invisible to the program's handlers and waits.
    // SAFETY: the stack is the child's alone; the job outlives the child, for which this thread
    // waits.
    let child = unsafe { libc::clone(child, top.cast(), sharing | UNTRACED, argument) };
    if child < 0 {
        return false;
    }
    // Yama allows a process to trace its ancestors if they name it.
    // SAFETY: a request without pointers; kernels without Yama refuse it.
    unsafe { calls::prctl(libc::PR_SET_PTRACER, child as c_ulong) };
    state.store(MAY_TRACE, Release);
    let mut status = 0;
    while calls::wait_for(child, &mut status, libc::__WALL) < 0 && errno::get() == libc::EINTR {}
    state.load(Acquire) == DONE
}

extern "C" fn child(job: *mut c_void) -> c_int {
    // SAFETY: the parent passed its job, and waits until this process ends.
    let job = unsafe { &*job.cast::<Job>() };
    // SAFETY: the room is this process's while it runs.
    let state = unsafe { &*job.room.state };
    // If the caller is killed, the child must not go on.
    // SAFETY: a request without pointers.
    unsafe { calls::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as c_ulong) };
    while state.load(Acquire) != MAY_TRACE {
        super::thread::give_way();
    }
    // SAFETY: the places are this process's while it runs, and zeroed memory is a valid thread.
    let places = unsafe { core::slice::from_raw_parts_mut(job.room.threads, job.room.max_threads) };
    let mut stopped = Threads { places, used: 0 };
    if !job.must_stop || stopped.stop_all(job.process, job.caller) {
        (job.work.body)(&stopped.places[..stopped.used], job.must_stop, job.work.argument);
        state.store(DONE, Release);
    }
    stopped.release();
    0
}

/// The threads that the child stopped so far.
struct Threads<'a> {
    places: &'a mut [Thread],
    used: usize,
}

/// The outcome of one attempt to stop a thread.
#[derive(PartialEq, Eq)]
enum Attempt {
    Stopped,
    /// The thread has ended.
    Gone,
    Refused,
}

/// Turns and milliseconds that the child waits for one thread.
const TURNS: u32 = 200;
const MAX_WAIT_MS: u32 = 2000;

impl Threads<'_> {
    /// Stops all threads of `process` but `caller`; false if the kernel refuses one, or `/proc`
    /// does not list them. A thread may start another one until it is stopped, so the list is read
    /// until it has no new thread.
    fn stop_all(&mut self, process: u32, caller: u32) -> bool {
        if !has_own_numbers() {
            return false;
        }
        let mut path = [0; PATH_BYTES];
        let path = path_of(&mut path, &[process]);
        loop {
            let (mut is_new, mut is_refused, mut is_listed) = (false, false, false);
            each_thread(path, &mut |id| {
                is_listed |= id == caller;
                let is_known = id == caller || self.places[..self.used].iter().any(|thread| thread.id == id);
                if !is_known && !is_refused {
                    match self.stop(process, id) {
                        Attempt::Stopped => is_new = true,
                        Attempt::Gone => {}
                        Attempt::Refused => is_refused = true,
                    }
                }
            });
            if is_refused || !is_listed || !is_new {
                return is_listed && !is_refused;
            }
        }
    }

    fn stop(&mut self, process: u32, id: u32) -> Attempt {
        const SEIZE: usize = 0x4206;
        const INTERRUPT: usize = 0x4207;
        let Some(place) = self.places.get_mut(self.used) else { return Attempt::Refused };
        if request(SEIZE, id, 0, 0) < 0 {
            let has_ended = errno::get() == libc::ESRCH || has_ended(process, id);
            return if has_ended { Attempt::Gone } else { Attempt::Refused };
        }
        request(INTERRUPT, id, 0, 0);
        let mut status = 0;
        if !wait_for(id, &mut status) {
            return Attempt::Refused;
        }
        if !libc::WIFSTOPPED(status) {
            return Attempt::Gone;
        }
        place.id = id;
        // A stop by request has an event number; without one, a signal is about to be delivered.
        place.signal = if status >> 16 == 0 { libc::WSTOPSIG(status) as u32 } else { 0 };
        self.used += 1;
        if place.read_registers() { Attempt::Stopped } else { Attempt::Refused }
    }

    /// Lets all threads go, with the signals that they were about to get.
    fn release(&mut self) {
        const DETACH: usize = 17;
        for thread in &self.places[..self.used] {
            request(DETACH, thread.id, 0, thread.signal as usize);
        }
    }
}

/// Waits until a traced thread has stopped or ended; false if it does neither for long.
fn wait_for(id: u32, status: &mut c_int) -> bool {
    for turn in 0..TURNS + MAX_WAIT_MS {
        match calls::wait_for(id as i32, status, libc::__WALL | libc::WNOHANG) {
            0 if turn < TURNS => super::thread::give_way(),
            0 => super::sleep::pause(1),
            found if found > 0 => return true,
            _ => {
                // The thread ended before it could be waited for.
                *status = 0;
                return true;
            }
        }
    }
    false
}

/// Whether a listed thread has ended: the first thread of a process stays listed.
fn has_ended(process: u32, id: u32) -> bool {
    let mut path = [0; PATH_BYTES];
    let mut line = [0; 512];
    let path = path_of(&mut path, &[process, id]);
    let n = super::file::Reader::open(path).map_or(0, |mut file| file.read(&mut line));
    let name_end = line[..n].iter().rposition(|&byte| byte == b')');
    n == 0 || name_end.is_some_and(|at| matches!(line.get(at + 2), Some(b'Z' | b'X')))
}

impl Thread {
    /// Reads all registers of a stopped thread; false if the kernel refuses those of integers.
    fn read_registers(&mut self) -> bool {
        const GENERAL: usize = 1;
        #[cfg(target_arch = "x86_64")]
        const VECTORS: usize = 0x202;
        #[cfg(not(target_arch = "x86_64"))]
        const VECTORS: usize = 2;
        self.used = 0;
        let general = self.read_set(GENERAL);
        self.used = general;
        let vectors = self.read_set(VECTORS);
        self.used += vectors;
        #[cfg(target_arch = "x86_64")]
        const PLACES: (usize, usize) = (19, 21);
        #[cfg(not(target_arch = "x86_64"))]
        const PLACES: (usize, usize) = (31, WORDS);
        self.stack_pointer = self.registers[PLACES.0];
        self.thread_pointer = if PLACES.1 < general { self.registers[PLACES.1] } else { 0 };
        general > PLACES.0
    }

    /// Appends a set of registers; returns how many words there were.
    fn read_set(&mut self, set: usize) -> usize {
        const GET_SET: usize = 0x4204;
        let place = &mut self.registers[self.used..];
        let mut vector = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: size_of_val(place) };
        let done = request(GET_SET, self.id, set, (&raw mut vector) as usize) == 0;
        if done { vector.iov_len / size_of::<usize>() } else { 0 }
    }
}

/// `ptrace(2)`, of a request whose result the kernel returns as it is.
fn request(request: usize, id: u32, address: usize, data: usize) -> i64 {
    // SAFETY: the requests of this file write to nothing but the vector that one of them names.
    unsafe { libc::syscall(libc::SYS_ptrace, request, id as usize, address, data) }
}

/// Bytes of `/proc/N/task/N/stat`.
const PATH_BYTES: usize = 48;

/// `/proc/A/task`, or `/proc/A/task/B/stat`.
fn path_of<'a>(path: &'a mut [u8; PATH_BYTES], ids: &[u32]) -> &'a CStr {
    let mut used = 0;
    let mut put = |text: &[u8]| {
        path[used..used + text.len()].copy_from_slice(text);
        used += text.len();
    };
    put(b"/proc/");
    for (index, &id) in ids.iter().enumerate() {
        let (mut digits, mut at, mut rest) = ([0; 10], 10, id);
        while at == 10 || rest > 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        put(&digits[at..]);
        put(if index == 0 { b"/task" } else { b"/stat" });
        if index == 0 && ids.len() > 1 {
            put(b"/");
        }
    }
    put(b"\0");
    CStr::from_bytes_until_nul(path).unwrap_or(c"/")
}

/// Calls `visit` with each number that is a name in the directory.
fn each_thread(directory: &CStr, visit: &mut dyn FnMut(u32)) {
    /// Offsets in the kernel's `struct linux_dirent64`.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let fd = calls::open(directory, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0);
    if fd < 0 {
        return;
    }
    #[repr(align(8))]
    struct Buffer([u8; 2048]);
    let mut buffer = Buffer([0; 2048]);
    loop {
        let (start, bytes) = (buffer.0.as_mut_ptr(), buffer.0.len());
        // SAFETY: pointer and length describe the buffer.
        let n = unsafe { libc::syscall(libc::SYS_getdents64, fd, start, bytes) };
        let mut at = 0;
        while n > 0 && at + NAME < n as usize {
            let entry = &buffer.0[at..n as usize];
            let name = entry[NAME..].split(|&byte| byte == 0).next().unwrap_or(&[]);
            if let Some(id) = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) {
                visit(id);
            }
            at += usize::from(u16::from_ne_bytes([entry[LENGTH], entry[LENGTH + 1]])).max(1);
        }
        if n <= 0 {
            break;
        }
    }
    // SAFETY: the descriptor is ours and is closed once.
    unsafe { calls::close(fd) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::fork::holds_in_child;
    use crate::os::{file, thread};
    use std::println;

    fn stops_all() -> bool {
        Threads { places: &mut [], used: 0 }.stop_all(file::process_id(), thread::id())
    }

    #[test]
    fn a_list_of_another_process_is_refused() {
        assert!(holds_in_child(|| threads() == 1 && stops_all()));
        let is_refused = || {
            // SAFETY: the call moves the later children of this process to a namespace, where the
            // number of the first is 1.
            let is_apart = unsafe { libc::unshare(libc::CLONE_NEWPID) } == 0;
            !is_apart || holds_in_child(|| file::process_id() == 1 && threads() == 1 && !stops_all())
        };
        assert!(holds_in_child(is_refused));
        // SAFETY: no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            println!("only a privileged process tests this in a namespace of its own");
        }
    }
}
