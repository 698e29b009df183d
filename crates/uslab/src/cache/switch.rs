//! Switches the debugging of running caches.

use super::body::Core;
use super::{late, registry, state};
use crate::os;
use crate::os::debugging::{self, Bad, Selection, USERS};
use core::fmt;

/// Why [`crate::debug::switch`] refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SwitchError {
    /// The text is wrong.
    Text(Bad),
    /// Letter Z or P: these need room that objects have from the start.
    Layout,
    /// No cache has one of these names.
    NoSuchCache,
    /// The caches have been debugged, or hardened, since they were made.
    FromStart,
    /// The kernel refuses `membarrier` to the calling thread, so sheaves cannot be drained.
    NoBarrier,
    /// There is no memory for the table of users.
    OutOfMemory,
}

impl fmt::Display for SwitchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SwitchError::Text(bad) => return bad.fmt(f),
            SwitchError::Layout => {
                "letters Z and P need room around objects: start the program with USLAB_DEBUG for them"
            }
            SwitchError::NoSuchCache => "no cache has that name",
            SwitchError::FromStart => {
                "the cache has been debugged or hardened since it was made, and stays so"
            }
            SwitchError::NoBarrier => "the kernel refuses membarrier to the process",
            SwitchError::OutOfMemory => "out of memory",
        })
    }
}

impl core::error::Error for SwitchError {}

/// See [`crate::debug::switch`].
pub(crate) fn switch(text: &[u8]) -> Result<usize, SwitchError> {
    let selection = Selection::parse_with_names(text).map_err(SwitchError::Text)?;
    if selection.all_letters() & !late::POSSIBLE != 0 {
        return Err(SwitchError::Layout);
    }
    if !state::is_ready() {
        return Err(SwitchError::NoSuchCache);
    }
    let _errno = os::errno::Preserved::new();
    if selection.all_letters() & USERS != 0 && !late::ensure_users() {
        return Err(SwitchError::OutOfMemory);
    }
    let (mut switched, mut refusal) = (0, SwitchError::NoSuchCache);
    // The lock keeps forks away, and other threads from destroying or switching caches.
    registry::with_lock(|| {
        registry::for_each(|core| {
            let Some(letters) = selection.named(text, core.name().as_bytes()) else { return };
            match switch_one(core, letters) {
                Ok(()) => switched += 1,
                Err(error) => refusal = error,
            }
        });
    });
    if switched > 0 { Ok(switched) } else { Err(refusal) }
}

/// The first name of a text that [`switch`] took, of which there is no cache.
pub(super) fn first_unknown(text: &[u8]) -> Option<&[u8]> {
    let mut names =
        text.split(|&byte| byte == b';').flat_map(|block| block.split(|&byte| byte == b',').skip(1));
    names.find(|name| !registry::any(|core| debugging::matches(name, core.name().as_bytes())))
}

fn switch_one(core: &Core, letters: u8) -> Result<(), SwitchError> {
    if core.is_debugged() {
        return Err(SwitchError::FromStart);
    }
    let was_on = core.late.is_on();
    core.late.set(letters);
    if letters == 0 {
        core.cpu.end_bypass();
    } else if !was_on && !core.cpu.begin_bypass() {
        core.late.set(0);
        return Err(SwitchError::NoBarrier);
    }
    Ok(())
}
