//! Pressure sources: the choice, the text that describes them, and the thread that watches them.

use crate::abi::{PressureOptions, USLAB_SOURCE_AUTO, USLAB_SOURCE_OFF, USLAB_SOURCE_ON};
use crate::text::Text;
use crate::{failure, versioned};
use core::ffi::{c_char, c_int, c_uint};
use core::fmt::Write;
use uslab::internal::errno;
use uslab::internal::sources::Sources;
use uslab::reclaim;
use uslab::reclaim::PressureChoice;

/// The choice in the caller's options; null is the default.
///
/// # Errors
/// EINVAL: a bad structure, or an unknown setting of a source.
///
/// # Safety
/// `options` must be null, or as many bytes as their `type_size` says.
unsafe fn choice(options: *const PressureOptions) -> Result<PressureChoice, c_int> {
    if options.is_null() {
        return Ok(PressureChoice::default());
    }
    // SAFETY: the caller's promise; the options are valid as zeroes.
    let options = unsafe { versioned::read(options) }?;
    let log = match options.log {
        0 => false,
        1 => true,
        _ => return Err(libc::EINVAL),
    };
    Ok(PressureChoice::none()
        .systemd(is_on(options.systemd)?)
        .psi(is_on(options.psi)?)
        .cgroup(is_on(options.cgroup)?)
        .log(log))
}

/// Whether a source is watched. `USLAB_SOURCE_AUTO` leaves it to the library, which watches.
fn is_on(source: c_uint) -> Result<bool, c_int> {
    match source {
        USLAB_SOURCE_AUTO | USLAB_SOURCE_ON => Ok(true),
        USLAB_SOURCE_OFF => Ok(false),
        _ => Err(libc::EINVAL),
    }
}

/// # Safety
/// `options` must be null, or as many bytes as their `type_size` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_watch_pressure(options: *const PressureOptions) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { choice(options) } {
        Ok(choice) => {
            let _errno = errno::Preserved::new();
            reclaim::watch_pressure(choice);
            0
        }
        Err(error) => failure::code(error),
    }
}

/// # Safety
/// As [`uslab_watch_pressure`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uslab_pressure_text(options: *const PressureOptions) -> *mut c_char {
    // SAFETY: the caller's promise.
    let choice = match unsafe { choice(options) } {
        Ok(choice) => choice,
        Err(error) => return failure::null(error),
    };
    let errno = errno::Preserved::new();
    let mut text = Text::new();
    let mut whole = Ok(());
    // Opens the sources and closes them again. No log, since the caller gets the text.
    let sources = Sources::detect(&choice.under_environment().log(false));
    sources.describe(&mut |line| {
        whole = whole.and_then(|()| text.write_fmt(line)).and_then(|()| text.write_str("\n"));
    });
    drop(sources);
    let text = if whole.is_ok() { text.finish() } else { core::ptr::null_mut() };
    drop(errno);
    if text.is_null() { failure::null(libc::ENOMEM) } else { text }
}

#[unsafe(no_mangle)]
extern "C" fn uslab_has_reaper() -> bool {
    reclaim::has_reaper()
}
