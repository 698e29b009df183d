//! Environment variables, readable at any time in a process's life.
//!
//! The first allocation of a preloaded program comes from the dynamic loader, before the C library
//! has set `environ`. In that case this module reads `/proc/self/environ`, which shows the
//! environment at the start of the process.
//!
//! A program that gained privileges when it was started (set-user-ID, set-group-ID, file
//! capabilities) was given its environment by a user without them. In such a program only harmless
//! variables are read ([`super::config`]); every other one counts as unset.

pub use super::config::VALUE_BYTES;
use super::config::{CONF, Config, READ_AT_START, VARIABLES};
use super::file;
use super::settings::{Fault, default_text, each_setting, fault, index_of_setting};

/// A value copied out of the environment.
pub struct Value {
    bytes: [u8; VALUE_BYTES],
    used: usize,
}

impl Value {
    fn of(bytes: &[u8]) -> Option<Value> {
        let mut copy = Value { bytes: [0; VALUE_BYTES], used: bytes.len() };
        copy.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(copy)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Where a setting's value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It is set nowhere.
    Default,
    /// The program's string `uslab_conf`.
    Program,
    /// The variable `USLAB_CONF`.
    Conf,
    /// The setting's own variable.
    Environment,
}

impl Origin {
    /// The name of the string; empty for a variable of its own.
    pub fn string(self) -> &'static str {
        match self {
            Origin::Program => "uslab_conf",
            Origin::Conf => CONF,
            Origin::Default | Origin::Environment => "",
        }
    }
}

/// A setting that is ignored.
pub enum Ignored<'a> {
    /// The value of this variable has no meaning.
    Wrong(&'static str, Fault, Origin),
    /// The value of this variable is longer than [`VALUE_BYTES`].
    TooLong(&'a str),
    /// No setting has this name, in a string of this origin.
    Unknown(Origin, &'a [u8]),
}

/// The values of [`READ_AT_START`], and where each comes from.
pub struct Settings {
    values: [Option<Value>; READ_AT_START.len()],
    origins: [Origin; READ_AT_START.len()],
    is_privileged: bool,
}

impl Settings {
    /// No setting is set. [`Settings::read`] fills it in place: a copy would take 5.5 KiB of stack.
    pub const UNSET: Settings = Settings {
        values: [const { None }; READ_AT_START.len()],
        origins: [Origin::Default; READ_AT_START.len()],
        is_privileged: false,
    };

    /// Reads the current environment, and the program's own string. Calls `on_ignored` for each
    /// setting that cannot be taken. Neither allocates nor blocks. Not inlined, so that its copies
    /// are off the stack while the caller goes on.
    #[inline(never)]
    pub fn read(&mut self, on_ignored: &mut dyn FnMut(Ignored)) {
        self.is_privileged = is_privileged();
        self.take_string(super::weak::program_conf(), Origin::Program, on_ignored);
        each_found(&[CONF], &mut |_, found| match found {
            Some(text) => self.take_string(text, Origin::Conf, on_ignored),
            None => on_ignored(Ignored::TooLong(CONF)),
        });
        each_found(&READ_AT_START, &mut |index, found| match found {
            Some(text) => self.take(index, text, Origin::Environment, on_ignored),
            None => on_ignored(Ignored::TooLong(READ_AT_START[index])),
        });
    }

    fn take_string(&mut self, text: &[u8], origin: Origin, on_ignored: &mut dyn FnMut(Ignored)) {
        each_setting(text, &mut |name, value| match index_of_setting(name) {
            Some(index) => self.take(index, value, origin, on_ignored),
            None => on_ignored(Ignored::Unknown(origin, name)),
        });
    }

    /// Takes a value, which overrides an earlier one. One that is empty, too long or without a
    /// meaning does not. Nor does one of the environment override the program's in a process with
    /// gained privileges: it comes from a user without them.
    fn take(&mut self, index: usize, text: &[u8], origin: Origin, on_ignored: &mut dyn FnMut(Ignored)) {
        let name = READ_AT_START[index];
        let is_fixed =
            self.is_privileged && origin != Origin::Program && self.origins[index] == Origin::Program;
        if text.is_empty() || is_fixed {
            return;
        }
        match (fault(name, text), Value::of(text)) {
            (None, Some(value)) => (self.values[index], self.origins[index]) = (Some(value), origin),
            (Some(fault), _) => on_ignored(Ignored::Wrong(name, fault, origin)),
            (None, None) => on_ignored(Ignored::TooLong(name)),
        }
    }

    /// Their meaning.
    pub fn config(&self) -> Config<&Value> {
        Config::of(self.values.each_ref().map(Option::as_ref))
    }

    /// Each setting's name, value and origin.
    pub fn each(&self, mut visit: impl FnMut(&'static str, &[u8], Origin)) {
        for (index, name) in READ_AT_START.into_iter().enumerate() {
            match &self.values[index] {
                Some(value) => visit(name, value.as_bytes(), self.origins[index]),
                None => visit(name, default_text(name).as_bytes(), Origin::Default),
            }
        }
    }
}

/// Calls `visit` with the settings, read anew. Not inlined: they take 5.5 KiB of stack.
#[cold]
#[inline(never)]
pub fn with_settings(visit: impl FnOnce(&Settings)) {
    let mut settings = Settings::UNSET;
    // Start-up has reported what is ignored.
    settings.read(&mut |_| ());
    visit(&settings);
}

/// Whether the process gained privileges when it was started: the kernel's `AT_SECURE`.
pub fn is_privileged() -> bool {
    // SAFETY: no preconditions; the dynamic loader has the answer before it first allocates.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether a variable may be read; `privileged` is the answer of [`is_privileged`].
fn is_heeded(name: &str, privileged: bool) -> bool {
    !privileged || VARIABLES.iter().any(|variable| variable.is_harmless && variable.name == name)
}

unsafe extern "C" {
    static environ: *const *const u8;
}

/// A value as it is found.
type Found = Option<Result<Value, TooLong>>;

/// Calls `visit` with the index and value of each variable in `names` that is set, more than once
/// if the environment has it more than once. The value is `None` if it is longer than
/// [`VALUE_BYTES`]. In a process with gained privileges every variable but the harmless ones is
/// left out.
fn each_found(names: &[&str], visit: &mut dyn FnMut(usize, Option<&[u8]>)) {
    let privileged = is_privileged();
    let mut take = |entry: &[u8], whole: bool| {
        for (index, name) in names.iter().enumerate().filter(|(_, name)| is_heeded(name, privileged)) {
            if let Some(value) = value_of(entry, name) {
                visit(index, Some(value).filter(|value| whole && value.len() <= VALUE_BYTES));
            }
        }
    };
    // SAFETY: `environ` is the C library's own variable, which every getenv reads.
    let mut list = unsafe { environ };
    if list.is_null() {
        return each_at_start(&mut take);
    }
    loop {
        // SAFETY: `environ` is an array of pointers that ends with a null one; we stop there.
        let entry = unsafe { *list };
        if entry.is_null() {
            return;
        }
        // SAFETY: each entry is a NUL-terminated string that the C library keeps alive.
        take(unsafe { core::ffi::CStr::from_ptr(entry.cast()) }.to_bytes(), true);
        // SAFETY: the entry was not the last, which is null.
        list = unsafe { list.add(1) };
    }
}

fn drop_unheeded<T, const N: usize>(names: &[&str; N], found: &mut [Option<T>; N]) {
    let privileged = is_privileged();
    for (name, place) in names.iter().zip(found) {
        if !is_heeded(name, privileged) {
            *place = None;
        }
    }
}

/// A value that is longer than [`VALUE_BYTES`].
pub struct TooLong;

/// The values of `names` at the start of the process, even if the program changed them since. With
/// gained privileges only harmless ones, as in [`each_found`].
///
/// The kernel reads them, so this is safe on any thread at any time. [`each_found`] is safe only
/// where `getenv` is: another thread's `setenv` may move the list meanwhile.
pub fn lookup_at_start<const N: usize>(names: [&str; N]) -> [Found; N] {
    let mut found = [const { None }; N];
    each_at_start(&mut |entry, whole| take(entry, whole, &names, &mut found));
    drop_unheeded(&names, &mut found);
    found
}

/// Takes an entry of the environment, or the start of one that is not `whole`.
fn take<const N: usize>(entry: &[u8], whole: bool, names: &[&str; N], found: &mut [Found; N]) {
    for (name, place) in names.iter().zip(found.iter_mut()) {
        if let Some(value) = value_of(entry, name) {
            *place = Some(Value::of(value).filter(|_| whole).ok_or(TooLong));
        }
    }
}

/// The value, if `entry` is `name=value`.
fn value_of<'a>(entry: &'a [u8], name: &str) -> Option<&'a [u8]> {
    entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// Walks `/proc/self/environ` with one buffer. Calls `visit` with each entry and true, or, for an
/// entry longer than the buffer, with its start and false. The buffer holds any name of this
/// library with its longest value.
fn each_at_start(visit: &mut dyn FnMut(&[u8], bool)) {
    let Some(mut reader) = file::Reader::open(c"/proc/self/environ") else { return };
    let mut entry = [0u8; VALUE_BYTES + 64];
    let mut used = 0;
    let mut too_long = false;
    let mut block = [0u8; 512];
    loop {
        let n = reader.read(&mut block);
        for &byte in &block[..n] {
            if byte == 0 {
                visit(&entry[..used], !too_long);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::config::SECURE;
    use std::vec::Vec;

    #[test]
    fn with_gained_privileges_only_harmless_variables_are_heeded() {
        for name in ["USLAB_SNAPSHOT", "USLAB_SNAPSHOT_READER", "USLAB_ON_MISUSE", "USLAB_PRESSURE_LOG"] {
            assert!(is_heeded(name, false) && !is_heeded(name, true), "{name}");
        }
        assert!(is_heeded("USLAB_RSEQ", true) && is_heeded("USLAB_REAPER", true));
        assert!(!is_heeded("USLAB_OF_TOMORROW", true), "a variable not in the table must be refused");
    }

    /// The value of `USLAB_SECURE` after the program's string and the environment's text, and the
    /// number of settings that were ignored.
    fn secure(is_privileged: bool, program: &[u8], environment: &[u8]) -> (Vec<u8>, usize) {
        let mut settings = Settings { is_privileged, ..Settings::UNSET };
        let mut ignored = 0;
        settings.take_string(program, Origin::Program, &mut |_| ignored += 1);
        let index = READ_AT_START.iter().position(|&name| name == SECURE).unwrap();
        settings.take(index, environment, Origin::Environment, &mut |_| ignored += 1);
        (settings.values[index].as_ref().unwrap().as_bytes().to_vec(), ignored)
    }

    #[test]
    fn only_a_meaning_overrides_a_value_and_never_that_of_a_privileged_program() {
        assert_eq!(secure(false, b"secure=1", b"0"), (b"0".to_vec(), 0));
        assert_eq!(secure(false, b"secure=1", b""), (b"1".to_vec(), 0));
        assert_eq!(secure(false, b"secure=1", b"chekc"), (b"1".to_vec(), 1));
        assert_eq!(secure(false, b"secure=1", &[b'x'; VALUE_BYTES + 1]), (b"1".to_vec(), 1));
        assert_eq!(secure(true, b"secure=1", b"0"), (b"1".to_vec(), 0));
        assert_eq!(secure(true, b"limit=1G", b"check"), (b"check".to_vec(), 0));
    }
}
