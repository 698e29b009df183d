//! Writers of the parts of the snapshot that tell of settings and passes.

use super::layout::{
    NAME_BYTES, ORIGIN_CALL, ORIGIN_CONF, ORIGIN_DEFAULT, ORIGIN_ENVIRONMENT, ORIGIN_PROGRAM, ORIGIN_REQUEST,
    SETTINGS,
};
use super::publish::{header, settings};
use crate::os;
use crate::os::env::Origin;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed, Ordering::Release};

/// Where a setting's value came from after start-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changer {
    /// A call of the program.
    Call,
    /// A request of another process.
    Request,
}

/// Writes the settings of the start.
pub fn note_settings(read: &os::env::Settings) {
    read.each(|variable, text, origin| {
        let origin = match origin {
            Origin::Default => ORIGIN_DEFAULT,
            Origin::Program => ORIGIN_PROGRAM,
            Origin::Conf => ORIGIN_CONF,
            Origin::Environment => ORIGIN_ENVIRONMENT,
        };
        let word = variable.strip_prefix("USLAB_").unwrap_or("");
        note(word, origin, format_args!("{}", text.escape_ascii()));
    });
}

/// Writes a setting that was changed while the process runs. `name` is in lower case, without
/// `USLAB_`.
pub fn note_change(name: &str, changer: Changer, text: fmt::Arguments<'_>) {
    note(name, if changer == Changer::Call { ORIGIN_CALL } else { ORIGIN_REQUEST }, text);
}

fn note(name: &str, origin: u32, text: fmt::Arguments<'_>) {
    let Some(index) = SETTINGS.iter().position(|setting| setting.eq_ignore_ascii_case(name)) else { return };
    let setting = &settings()[index];
    let mut places = Places::new(&setting.text);
    // A text that is too long is cut.
    let _ = places.write_fmt(text);
    places.end();
    setting.origin.store(origin, Release);
}

/// Writes the name of a shrinker.
pub fn note_name(places: &[AtomicU8; NAME_BYTES], name: &str) {
    let mut places = Places::new(places);
    let _ = places.write_str(name);
    places.end();
}

/// Counts a pass that ended; `cause` is one of the `PASS_*` values.
pub fn note_pass(cause: usize, given_bytes: usize) {
    let header = header();
    header.passes[cause].fetch_add(1, Relaxed);
    header.passes_bytes.fetch_add(given_bytes as u64, Relaxed);
    header.last_pass_ns.store(os::clock::boot_ns(), Relaxed);
}

/// Text in a field of the snapshot; what does not fit is cut. The last byte stays zero.
pub struct Places<'a> {
    places: &'a [AtomicU8],
    used: usize,
}

impl<'a> Places<'a> {
    /// An empty text.
    pub fn new(places: &'a [AtomicU8]) -> Places<'a> {
        Places { places, used: 0 }
    }

    /// Ends the text by zeroes.
    pub fn end(&self) {
        self.places[self.used..].iter().for_each(|place| place.store(0, Relaxed));
    }
}

impl Write for Places<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let places = &self.places[self.used..self.places.len() - 1];
        let mut bytes = text.len().min(places.len());
        while !text.is_char_boundary(bytes) {
            bytes -= 1;
        }
        places.iter().zip(&text.as_bytes()[..bytes]).for_each(|(place, &byte)| place.store(byte, Relaxed));
        self.used += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut() {
        let places = [const { AtomicU8::new(1) }; 8];
        let mut text = Places::new(&places);
        let _ = text.write_str("123").and_then(|()| text.write_str("45678901"));
        text.end();
        assert_eq!(places.map(AtomicU8::into_inner), *b"1234567\0");
    }

    #[test]
    fn a_change_names_its_origin() {
        note_change("limit", Changer::Request, format_args!("{},{}", 0, 0));
        let index = SETTINGS.iter().position(|name| *name == "limit").expect("a setting");
        let setting = &settings()[index];
        assert!([ORIGIN_REQUEST, ORIGIN_CALL].contains(&setting.origin.load(Relaxed)));
        assert_eq!(setting.text[1].load(Relaxed), b',');
    }

    #[test]
    fn the_snapshot_lists_settings_that_exist() {
        for name in SETTINGS {
            assert!(crate::os::settings::index_of_setting(name.as_bytes()).is_some(), "{name}");
        }
    }
}
