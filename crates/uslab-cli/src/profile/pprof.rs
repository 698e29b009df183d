//! pprof's format: gzipped protobuf, as github.com/google/pprof/proto/profile.proto defines it.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use prost::Message;

use super::heap::{Heap, Line, Location, MAX_TEXT_BYTES, Mapping, Site, VALUES};
use crate::input::{Budget, Fields, Identity, MAX_BYTES, invalid, read_stream};
use crate::process::printable;

/// Messages and numbers of a file. One sample of two bytes takes 72 in memory.
const MAX_ELEMENTS: usize = 4 << 20;
/// Letters of a text; more are cut.
const MAX_LETTERS: usize = 4096;

/// The messages of the definition. Text is an index of the table; 0 is the empty one.
mod proto {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        #[prost(int64, tag = "7")]
        pub drop_frames: i64,
        #[prost(int64, tag = "9")]
        pub time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub period: i64,
        #[prost(int64, repeated, tag = "13")]
        pub comment: Vec<i64>,
        #[prost(int64, tag = "14")]
        pub default_sample_type: i64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ValueType {
        #[prost(int64, tag = "1")]
        pub r#type: i64,
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub label: Vec<Label>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Label {
        #[prost(int64, tag = "1")]
        pub key: i64,
        #[prost(int64, tag = "2")]
        pub str: i64,
        #[prost(int64, tag = "3")]
        pub num: i64,
        #[prost(int64, tag = "4")]
        pub num_unit: i64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Mapping {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub memory_start: u64,
        #[prost(uint64, tag = "3")]
        pub memory_limit: u64,
        #[prost(uint64, tag = "4")]
        pub file_offset: u64,
        #[prost(int64, tag = "5")]
        pub filename: i64,
        #[prost(int64, tag = "6")]
        pub build_id: i64,
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
        #[prost(bool, tag = "8")]
        pub has_filenames: bool,
        #[prost(bool, tag = "9")]
        pub has_line_numbers: bool,
        #[prost(bool, tag = "10")]
        pub has_inline_frames: bool,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        #[prost(uint64, tag = "3")]
        pub address: u64,
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
        #[prost(int64, tag = "2")]
        pub line: i64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Function {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "2")]
        pub name: i64,
        #[prost(int64, tag = "3")]
        pub system_name: i64,
        #[prost(int64, tag = "4")]
        pub filename: i64,
    }
}

/// Texts and functions, each once.
struct Tables {
    texts: Vec<String>,
    index: HashMap<String, i64>,
    functions: Vec<proto::Function>,
    function_index: HashMap<(i64, i64), u64>,
}

impl Tables {
    fn new() -> Self {
        let (texts, index) = (vec![String::new()], HashMap::from([(String::new(), 0)]));
        Tables { texts, index, functions: Vec::new(), function_index: HashMap::new() }
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.index.get(text) {
            return index;
        }
        let index = self.texts.len() as i64;
        self.texts.push(text.to_owned());
        self.index.insert(text.to_owned(), index);
        index
    }

    fn value_type(&mut self, (name, unit): (&str, &str)) -> proto::ValueType {
        proto::ValueType { r#type: self.text(name), unit: self.text(unit) }
    }

    fn line(&mut self, line: &Line) -> proto::Line {
        let (name, filename) = (self.text(&line.function), self.text(&line.file));
        let next = self.functions.len() as u64 + 1;
        let id = *self.function_index.entry((name, filename)).or_insert(next);
        if id == next {
            self.functions.push(proto::Function { id, name, system_name: name, filename });
        }
        proto::Line { function_id: id, line: line.line.into() }
    }
}

/// A profile as pprof's file.
pub fn encode(heap: &Heap) -> Vec<u8> {
    let mut tables = Tables::new();
    let sample_type = VALUES.map(|value| tables.value_type(value)).into();
    let period_type = Some(tables.value_type(("space", "bytes")));
    let default_sample_type = tables.text(VALUES[3].0);
    let (cache, size, bytes) = (tables.text("cache"), tables.text("size"), tables.text("bytes"));
    let sample = heap.sites.iter().map(|site| proto::Sample {
        location_id: site.locations.iter().map(|&index| index as u64 + 1).collect(),
        value: site.values.to_vec(),
        label: vec![
            proto::Label { key: cache, str: tables.text(&site.cache), ..proto::Label::default() },
            proto::Label {
                key: size,
                num: site.object_bytes as i64,
                num_unit: bytes,
                ..proto::Label::default()
            },
        ],
    });
    let sample = sample.collect();
    let location = heap.locations.iter().zip(1..).map(|(location, id)| proto::Location {
        id,
        mapping_id: location.mapping.map_or(0, |index| index as u64 + 1),
        address: location.address,
        line: location.lines.iter().map(|line| tables.line(line)).collect(),
    });
    let location = location.collect();
    // pprof looks for symbols itself in mappings that have none.
    let mut named: Vec<Option<bool>> = vec![None; heap.mappings.len()];
    for location in &heap.locations {
        if let Some(place) = location.mapping.and_then(|index| named.get_mut(index)) {
            *place = Some(place.unwrap_or(true) && !location.lines.is_empty());
        }
    }
    let mapping = heap.mappings.iter().enumerate().map(|(index, mapping)| {
        let is_named = named[index] == Some(true);
        proto::Mapping {
            id: index as u64 + 1,
            memory_start: mapping.start,
            memory_limit: mapping.end,
            file_offset: mapping.file_offset,
            filename: tables.text(&mapping.path),
            build_id: tables.text(&mapping.build_id),
            has_functions: is_named,
            has_filenames: is_named,
            has_line_numbers: is_named,
            has_inline_frames: is_named,
        }
    });
    let mapping = mapping.collect();
    let own: Vec<String> = heap.own_functions(matched).iter().map(|name| escaped(name)).collect();
    let drop_frames = tables.text(&own.join("|"));
    let mut comments = vec![format!("{} (pid {})", heap.command, heap.pid)];
    if heap.dropped > 0 {
        comments.push(format!("the process had no room for {} samples", heap.dropped));
    }
    let profile = proto::Profile {
        sample_type,
        sample,
        mapping,
        location,
        drop_frames,
        time_nanos: (heap.written_ms as i64).saturating_mul(1_000_000),
        duration_nanos: (heap.duration_ms as i64).saturating_mul(1_000_000),
        period_type,
        period: heap.period_bytes as i64,
        comment: comments.iter().map(|comment| tables.text(comment)).collect(),
        default_sample_type,
        function: tables.functions,
        string_table: tables.texts,
    };
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    // A vector takes every byte.
    let _ = out.write_all(&profile.encode_to_vec());
    out.finish().unwrap_or_default()
}

/// The part of a function's name that pprof compares with `drop_frames`: that before the arguments
/// (`simplifyFunc` in github.com/google/pprof/profile/prune.go).
fn matched(name: &str) -> &str {
    const NO_ARGUMENTS: [&str; 2] = ["(anonymous namespace)", "operator()"];
    let name = name.strip_prefix('.').unwrap_or(name);
    let mut from = 0;
    while let Some(at) = name[from..].find('(').map(|at| from + at) {
        let word = NO_ARGUMENTS.iter().find_map(|word| {
            let start = at.checked_sub(word.find('(')?).filter(|&start| start >= from)?;
            name.get(start..)?.starts_with(word).then_some(start + word.len())
        });
        match word {
            Some(end) => from = end,
            None => return &name[..at],
        }
    }
    name
}

/// A name with the characters of regular expressions escaped.
fn escaped(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if "\\.+*?()|[]{}^$".contains(letter) {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}

/// Reads a file that [`encode`], or another heap profiler, made.
pub fn decode(file: impl Read) -> io::Result<Heap> {
    let bytes = read_stream(GzDecoder::new(file), MAX_BYTES)?;
    match elements(&bytes, &[2, 4]) {
        Some(0..=MAX_ELEMENTS) => {}
        Some(_) => return Err(invalid(&format!("it has more than {MAX_ELEMENTS} parts"))),
        None => return Err(invalid("it is damaged")),
    }
    let budget = Budget::new(MAX_TEXT_BYTES);
    let profile = proto::Profile::decode(&bytes[..]).map_err(|error| invalid(&error.to_string()))?;
    let text = |index: i64| {
        let found = usize::try_from(index).ok().and_then(|index| profile.string_table.get(index));
        // Neither a long text nor one that many messages name costs more than what is kept of it.
        let Some(found) = found.filter(|_| !budget.is_exceeded()) else { return String::new() };
        let cut: String = found.chars().take(MAX_LETTERS).collect();
        let shown = printable(&cut);
        if budget.allows(shown.len()) { shown } else { String::new() }
    };
    // A value that the file does not have is 0.
    let columns = VALUES.map(|(name, _)| profile.sample_type.iter().position(|t| text(t.r#type) == name));
    if columns[3].is_none() {
        return Err(invalid("it is no heap profile: it has no inuse_space"));
    }
    let functions: HashMap<u64, &proto::Function> = profile.function.iter().map(|f| (f.id, f)).collect();
    let maps: HashMap<u64, usize> = profile.mapping.iter().zip(0..).map(|(m, index)| (m.id, index)).collect();
    let ids: HashMap<u64, usize> = profile.location.iter().zip(0..).map(|(l, index)| (l.id, index)).collect();
    let line = |line: &proto::Line| {
        let function = functions.get(&line.function_id);
        Line {
            function: function.map_or_else(|| "?".to_owned(), |function| text(function.name)),
            file: function.map_or_else(String::new, |function| text(function.filename)),
            line: u32::try_from(line.line).unwrap_or(0),
        }
    };
    let locations = profile.location.iter().map(|location| Location {
        address: location.address,
        mapping: maps.get(&location.mapping_id).copied(),
        lines: location.line.iter().map(line).collect(),
    });
    let sites = profile.sample.iter().map(|sample| {
        let label = |name: &str| sample.label.iter().find(|label| text(label.key) == name);
        Site {
            cache: label("cache").map_or_else(|| "?".to_owned(), |label| text(label.str)),
            object_bytes: label("size").map_or(0, |label| u64::try_from(label.num).unwrap_or(0)),
            values: columns.map(|column| column.and_then(|at| sample.value.get(at)).copied().unwrap_or(0)),
            ages: None,
            locations: sample.location_id.iter().filter_map(|id| ids.get(id)).copied().collect(),
        }
    });
    let mappings = profile.mapping.iter().map(|mapping| Mapping {
        start: mapping.memory_start,
        end: mapping.memory_limit,
        file_offset: mapping.file_offset,
        identity: Identity::default(),
        path: text(mapping.filename),
        build_id: text(mapping.build_id),
    });
    let about = profile.comment.first().map_or_else(String::new, |&comment| text(comment));
    let (command, pid) = about.rsplit_once(" (pid ").unwrap_or((&about, ""));
    let heap = Heap {
        pid: pid.trim_end_matches(')').parse().unwrap_or(0),
        command: command.to_owned(),
        period_bytes: u64::try_from(profile.period).unwrap_or(0),
        written_ms: u64::try_from(profile.time_nanos / 1_000_000).unwrap_or(0),
        duration_ms: u64::try_from(profile.duration_nanos / 1_000_000).unwrap_or(0),
        dropped: 0,
        sites: sites.collect(),
        locations: locations.collect(),
        mappings: mappings.collect(),
        is_difference: false,
    };
    if budget.is_exceeded() {
        return Err(invalid(&format!("its names take more than {} MiB", MAX_TEXT_BYTES >> 20)));
    }
    Ok(heap)
}

/// The parts of a message: fields, and the bytes of lists of numbers, in it and in the messages of
/// the fields `inner`. `None` if it is damaged.
fn elements(bytes: &[u8], inner: &[u64]) -> Option<usize> {
    let mut count = 0;
    for field in Fields::of(bytes) {
        let (number, part) = field?;
        count += 1 + match number {
            number if inner.contains(&number) => elements(part, &[])?,
            // Lists of numbers: locations and values of samples. Elsewhere these are few.
            1 | 2 if inner.is_empty() => part.len(),
            13 => part.len(),
            _ => 0,
        };
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::profile::dump::tests::sample;

    #[test]
    fn a_profile_comes_back_as_it_was_written() {
        let heap = sample();
        let mut back = decode(&encode(&heap)[..]).expect("a profile");
        for (site, original) in back.sites.iter_mut().zip(&heap.sites) {
            site.ages = original.ages;
        }
        for (mapping, original) in back.mappings.iter_mut().zip(&heap.mappings) {
            mapping.identity = original.identity;
        }
        assert_eq!(back, heap);
    }

    #[test]
    fn the_file_is_what_pprof_expects() {
        let mut raw = Vec::new();
        GzDecoder::new(&encode(&sample())[..]).read_to_end(&mut raw).expect("gzip");
        let profile = proto::Profile::decode(&raw[..]).expect("protobuf");
        let text = |index: i64| profile.string_table[index as usize].as_str();
        let types: Vec<_> = profile.sample_type.iter().map(|t| (text(t.r#type), text(t.unit))).collect();
        assert_eq!(types, VALUES);
        assert_eq!(text(profile.default_sample_type), "inuse_space");
        let period = profile.period_type.as_ref().expect("a type");
        assert_eq!((text(period.r#type), text(period.unit), profile.period), ("space", "bytes", 524_288));
        assert_eq!((text(profile.drop_frames), text(0)), ("malloc", ""));
        let labels = &profile.sample[1].label;
        assert_eq!((text(labels[0].key), text(labels[0].str)), ("cache", "session table"));
        assert_eq!((text(labels[1].key), labels[1].num, text(labels[1].num_unit)), ("size", 1000, "bytes"));
        assert_eq!(profile.duration_nanos, 30_000_000_000);
    }

    #[test]
    fn dropped_names_are_compared_as_pprof_does_it() {
        for (name, part) in [
            ("operator new(unsigned long)", "operator new"),
            ("a::(anonymous namespace)::f(int)", "a::(anonymous namespace)::f"),
            ("a::operator()(int) const", "a::operator()"),
            ("operator()operator()(int)", "operator()operator()"),
            (".f(int)", "f"),
            ("<uslab::Uslab as GlobalAlloc>::alloc", "<uslab::Uslab as GlobalAlloc>::alloc"),
            ("operator", "operator"),
            ("größe(x)", "größe"),
            ("(x)", ""),
            ("", ""),
        ] {
            assert_eq!(matched(name), part, "{name}");
        }
        let dropped = |names: [&str; 4]| {
            let mut heap = sample();
            for (location, name) in heap.locations.iter_mut().zip(names) {
                location.lines[0].function = name.to_owned();
            }
            let mut raw = Vec::new();
            GzDecoder::new(&encode(&heap)[..]).read_to_end(&mut raw).expect("gzip");
            let profile = proto::Profile::decode(&raw[..]).expect("protobuf");
            profile.string_table[profile.drop_frames as usize].clone()
        };
        let own = "operator new(unsigned long)";
        assert_eq!(dropped([own, "leak_here", "main", "fill"]), "operator new");
        // pprof would drop everything below the program's own function.
        assert_eq!(dropped([own, "leak_here", "operator new(Arena&)", "fill"]), "");
    }

    #[test]
    fn names_are_no_expressions() {
        assert_eq!(escaped("operator new(unsigned long)"), "operator new\\(unsigned long\\)");
    }

    #[test]
    fn a_small_file_that_unpacks_to_much_is_refused() {
        let packed = |bytes: &[u8]| {
            let mut out = GzEncoder::new(Vec::new(), Compression::fast());
            out.write_all(bytes).expect("packed");
            out.finish().expect("packed")
        };
        let reason = |bytes: &[u8]| decode(&packed(bytes)[..]).expect_err("refused").to_string();
        assert_eq!(reason(&vec![0; (MAX_BYTES + 1) as usize]), "it holds more than 64 MiB");
        // Samples without anything in them, and one with labels without anything in them.
        let samples = [0x12, 0].repeat(MAX_ELEMENTS + 1);
        assert_eq!(reason(&samples), format!("it has more than {MAX_ELEMENTS} parts"));
        let labels = [0x1a, 0].repeat(MAX_ELEMENTS);
        let mut sample = vec![0x12];
        prost::encoding::encode_varint(labels.len() as u64, &mut sample);
        sample.extend(labels);
        assert_eq!(reason(&sample), format!("it has more than {MAX_ELEMENTS} parts"));
        // One long name, and many lines that bear it.
        let name = "x".repeat(4 * MAX_LETTERS);
        let line = proto::Line { function_id: 1, line: 1 };
        let profile = proto::Profile {
            sample_type: vec![proto::ValueType { r#type: 1, unit: 0 }],
            string_table: vec![String::new(), "inuse_space".into(), name],
            function: vec![proto::Function { id: 1, name: 2, system_name: 0, filename: 2 }],
            location: vec![proto::Location { line: vec![line; 40_000], ..proto::Location::default() }],
            ..proto::Profile::default()
        };
        assert_eq!(reason(&profile.encode_to_vec()), "its names take more than 256 MiB");
    }

    #[test]
    fn a_text_costs_what_is_kept_of_it() {
        let line = proto::Line { function_id: 1, line: 1 };
        let profile = proto::Profile {
            sample_type: vec![proto::ValueType { r#type: 1, unit: 0 }],
            string_table: vec![String::new(), "inuse_space".into(), "\x1b".repeat(16 << 20)],
            function: vec![proto::Function { id: 1, name: 2, system_name: 0, filename: 2 }],
            location: vec![proto::Location { line: vec![line; 1000], ..proto::Location::default() }],
            ..proto::Profile::default()
        };
        let mut file = GzEncoder::new(Vec::new(), Compression::fast());
        file.write_all(&profile.encode_to_vec()).expect("packed");
        let file = file.finish().expect("packed");
        let start = Instant::now();
        let heap = decode(&file[..]).expect("a profile");
        assert_eq!(heap.locations[0].lines[999].function, "\u{fffd}".repeat(MAX_LETTERS));
        // To walk the whole text for each line takes minutes.
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }

    #[test]
    fn damage_is_no_panic() {
        let whole = encode(&sample());
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _ = decode(&damaged[..]);
            let _ = decode(&whole[..at]);
        }
    }
}
