//! The profile of a process that the environment chooses: from its load to a file at its exit.

use super::write_to;
use crate::os;
use crate::os::env::VALUE_BYTES;
use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The path of the file without the process id. At exit the environment may be gone.
static PATH: [AtomicU8; VALUE_BYTES] = [const { AtomicU8::new(0) }; VALUE_BYTES];
static PATH_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Starts a profile as `USLAB_PROFILE` tells, if it does. The shared libraries call it when they
/// are loaded.
pub fn start_from_environment() {
    let settings = os::env::Settings::read(&mut |_| ());
    let config = settings.config();
    let Some(period_bytes) = config.profile else { return };
    if let Some(path) = &config.profile_file {
        let path = path.as_bytes();
        PATH.iter().zip(path).for_each(|(place, &byte)| place.store(byte, Relaxed));
        PATH_BYTES.store(path.len(), Release);
    }
    if let Err(error) = super::start(period_bytes as usize) {
        os::report::print(format_args!("no heap profile: {error}"));
    }
}

/// The path with the process id and a NUL.
struct Path {
    bytes: [u8; VALUE_BYTES + 16],
    used: usize,
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let place = self.bytes.get_mut(self.used..self.used + text.len()).ok_or(core::fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.used += text.len();
        Ok(())
    }
}

/// Writes the profile to the file that `USLAB_PROFILE_FILE` named at the load, if it did. The
/// shared libraries call it at exit.
pub fn write_at_exit() {
    let bytes = PATH_BYTES.load(Acquire);
    // A child that shares the memory of its parent must not write its profile.
    if bytes == 0 || os::process::relation() == os::process::Relation::Sharing {
        return;
    }
    let mut path = Path { bytes: [0; VALUE_BYTES + 16], used: bytes };
    path.bytes.iter_mut().zip(&PATH[..bytes]).for_each(|(to, from)| *to = from.load(Relaxed));
    let is_whole = write!(path, ".{}", os::file::process_id()).is_ok();
    let Some(path) = CStr::from_bytes_until_nul(&path.bytes).ok().filter(|_| is_whole) else { return };
    let written = os::file::replace(path, |fd| match write_to(fd) {
        Err(super::ProfileError::Write(number)) => Err(number),
        // It was started: the path is stored before.
        _ => Ok(()),
    });
    if let Err(number) = written {
        os::report::print(format_args!("the heap profile is not written: system error {number}"));
    }
}
