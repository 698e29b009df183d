//! Text formats: OpenMetrics 1.0, and Prometheus 0.0.4 for readers that know only that.
//!
//! They differ in the names of counters and in the last line. node_exporter's textfile collector
//! and `promtool check metrics` read the older one; Prometheus asks a server for the newer one.

use std::fmt::Write;

use clap::ValueEnum;

/// The format of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[value(name = "openmetrics")]
    OpenMetrics,
    Prometheus,
}

impl Format {
    /// The type of content, for HTTP.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The format that the `Accept` header of a request asks for.
    pub fn accepted(accept: Option<&str>) -> Format {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Format::OpenMetrics,
            _ => Format::Prometheus,
        }
    }
}

/// How values of a family move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    Counter,
    /// Always 1; the labels are the news.
    Info,
}

/// What all samples of one name have in common.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Without the ending that a counter's or an info's samples have.
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

impl Family {
    /// The name that its samples have.
    pub fn sample_name(&self) -> String {
        let ending = match self.kind {
            Kind::Gauge => "",
            Kind::Counter => "_total",
            Kind::Info => "_info",
        };
        format!("{}{ending}", self.name)
    }

    /// OpenMetrics wants a unit to be the end of the name.
    fn unit(&self) -> Option<&'static str> {
        self.name.ends_with("_bytes").then_some("bytes")
    }
}

/// One value, and what tells it from the others of its family.
pub struct Sample {
    pub labels: Vec<(&'static str, String)>,
    pub value: u64,
}

/// The whole text. Families without samples are left out.
pub fn text(families: &[(Family, Vec<Sample>)], format: Format) -> String {
    let mut text = String::new();
    for (family, samples) in families.iter().filter(|(_, samples)| !samples.is_empty()) {
        head(&mut text, family, format);
        let name = family.sample_name();
        for sample in samples {
            text.push_str(&name);
            let mut separator = '{';
            for (label, value) in &sample.labels {
                let _ = write!(text, "{separator}{label}=\"{}\"", escaped(value));
                separator = ',';
            }
            if separator == ',' {
                text.push('}');
            }
            let _ = writeln!(text, " {}", sample.value);
        }
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn head(text: &mut String, family: &Family, format: Format) {
    let Family { name, kind, help } = family;
    let _ = match format {
        Format::OpenMetrics => {
            let kind = match kind {
                Kind::Gauge => "gauge",
                Kind::Counter => "counter",
                Kind::Info => "info",
            };
            let _ = writeln!(text, "# TYPE {name} {kind}");
            if let Some(unit) = family.unit() {
                let _ = writeln!(text, "# UNIT {name} {unit}");
            }
            writeln!(text, "# HELP {name} {help}")
        }
        Format::Prometheus => {
            let kind = if *kind == Kind::Counter { "counter" } else { "gauge" };
            let name = family.sample_name();
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")
        }
    };
}

/// A label's value as both formats write it.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: [Family; 3] = [
        Family { name: "a_bytes", kind: Kind::Gauge, help: "Bytes." },
        Family { name: "b", kind: Kind::Counter, help: "Times." },
        Family { name: "c", kind: Kind::Info, help: "Facts." },
    ];

    fn families() -> Vec<(Family, Vec<Sample>)> {
        let labels = vec![("x", "a\"b\\c\nd".to_owned()), ("y", String::new())];
        let samples = vec![Sample { labels, value: 7 }, Sample { labels: Vec::new(), value: u64::MAX }];
        let one = |value| vec![Sample { labels: Vec::new(), value }];
        FAMILIES.into_iter().zip([samples, one(2), one(1)]).collect()
    }

    #[test]
    fn openmetrics_is_this() {
        let expected = r#"# TYPE a_bytes gauge
# UNIT a_bytes bytes
# HELP a_bytes Bytes.
a_bytes{x="a\"b\\c\nd",y=""} 7
a_bytes 18446744073709551615
# TYPE b counter
# HELP b Times.
b_total 2
# TYPE c info
# HELP c Facts.
c_info 1
# EOF
"#;
        assert_eq!(text(&families(), Format::OpenMetrics), expected);
    }

    #[test]
    fn the_older_format_names_samples() {
        let text = text(&families(), Format::Prometheus);
        assert!(text.starts_with("# HELP a_bytes Bytes.\n# TYPE a_bytes gauge\na_bytes{"), "{text}");
        assert!(text.contains("# TYPE b_total counter\nb_total 2\n"), "{text}");
        assert!(text.ends_with("# TYPE c_info gauge\nc_info 1\n"), "{text}");
    }

    #[test]
    fn a_family_without_samples_is_left_out() {
        assert_eq!(text(&[(FAMILIES[0], Vec::new())], Format::OpenMetrics), "# EOF\n");
    }

    #[test]
    fn the_reader_chooses_the_format() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
        assert_eq!(Format::accepted(Some("*/*")), Format::Prometheus);
        assert_eq!(Format::accepted(None), Format::Prometheus);
    }
}
