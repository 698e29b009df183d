//! Where reports go, in which form, and whether the process ends after one.

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
    /// A function, which gets each report whole. It runs on the faulty thread, which may hold any
    /// lock of the program. It must not allocate, free, or unwind.
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

struct Buffer(UnsafeCell<[u8; BUFFER_BYTES]>);

// SAFETY: the thread that owns `OWNER` alone uses it.
unsafe impl Sync for Buffer {}

#[unsafe(link_section = ".bss.uslab_tables")]
static BUFFER: Buffer = Buffer(UnsafeCell::new([0; BUFFER_BYTES]));
/// The thread that formats a report; 0 for none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Turns that a thread waits for another one's report. Then it takes the buffer over: the owner may
/// be a thread of the parent of a fork.
const MAX_TURNS: u32 = 10_000;

/// The text of a report as it grows.
pub struct Out<'a> {
    bytes: &'a mut [u8],
    used: usize,
}

impl Write for Out<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let n = text.len().min(self.bytes.len() - self.used);
        self.bytes[self.used..self.used + n].copy_from_slice(&text.as_bytes()[..n]);
        self.used += n;
        Ok(())
    }
}

/// Formats a report by `format`, and writes it to its destination.
pub fn write(format: impl FnOnce(&mut Out<'_>, Format) -> fmt::Result) {
    let this = os::thread::id();
    let mut turns = 0;
    // A report may interrupt one of the same thread, in a signal handler. It takes the buffer over.
    while let Err(owner) = OWNER.compare_exchange(0, this, Acquire, Relaxed) {
        if owner == this || turns == MAX_TURNS {
            OWNER.store(this, Relaxed);
            break;
        }
        os::thread::give_way();
        turns += 1;
    }
    // SAFETY: this thread owns the buffer. A thread that waited in vain shares it with the former
    // owner, and both may write garbage to their destinations.
    let mut out = Out { bytes: unsafe { &mut *BUFFER.0.get() }, used: 0 };
    let form = if FORMAT.load(Relaxed) == JSON { Format::Json } else { Format::Text };
    let _ = format(&mut out, form);
    if out.used == out.bytes.len() {
        out.bytes[out.used - 1] = b'\n';
    }
    let used = out.used;
    send(&out.bytes[..used]);
    OWNER.store(0, Release);
}

fn send(text: &[u8]) {
    let callback = CALLBACK.load(Acquire);
    if !callback.is_null() {
        // SAFETY: `set_sink` stored a function of this type.
        let callback = unsafe { core::mem::transmute::<*mut (), fn(&str)>(callback) };
        return callback(core::str::from_utf8(text).unwrap_or("a report that is not UTF-8\n"));
    }
    let used = PATH_USED.load(Acquire) as usize;
    if used > 0 {
        let mut path = [0; MAX_PATH_BYTES + 1];
        for (byte, place) in path[..used].iter_mut().zip(&PATH) {
            *byte = place.load(Relaxed);
        }
        if core::ffi::CStr::from_bytes_until_nul(&path).is_ok_and(|path| os::report::append(path, text)) {
            return;
        }
    }
    os::report::write(text);
}
