//! Keeps the object that this code was linked into mapped for the life of the process.
//!
//! A sequence leaves the address of its descriptor in the thread's rseq area, and the kernel reads
//! it when the thread is next preempted: after `dlclose` it would read unmapped memory, and end the
//! process. The shared libraries of this project are linked with `-z nodelete` and stay anyway; a
//! plug-in that contains the archive, and a `cdylib` of another crate, are not.
//!
//! ```text
//!   program ──dlopen──▶ loader: maps, relocates ──.init_array──▶ pin ──dlmopen(itself, NODELETE)
//! ```
//!
//! So the object pins itself while it is being loaded. Then the loader's lock, which is recursive,
//! is the calling thread's already: at the first allocation the thread might wait for another one
//! that holds that lock and waits for what the allocating thread holds.

use super::weak;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr;

/// Runs `pin` when the object is loaded. Public so that the first use can name it: an archive's
/// member that nothing names is not linked.
#[used]
#[unsafe(link_section = ".init_array")]
pub static AT_LOAD: extern "C" fn() = pin;

/// Namespaces of the loader: that of the object which calls, as `dlopen` takes it, and the
/// program's.
const CALLERS: c_long = -2;
const BASE: c_long = 0;

/// In `DT_FLAGS_1` of an object that is never unloaded.
const NODELETE: u64 = 8;
const DT_NULL: u64 = 0;
const DT_FLAGS_1: u64 = 0x6fff_fffb;

/// Pins this object, if it can be unloaded at all: if it is not the program itself, is not marked
/// to stay, and there is a loader. musl never unloads.
extern "C" fn pin() {
    let mut name: *const c_char = ptr::null();
    // SAFETY: `find_own` is called with what it expects, and only until this returns.
    unsafe { libc::dl_iterate_phdr(Some(find_own), (&raw mut name).cast()) };
    // SAFETY: the loader's name of an object that stays loaded while its code runs; NUL-terminated.
    // The program's own is empty.
    if !name.is_null() && unsafe { *name } != 0 {
        let _errno = super::errno::Preserved::new();
        // SAFETY: the loader calls this function while it loads the object.
        let Some(dlmopen) = (unsafe { weak::dlmopen() }) else { return };
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: as above. The object is loaded, so that nothing is mapped or run; the handle is
        // not needed, and a refusal leaves things as they are.
        let _ = [CALLERS, BASE].into_iter().any(|space| !unsafe { dlmopen(space, name, flags) }.is_null());
    }
}

/// Finds the name of the object that this function lies in, unless that stays anyway.
///
/// # Safety
/// As `dl_iterate_phdr` calls it, with a `*const c_char` as `data`.
unsafe extern "C" fn find_own(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader's description of one object, with its program headers.
    let (info, headers) = unsafe {
        let info = &*info;
        (info, core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    let here = (find_own as *const ()).addr().wrapping_sub(info.dlpi_addr as usize);
    let is_here = |header: &libc::Elf64_Phdr| {
        let start = header.p_vaddr as usize;
        header.p_type == libc::PT_LOAD && (start..start + header.p_memsz as usize).contains(&here)
    };
    if !headers.iter().any(is_here) {
        return 0;
    }
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
    // SAFETY: the loader mapped the object's dynamic section where its header says.
    let stays = dynamic.is_some_and(|header| unsafe {
        is_marked((info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize) as *const [u64; 2])
    });
    if !stays {
        // SAFETY: `pin`'s variable.
        unsafe { *data.cast::<*const c_char>() = info.dlpi_name };
    }
    1
}

/// Whether a dynamic section says that its object is never unloaded.
///
/// # Safety
/// `entry` must point to pairs of tag and value that end with `DT_NULL`.
unsafe fn is_marked(mut entry: *const [u64; 2]) -> bool {
    loop {
        // SAFETY: the caller's promise; we stop at the end.
        let [tag, value] = unsafe { *entry };
        match tag {
            DT_NULL => return false,
            DT_FLAGS_1 => return value & NODELETE != 0,
            // SAFETY: as above.
            _ => entry = unsafe { entry.add(1) },
        }
    }
}
