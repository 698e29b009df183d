//! The figures for a registry of the crate `prometheus-client`.

use super::families::{self, Emit, Family, Kind, Output};
use ::prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use ::prometheus_client::metrics::MetricType;
use ::prometheus_client::registry::Unit;
use core::fmt;

/// The figures of this process as a collector of the crate `prometheus-client`: a program registers
/// it once, and each scrape reads the figures of its moment. Needs the feature `prometheus-client`.
///
/// The names and labels are those of [`write_openmetrics`](super::write_openmetrics).
///
/// A scrape takes the locks that all of [`stats`](super) take, and lets them go before it encodes.
/// It may run on any thread, and not in signal handlers. The collector itself allocates nothing.
///
/// ```
/// use prometheus_client::{encoding::text::encode, registry::Registry};
///
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(uslab::stats::Collector));
///
/// let orders = uslab::Cache::<[u64; 8]>::new("orders");
/// let order = orders.insert([0; 8]).unwrap();
/// let mut text = String::new();
/// encode(&mut text, &registry).unwrap();
/// let line = text.lines().find(|line| line.starts_with("uslab_cache_active_objects{cache=\"orders\""));
/// assert!(line.unwrap().ends_with(" 1"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Collector;

impl ::prometheus_client::collector::Collector for Collector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        families::write(&mut Encoder(encoder))
    }
}

struct Encoder<'a>(DescriptorEncoder<'a>);

impl Output for Encoder<'_> {
    fn family(
        &mut self,
        family: &Family,
        samples: &mut dyn FnMut(&mut Emit<'_>) -> fmt::Result,
    ) -> fmt::Result {
        // The encoder puts the unit, and the ending of the type, behind the name itself.
        let unit = family.is_bytes().then_some(Unit::Bytes);
        let name = family.name.strip_suffix("_bytes").unwrap_or(family.name);
        let kind = match family.kind {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
            Kind::Info => MetricType::Info,
        };
        let mut metric = self.0.encode_descriptor(name, family.help, unit.as_ref(), kind)?;
        samples(&mut |labels, value| match family.kind {
            Kind::Info => metric.encode_info(&labels),
            Kind::Counter if labels.is_empty() => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
            Kind::Counter => {
                metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
            }
            Kind::Gauge if labels.is_empty() => metric.encode_gauge(&value),
            Kind::Gauge => metric.encode_family(&labels)?.encode_gauge(&value),
        })
    }
}
