//! Reasons for which a source is not watched, for people.

use crate::os::pressure::reason;
use core::fmt;

/// Why a source is not watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    NotChosen,
    NotNeeded,
    NotSet,
    SwitchedOff,
    Privileged,
    Relative,
    TooLong,
    NotBase64,
    WrongForm,
    NoCgroup,
    Outside,
    Removed,
    Ended,
    /// `errno`.
    Error(i32),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::NotChosen => "not chosen",
            Why::NotNeeded => "systemd's source is used",
            Why::NotSet => "MEMORY_PRESSURE_WATCH is not set",
            Why::SwitchedOff => "MEMORY_PRESSURE_WATCH is /dev/null",
            Why::Privileged => "the program gained privileges when it was started",
            Why::Relative => "MEMORY_PRESSURE_WATCH is not an absolute path",
            Why::TooLong => "the path or value is too long",
            Why::NotBase64 => "MEMORY_PRESSURE_WRITE is not base64",
            Why::WrongForm => "it is neither a file, a named pipe nor a socket",
            Why::NoCgroup => "no cgroup of version 2 was found",
            Why::Outside => "the process's cgroup is outside of what is mounted",
            Why::Removed => "the file was removed",
            Why::Ended => "it has ended",
            Why::Error(number) => match reason(*number) {
                Some(reason) => reason,
                None => return write!(f, "system error {number}"),
            },
        })
    }
}
