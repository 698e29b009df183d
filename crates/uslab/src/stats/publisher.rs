//! The figures for the recorder of the crate `metrics`.

use super::families::{self, Emit, Family, Kind, Output};
use ::metrics::{Key, KeyName, Label, Level, Metadata, Recorder, Unit, with_recorder};
use core::fmt;
use std::collections::HashSet;
use std::string::{String, ToString};
use std::vec::Vec;

/// Hands the figures of this process to the recorder of the crate `metrics`, each time that the
/// program calls [`publish`](Publisher::publish). Needs the feature `metrics`.
///
/// The names are those of [`write_openmetrics`](super::write_openmetrics), with `_total` behind
/// those of counters. Labels are the same, too: a cache has `cache` and `id`.
///
/// Recorders keep a gauge until it is set again. So the publisher sets the gauges of a cache or
/// shrinker that is gone to 0. Keep one publisher for the whole program. A counter never sinks: if
/// a new cache has the name and the number of a destroyed one, its counters stay at the old values
/// until they exceed them.
///
/// ```
/// use std::time::Duration;
///
/// // The recorder, an exporter's for example, is installed before or after.
/// std::thread::spawn(|| {
///     let mut publisher = uslab::stats::Publisher::new();
///     loop {
///         publisher.publish();
///         std::thread::sleep(Duration::from_secs(10));
///     }
/// });
/// ```
#[derive(Debug, Default)]
pub struct Publisher {
    /// The gauges that the last call set.
    set: HashSet<Key>,
}

impl Publisher {
    /// A publisher that has published nothing yet.
    pub fn new() -> Publisher {
        Publisher::default()
    }

    /// Hands all figures to the recorder: to the calling thread's, if it has one, or the program's.
    /// Without a recorder nothing happens.
    ///
    /// The call allocates, takes the locks that all of [`stats`](super) take, and lets them go
    /// before the recorder runs. It may run on any thread, and not in signal handlers. With many
    /// caches it is not cheap: each call looks up some 17 keys for each cache.
    pub fn publish(&mut self) {
        with_recorder(|recorder| {
            let mut keys = Keys { recorder, set: HashSet::with_capacity(self.set.len()) };
            // Only an output can fail, and this one does not.
            let _ = families::write(&mut keys);
            for gone in self.set.difference(&keys.set) {
                recorder.register_gauge(gone, &METADATA).set(0.0);
            }
            self.set = keys.set;
        });
    }
}

static METADATA: Metadata<'static> = Metadata::new("uslab::stats", Level::INFO, Some("uslab::stats"));

struct Keys<'a> {
    recorder: &'a dyn Recorder,
    set: HashSet<Key>,
}

impl Output for Keys<'_> {
    fn family(
        &mut self,
        family: &Family,
        samples: &mut dyn FnMut(&mut Emit<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let Keys { recorder, set } = self;
        let name: String = [family.name, family.kind.ending()].concat();
        let unit = family.is_bytes().then_some(Unit::Bytes);
        let described = KeyName::from(name.clone());
        if family.kind == Kind::Counter {
            recorder.describe_counter(described, unit, family.help.into());
        } else {
            recorder.describe_gauge(described, unit, family.help.into());
        }
        samples(&mut |labels, value| {
            let labels: Vec<Label> = labels
                .iter()
                .map(|(label, value)| Label::new(label.to_string(), value.to_string()))
                .collect();
            let key = Key::from_parts(name.clone(), labels);
            if family.kind == Kind::Counter {
                recorder.register_counter(&key, &METADATA).absolute(value);
            } else {
                recorder.register_gauge(&key, &METADATA).set(value as f64);
                set.insert(key);
            }
            Ok(())
        })
    }
}
