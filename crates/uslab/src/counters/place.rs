//! The directory in which the process publishes its figures.

use crate::os;
use crate::os::directory::{self, Directory, Refusal};
use crate::os::path::Path;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The value of `USLAB_SNAPSHOT` that stands for the user's own directory.
pub const AUTO: &[u8] = b"auto";

/// Path of the directory, NUL-terminated, for fork children and for the exit. No descriptor is
/// kept: by then its number could belong to the program.
static PATH: [AtomicU8; os::env::VALUE_BYTES + 1] = [const { AtomicU8::new(0) }; os::env::VALUE_BYTES + 1];

/// Remembers the directory that `value` names, and opens it. [`AUTO`] is the first of the user's
/// own directories that can be used; it is made if it does not exist.
pub fn choose(value: &[u8]) -> Result<Directory, Refusal> {
    if value != AUTO {
        // The kernel would follow a link before a slash at the end.
        let bytes = 1 + value.iter().rposition(|&byte| byte != b'/').unwrap_or(0);
        set(value.get(..bytes).unwrap_or_default());
        return open();
    }
    let user = directory::user();
    let run = format_args!("/run/user/{user}/uslab-{user}");
    // Those in which the command looks, in its order.
    let places = [format_args!("/dev/shm/uslab-{user}"), run, format_args!("/tmp/uslab-{user}")];
    let mut refusal = Refusal::MISSING;
    for place in places {
        let Some(path) = Path::formatted(place) else { continue };
        set(path.as_bytes());
        with_path(directory::make);
        match open() {
            Ok(directory) => return Ok(directory),
            Err(reason) => refusal = reason,
        }
    }
    // The next call looks at all places again.
    set(b"");
    Err(refusal)
}

/// Opens the directory that the process publishes in, or was told to; else chooses [`AUTO`].
pub fn open_or_choose() -> Result<Directory, Refusal> {
    if PATH[0].load(Relaxed) == 0 { choose(AUTO) } else { open() }
}

/// Opens and checks the directory that [`choose`] remembered.
pub fn open() -> Result<Directory, Refusal> {
    with_path(Directory::open)
}

fn set(path: &[u8]) {
    // The last byte stays 0.
    let bytes = path.iter().chain(core::iter::repeat(&0)).take(os::env::VALUE_BYTES);
    PATH.iter().zip(bytes).for_each(|(place, &byte)| place.store(byte, Relaxed));
}

fn with_path<R>(run: impl FnOnce(&CStr) -> R) -> R {
    let mut path = [0u8; os::env::VALUE_BYTES + 1];
    for (to, from) in path.iter_mut().zip(&PATH[..os::env::VALUE_BYTES]) {
        *to = from.load(Relaxed);
    }
    // The last byte stays 0, so there is a NUL.
    run(CStr::from_bytes_until_nul(&path).unwrap_or(c"/"))
}
