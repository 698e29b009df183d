//! The reasons why a source is not watched.

use crate::os::pressure::reason;
use core::fmt;

/// The reason why a source is not watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
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

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NotChosen => "not chosen",
            Reason::NotNeeded => "systemd's source is used",
            Reason::NotSet => "MEMORY_PRESSURE_WATCH is not set",
            Reason::SwitchedOff => "MEMORY_PRESSURE_WATCH is /dev/null",
            Reason::Privileged => "the program gained privileges when it was started",
            Reason::Relative => "MEMORY_PRESSURE_WATCH is not an absolute path",
            Reason::TooLong => "the path or value is too long",
            Reason::NotBase64 => "MEMORY_PRESSURE_WRITE is not base64",
            Reason::WrongForm => "it is neither a file, a named pipe nor a socket",
            Reason::NoCgroup => "no cgroup of version 2 was found",
            Reason::Outside => "the process's cgroup is outside of what is mounted",
            Reason::Removed => "the file was removed",
            Reason::Ended => "it has ended",
            Reason::Error(number) => match reason(*number) {
                Some(reason) => reason,
                None => return write!(f, "system error {number}"),
            },
        })
    }
}
