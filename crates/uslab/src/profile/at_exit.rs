//! The profile of a process that the environment chooses: from its load to a file at its exit.

use super::write_to;
use crate::counters::layout::MAX_COPIES;
use crate::malloc::profiled;
use crate::os;
use crate::os::env::VALUE_BYTES;
use crate::os::path::Path;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The path of the file without the process id. At exit the environment may be gone.
static PATH: [AtomicU8; VALUE_BYTES] = [const { AtomicU8::new(0) }; VALUE_BYTES];
static PATH_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Starts a profile as `USLAB_PROFILE` tells, if it does. The shared libraries call it when they
/// are loaded.
pub fn start_from_environment() {
    if !profiled::is_named() {
        return;
    }
    os::env::with_settings(|settings| {
        let config = settings.config();
        let Some(period_bytes) = config.profile else { return };
        if let Some(path) = &config.profile_file {
            let path = path.as_bytes();
            PATH.iter().zip(path).for_each(|(place, &byte)| place.store(byte, Relaxed));
            PATH_BYTES.store(path.len(), Release);
        }
        // The snapshot names the environment as the origin of this setting.
        if !profiled::start(period_bytes as usize) {
            os::report::print(format_args!("no heap profile: {}", super::ProfileError::OutOfMemory));
        }
    });
}

/// [`PATH`] with the process id, and with the number of the file if that is not 1.
fn path_of(number: u32, ending: &str) -> Option<Path> {
    let mut named = [0; VALUE_BYTES];
    let used = PATH_BYTES.load(Acquire);
    named.iter_mut().zip(&PATH[..used]).for_each(|(to, from)| *to = from.load(Relaxed));
    let id = os::file::process_id();
    let more = match number {
        1 => Path::formatted(format_args!(".{id}{ending}")),
        _ => Path::formatted(format_args!(".{id}.{number}{ending}")),
    };
    Path::of(&named[..used])?.with(more?.as_bytes())
}

/// Writes the profile to the file that `USLAB_PROFILE_FILE` named at the load, if it did. The
/// shared libraries call it at exit.
///
/// A process may contain the library several times, and each copy writes at exit. A file that was
/// written since the profile began is another copy's: this one then takes the next number. An older
/// file is that of an earlier process with the same id, and is replaced.
pub fn write_at_exit() {
    // A child that shares the memory of its parent must not write its profile.
    let is_sharing = os::process::relation() == os::process::Relation::Sharing;
    if PATH_BYTES.load(Acquire) == 0 || is_sharing {
        return;
    }
    let began_ms = profiled::state::own_unix_ms();
    // The time of a file may lie behind the clock by a tick.
    let is_others = |path: &Path| {
        os::file::own_file_changed_ms(path.as_c()).is_some_and(|changed_ms| changed_ms + 10 >= began_ms)
    };
    let number = (1..=MAX_COPIES).find(|&number| path_of(number, "").is_some_and(|path| !is_others(&path)));
    let number = number.unwrap_or(1);
    let (Some(draft), Some(path)) = (path_of(number, ".new"), path_of(number, "")) else { return };
    let written = os::file::replace(draft.as_c(), path.as_c(), |fd| {
        // SAFETY: the draft's descriptor, which is open for writing.
        match unsafe { write_to(fd) } {
            Err(super::ProfileError::Write(number)) => Err(number),
            // It was started: the path is stored before.
            _ => Ok(()),
        }
    });
    if let Err(number) = written {
        os::report::print(format_args!("the heap profile is not written: system error {number}"));
    }
}
