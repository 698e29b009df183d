//! The format of a record: differences from sample to sample, in protobuf messages in one gzip
//! stream.
//!
//! ```text
//!   gzip( length Header, length Sample, length Sample, … )
//! ```
//!
//! A sample names only the caches and figures that changed, by their difference. Each sample ends
//! at a flush of the compressor, so a file that was cut short yields every sample before the cut.
//!
//! The reader trusts nothing: lengths and ids are capped, sums wrap, names are made safe to print.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use prost::Message;

use super::counts::Counts;
use crate::input::{Fields, invalid};
use crate::layout::{MAX_RECORDS, NAME_BYTES};
use crate::process::printable;

/// Raised when a reader of the format before would misread a file.
pub const FORMAT: u32 = 1;
/// A message of all caches, defined anew, is shorter. One cache takes up to 296 bytes: its name up
/// to 147 (48 bytes, each of which is shown as a letter of three), its size 6, its id 4, its
/// figures 133 (13 of up to 10 bytes), and the heads of the two messages 6. [`MAX_RECORDS`] of them
/// are 18.5 MiB.
const MAX_MESSAGE_BYTES: usize = 20 << 20;
/// The field [`Sample::caches`].
const CACHES: u64 = 3;
/// Letters of an event or a command; more are cut.
const MAX_LETTERS: usize = 256;

/// Declares the figures of a sample, in the order in which they stand in a file.
macro_rules! figures {
    ($(#[$meta:meta])* $name:ident: $($(#[$figure_meta:meta])* $figure:ident),+ $(,)?) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$figure_meta])* pub $figure: u64,)+
        }

        impl $name {
            fn words(&self) -> Vec<u64> {
                vec![$(self.$figure),+]
            }

            /// Adds differences. A newer writer may have appended figures: they are passed over.
            fn add(&mut self, differences: &[i64]) {
                let mut differences = differences.iter();
                $(self.$figure = self.$figure.wrapping_add_signed(differences.next().copied().unwrap_or(0));)+
            }
        }
    };
}

figures! {
    /// Figures of the process.
    ProcessFigures:
    rss_bytes,
    used_bytes,
    dirty_bytes,
    committed_bytes,
    metadata_bytes,
    large_bytes,
    large_objects,
    /// In total.
    large_allocs,
    /// In total.
    purged_bytes,
    /// Microseconds for which some task of the process's cgroup, or of the system, waited for
    /// memory, in total.
    stall_us,
    /// Passes of reclaim, in total.
    passes,
    /// Bytes that these gave back, in total.
    passes_bytes,
    /// Entries that shrinkers freed, in total.
    shrinker_entries,
}

figures! {
    /// Figures of one cache. Slack is what the other parts leave of the slabs.
    CacheFigures:
    slab_bytes,
    live_bytes,
    cached_bytes,
    partial_bytes,
    empty_bytes,
    live_objects,
    /// This and the following count from the cache's start.
    slow,
    refills,
    flushes,
    drains,
    grows,
    shrinks,
    failures,
}

/// The first message of a record.
#[derive(Clone, PartialEq, Message)]
pub struct Header {
    #[prost(uint32, tag = "1")]
    pub format: u32,
    /// Version of the program that wrote it.
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(uint32, tag = "3")]
    pub pid: u32,
    #[prost(string, tag = "4")]
    pub command: String,
    #[prost(string, tag = "5")]
    pub mode: String,
    /// Milliseconds of Unix time at the first sample.
    #[prost(uint64, tag = "6")]
    pub began_ms: u64,
}

/// Every other message: what changed since the sample before.
#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, tag = "1")]
    after_ms: u64,
    #[prost(sint64, repeated, tag = "2")]
    process: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    caches: Vec<CacheSample>,
    #[prost(string, tag = "4")]
    event: String,
}

#[derive(Clone, PartialEq, Message)]
struct CacheSample {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(message, optional, tag = "2")]
    defined: Option<Definition>,
    #[prost(bool, tag = "3")]
    is_gone: bool,
    #[prost(sint64, repeated, tag = "4")]
    figures: Vec<i64>,
}

/// The name of a cache. It begins a new row of figures, from zero.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
pub struct Definition {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint32, tag = "2")]
    pub user_bytes: u32,
}

/// All figures at one instant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frame {
    /// Milliseconds since the first sample.
    pub at_ms: u64,
    pub process: ProcessFigures,
    /// Caches that have a slab, or had one, by id.
    pub caches: BTreeMap<u32, (Definition, CacheFigures)>,
    /// Something that happened to the process.
    pub event: Option<String>,
}

/// Differences, without the zeros at their end.
fn differences(now: &[u64], then: &[u64]) -> Vec<i64> {
    let mut found: Vec<i64> =
        now.iter().zip(then).map(|(now, then)| now.wrapping_sub(*then) as i64).collect();
    while found.last() == Some(&0) {
        found.pop();
    }
    found
}

/// Writes a record.
pub struct Writer<W: Write> {
    out: GzEncoder<W>,
    last: Frame,
}

impl<W: Write> Writer<W> {
    /// Begins a record.
    pub fn new(out: W, header: &Header) -> io::Result<Self> {
        let mut out = GzEncoder::new(out, Compression::default());
        out.write_all(&header.encode_length_delimited_to_vec())?;
        Ok(Writer { out, last: Frame::default() })
    }

    /// Adds a sample, and hands it to the file.
    pub fn add(&mut self, frame: Frame) -> io::Result<()> {
        let last = &self.last;
        let mut caches: Vec<CacheSample> =
            frame.caches.iter().filter_map(|(id, now)| changed(*id, now, last)).collect();
        let gone = last.caches.keys().filter(|id| !frame.caches.contains_key(id));
        caches.extend(gone.map(|&id| CacheSample { id, is_gone: true, ..CacheSample::default() }));
        let sample = Sample {
            after_ms: frame.at_ms.saturating_sub(last.at_ms),
            process: differences(&frame.process.words(), &last.process.words()),
            caches,
            event: frame.event.clone().unwrap_or_default(),
        };
        self.out.write_all(&sample.encode_length_delimited_to_vec())?;
        self.out.flush()?;
        self.last = frame;
        Ok(())
    }

    /// Ends the record; returns what it was written to.
    pub fn finish(self) -> io::Result<W> {
        self.out.finish()
    }
}

/// The message about one cache; none if nothing changed.
fn changed(id: u32, (definition, now): &(Definition, CacheFigures), last: &Frame) -> Option<CacheSample> {
    let before = last.caches.get(&id).filter(|(before, _)| before == definition);
    let then = before.map_or(CacheFigures::default(), |(_, then)| *then);
    let figures = differences(&now.words(), &then.words());
    let defined = before.is_none().then(|| definition.clone());
    (defined.is_some() || !figures.is_empty()).then_some(CacheSample { id, defined, is_gone: false, figures })
}

/// Reads a record, frame by frame.
pub struct Reader<R: Read> {
    input: BufReader<GzDecoder<R>>,
    pub header: Header,
    /// What all caches counted up to the frame that was read last.
    pub counts: Counts,
    frame: Frame,
    is_first: bool,
    /// The record ends in the middle of a sample.
    pub is_cut: bool,
}

/// Text that is safe to print, and not too long.
fn shown(text: &str) -> String {
    printable(text).chars().take(MAX_LETTERS).collect()
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn new(input: R) -> io::Result<Self> {
        let mut input = BufReader::new(GzDecoder::new(input));
        let strange = || invalid("it is not a record of `uslab record`");
        let message = message(&mut input).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
                strange()
            }
            _ => error,
        })?;
        let mut header = Header::decode(&message.ok_or_else(strange)?[..]).map_err(|_| strange())?;
        if header.format != FORMAT {
            let line = format!("it is of format {}, and this program reads format {FORMAT}", header.format);
            return Err(invalid(&line));
        }
        for name in [&mut header.command, &mut header.mode, &mut header.version] {
            *name = shown(name);
        }
        let (counts, frame) = (Counts::default(), Frame::default());
        Ok(Reader { input, header, counts, frame, is_first: true, is_cut: false })
    }

    /// The frame that was read last.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The next frame; none at the end.
    pub fn next(&mut self) -> io::Result<Option<&Frame>> {
        let message = match message(&mut self.input) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.is_cut = true;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // Two bytes of the file make a cache of 72 in memory.
        let caches = Fields::of(&message).filter(|field| field.is_some_and(|(number, _)| number == CACHES));
        if caches.count() > MAX_RECORDS {
            return Err(invalid("it has a sample with more caches than can be"));
        }
        let sample = Sample::decode(&message[..]).map_err(|_| invalid("it is damaged"))?;
        let frame = &mut self.frame;
        frame.at_ms = if self.is_first { 0 } else { frame.at_ms.saturating_add(sample.after_ms) };
        self.is_first = false;
        frame.process.add(&sample.process);
        frame.event = (!sample.event.is_empty()).then(|| shown(&sample.event));
        for cache in sample.caches {
            if cache.id as usize >= MAX_RECORDS {
                return Err(invalid("it names a cache that cannot be"));
            }
            if cache.is_gone {
                frame.caches.remove(&cache.id);
                continue;
            }
            if let Some(mut definition) = cache.defined {
                definition.name = printable(&definition.name).chars().take(NAME_BYTES).collect();
                frame.caches.insert(cache.id, (definition, CacheFigures::default()));
            }
            let Some((_, figures)) = frame.caches.get_mut(&cache.id) else {
                return Err(invalid("it has figures of a cache without a name"));
            };
            let then = *figures;
            figures.add(&cache.figures);
            self.counts.add(&then, figures);
        }
        Ok(Some(frame))
    }
}

/// The bytes of the next message; none where the stream ends between two.
fn message(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length: usize = 0;
    for place in 0.. {
        let mut byte = [0];
        if input.read(&mut byte)? == 0 {
            return if place == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        length |= usize::from(byte[0] & 0x7f) << (7 * place);
        if byte[0] < 0x80 {
            break;
        }
        if place == 3 {
            return Err(invalid("a message is too long"));
        }
    }
    if length > MAX_MESSAGE_BYTES {
        return Err(invalid("a message is too long"));
    }
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Frames of a process whose first cache grows, and whose second comes and goes.
    pub fn frames(count: u64) -> Vec<Frame> {
        let cache = |name: &str, user_bytes: u32, n: u64| {
            let figures = CacheFigures {
                slab_bytes: n << 15,
                live_bytes: n << 14,
                partial_bytes: n << 13,
                live_objects: n * 256,
                drains: n,
                shrinks: n / 2,
                ..CacheFigures::default()
            };
            (Definition { name: name.to_owned(), user_bytes }, figures)
        };
        let frame = |n: u64| {
            let mut caches = BTreeMap::from([(0, cache("malloc-64", 64, 100 + 9 * n))]);
            if n % 4 == 1 {
                caches.insert(7, cache("session <table>", 1000 + n as u32, 300));
            }
            let process = ProcessFigures {
                rss_bytes: (20 << 20) + (n << 18),
                used_bytes: (12 << 20) + (n << 18),
                dirty_bytes: (n % 3) << 20,
                purged_bytes: n << 16,
                large_bytes: 1 << 20,
                stall_us: n * 1000,
                passes: n / 3,
                passes_bytes: (n / 3) << 14,
                shrinker_entries: n * 5,
                ..ProcessFigures::default()
            };
            let event = (n == 3).then(|| "process 7 became another program".to_owned());
            Frame { at_ms: n * 1000, process, caches, event }
        };
        (0..count).map(frame).collect()
    }

    /// A whole record of frames.
    pub fn record(frames: &[Frame]) -> Vec<u8> {
        let header = Header {
            format: FORMAT,
            version: "0.1.0".into(),
            pid: 7,
            command: "server".into(),
            mode: "rseq".into(),
            began_ms: 1_700_000_000_000,
        };
        let mut writer = Writer::new(Vec::new(), &header).expect("begun");
        for frame in frames {
            writer.add(frame.clone()).expect("added");
        }
        writer.finish().expect("finished")
    }

    /// A record of one frame, and of so many samples at which nothing had changed.
    pub fn record_of_rest(frame: Frame, samples: usize) -> Vec<u8> {
        let mut writer =
            Writer::new(Vec::new(), &Header { format: FORMAT, ..Header::default() }).expect("begun");
        writer.add(frame).expect("added");
        for _ in 0..samples {
            let rest = Sample { after_ms: 100, ..Sample::default() };
            writer.out.write_all(&rest.encode_length_delimited_to_vec()).expect("added");
        }
        writer.finish().expect("finished")
    }

    fn read(bytes: &[u8]) -> io::Result<(Vec<Frame>, bool)> {
        let mut reader = Reader::new(bytes)?;
        let mut found = Vec::new();
        while let Some(frame) = reader.next()? {
            found.push(frame.clone());
        }
        Ok((found, reader.is_cut))
    }

    #[test]
    fn frames_come_back_as_they_went_in() {
        let frames = frames(9);
        assert_eq!(read(&record(&frames)).expect("a record"), (frames, false));
    }

    /// A frame of so many caches, with names and figures that take the most bytes.
    pub fn largest(caches: usize) -> Frame {
        let name = "\u{fffd}".repeat(NAME_BYTES);
        let mut figures = CacheFigures::default();
        figures.add(&[i64::MIN; 13]);
        let cache = |id| (id as u32, (Definition { name: name.clone(), user_bytes: u32::MAX }, figures));
        let event = Some("x".repeat(MAX_LETTERS));
        Frame { caches: (0..caches).map(cache).collect(), event, ..Frame::default() }
    }

    #[test]
    fn as_many_caches_as_there_can_be_fit_into_a_sample() {
        let frames = [largest(MAX_RECORDS), frames(1).remove(0)];
        assert_eq!(read(&record(&frames)).expect("a record"), (frames.to_vec(), false));
    }

    #[test]
    fn a_sample_of_more_caches_is_refused_before_it_takes_memory() {
        let mut writer =
            Writer::new(Vec::new(), &Header { format: FORMAT, ..Header::default() }).expect("begun");
        let sample = Sample { caches: vec![CacheSample::default(); MAX_RECORDS + 1], ..Sample::default() };
        writer.out.write_all(&sample.encode_length_delimited_to_vec()).expect("added");
        let bytes = writer.finish().expect("finished");
        let error = read(&bytes).expect_err("too many").to_string();
        assert_eq!(error, "it has a sample with more caches than can be");
    }

    #[test]
    fn a_sample_without_change_takes_few_bytes() {
        let mut same = frames(1);
        for n in 1..1000 {
            same.push(Frame { at_ms: n * 1000, ..same[0].clone() });
        }
        let bytes = record(&same).len();
        assert!(bytes < 16 * 1000, "{bytes}");
    }

    #[test]
    fn a_record_that_was_cut_short_yields_the_samples_before_the_cut() {
        let frames = frames(9);
        let whole = record(&frames);
        let mut most = 0;
        for length in 0..whole.len() - 10 {
            let Ok((found, _)) = read(&whole[..length]) else { continue };
            assert_eq!(found, frames[..found.len()]);
            assert!(found.len() >= most, "{length}");
            most = found.len();
        }
        assert_eq!(most, 9);
    }

    #[test]
    fn damage_is_no_panic() {
        let whole = record(&frames(9));
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            let _ = read(&damaged);
        }
        assert!(read(b"").is_err() && read(b"PNG").is_err());
    }
}
