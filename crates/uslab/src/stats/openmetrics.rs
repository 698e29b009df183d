//! The figures as OpenMetrics text, with the names that `uslab metrics` uses.

use super::families::{self, Emit, Family, Output};
use core::fmt::{self, Write};

/// Writes the figures of this process as OpenMetrics 1.0 text, for a program that serves metrics
/// itself. The names are those of `uslab metrics`, without the labels `command` and `pid`: the
/// scraper labels its targets.
///
/// Caches and shrinkers that share a name differ by the label `id`. The function allocates nothing,
/// and takes the locks that all functions of this module take. Not for signal handlers.
///
/// A program that already uses the crate `metrics` or `prometheus-client` takes `Publisher` or
/// `Collector` instead, behind the features of those names.
///
/// ```
/// let mut text = String::new();
/// uslab::stats::write_openmetrics(&mut text).unwrap();
/// assert!(text.starts_with("# TYPE uslab_build info\n") && text.ends_with("# EOF\n"));
/// ```
///
/// # Errors
/// Those of `out`.
pub fn write_openmetrics(out: &mut dyn Write) -> fmt::Result {
    families::write(&mut Text { out })?;
    out.write_str("# EOF\n")
}

struct Text<'a> {
    out: &'a mut dyn Write,
}

impl Output for Text<'_> {
    fn family(
        &mut self,
        family: &Family,
        samples: &mut dyn FnMut(&mut Emit<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let (Family { name, kind, help }, out) = (family, &mut *self.out);
        writeln!(out, "# TYPE {name} {}", kind.word())?;
        if family.is_bytes() {
            writeln!(out, "# UNIT {name} bytes")?;
        }
        writeln!(out, "# HELP {name} {help}")?;
        samples(&mut |labels, value| writeln!(out, "{name}{}{} {value}", kind.ending(), Labels(labels)))
    }
}

/// The labels of a sample, in braces; nothing where there are none.
struct Labels<'a>(&'a [(&'a str, &'a str)]);

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (label, value)) in self.0.iter().enumerate() {
            write!(f, "{}{label}=\"", if nth == 0 { '{' } else { ',' })?;
            for letter in value.chars() {
                match letter {
                    '\\' => f.write_str("\\\\")?,
                    '"' => f.write_str("\\\"")?,
                    '\n' => f.write_str("\\n")?,
                    letter => f.write_char(letter)?,
                }
            }
            f.write_char('"')?;
        }
        f.write_str(if self.0.is_empty() { "" } else { "}" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::string::String;

    #[test]
    fn each_sample_is_unique_and_below_its_family() {
        let cache = crate::Cache::<[u8; 72]>::new("open \"metrics\"");
        let object = cache.insert([1; 72]).expect("there is memory");
        let mut text = String::new();
        write_openmetrics(&mut text).expect("strings take everything");
        drop(object);
        let (mut family, mut seen) = ("", HashSet::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().expect("a name");
            } else if !line.starts_with('#') {
                let (sample, value) = line.rsplit_once(' ').expect("a value");
                assert!(sample.starts_with(family) && value.parse::<u64>().is_ok(), "{line}");
                assert!(seen.insert(sample), "twice: {line}");
            }
        }
        assert!(text.contains("uslab_cache_active_objects{cache=\"open \\\"metrics\\\"\",id=\""), "{text}");
        assert!(text.contains("uslab_cache_active_bytes{cache=\"open \\\"metrics\\\"\",id=\""), "{text}");
        assert!(text.contains("uslab_cache_alloc_slow_total{") && text.ends_with("# EOF\n"));
        assert!(
            text.contains("uslab_build_info{version=\"") && text.contains("\nuslab_dirty_bytes "),
            "{text}"
        );
    }
}
