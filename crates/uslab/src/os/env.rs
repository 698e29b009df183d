//! Environment variables, readable at any moment of a process's life.
//!
//! The first allocation of a preloaded program comes from the dynamic loader, before the C library has set `environ`. Then
//! the variables are read from `/proc/self/environ`, which shows what the process was started with.

use super::file;

/// Longest value that is looked at.
pub const VALUE_BYTES: usize = 256;

/// A value copied out of the environment.
pub struct Value {
    bytes: [u8; VALUE_BYTES],
    used: usize,
}

impl Value {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Its text as an unsigned number.
    pub fn as_number(&self) -> Option<u64> {
        core::str::from_utf8(self.as_bytes()).ok()?.parse().ok()
    }
}

unsafe extern "C" {
    static environ: *const *const u8;
}

/// Calls `visit` with the value of each `NAME=value` whose NAME is asked for, in order of `names`' indices as they appear.
///
/// `found[i]` receives the value of `names[i]`. Values longer than [`VALUE_BYTES`] are left out.
pub fn lookup<const N: usize>(names: [&str; N]) -> [Option<Value>; N] {
    let mut found = [const { None }; N];
    // SAFETY: `environ` is the C library's own variable; reading the pointer is what every getenv does.
    let list = unsafe { environ };
    if list.is_null() {
        lookup_proc(&names, &mut found);
    } else {
        let mut index = 0;
        loop {
            // SAFETY: `environ` is an array of pointers that ends with a null one; we stop there.
            let entry = unsafe { *list.add(index) };
            if entry.is_null() {
                break;
            }
            // SAFETY: each entry is a NUL-terminated string that the C library keeps alive.
            let text = unsafe { core::ffi::CStr::from_ptr(entry.cast()) }.to_bytes();
            take(text, &names, &mut found);
            index += 1;
        }
    }
    found
}

/// Whether a variable has a value, however long.
pub fn is_set(name: &str) -> bool {
    // SAFETY: as in `lookup`.
    let mut list = unsafe { environ };
    if list.is_null() {
        return false;
    }
    loop {
        // SAFETY: `environ` is an array of pointers that ends with a null one; we stop there.
        let entry = unsafe { *list };
        if entry.is_null() {
            return false;
        }
        // SAFETY: each entry is a NUL-terminated string that the C library keeps alive.
        let text = unsafe { core::ffi::CStr::from_ptr(entry.cast()) }.to_bytes();
        if text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'=')) {
            return true;
        }
        // SAFETY: this entry is not the last.
        list = unsafe { list.add(1) };
    }
}

fn take<const N: usize>(entry: &[u8], names: &[&str; N], found: &mut [Option<Value>; N]) {
    for (name, place) in names.iter().zip(found.iter_mut()) {
        let n = name.len();
        if entry.len() > n && &entry[..n] == name.as_bytes() && entry[n] == b'=' {
            let value = &entry[n + 1..];
            if value.len() <= VALUE_BYTES {
                let mut copy = Value { bytes: [0; VALUE_BYTES], used: value.len() };
                copy.bytes[..value.len()].copy_from_slice(value);
                *place = Some(copy);
            }
        }
    }
}

/// Walks `/proc/self/environ` with one buffer; an entry longer than the buffer is skipped, none of ours is.
fn lookup_proc<const N: usize>(names: &[&str; N], found: &mut [Option<Value>; N]) {
    let Some(mut reader) = file::Reader::open(c"/proc/self/environ") else { return };
    let mut entry = [0u8; VALUE_BYTES + 64];
    let mut used = 0;
    let mut too_long = false;
    let mut block = [0u8; 512];
    loop {
        let n = reader.read(&mut block);
        for &byte in &block[..n] {
            if byte == 0 {
                if !too_long {
                    take(&entry[..used], names, found);
                }
                used = 0;
                too_long = false;
            } else if used < entry.len() {
                entry[used] = byte;
                used += 1;
            } else {
                too_long = true;
            }
        }
        if n == 0 {
            return;
        }
    }
}
