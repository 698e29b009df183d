//! Snapshots made by hand: whole ones, and what a hostile or unlucky file may hold.

use super::*;
use crate::layout::FILE_BYTES;

/// A snapshot file in memory.
pub struct Image(pub Vec<u8>);

/// Writes a field of the header or of a record into an [`Image`].
macro_rules! put {
    ($image:expr, $base:expr, $structure:ty, $($name:ident = $value:expr),+ $(,)?) => {
        $({
            let offset = $base + offset_of!($structure, $name);
            let bytes = $value.to_ne_bytes();
            $image.0[offset..offset + bytes.len()].copy_from_slice(&bytes);
        })+
    };
}

impl Image {
    /// A process with a few caches: the one that the texts are checked with.
    pub fn sample() -> Self {
        let mut image = Image(vec![0; FILE_BYTES]);
        put!(image, 0, Header, magic = layout::MAGIC, version = layout::VERSION, pid = 4711u32);
        put!(image, 0, Header, mode = layout::MODE_RSEQ, cpus = 8u32, nodes = 1u32, page_bytes = 4096u32);
        put!(image, 0, Header, records_used = 6u32, finished = 1u32, start_ns = 77u64);
        put!(image, 0, Header, reserved_bytes = 1u64 << 40, committed_bytes = 18u64 << 20);
        put!(image, 0, Header, used_bytes = (12u64 << 20) + (300 << 10), dirty_bytes = 1u64 << 20);
        put!(image, 0, Header, purged_bytes = 5u64 << 20, metadata_bytes = 152u64 << 10);
        put!(image, 0, Header, large_objects = 3u64, large_bytes = 5u64 << 20, large_allocs = 19u64);
        put!(image, 0, Header, library_version = 0x1_0203u32);
        put!(image, 0, Header, arena_start = 0x7000_0000u64, arena_base = 0x7100_0000u64);
        put!(image, 0, Header, soft_limit_bytes = 768u64 << 20, hard_limit_bytes = 1u64 << 30);
        put!(image, 0, Header, passes_bytes = 9u64 << 20, last_pass_ns = 90u64, shrinkers_used = 3u64);
        let passes = offset_of!(Header, passes);
        image.0[passes..passes + 8].copy_from_slice(&2u64.to_ne_bytes());
        image.shrinker(0, "sessions", layout::STATE_LIVE, 2 * layout::SEEK, [100, 7, 40, 33]);
        image.shrinker(1, "gone shrinker", layout::STATE_DESTROYED, 0, [0; 4]);
        let base = layout::SOURCES_OFFSET + 2 * size_of::<layout::Source>();
        put!(image, base, layout::Source, state = layout::SOURCE_WATCHED, reports = 5u64, last_ns = 88u64);
        put!(image, base, layout::Source, limit_bytes = 1u64 << 30, used_bytes = 900u64 << 20);
        image.setting(2, layout::ORIGIN_ENVIRONMENT, "250");
        image.setting(11, layout::ORIGIN_REQUEST, "1,2");
        image.record(0, "malloc-64", 64, 64, [1200, 40, 2, 3000, 900]);
        image.record(1, "malloc-1024", 1024, 16, [12, 3, 1, 30, 100]);
        image.record(2, "never used", 32, 128, [0; 5]);
        image.record(4, "session table with a long name", 4096, 8, [2_000_000, 9, 0, 12, 12]);
        image.record(5, "gone", 200, 20, [0; 5]);
        let gone = image.base(5);
        put!(image, gone, Record, state = layout::STATE_DESTROYED, grows = 1u64, shrinks = 1u64);
        image
    }

    /// Where a record begins.
    pub fn base(&self, index: usize) -> usize {
        HEADER_BYTES + index * RECORD_BYTES
    }

    /// Fills a live record; counts are slabs, partial, empty, free in slabs, free in sheaves.
    pub fn record(&mut self, index: usize, name: &str, bytes: u32, per_slab: u32, counts: [i64; 5]) {
        let base = self.base(index);
        let at = base + offset_of!(Record, name);
        self.0[at..at + name.len()].copy_from_slice(name.as_bytes());
        let [slabs, partial, empty, slab_free, sheaf_free] = counts;
        put!(self, base, Record, state = layout::STATE_LIVE, id = index as u32);
        put!(self, base, Record, user_bytes = bytes, object_bytes = bytes, objects_per_slab = per_slab);
        put!(self, base, Record, pages_per_slab = (bytes * per_slab).div_ceil(4096), sheaf_capacity = 60u32);
        put!(self, base, Record, empty_target = 5u32, slabs = slabs, partial_slabs = partial);
        put!(self, base, Record, empty_slabs = empty, slab_free = slab_free, sheaf_free = sheaf_free);
        put!(self, base, Record, alloc_slow = slabs as u64 * 3, free_slow = slabs as u64 * 2);
        put!(self, base, Record, refills = slabs as u64 * 2, flushes = slabs as u64, grows = slabs as u64);
    }

    /// Fills the entry of a shrinker; counts are freeable, deferred, asked and freed.
    pub fn shrinker(&mut self, index: usize, name: &str, state: u32, worth: u64, counts: [u64; 4]) {
        let base = layout::SHRINKERS_OFFSET + index * size_of::<layout::Shrinker>();
        let at = base + offset_of!(layout::Shrinker, name);
        self.0[at..at + name.len()].copy_from_slice(name.as_bytes());
        let [freeable, deferred, asked, freed] = counts;
        put!(self, base, layout::Shrinker, state = state, stop = layout::STOP_ANSWERED, batch = 128u32);
        put!(self, base, layout::Shrinker, worth = worth, freeable = freeable, deferred = deferred);
        put!(self, base, layout::Shrinker, asked = asked, freed = freed, scans = 1u64, last_ns = 89u64);
    }

    /// Fills a setting.
    pub fn setting(&mut self, index: usize, origin: u32, text: &str) {
        let base = layout::SETTINGS_OFFSET + index * size_of::<layout::Setting>();
        put!(self, base, layout::Setting, origin = origin);
        let at = base + offset_of!(layout::Setting, text);
        self.0[at..at + text.len()].copy_from_slice(text.as_bytes());
    }

    /// Makes it a process that heeds so many nodes.
    pub fn nodes(&mut self, nodes: u32) {
        put!(self, 0, Header, nodes = nodes);
    }

    /// Fills the counts of slabs by node of a record.
    pub fn node_slabs(&mut self, index: usize, slabs: &[i32]) {
        let at = self.base(index) + offset_of!(Record, node_slabs);
        for (place, count) in self.0[at..].chunks_exact_mut(4).zip(slabs) {
            place.copy_from_slice(&count.to_ne_bytes());
        }
    }

    pub fn parse(&self) -> Result<Snapshot, Trouble> {
        parse(|offset, bytes| {
            let from = usize::try_from(offset).map_err(io::Error::other)?;
            let found = self.0.get(from..from + bytes);
            found.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        })
    }
}

#[test]
fn every_field_is_read_from_its_place() {
    let snapshot = Image::sample().parse().expect("whole");
    assert_eq!((snapshot.pid, snapshot.mode, snapshot.cpus, snapshot.finished), (4711, Mode::Rseq, 8, true));
    assert_eq!((snapshot.start_ns, snapshot.metadata_bytes, snapshot.large_allocs), (77, 152 << 10, 19));
    assert_eq!((snapshot.library().as_str(), snapshot.arena), ("1.2.3", (0x7000_0000, 0x7100_0000)));
    let names: Vec<&str> = snapshot.caches.iter().map(|cache| cache.name.as_str()).collect();
    let expected = ["malloc-64", "malloc-1024", "never used", "session table with a long name", "gone"];
    assert_eq!(names, expected);
    let cache = &snapshot.caches[0];
    assert_eq!((cache.total_objects(), cache.active_objects()), (76_800, 72_900));
    assert_eq!((cache.slab_bytes(), cache.alloc_slow, cache.flushes), (1200 * 4096, 3600, 1200));
    assert_eq!(snapshot.caches[3].id, 4);
    assert!(snapshot.caches[4].destroyed && !snapshot.caches[2].was_used());
}

#[test]
fn shrinkers_sources_limits_and_settings_are_read_from_their_places() {
    let snapshot = Image::sample().parse().expect("whole");
    assert_eq!((snapshot.soft_limit_bytes, snapshot.hard_limit_bytes), (768 << 20, 1 << 30));
    assert_eq!((snapshot.passes["call"], snapshot.passes["soft_limit"]), (2, 0));
    assert_eq!((snapshot.passes_bytes, snapshot.last_pass_ns), (9 << 20, 90));
    let [sessions, gone] = &snapshot.shrinkers[..] else { panic!("{:?}", snapshot.shrinkers) };
    assert_eq!(
        (sessions.name.as_str(), sessions.seeks(), sessions.stop),
        ("sessions", 2.0, "answered: not now")
    );
    assert_eq!((sessions.freeable, sessions.deferred, sessions.asked, sessions.freed), (100, 7, 40, 33));
    assert!(gone.destroyed && gone.id == 1 && gone.seeks() == 0.0);
    let cgroup = &snapshot.sources[2];
    assert_eq!((cgroup.name, cgroup.state, cgroup.reports), ("cgroup", "watched", 5));
    assert_eq!((cgroup.limit_bytes, cgroup.used_bytes, cgroup.last_ns), (1 << 30, 900 << 20, 88));
    let settings: Vec<_> = snapshot.settings.iter().map(|s| (s.name, s.value.as_str(), s.origin)).collect();
    assert_eq!(settings, [("decay_ms", "250", "environment"), ("limit", "1,2", "request")]);
}

#[test]
fn slabs_are_told_by_all_nodes_or_up_to_the_last_one_with_a_slab() {
    let mut image = Image::sample();
    let slabs = |image: &Image| image.parse().expect("whole").caches[0].node_slabs.clone();
    assert!(slabs(&image).is_empty(), "one node, and nothing counted");
    image.node_slabs(0, &[1000, -3, 100, 0, 0, 0, 0, 0]);
    // One node has CPUs, and another one has memory alone.
    assert_eq!(slabs(&image), [1000, 0, 100]);
    assert_eq!(image.parse().expect("whole").caches[0].slabs_on_no_node(), 100);
    image.nodes(5);
    assert_eq!(slabs(&image), [1000, 0, 100, 0, 0]);
    image.nodes(u32::MAX);
    assert_eq!(slabs(&image).len(), layout::RECORD_NODES);
}

#[test]
fn a_file_cut_anywhere_is_an_error_and_no_crash() {
    let whole = Image::sample().0;
    let needed = HEADER_BYTES + 6 * RECORD_BYTES;
    for length in (0..needed).step_by(8).chain([needed - 1]) {
        let cut = Image(whole[..length].to_vec()).parse();
        assert!(matches!(cut, Err(Trouble::NotASnapshot | Trouble::Truncated)), "{length}: {cut:?}");
    }
    assert!(Image(whole[..needed].to_vec()).parse().is_ok());
}

#[test]
fn other_files_and_other_versions_are_told_apart() {
    let mut image = Image::sample();
    put!(image, 0, Header, version = 9u32);
    let trouble = image.parse().expect_err("another version");
    assert_eq!(trouble.to_string(), "it is of version 9, and this program reads version 5");
    put!(image, 0, Header, magic = 0u64);
    assert!(matches!(image.parse(), Err(Trouble::NotASnapshot)));
}

#[test]
fn a_count_below_zero_is_torn() {
    let mut image = Image::sample();
    let base = image.base(0);
    assert!(!image.parse().expect("whole").caches[0].is_torn());
    put!(image, base, Record, sheaf_free = -1i64);
    let cache = &image.parse().expect("whole").caches[0];
    assert!(cache.is_torn() && cache.sheaf_free == 0);
    put!(image, base, Record, sheaf_free = 0i64, slab_free = -60i64);
    assert!(image.parse().expect("whole").caches[0].is_torn());
}

#[test]
fn absurd_numbers_are_capped() {
    let mut image = Image::sample();
    put!(image, 0, Header, records_used = u32::MAX, mode = 77u32, mode_reason = 1234u32);
    let base = image.base(0);
    put!(image, base, Record, slabs = i64::MAX, objects_per_slab = u32::MAX, pages_per_slab = u32::MAX);
    let base = image.base(1);
    put!(image, base, Record, slabs = i64::MIN, slab_free = i64::MAX, sheaf_free = i64::MAX);
    let snapshot = image.parse().expect("whole");
    assert_eq!(snapshot.mode, Mode::Unknown);
    assert!(snapshot.reason().is_some());
    assert_eq!((snapshot.caches[0].total_objects(), snapshot.caches[0].slab_bytes()), (u64::MAX, u64::MAX));
    assert_eq!((snapshot.caches[1].total_objects(), snapshot.caches[1].active_objects()), (0, 0));
}

#[test]
fn every_byte_pattern_can_be_parsed_and_shown() {
    for byte in [0x00, 0x01, 0x1b, 0x7f, 0x80, 0xc3, 0xff] {
        const RECORDS: usize = 2000;
        let mut image = Image(vec![byte; layout::record_offset(RECORDS)]);
        put!(image, 0, Header, magic = layout::MAGIC, version = layout::VERSION);
        put!(image, 0, Header, records_used = RECORDS as u32);
        for index in 0..RECORDS {
            let base = image.base(index);
            put!(image, base, Record, state = layout::STATE_LIVE);
        }
        let snapshot = image.parse().expect("whole");
        assert_eq!(snapshot.caches.len(), RECORDS);
        let text = crate::text::slabinfo::text(&snapshot) + &crate::text::table::text(&snapshot, "x");
        assert!(!text.contains('\x1b') && text.chars().all(|c| !c.is_control() || c == '\n'));
        assert!(text.lines().all(|line| line.chars().count() < 400));
        crate::json::process(&snapshot, "x");
    }
}

#[test]
fn a_name_ends_at_its_zero_or_at_its_field() {
    assert_eq!(parse_name(b"ab\0cd"), "ab");
    assert_eq!(parse_name(&[b'x'; 48]).len(), 48);
    assert_eq!(parse_name(b"a\xffb\x1b"), "a\u{fffd}b\u{fffd}");
    assert_eq!(parse_name(b"\0"), "");
}
