//! The features `metrics` and `prometheus-client`: a recorder and a registry of the program have
//! the figures of its caches, under the names of the OpenMetrics text.
//!
//! Each test is a process of its own, in both modes. Its global allocator is uslab, so recorder and
//! registry allocate there.
#![cfg(not(loom))]

#[path = "support/again.rs"]
mod again;
#[path = "support/modes.rs"]
mod modes;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use modes::in_both_modes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use uslab::stats::{Collector, Publisher, write_openmetrics};

#[global_allocator]
static GLOBAL: uslab::Uslab = uslab::Uslab;

/// What a recorder holds: values as the crate `metrics` stores them, bits of an `f64` in gauges.
#[derive(Default)]
struct Kept {
    counters: BTreeMap<String, Arc<AtomicU64>>,
    gauges: BTreeMap<String, Arc<AtomicU64>>,
    described: BTreeMap<String, Option<Unit>>,
}

#[derive(Clone, Default)]
struct Store(Arc<Mutex<Kept>>);

/// A sample's name and labels, as the OpenMetrics text has them.
fn sample(key: &Key) -> String {
    let labels: Vec<String> =
        key.labels().map(|label| format!("{}=\"{}\"", label.key(), label.value())).collect();
    if labels.is_empty() { key.name().to_owned() } else { format!("{}{{{}}}", key.name(), labels.join(",")) }
}

impl Store {
    fn gauge(&self, name: &str) -> Option<f64> {
        self.0.lock().unwrap().gauges.get(name).map(|bits| f64::from_bits(bits.load(Relaxed)))
    }

    fn counter(&self, name: &str) -> Option<u64> {
        self.0.lock().unwrap().counters.get(name).map(|value| value.load(Relaxed))
    }

    fn names(&self) -> BTreeSet<String> {
        let kept = self.0.lock().unwrap();
        kept.counters.keys().chain(kept.gauges.keys()).cloned().collect()
    }
}

impl Recorder for Store {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.0.lock().unwrap().described.insert(key.as_str().to_owned(), unit);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.0.lock().unwrap().described.insert(key.as_str().to_owned(), unit);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        panic!("no family is a histogram: {}", key.as_str());
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(self.0.lock().unwrap().counters.entry(sample(key)).or_default()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::clone(self.0.lock().unwrap().gauges.entry(sample(key)).or_default()))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("no family is a histogram: {}", key.name());
    }
}

/// The samples of an OpenMetrics text and their values.
fn samples(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap()).collect()
}

/// The names of the samples of this process.
fn listed() -> BTreeSet<String> {
    let mut text = String::new();
    write_openmetrics(&mut text).unwrap();
    samples(&text).into_keys().map(str::to_owned).collect()
}

#[test]
fn a_recorder_has_the_figures_of_each_publication() {
    in_both_modes("a_recorder_has_the_figures_of_each_publication", &[], || {
        let mut publisher = Publisher::new();
        // Without a recorder nothing happens.
        publisher.publish();
        let store = Store::default();
        metrics::set_global_recorder(store.clone()).ok().unwrap();

        let orders = uslab::Cache::<[u64; 8]>::new("orders");
        let kept: Vec<_> = (0..100).map(|_| orders.insert([0; 8]).unwrap()).collect();
        let labels = format!("{{cache=\"orders\",id=\"{}\"}}", orders.stats().unwrap().id);
        publisher.publish();
        assert_eq!(store.gauge(&format!("uslab_cache_active_objects{labels}")), Some(100.0));
        assert_eq!(store.gauge(&format!("uslab_cache_active_bytes{labels}")), Some(6400.0));
        let slow = store.counter(&format!("uslab_cache_alloc_slow_total{labels}"));
        assert_eq!(slow, Some(orders.stats().unwrap().alloc_slow));
        assert!(store.gauge("uslab_mapped_bytes").unwrap() > 0.0);
        // What was used meanwhile may be listed in the one and not in the other; nothing else.
        let (names, listed) = (store.names(), listed());
        let mode = if uslab::mode() == uslab::Mode::Rseq { "rseq" } else { "locked" };
        assert!(names.iter().any(|name| name.starts_with("uslab_build_info{") && name.contains(mode)));
        let is_other = |name: &&String| !name.contains("cache=\"malloc-");
        assert!(names.iter().filter(is_other).eq(listed.iter().filter(is_other)), "{names:?}\n{listed:?}");
        {
            let described = &store.0.lock().unwrap().described;
            assert_eq!(described.get("uslab_mapped_bytes"), Some(&Some(Unit::Bytes)));
            assert_eq!(described.get("uslab_cache_slabs"), Some(&None));
            assert!(described.contains_key("uslab_purged_bytes_total"));
        }

        drop(kept);
        drop(orders);
        publisher.publish();
        assert_eq!(store.gauge(&format!("uslab_cache_active_objects{labels}")), Some(0.0));
        assert_eq!(store.gauge(&format!("uslab_cache_slab_bytes{labels}")), Some(0.0));
    });
}

#[test]
fn a_registry_encodes_the_figures_of_each_scrape() {
    in_both_modes("a_registry_encodes_the_figures_of_each_scrape", &[], || {
        use prometheus_client::{encoding::text::encode, registry::Registry};
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Collector));
        let scrape = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };

        let orders = uslab::Cache::<[u64; 8]>::new("orders \"of\" today");
        let kept: Vec<_> = (0..100).map(|_| orders.insert([0; 8]).unwrap()).collect();
        let id = orders.stats().unwrap().id;
        let labels = format!("{{cache=\"orders \\\"of\\\" today\",id=\"{id}\"}}");
        let text = scrape();
        let found = samples(&text);
        assert_eq!(found[&*format!("uslab_cache_active_objects{labels}")], "100", "{text}");
        assert_eq!(found[&*format!("uslab_cache_active_bytes{labels}")], "6400", "{text}");
        assert!(text.contains("# TYPE uslab_purged_bytes counter\n"), "{text}");
        assert!(text.contains("# UNIT uslab_mapped_bytes bytes\n"), "{text}");
        assert!(text.ends_with("# EOF\n"));
        let names: BTreeSet<String> = found.into_keys().map(str::to_owned).collect();
        let listed = listed();
        let is_other = |name: &&String| !name.contains("cache=\"malloc-");
        assert!(names.iter().filter(is_other).eq(listed.iter().filter(is_other)), "{names:?}\n{listed:?}");

        drop(kept);
        drop(orders);
        assert!(!scrape().contains("today"), "a cache that is gone is not listed");
    });
}
