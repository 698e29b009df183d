//! glibc's malloc statistics (`mallinfo`, `malloc_info`) with uslab's figures, and glibc's second
//! names of the malloc family.
//!
//! ```text
//!   glibc                    here
//!   arena, heap              the one arena: slabs and free pages of all CPUs and nodes
//!   chunk that was mmapped   large object
//!   fast bins                objects in sheaves
//!   other bins               objects in slabs
//!   top                      free pages with memory behind them
//! ```
//!
//! As in glibc, the arena does not include large objects, and its size is the sum of used and free
//! bytes. Other threads change the counters meanwhile, so each answer uses one reading of them.
//!
//! Must never take or hold a lock of the library while a stream is locked or written.

use crate::c;
use crate::stream::Locked;
use core::ffi::{c_int, c_void};
use core::fmt::{self, Write};
use uslab::internal::entry::{ALL_CLASSES, class_bytes};
use uslab::stats::{self, Usage};

/// Free objects, and their bytes.
#[derive(Clone, Copy, Default)]
struct Free {
    objects: usize,
    bytes: usize,
}

impl Free {
    fn add(&mut self, objects: usize, object_bytes: usize) {
        self.objects += objects;
        self.bytes += objects * object_bytes;
    }
}

/// One reading of all counters, in glibc's terms.
struct Figures {
    usage: Usage,
    /// Free objects of each class.
    by_class: [usize; ALL_CLASSES],
    /// Objects in sheaves.
    fast: Free,
    /// Objects in slabs. All free pages count as one more object, glibc's top.
    rest: Free,
    /// Bytes that the program has in objects of slabs.
    in_use_bytes: usize,
}

impl Figures {
    /// Reads the counters. All caches of this library are `malloc`'s classes.
    fn read() -> Figures {
        let _errno = uslab::internal::errno::Preserved::new();
        let usage = stats::usage();
        let (mut fast, mut rest) = (Free::default(), Free::default());
        let (mut by_class, mut in_use_bytes) = ([0; ALL_CLASSES], 0);
        for cache in stats::caches() {
            let object_bytes = cache.object_bytes as usize;
            let (in_sheaves, in_slabs) = (cache.sheaf_free as usize, cache.slab_free as usize);
            fast.add(in_sheaves, object_bytes);
            rest.add(in_slabs, object_bytes);
            in_use_bytes += cache.active_objects as usize * object_bytes;
            if let Some(class) = class_bytes().position(|bytes| bytes >= object_bytes) {
                by_class[class] += in_slabs + in_sheaves;
            }
        }
        if usage.dirty_bytes > 0 {
            rest.add(1, usage.dirty_bytes);
        }
        // Other threads change counters between two reads; the used bytes cannot exceed the total.
        let in_use_bytes = in_use_bytes.min(usage.system_bytes);
        Figures { usage, by_class, fast, rest, in_use_bytes }
    }
}

/// `mallinfo2(3)`: `arena` is `uordblks + fordblks`, and `hblkhd` counts large objects.
///
/// Takes the registry's lock for a moment; allocates nothing.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> libc::mallinfo2 {
    let Figures { usage, fast, rest, in_use_bytes, .. } = Figures::read();
    libc::mallinfo2 {
        arena: usage.system_bytes,
        ordblks: rest.objects,
        smblks: fast.objects,
        hblks: usage.large_objects,
        hblkhd: usage.large_bytes,
        usmblks: 0,
        fsmblks: fast.bytes,
        uordblks: in_use_bytes,
        fordblks: usage.system_bytes - in_use_bytes,
        keepcost: usage.dirty_bytes,
    }
}

/// [`mallinfo2`] in fields of type `int`, which saturate.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> libc::mallinfo {
    let wide = mallinfo2();
    let int = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    libc::mallinfo {
        arena: int(wide.arena),
        ordblks: int(wide.ordblks),
        smblks: int(wide.smblks),
        hblks: int(wide.hblks),
        hblkhd: int(wide.hblkhd),
        usmblks: int(wide.usmblks),
        fsmblks: int(wide.fsmblks),
        uordblks: int(wide.uordblks),
        fordblks: int(wide.fordblks),
        keepcost: int(wide.keepcost),
    }
}

/// Returns 0, "refused", for every parameter, since none of glibc's mechanisms exists here.
/// Preserves `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    0
}

unsafe extern "C" {
    static stderr: *mut libc::FILE;
}

/// Prints totals to `stderr`, in glibc's lines.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    let figures = Figures::read();
    // SAFETY: the C library's variable. The stream is open unless the program closed it, which
    // makes any output to it undefined.
    let mut out = unsafe { Locked::new(stderr) };
    // The stream records failures; glibc ignores them here, too.
    let _ = write_stats(&mut out, &figures);
    out.finish();
}

fn write_stats(out: &mut Locked, figures: &Figures) -> fmt::Result {
    let Figures { usage, in_use_bytes, .. } = figures;
    let (system, large) = (usage.system_bytes, usage.large_bytes);
    writeln!(out, "Arena 0:")?;
    writeln!(out, "system bytes     = {system:10}")?;
    writeln!(out, "in use bytes     = {in_use_bytes:10}")?;
    writeln!(out, "Total (incl. mmap):")?;
    writeln!(out, "system bytes     = {:10}", system + large)?;
    writeln!(out, "in use bytes     = {:10}", in_use_bytes + large)?;
    writeln!(out, "max mmap regions = {:10}", usage.max_large_objects)?;
    writeln!(out, "max mmap bytes   = {:10}", usage.max_large_bytes)
}

/// Writes glibc's XML: one heap, and its free objects by size class.
///
/// Returns 0, EINVAL unless `options` is 0, or -1 with `errno` if the stream refuses the text.
///
/// # Safety
/// `stream` must be open for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if options != 0 {
        uslab::internal::errno::set(libc::EINVAL);
        return libc::EINVAL;
    }
    let figures = Figures::read();
    // SAFETY: the caller's promise.
    let mut out = unsafe { Locked::new(stream) };
    // `finish` returns whether the stream failed.
    let _ = write_info(&mut out, &figures);
    if out.finish() { 0 } else { -1 }
}

fn write_info(out: &mut Locked, figures: &Figures) -> fmt::Result {
    out.write_str("<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n")?;
    let mut from = 1;
    for (to, count) in class_bytes().zip(figures.by_class) {
        if count > 0 {
            let total = count * to;
            writeln!(out, "  <size from=\"{from}\" to=\"{to}\" total=\"{total}\" count=\"{count}\"/>")?;
        }
        from = to + 1;
    }
    out.write_str("</sizes>\n")?;
    write_free(out, figures)?;
    write_system(out, &figures.usage)?;
    out.write_str("</heap>\n")?;
    write_free(out, figures)?;
    let Usage { large_objects, large_bytes, .. } = figures.usage;
    writeln!(out, "<total type=\"mmap\" count=\"{large_objects}\" size=\"{large_bytes}\"/>")?;
    write_system(out, &figures.usage)?;
    out.write_str("</malloc>\n")
}

fn write_free(out: &mut Locked, figures: &Figures) -> fmt::Result {
    for (name, free) in [("fast", figures.fast), ("rest", figures.rest)] {
        let Free { objects, bytes } = free;
        writeln!(out, "<total type=\"{name}\" count=\"{objects}\" size=\"{bytes}\"/>")?;
    }
    Ok(())
}

fn write_system(out: &mut Locked, usage: &Usage) -> fmt::Result {
    let Usage { system_bytes, max_system_bytes, committed_bytes, .. } = usage;
    writeln!(out, "<system type=\"current\" size=\"{system_bytes}\"/>")?;
    writeln!(out, "<system type=\"max\" size=\"{max_system_bytes}\"/>")?;
    writeln!(out, "<aspace type=\"total\" size=\"{committed_bytes}\"/>")?;
    writeln!(out, "<aspace type=\"mprotect\" size=\"{committed_bytes}\"/>")
}

/// Defines glibc's second names of functions that this library replaces. Programs that wrap
/// `malloc` call these names; an object must not come from one allocator and be freed by the other.
macro_rules! second_names {
    ($($(#[$safety:meta])* $name:ident => $first:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)+) => {$(
        #[doc = concat!("Same as `", stringify!($first), "`.")]
        ///
        /// # Safety
        #[doc = concat!("As `", stringify!($first), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? {
            #[allow(unused_unsafe)]
            // SAFETY: the caller's promise.
            unsafe { c::$first($($argument),*) }
        }
    )+};
}

second_names! {
    __libc_malloc => malloc(size: usize) -> *mut c_void;
    __libc_calloc => calloc(count: usize, size: usize) -> *mut c_void;
    __libc_realloc => realloc(pointer: *mut c_void, size: usize) -> *mut c_void;
    __libc_free => free(pointer: *mut c_void);
    __libc_memalign => memalign(align: usize, size: usize) -> *mut c_void;
    __libc_valloc => valloc(size: usize) -> *mut c_void;
    __libc_pvalloc => pvalloc(size: usize) -> *mut c_void;
}

/// Same as [`mallopt`].
#[unsafe(no_mangle)]
pub extern "C" fn __libc_mallopt(parameter: c_int, value: c_int) -> c_int {
    mallopt(parameter, value)
}

/// Same as [`mallinfo`].
#[unsafe(no_mangle)]
pub extern "C" fn __libc_mallinfo() -> libc::mallinfo {
    mallinfo()
}
