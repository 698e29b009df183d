//! The objects of the process: the program and its libraries, found by a code address.
//!
//! glibc (2.35) answers without a lock, by `_dl_find_object`. Other C libraries walk their list,
//! under a lock that threads hold only while the loader changes that list.

use super::loader;
use crate::os::weak;
use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// A program or library in memory.
#[derive(Clone, Copy)]
pub struct Object {
    /// Address of the first mapped byte.
    pub start: usize,
    /// End of the mapping.
    pub end: usize,
    /// The number to subtract from an address to get the one in the file.
    pub base: usize,
    /// `.eh_frame_hdr`.
    pub frame_header: Option<*const u8>,
    /// The path; empty for the program itself under glibc.
    pub name: &'static CStr,
    /// The dynamic section.
    dynamic: *const Dynamic,
}

impl Object {
    /// Whether this is the program itself, not a library. musl names the program as well, so its
    /// entry point decides.
    pub fn is_program(&self) -> bool {
        // SAFETY: the call reads the vector that the kernel handed over, and touches nothing else.
        let entry = unsafe { libc::getauxval(libc::AT_ENTRY) } as usize;
        self.name.is_empty() || (self.start..self.end).contains(&entry)
    }
}

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// A symbol of the dynamic symbol table.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    bytes: usize,
}

/// The object that contains `pc`.
pub fn find(pc: usize) -> Option<Object> {
    search(pc).flatten()
}

/// [`find`]; `None` where that cannot be known now.
pub fn search(pc: usize) -> Option<Option<Object>> {
    match weak::find_object(pc) {
        Some(found) => Some(found.and_then(described)),
        None => find_in_list(pc),
    }
}

/// The object as glibc describes it.
fn described(found: weak::Found) -> Option<Object> {
    // SAFETY: the loader keeps the description while the object is loaded, and the caller
    // runs code of it, or reports on it.
    let map = unsafe { found.map.as_ref() }?;
    let name = if map.name.is_null() {
        c""
    } else {
        // SAFETY: the loader's names are NUL-terminated.
        unsafe { CStr::from_ptr(map.name) }
    };
    Some(Object {
        start: found.start as usize,
        end: found.end as usize,
        base: map.base,
        frame_header: (!found.frame_header.is_null()).then_some(found.frame_header.cast()),
        name,
        dynamic: map.dynamic.cast(),
    })
}

/// [`search`] by `dl_iterate_phdr`.
fn find_in_list(pc: usize) -> Option<Option<Object>> {
    let mut search = Search { pc, found: None };
    // SAFETY: the loader calls `visit` with its description and `search`, before this returns.
    loader::inside(|| unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) })?;
    Some(search.found)
}

/// A number that changes when the loader has added or removed an object. `None` where the list
/// cannot be read now.
pub fn generation() -> Option<u64> {
    let mut generation = 0u64;
    // SAFETY: as in `find_in_list`.
    loader::inside(|| unsafe { libc::dl_iterate_phdr(Some(note_generation), (&raw mut generation).cast()) })?;
    Some(generation)
}

/// # Safety
/// As `dl_iterate_phdr` calls it, with a number as `data`.
unsafe extern "C" fn note_generation(
    info: *mut libc::dl_phdr_info,
    bytes: usize,
    data: *mut c_void,
) -> c_int {
    if bytes >= size_of::<libc::dl_phdr_info>() {
        // SAFETY: the loader's description has all fields, and `data` is the caller's number.
        unsafe { *data.cast::<u64>() = (*info).dlpi_adds << 32 ^ (*info).dlpi_subs };
    }
    // Every description has both numbers.
    1
}

struct Search {
    pc: usize,
    found: Option<Object>,
}

/// # Safety
/// As `dl_iterate_phdr` calls it, with a [`Search`] as `data`.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader's description of one object, and the caller's structure.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
    // SAFETY: as above.
    let (object, is_inside) = unsafe { describe(info, search.pc) };
    if is_inside {
        search.found = Some(object);
    }
    c_int::from(is_inside)
}

/// The object that the loader describes, and whether one of its segments contains `pc`.
///
/// # Safety
/// `info` must come from `dl_iterate_phdr`, or describe a mapped image as it does.
unsafe fn describe(info: &libc::dl_phdr_info, pc: usize) -> (Object, bool) {
    // SAFETY: the loader's description names the program headers.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    let mut object = Object {
        start: usize::MAX,
        end: 0,
        base,
        frame_header: None,
        // SAFETY: the loader's names are NUL-terminated, or null.
        name: if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } },
        dynamic: core::ptr::null(),
    };
    let mut is_inside = false;
    for header in headers {
        let at = base.wrapping_add(header.p_vaddr as usize);
        match header.p_type {
            libc::PT_LOAD => {
                let end = at + header.p_memsz as usize;
                is_inside |= (at..end).contains(&pc);
                (object.start, object.end) = (object.start.min(at), object.end.max(end));
            }
            libc::PT_GNU_EH_FRAME => object.frame_header = Some(at as *const u8),
            libc::PT_DYNAMIC => object.dynamic = at as *const Dynamic,
            _ => {}
        }
    }
    (object, is_inside)
}

/// Whether an object exports one of the functions `names`, besides this library and the C++
/// runtimes. Also true where an object's symbols are not known; `None` where the list of objects
/// cannot be read now. The walk over all symbols takes some time, so only checks that found a fault
/// call it.
pub fn defines_elsewhere(names: &[&[u8]]) -> Option<bool> {
    let mut search = NameSearch { names, is_found: false };
    // SAFETY: as in `find_in_list`.
    loader::inside(|| unsafe { libc::dl_iterate_phdr(Some(visit_names), (&raw mut search).cast()) })?;
    Some(search.is_found)
}

struct NameSearch<'a> {
    names: &'a [&'a [u8]],
    is_found: bool,
}

/// # Safety
/// As `dl_iterate_phdr` calls it, with a [`NameSearch`] as `data`.
unsafe extern "C" fn visit_names(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader's description of one object, and the caller's structure.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<NameSearch<'_>>()) };
    // SAFETY: as above.
    let (object, is_this) = unsafe { describe(info, defines_elsewhere as *const () as usize) };
    let path = object.name.to_bytes();
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let is_runtime = [&b"libstdc++."[..], b"libc++.", b"libc++abi.", b"linux-vdso."];
    if is_this || object.dynamic.is_null() || is_runtime.iter().any(|start| file.starts_with(start)) {
        return 0;
    }
    search.is_found = match tables(&object) {
        None => true,
        Some(tables) => tables.functions().any(|symbol| search.names.contains(&tables.name(symbol))),
    };
    c_int::from(search.is_found)
}

/// The addresses of the object that contains this library; none where that is the program itself.
pub fn own() -> Range<usize> {
    static START: AtomicUsize = AtomicUsize::new(UNKNOWN);
    static END: AtomicUsize = AtomicUsize::new(0);
    const UNKNOWN: usize = 1;
    if START.load(Acquire) == UNKNOWN {
        let here = own as *const () as usize;
        let (start, end) = match find(here) {
            Some(object) if !object.is_program() => (object.start, object.end),
            _ => (0, 0),
        };
        END.store(end, Relaxed);
        START.store(start, Release);
    }
    START.load(Acquire)..END.load(Relaxed)
}

/// The exported function of `object` that contains `pc`, and the distance from its start. The walk
/// over the symbols takes some time, so only reports call it.
pub fn function_at(object: &Object, pc: usize) -> Option<(&'static [u8], usize)> {
    let tables = tables(object)?;
    let file_pc = pc.wrapping_sub(object.base);
    let contains = |symbol: &&Symbol| symbol.value <= file_pc && file_pc < symbol.value + symbol.bytes.max(1);
    let symbol = tables.functions().filter(contains).last()?;
    Some((tables.name(symbol), file_pc - symbol.value))
}

/// The address of the function `name` in an ELF image that the kernel mapped at `image` (vdso(7)).
///
/// # Safety
/// Such an image must be mapped there.
pub unsafe fn function_of_image(image: usize, name: &CStr) -> Option<usize> {
    // SAFETY: the caller's promise: the header says where the program headers are. A description
    // may be zero but for these fields.
    let object = unsafe {
        let header = &*(image as *const libc::Elf64_Ehdr);
        let segments = (image + header.e_phoff as usize) as *const libc::Elf64_Phdr;
        let count = header.e_phnum;
        let all = core::slice::from_raw_parts(segments, count.into());
        let load = all.iter().find(|segment| segment.p_type == libc::PT_LOAD)?;
        let mut info: libc::dl_phdr_info = core::mem::zeroed();
        info.dlpi_addr = (image as u64).wrapping_add(load.p_offset).wrapping_sub(load.p_vaddr);
        (info.dlpi_name, info.dlpi_phdr, info.dlpi_phnum) = (c"".as_ptr(), segments, count);
        describe(&info, image).0
    };
    let tables = tables(&object)?;
    let symbol = tables.functions().find(|symbol| tables.name(symbol) == name.to_bytes())?;
    Some(object.base.wrapping_add(symbol.value))
}

/// The dynamic symbols of an object.
struct Tables {
    names: *const core::ffi::c_char,
    symbols: &'static [Symbol],
}

impl Tables {
    /// The functions that the object defines.
    fn functions(&self) -> impl Iterator<Item = &'static Symbol> {
        const FUNCTION: u8 = 2;
        self.symbols.iter().filter(|symbol| symbol.info & 0xf == FUNCTION && symbol.section != 0)
    }

    fn name(&self, symbol: &Symbol) -> &'static [u8] {
        // SAFETY: a symbol's name is a NUL-terminated text in the table of names.
        unsafe { CStr::from_ptr(self.names.add(symbol.name as usize)) }.to_bytes()
    }
}

/// The tables of an object; `None` where it has no hashes, which tell their length.
fn tables(object: &Object) -> Option<Tables> {
    const HASH: i64 = 4;
    const STRTAB: i64 = 5;
    const SYMTAB: i64 = 6;
    const GNU_HASH: i64 = 0x6fff_fef5;
    let (mut names, mut symbols, mut old_hash, mut hash) = (0, 0, 0, 0);
    let mut entry = object.dynamic;
    if entry.is_null() {
        return None;
    }
    // glibc relocates these words, musl does not.
    let absolute = |word: usize| if word < object.base { word + object.base } else { word };
    // SAFETY: a dynamic section ends with a zero tag; the tables that it names are mapped.
    unsafe {
        while (*entry).tag != 0 {
            match (*entry).tag {
                STRTAB => names = absolute((*entry).value),
                SYMTAB => symbols = absolute((*entry).value),
                HASH => old_hash = absolute((*entry).value),
                GNU_HASH => hash = absolute((*entry).value),
                _ => {}
            }
            entry = entry.add(1);
        }
        if names == 0 || symbols == 0 {
            return None;
        }
        let count = match (hash, old_hash) {
            (0, 0) => return None,
            // The second word is the number of chains, one for each symbol.
            (0, hash) => *(hash as *const u32).add(1) as usize,
            (hash, _) => symbol_count(hash as *const u32),
        };
        let symbols = core::slice::from_raw_parts(symbols as *const Symbol, count);
        Some(Tables { names: names as *const core::ffi::c_char, symbols })
    }
}

/// The number of symbols, by the table of hashes: the end of the last chain.
///
/// # Safety
/// `hash` must point to a `DT_GNU_HASH` table.
unsafe fn symbol_count(hash: *const u32) -> usize {
    // SAFETY: the caller's promise; the first four words state the sizes of the parts.
    unsafe {
        let [buckets, offset, bloom] = [*hash as usize, *hash.add(1) as usize, *hash.add(2) as usize];
        let first = hash.add(4 + 2 * bloom);
        let last = (0..buckets).map(|bucket| *first.add(bucket) as usize).max().unwrap_or(0);
        if last < offset {
            return offset;
        }
        let mut index = last;
        while *first.add(buckets + index - offset) & 1 == 0 {
            index += 1;
        }
        index + 1
    }
}
