//! Leaks: the objects in use that no pointer leads to.
//!
//! ```text
//!   other threads stop ──▶ roots ──▶ objects that they lead to ──▶ objects that these lead to …
//!   the rest has leaked ──▶ heads: no other leaked object leads to them, but in a cycle
//!                       ──▶ groups by the stack of the allocation ──▶ suppressions ──▶ reports
//! ```
//!
//! It is the search of LeakSanitizer, at any time and without a rebuild: each word of the roots
//! that is the address of a tracked object counts as a pointer to it, and each word of an object
//! that is reached. A pointer to the inside of an object, or to its end, counts.
//!
//! Tracked are the objects of debugged caches, those of `malloc` beyond 32 KiB under debugging, and
//! guarded objects. With `USLAB_LEAKS` these are all but the objects of private heaps, whose memory
//! is searched as a root.
//!
//! The search allocates nothing from the heap. It has a mapping of its own: two bits for each 16
//! bytes of heap, a word for each page, and a word for each object.

mod heap;
mod mark;
mod roots;
mod search;
mod stacks;

pub use search::is_alone_with_background;

use crate::cache::{registry, start};
use crate::os;
use crate::os::config::AtExit;
use crate::os::process::Relation;
use crate::os::stop::Way;
use crate::os::unwind;
use crate::report::leak::{self, Totals};
use core::fmt;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The exit status of a process that leaks: that of LeakSanitizer.
const EXIT_STATUS: i32 = 23;

/// The totals of a search.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leaks {
    /// Objects that no pointer leads to. Of a cycle of leaked objects one counts.
    pub objects: usize,
    /// The bytes that the program asked for, for these.
    pub bytes: usize,
    /// Objects that only leaked objects lead to.
    pub indirect_objects: usize,
    /// Their bytes.
    pub indirect_bytes: usize,
    /// Leaked objects of either kind that are not reported.
    pub suppressed_objects: usize,
    /// Their bytes.
    pub suppressed_bytes: usize,
    /// Stacks that objects leaked from: the number of reports.
    pub places: usize,
    /// Whether other threads ran whose registers were not searched. An object that only they lead
    /// to then counts as leaked.
    pub misses_registers: bool,
}

/// Why there was no search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SearchError {
    /// No cache of the process is debugged.
    NotTracked,
    /// There is no memory for the search.
    OutOfMemory,
    /// The kernel does not show the process its own memory (`/proc/self/maps`, `/proc/self/mem`),
    /// or the program closed thousands of ranges of the heap for loads.
    NoProc,
    /// The kernel starts no process for the search, or ended it.
    Failed,
    /// The calling thread searches already: the call came from a callback for its reports.
    Searching,
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SearchError::NotTracked => "no cache is debugged",
            SearchError::OutOfMemory => "there is no memory for it",
            SearchError::NoProc => "/proc/self/maps or /proc/self/mem cannot be read",
            SearchError::Searching => "the thread searches already",
            SearchError::Failed => "the kernel refused a process for it, or ended it",
        })
    }
}

impl core::error::Error for SearchError {}

/// Searches for leaks, and reports them to the destination of reports
/// ([`set_sink`](super::set_sink)): one report for each stack that allocated leaked objects. The
/// totals are returned, and not reported.
///
/// The process must run with `USLAB_LEAKS=1`, or with debugged caches, of which letter U records
/// the stacks.
///
/// An object counts as in use if a root leads to it, at any number of steps. Roots are all memory
/// that the process wrote to, the heap aside, and the registers of all threads. A pointer that is
/// hidden is missed: compressed, exclusive-ored, at an address that is no multiple of 8, in a file
/// or with the kernel alone (`epoll_event`).
///
/// # Errors
/// See [`SearchError`].
///
/// # Threads, forks and signals
/// Any thread may call it. Other threads stop meanwhile: by `ptrace`, which a child process calls.
/// Where the kernel refuses that, the child searches its copy of the memory, without the registers
/// of other threads. Their system calls may end early with `EINTR`, as after SIGSTOP. It takes
/// locks for an instant before they stop, waits for a search of another thread, and fails within
/// one of its own. Fork children may call it; signal handlers may not.
///
/// # Cost
/// Some three seconds for 1 GiB of objects of 64 bytes, one for objects of 4 KiB. Memory: two bits
/// for each 16 bytes of heap, a word for each page, and two for each object.
pub fn find_leaks() -> Result<Leaks, SearchError> {
    find().map(|(totals, misses_registers)| Leaks {
        objects: totals.direct.objects,
        bytes: totals.direct.bytes,
        indirect_objects: totals.indirect.objects,
        indirect_bytes: totals.indirect.bytes,
        suppressed_objects: totals.suppressed.objects,
        suppressed_bytes: totals.suppressed.bytes,
        places: totals.places,
        misses_registers,
    })
}

/// [`find_leaks`], with the totals as reports have them. The search begins at this function's
/// frame: the caller's registers stand there, and what is below is the search's own.
#[inline(never)]
fn find() -> Result<(Totals, bool), SearchError> {
    let registers = unwind::preserved();
    let found = find_from(black_box(&raw const registers) as usize);
    black_box(&registers);
    found
}

/// The process whose thread searches; 0 for none. A fork child takes the word over.
static SEARCHING: AtomicU32 = AtomicU32::new(0);
/// That thread.
static SEARCHER: AtomicU32 = AtomicU32::new(0);

/// The turn to search. It ends when a report's callback panics, too.
struct Turn;

impl Turn {
    /// Waits for the search of another thread. Fails within a search of this thread.
    fn take() -> Result<Turn, SearchError> {
        let (process, thread) = (os::file::process_id(), os::thread::id());
        loop {
            match SEARCHING.compare_exchange(0, process, Acquire, Relaxed) {
                Err(owner) if owner == process => {
                    if SEARCHER.load(Relaxed) == thread {
                        return Err(SearchError::Searching);
                    }
                    os::sleep::pause(1);
                }
                Err(owner) => drop(SEARCHING.compare_exchange(owner, 0, Relaxed, Relaxed)),
                Ok(_) => break,
            }
        }
        SEARCHER.store(thread, Relaxed);
        Ok(Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        SEARCHER.store(0, Relaxed);
        SEARCHING.store(0, Release);
    }
}

/// [`find_leaks`] for a caller whose stack begins at `stack`. Also returns whether the registers of
/// other threads were not searched.
fn find_from(stack: usize) -> Result<(Totals, bool), SearchError> {
    start::know();
    if !crate::report::is_detailed() {
        return Err(SearchError::NotTracked);
    }
    if !start::is_ready() {
        // The process never allocated.
        return Ok((Totals::default(), false));
    }
    let _errno = os::errno::Preserved::new();
    let _turn = Turn::take()?;
    // The reports name caches, which other threads may destroy once they run again.
    let _names = registry::keep_memory();
    let found = search::report_leaks(stack);
    found.map(|(totals, way)| (totals, way == Way::Copied && search::has_threads_of_the_program()))
}

/// Searches as `USLAB_LEAKS` tells. The shared libraries call it at exit, as the last of their
/// steps: the process may end with another status.
pub fn at_exit() {
    if let Some(status) = search_at_exit() {
        os::process::end_with(status);
    }
}

fn search_at_exit() -> Option<i32> {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    let effect = start::leaks_at_exit()?;
    // A child that shares the memory of its parent must not search it.
    if os::process::relation() == Relation::Sharing || IS_DONE.swap(true, Relaxed) {
        return None;
    }
    match find() {
        Ok((totals, misses_registers)) => {
            let is_any = totals.places > 0;
            if is_any || totals.suppressed.objects > 0 {
                leak::publish_totals(&totals);
            }
            if misses_registers {
                os::report::print(format_args!(
                    "leaks: the kernel refuses ptrace, so registers of other threads were not searched"
                ));
            }
            (is_any && effect == AtExit::Fail).then_some(EXIT_STATUS)
        }
        Err(error) => {
            os::report::print(format_args!("leaks were not searched for: {error}"));
            None
        }
    }
}
