//! Where reports go, in which form, and whether the process ends after one.

use super::cut;
use crate::os;
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

/// The form of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Lines for people.
    Text,
    /// One object a line.
    Json,
}

/// The destination of reports.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Sink {
    /// Standard error; the default.
    Stderr,
    /// A function, which gets each report whole, up to 16 KiB. It runs on the faulty thread, which
    /// may hold any lock of the program. So it should not allocate or free: it might wait for a
    /// lock of its own thread, and cause another report, which is cut to 1 KiB. If it panics, the
    /// objects that the report is about may be lost.
    Callback(fn(&str)),
}

static ABORT: AtomicBool = AtomicBool::new(true);
static FORMAT: AtomicU8 = AtomicU8::new(TEXT);
const TEXT: u8 = 0;
const JSON: u8 = 1;
static CALLBACK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets whether a fault ends the process (the default).
pub fn set_abort(abort: bool) {
    ABORT.store(abort, Relaxed);
}

/// Whether a fault ends the process.
pub fn aborts() -> bool {
    ABORT.load(Relaxed)
}

static DETAILED: AtomicBool = AtomicBool::new(false);

/// Makes reports of misuse show all that is known, not the first line alone. For processes with a
/// debugged cache.
pub fn set_detailed() {
    DETAILED.store(true, Relaxed);
}

/// Whether [`set_detailed`] was called.
pub fn is_detailed() -> bool {
    DETAILED.load(Relaxed)
}

/// Sets the form of reports.
pub fn set_format(format: Format) {
    FORMAT.store(if format == Format::Json { JSON } else { TEXT }, Relaxed);
}

/// The form of reports.
pub fn form() -> Format {
    if FORMAT.load(Relaxed) == JSON { Format::Json } else { Format::Text }
}

/// Sets the destination of reports.
pub fn set_sink(sink: Sink) {
    let callback = match sink {
        Sink::Stderr => core::ptr::null_mut(),
        Sink::Callback(callback) => callback as *mut (),
    };
    PATH_USED.store(0, Release);
    CALLBACK.store(callback, Release);
}

const MAX_PATH_BYTES: usize = 256;
/// The path of the file, NUL-terminated; empty for standard error. Written at start-up alone.
static PATH: [AtomicU8; MAX_PATH_BYTES + 1] = [const { AtomicU8::new(0) }; MAX_PATH_BYTES + 1];
static PATH_USED: AtomicU32 = AtomicU32::new(0);

/// Sets form and destination from a value of `USLAB_DEBUG_REPORT`: `json:` and a path; each may be
/// missing. Called at start-up.
pub fn set_sink_from(value: &[u8]) {
    let path = match value.strip_prefix(b"json:") {
        Some(rest) => {
            set_format(Format::Json);
            rest
        }
        None => value,
    };
    if path.is_empty() || path == b"stderr" || path.len() > MAX_PATH_BYTES {
        return;
    }
    for (place, &byte) in PATH.iter().zip(path) {
        place.store(byte, Relaxed);
    }
    PATH_USED.store(path.len() as u32, Release);
}

/// Bytes of the longest report; a longer one is cut.
const BUFFER_BYTES: usize = 16 << 10;
/// The same for a report that finds the buffer taken, and gets a small buffer. No buffer is on the
/// stack: that may be the small stack of a signal handler.
const SMALL_BYTES: usize = 1 << 10;

struct Buffer(UnsafeCell<[u8; BUFFER_BYTES]>);

// SAFETY: the thread that owns `OWNER` alone uses it.
unsafe impl Sync for Buffer {}

#[unsafe(link_section = ".bss.uslab_tables")]
static BUFFER: Buffer = Buffer(UnsafeCell::new([0; BUFFER_BYTES]));
/// The thread that formats a report, or sends it; 0 for none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Turns that a thread waits for another one's report.
const MAX_TURNS: u32 = 10_000;

/// The buffer, which is this thread's until the value is dropped: also by a callback that panics.
struct Turn(u32);

impl Turn {
    /// Waits a little for other threads. `None` if the buffer stays taken, and within a report of
    /// this thread: a callback that frees, or a signal handler, may cause another one.
    fn take() -> Option<Turn> {
        let this = os::thread::id();
        for turns in 0..=MAX_TURNS {
            let owner = match OWNER.compare_exchange(0, this, Acquire, Relaxed) {
                Ok(_) => return Some(Turn(this)),
                Err(owner) => owner,
            };
            if owner == this {
                return None;
            }
            // It may be a thread of the parent of a fork, or have ended in a callback.
            let is_gone = turns == MAX_TURNS && !os::thread::exists(owner);
            if is_gone && OWNER.compare_exchange(owner, this, Acquire, Relaxed).is_ok() {
                return Some(Turn(this));
            }
            os::thread::give_way();
        }
        None
    }

    fn buffer(&mut self) -> &mut [u8] {
        // SAFETY: this thread owns the buffer, and this value is the only way to it.
        unsafe { &mut *BUFFER.0.get() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // In a child that was forked meanwhile, another thread may have taken it over.
        let _ = OWNER.compare_exchange(self.0, 0, Release, Relaxed);
    }
}

/// A buffer for a report that is made beside another one.
struct Small {
    /// As [`OWNER`].
    owner: AtomicU32,
    bytes: UnsafeCell<[u8; SMALL_BYTES]>,
}

// SAFETY: the thread that took a buffer alone uses it.
unsafe impl Sync for Small {}

#[unsafe(link_section = ".bss.uslab_tables")]
static SMALL: [Small; 4] =
    [const { Small { owner: AtomicU32::new(0), bytes: UnsafeCell::new([0; SMALL_BYTES]) } }; 4];

/// A small buffer, which is this thread's until the value is dropped.
struct Aside(&'static Small);

impl Aside {
    /// `None` if all are taken, by threads that there are.
    fn take() -> Option<Aside> {
        let this = os::thread::id();
        let is_taken = |small: &&Small, from: u32| {
            let is_free = from == 0 || !os::thread::exists(from);
            is_free && small.owner.compare_exchange(from, this, Acquire, Relaxed).is_ok()
        };
        let free = SMALL.iter().find(|small| is_taken(small, 0));
        free.or_else(|| SMALL.iter().find(|small| is_taken(small, small.owner.load(Relaxed)))).map(Aside)
    }

    fn buffer(&mut self) -> &mut [u8] {
        // SAFETY: this thread took the buffer, and this value is the only way to it.
        unsafe { &mut *self.0.bytes.get() }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.owner.store(0, Release);
    }
}

/// The text of a report as it grows.
pub struct Out<'a> {
    bytes: &'a mut [u8],
    used: usize,
    is_cut: bool,
}

impl<'a> Out<'a> {
    fn new(bytes: &'a mut [u8]) -> Out<'a> {
        Out { bytes, used: 0, is_cut: false }
    }

    /// The text in `form`, as far as there was room. A text that was cut ends with a newline, too,
    /// and an object that was cut is one.
    fn text(&mut self, form: Format) -> &str {
        match form {
            _ if !self.is_cut => {}
            Format::Json => self.used = cut::end(self.bytes, self.used),
            Format::Text => {
                self.bytes[self.used] = b'\n';
                self.used += 1;
            }
        }
        // SAFETY: `write_str` copied whole characters, and `cut::end` cuts at ASCII characters.
        unsafe { core::str::from_utf8_unchecked(&self.bytes[..self.used]) }
    }
}

impl Write for Out<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Room for the newline of a text that is cut.
        let room = self.bytes.len() - 1 - self.used;
        let most = if self.is_cut { 0 } else { room.min(text.len()) };
        let n = (0..=most).rfind(|&n| text.is_char_boundary(n)).unwrap_or(0);
        self.is_cut |= n < text.len();
        self.bytes[self.used..self.used + n].copy_from_slice(&text.as_bytes()[..n]);
        self.used += n;
        Ok(())
    }
}

/// Formats a report by `format`, and writes it to its destination.
pub fn write(format: impl FnOnce(&mut Out<'_>, Format) -> fmt::Result) {
    let form = form();
    if let Some(mut turn) = Turn::take() {
        return write_by(Out::new(turn.buffer()), form, format);
    }
    match Aside::take() {
        Some(mut aside) => write_by(Out::new(aside.buffer()), form, format),
        None => os::report::write(b"uslab: too many reports at once: one is lost\n"),
    }
}

#[inline(never)]
fn write_by(mut out: Out<'_>, form: Format, format: impl FnOnce(&mut Out<'_>, Format) -> fmt::Result) {
    let _ = format(&mut out, form);
    send(out.text(form));
}

fn send(text: &str) {
    let callback = CALLBACK.load(Acquire);
    if !callback.is_null() {
        // SAFETY: `set_sink` stored a function of this type.
        let callback = unsafe { core::mem::transmute::<*mut (), fn(&str)>(callback) };
        return callback(text);
    }
    let used = PATH_USED.load(Acquire) as usize;
    if used > 0 {
        let mut path = [0; MAX_PATH_BYTES + 1];
        for (byte, place) in path[..used].iter_mut().zip(&PATH) {
            *byte = place.load(Relaxed);
        }
        if core::ffi::CStr::from_bytes_until_nul(&path)
            .is_ok_and(|path| os::report::append(path, text.as_bytes()))
        {
            return;
        }
    }
    os::report::write(text.as_bytes());
}
