//! The parts of a snapshot beside its caches: settings, passes, pressure sources, shrinkers.
//!
//! As for caches, nothing in the file is trusted: names are made safe to print, and numbers without
//! a meaning have a word of their own.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};

use serde::Serialize;

use super::parse_name;
use crate::layout;

/// A value that the process runs with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    pub name: &'static str,
    pub value: String,
    /// Where the value came from.
    pub origin: &'static str,
}

copy! {
    /// A pressure source.
    Source of layout::Source,
    [u64 as u64] reports last_ns asked_bytes limit_bytes used_bytes;
    name: &'static str,
    state: &'static str,
}

copy! {
    /// A shrinker.
    Shrinker of layout::Shrinker,
    [u32 as u32] batch priority;
    [u64 as u64] freeable deferred asked freed scans last_ns;
    /// The entry of the process's registry.
    id: u32,
    name: String,
    destroyed: bool,
    /// Why the last scan ended.
    stop: &'static str,
    /// Thousandths of a seek, so that all figures are whole.
    millis_of_seek: u64,
}

impl Shrinker {
    /// The cost of making an entry again, in seeks.
    pub fn seeks(&self) -> f64 {
        self.millis_of_seek as f64 / 1000.0
    }
}

/// Passes by cause.
pub fn passes(header: &[u8]) -> BTreeMap<&'static str, u64> {
    let at = offset_of!(layout::Header, passes);
    let words =
        header[at..].chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    layout::PASSES.into_iter().zip(words).collect()
}

/// The settings that this library has, with their origins.
pub fn settings(header: &[u8]) -> Vec<Setting> {
    let bytes = size_of::<layout::Setting>();
    let entries = header[layout::SETTINGS_OFFSET..].chunks_exact(bytes);
    let setting = |(name, entry): (&'static str, &[u8])| {
        let origin = field!(entry, layout::Setting, origin, u32);
        let text = offset_of!(layout::Setting, text);
        let value = parse_name(&entry[text..text + layout::SETTING_TEXT_BYTES]);
        let origin = *layout::ORIGINS.get(origin as usize)?;
        (origin != layout::ORIGINS[0]).then_some(Setting { name, value, origin })
    };
    layout::SETTINGS.into_iter().zip(entries).filter_map(setting).collect()
}

/// The pressure sources.
pub fn sources(header: &[u8]) -> Vec<Source> {
    let entries = header[layout::SOURCES_OFFSET..].chunks_exact(size_of::<layout::Source>());
    let source = |(name, entry): (&'static str, &[u8])| {
        let state = match field!(entry, layout::Source, state, u32) {
            layout::SOURCE_WATCHED => "watched",
            layout::SOURCE_MISSING => "missing",
            _ => "off",
        };
        Source::copy(entry, name, state)
    };
    layout::SOURCES.into_iter().zip(entries).map(source).collect()
}

/// The shrinkers of the first `used` entries.
pub fn shrinkers(header: &[u8], used: u64) -> Vec<Shrinker> {
    let used = usize::try_from(used).unwrap_or(usize::MAX).min(layout::MAX_SHRINKERS);
    let entries = header[layout::SHRINKERS_OFFSET..].chunks_exact(size_of::<layout::Shrinker>());
    entries.take(used).enumerate().filter_map(|(index, entry)| shrinker(index, entry)).collect()
}

fn shrinker(index: usize, entry: &[u8]) -> Option<Shrinker> {
    let state = field!(entry, layout::Shrinker, state, u32);
    if state != layout::STATE_LIVE && state != layout::STATE_DESTROYED {
        return None;
    }
    let name = offset_of!(layout::Shrinker, name);
    let name = parse_name(&entry[name..name + layout::NAME_BYTES]);
    let worth = field!(entry, layout::Shrinker, worth, u64);
    let millis_of_seek = worth.saturating_mul(1000) / layout::SEEK;
    let stop = stop_word(field!(entry, layout::Shrinker, stop, u32));
    Some(Shrinker::copy(entry, index as u32, name, state == layout::STATE_DESTROYED, stop, millis_of_seek))
}

fn stop_word(stop: u32) -> &'static str {
    match stop {
        layout::STOP_NONE => "not asked yet",
        layout::STOP_SHARE => "asked for its share",
        layout::STOP_ANSWERED => "answered: not now",
        layout::STOP_TIME => "used up its time",
        layout::STOP_EMPTY => "had nothing to free",
        layout::STOP_GONE => "unregistered or panicked",
        _ => "not known",
    }
}
