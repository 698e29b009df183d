//! Pins the shared object that contains this code: it stays mapped for the life of the process.
//!
//! A sequence leaves the address of its descriptor in the thread's rseq area, and the kernel reads
//! it when the thread is next preempted. After `dlclose` the kernel would find unmapped memory
//! there, and end the process. The shared libraries of this project are linked with `-z nodelete`
//! and stay anyway. A plug-in that contains the archive, or another crate's `cdylib`, is not.
//!
//! ```text
//!   program ──dlopen──▶ loader: maps, relocates ──.init_array──▶ pin ──dlmopen(itself, NODELETE)
//! ```
//!
//! The object pins itself while it is being loaded, when the calling thread already holds the
//! loader's lock, which is recursive. Pinning at the first allocation could deadlock: another
//! thread may hold the loader's lock and wait for a lock of the allocating thread.

use super::weak;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr;

/// The loader's namespaces: the caller's, which `dlopen` would use, and the program's.
const CALLERS: c_long = -2;
const BASE: c_long = 0;

/// The flag in `DT_FLAGS_1` of an object that is never unloaded.
const NODELETE: u64 = 8;
const DT_NULL: u64 = 0;
const DT_FLAGS_1: u64 = 0x6fff_fffb;

/// Pins this object if it can be unloaded: it is not the program itself, is not marked `NODELETE`,
/// and there is a loader that unloads. musl never unloads. Must be called by a constructor.
pub fn pin() {
    let mut name: *const c_char = ptr::null();
    // SAFETY: `find_own` is called with what it expects, and only until this returns.
    unsafe { libc::dl_iterate_phdr(Some(find_own), (&raw mut name).cast()) };
    // SAFETY: the loader's name of an object that stays loaded while its code runs; NUL-terminated.
    // The program's own name is empty.
    if !name.is_null() && unsafe { *name } != 0 {
        let _errno = super::errno::Preserved::new();
        // SAFETY: the loader calls this function while it loads the object.
        let Some(dlmopen) = (unsafe { weak::dlmopen() }) else { return };
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: as above. The object is loaded already, so the call maps and runs nothing. The
        // handle is not needed, and a refusal changes nothing.
        let _ = [CALLERS, BASE].into_iter().any(|space| !unsafe { dlmopen(space, name, flags) }.is_null());
    }
}

/// Stores the name of the object that contains this function at `data`, unless that object is
/// marked `NODELETE`.
///
/// # Safety
/// The caller must be `dl_iterate_phdr`, with a pointer to a `*const c_char` as `data`.
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

/// Whether a dynamic section marks its object as never unloaded.
///
/// # Safety
/// `entry` must point to pairs of tag and value that end with `DT_NULL`.
unsafe fn is_marked(mut entry: *const [u64; 2]) -> bool {
    loop {
        // SAFETY: the caller's promise; the loop ends at `DT_NULL`.
        let [tag, value] = unsafe { *entry };
        match tag {
            DT_NULL => return false,
            DT_FLAGS_1 => return value & NODELETE != 0,
            // SAFETY: as above.
            _ => entry = unsafe { entry.add(1) },
        }
    }
}
