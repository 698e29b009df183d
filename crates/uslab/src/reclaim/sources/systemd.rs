//! The source of pressure that a service manager names: systemd's protocol,
//! <https://systemd.io/MEMORY_PRESSURE>.
//!
//! `MEMORY_PRESSURE_WATCH` is the absolute path of a file of the kernel's, a named pipe, or a
//! socket. `MEMORY_PRESSURE_WRITE`, in base64, is written to it first. `/dev/null` means that
//! nothing is to be watched.
//!
//! The variables may be inherited from another unit. So if anything is wrong with them, the next
//! source is used in their place.
//!
//! A process that gained privileges never opens or writes the files that the variables name,
//! because its unprivileged caller chose them.

use super::reason::Reason;
use crate::os::config;
use crate::os::env::{self, TooLong, Value, is_privileged};
use crate::os::path::Path;
use crate::os::pressure::{self, Descriptor, Form};

/// Bytes that a value of the environment can stand for.
const DECODED_BYTES: usize = env::VALUE_BYTES / 4 * 3;

/// The service manager's request.
pub struct Watch {
    pub path: Path,
    /// The message to write to the source first.
    message: [u8; DECODED_BYTES],
    used: usize,
}

impl Watch {
    /// The request in the environment that the process was started with. That is the service
    /// manager's, and safe to read on any thread.
    ///
    /// # Errors
    /// There is nothing to watch.
    pub fn from_environment() -> Result<Watch, Reason> {
        let [watch, write] = env::lookup_at_start([config::PRESSURE_WATCH, config::PRESSURE_WRITE]);
        Watch::of(text(&watch), text(&write), is_privileged())
    }

    /// The request of these values; one that is missing is the reason for it.
    ///
    /// # Errors
    /// There is nothing to watch.
    pub fn of(
        watch: Result<&[u8], Reason>,
        write: Result<&[u8], Reason>,
        is_privileged: bool,
    ) -> Result<Watch, Reason> {
        let path = match watch? {
            b"" => return Err(Reason::NotSet),
            b"/dev/null" => return Err(Reason::SwitchedOff),
            _ if is_privileged => return Err(Reason::Privileged),
            path if path[0] != b'/' => return Err(Reason::Relative),
            path => Path::of(path).ok_or(Reason::TooLong)?,
        };
        let mut message = [0; DECODED_BYTES];
        let used = match write {
            Err(Reason::NotSet) => 0,
            write => decode(write?, &mut message).ok_or(Reason::NotBase64)?,
        };
        Ok(Watch { path, message, used })
    }

    /// Opens the source and writes the manager's message to it.
    pub fn open(&self) -> Result<Descriptor, Reason> {
        let form = pressure::form_of(self.path.as_c()).map_err(Reason::Error)?.ok_or(Reason::WrongForm)?;
        let descriptor = Descriptor::open(self.path.as_c(), form).map_err(Reason::Error)?;
        // The reading end of a pipe takes no message.
        if self.used > 0 && form != Form::Fifo {
            descriptor.write(&self.message[..self.used]).map_err(Reason::Error)?;
        }
        Ok(descriptor)
    }
}

fn text(value: &Option<Result<Value, TooLong>>) -> Result<&[u8], Reason> {
    match value {
        None => Err(Reason::NotSet),
        Some(Err(TooLong)) => Err(Reason::TooLong),
        Some(Ok(value)) => Ok(value.as_bytes()),
    }
}

/// Decodes base64 (RFC 4648, with its padding) into `to`. Returns the number of bytes, or `None` if
/// the text is not base64.
fn decode(text: &[u8], to: &mut [u8; DECODED_BYTES]) -> Option<usize> {
    let digits = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(text);
    if !text.len().is_multiple_of(4) || digits.len() % 4 == 1 {
        return None;
    }
    let (mut bits, mut held, mut used) = (0u32, 0, 0);
    for &digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            *to.get_mut(used)? = (bits >> held) as u8;
            used += 1;
        }
    }
    Some(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::String;
    use std::vec::Vec;

    fn decoded(text: &[u8]) -> Option<Vec<u8>> {
        let mut to = [0; DECODED_BYTES];
        decode(text, &mut to).map(|used| to[..used].to_vec())
    }

    fn refused(
        watch: Result<&[u8], Reason>,
        write: Result<&[u8], Reason>,
        privileged: bool,
    ) -> Option<Reason> {
        Watch::of(watch, write, privileged).err()
    }

    #[test]
    fn base64_of_the_rfc() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decoded(text.as_bytes()).as_deref(), Some(bytes.as_bytes()));
        }
        // The value that systemd 252 passes.
        assert_eq!(decoded(b"c29tZSAyMDAwMDAgMjAwMDAwMAA=").as_deref(), Some(&b"some 200000 2000000\0"[..]));
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["Z", "Zg", "Zg=", "Z===", "====", "Zm9v!", "Zm 9v", "Zm=v", "Zg==Zg=="] {
            assert_eq!(decoded(text.as_bytes()), None, "{text}");
        }
        assert_eq!(decoded(&[b'A'; env::VALUE_BYTES]).map(|bytes| bytes.len()), Some(DECODED_BYTES));
        assert_eq!(decoded(&[b'A'; env::VALUE_BYTES + 4]), None);
    }

    #[test]
    fn requests_are_understood_or_refused_with_the_reason() {
        let path = Ok(&b"/run/pressure"[..]);
        assert_eq!(refused(path, Err(Reason::NotSet), false), None);
        assert_eq!(refused(path, Ok(b"Zg=="), false), None);
        assert_eq!(refused(path, Ok(b"Zg"), false), Some(Reason::NotBase64));
        assert_eq!(refused(path, Err(Reason::TooLong), false), Some(Reason::TooLong));
        assert_eq!(refused(path, Err(Reason::NotSet), true), Some(Reason::Privileged));
        assert_eq!(refused(Ok(b"run/pressure"), Err(Reason::NotSet), false), Some(Reason::Relative));
        assert_eq!(refused(Ok(b"/dev/null"), Err(Reason::NotSet), false), Some(Reason::SwitchedOff));
        assert_eq!(refused(Err(Reason::TooLong), Err(Reason::NotSet), false), Some(Reason::TooLong));
        assert_eq!(refused(Err(Reason::NotSet), Ok(b"Zg=="), false), Some(Reason::NotSet));
        assert_eq!(refused(Ok(b""), Err(Reason::NotSet), false), Some(Reason::NotSet));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(watch: Vec<u8>, write: Vec<u8>) {
            let _ = Watch::of(Ok(&watch), Ok(&write), false);
        }

        #[test]
        fn what_is_encoded_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..DECODED_BYTES)) {
            const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            let mut text = String::new();
            for three in bytes.chunks(3) {
                let bits = three.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
                for digit in 0..4 {
                    let value = bits >> (18 - 6 * digit) & 63;
                    text.push(if digit <= three.len() { DIGITS[value as usize].into() } else { '=' });
                }
            }
            prop_assert_eq!(decoded(text.as_bytes()), Some(bytes));
        }
    }
}
