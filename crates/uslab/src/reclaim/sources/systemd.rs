//! What a service manager names as a source of pressure: systemd's protocol, <https://systemd.io/MEMORY_PRESSURE>.
//!
//! `MEMORY_PRESSURE_WATCH` is an absolute path: of a file of the kernel's, a named pipe, or a socket. `MEMORY_PRESSURE_WRITE`, in
//! base64, is written to it first. `/dev/null` means that nothing is to be watched.
//!
//! The variables may be another unit's, inherited; so whatever is wrong with them, the next source is used in their place.
//!
//! Must never: open or write a file that the variables name in a process that gained privileges, for whoever started it chose them.

use super::path::Path;
use super::why::Why;
use crate::os::env::{self, TooLong, Value, is_privileged};
use crate::os::pressure::{self, Descriptor, Form};

/// A variable of the protocol.
#[derive(Clone, Copy)]
pub enum Variable<'a> {
    Unset,
    /// Longer than the library reads.
    TooLong,
    Value(&'a [u8]),
}

impl<'a> From<&'a Option<Result<Value, TooLong>>> for Variable<'a> {
    fn from(value: &'a Option<Result<Value, TooLong>>) -> Self {
        match value {
            None => Variable::Unset,
            Some(Err(TooLong)) => Variable::TooLong,
            Some(Ok(value)) => Variable::Value(value.as_bytes()),
        }
    }
}

/// Bytes that a value of the environment can stand for.
const DECODED_BYTES: usize = env::VALUE_BYTES / 4 * 3;

/// What is to be watched, or why nothing is.
pub type Request = Result<Watch, Why>;

/// The variables, understood.
pub struct Watch {
    pub path: Path,
    /// What is to be written first.
    message: [u8; DECODED_BYTES],
    used: usize,
}

impl Watch {
    /// From the environment that the process was started with: that is the manager's word, and it is safe to read on any thread.
    pub fn from_environment() -> Request {
        let [watch, write] = env::lookup_at_start(["MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"]);
        Watch::of(Variable::from(&watch), Variable::from(&write), is_privileged())
    }

    /// From these values.
    pub fn of(watch: Variable, write: Variable, privileged: bool) -> Request {
        let path = match watch {
            Variable::Unset | Variable::Value(b"") => return Err(Why::NotSet),
            Variable::TooLong => return Err(Why::TooLong),
            Variable::Value(b"/dev/null") => return Err(Why::SwitchedOff),
            Variable::Value(path) => path,
        };
        if privileged {
            return Err(Why::Privileged);
        }
        if path[0] != b'/' {
            return Err(Why::Relative);
        }
        let Some(path) = Path::of(path) else { return Err(Why::TooLong) };
        let mut message = [0; DECODED_BYTES];
        let used = match write {
            Variable::Unset => 0,
            Variable::TooLong => return Err(Why::TooLong),
            Variable::Value(text) => match decode(text, &mut message) {
                Some(used) => used,
                None => return Err(Why::NotBase64),
            },
        };
        Ok(Watch { path, message, used })
    }

    /// Opens what is there and says what the manager wants said.
    pub fn open(&self) -> Result<(Descriptor, Form), Why> {
        let form = pressure::form_of(self.path.as_c()).map_err(Why::Error)?.ok_or(Why::WrongForm)?;
        let descriptor = Descriptor::open(self.path.as_c(), form).map_err(Why::Error)?;
        // Nobody can write to the reading end of a pipe.
        if self.used > 0 && form != Form::Fifo {
            descriptor.write(&self.message[..self.used]).map_err(Why::Error)?;
        }
        Ok((descriptor, form))
    }
}

/// Decodes base64 (RFC 4648, with its padding) into `to`; how many bytes, or `None` if it is none.
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

    fn refused(watch: Variable, write: Variable, privileged: bool) -> Option<Why> {
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
        // What systemd 252 hands out.
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
        let path = Variable::Value(b"/run/pressure");
        assert_eq!(refused(path, Variable::Unset, false), None);
        assert_eq!(refused(path, Variable::Value(b"Zg=="), false), None);
        assert_eq!(refused(path, Variable::Value(b"Zg"), false), Some(Why::NotBase64));
        assert_eq!(refused(path, Variable::TooLong, false), Some(Why::TooLong));
        assert_eq!(refused(path, Variable::Unset, true), Some(Why::Privileged));
        assert_eq!(refused(Variable::Value(b"run/pressure"), Variable::Unset, false), Some(Why::Relative));
        assert_eq!(refused(Variable::Value(b"/dev/null"), Variable::Unset, false), Some(Why::SwitchedOff));
        assert_eq!(refused(Variable::TooLong, Variable::Unset, false), Some(Why::TooLong));
        assert_eq!(refused(Variable::Unset, Variable::Value(b"Zg=="), false), Some(Why::NotSet));
        assert_eq!(refused(Variable::Value(b""), Variable::Unset, false), Some(Why::NotSet));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(watch: Vec<u8>, write: Vec<u8>) {
            let _ = Watch::of(Variable::Value(&watch), Variable::Value(&write), false);
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
