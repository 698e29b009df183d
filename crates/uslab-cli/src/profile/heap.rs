//! A heap profile in memory: what every format is read into and written from.

use std::collections::BTreeMap;

use crate::input::Identity;
use crate::process::printable;

/// The most text that the names of a profile may take, and its call stacks when spelled out. A
/// profile with every place used spells out some 60 MiB.
pub const MAX_TEXT_BYTES: usize = 256 << 20;

/// Estimates for one call stack and cache. Differences have negative ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    pub cache: String,
    /// Size of the cache's objects, or of a large object.
    pub object_bytes: u64,
    /// In the order of [`VALUES`].
    pub values: [i64; 4],
    pub ages: Option<Ages>,
    /// Indices of [`Heap::locations`], innermost first.
    pub locations: Vec<usize>,
}

/// What a site's values count, and their units, in pprof's words.
pub const VALUES: [(&str, &str); 4] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
];

/// Ages of a site's samples that are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ages {
    pub live_samples: u64,
    pub youngest_ms: u64,
    pub median_ms: u64,
    pub oldest_ms: u64,
}

impl Site {
    pub fn allocated_bytes(&self) -> u64 {
        u64::try_from(self.values[1]).unwrap_or(0)
    }

    pub fn in_use_bytes(&self) -> u64 {
        u64::try_from(self.values[3]).unwrap_or(0)
    }
}

/// A place in the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// An address inside the call, which lies before the address that it returns to.
    pub address: u64,
    /// Index of [`Heap::mappings`].
    pub mapping: Option<usize>,
    /// The function there; if others are inlined into it, these come first.
    pub lines: Vec<Line>,
}

/// A function, and a line of its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub function: String,
    pub file: String,
    /// 0 if unknown.
    pub line: u32,
}

impl Line {
    /// Bytes of its texts.
    pub fn text_bytes(&self) -> usize {
        self.function.len() + self.file.len()
    }
}

/// A file that is mapped into the process, to be executed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub file_offset: u64,
    pub identity: Identity,
    pub path: String,
    /// In hexadecimal; empty if there is none.
    pub build_id: String,
}

/// A heap profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    pub pid: u32,
    pub command: String,
    pub period_bytes: u64,
    /// Milliseconds of Unix time at its end.
    pub written_ms: u64,
    pub duration_ms: u64,
    /// Samples that the process had no room for.
    pub dropped: u64,
    pub sites: Vec<Site>,
    pub locations: Vec<Location>,
    pub mappings: Vec<Mapping>,
    /// It holds differences of two profiles.
    pub is_difference: bool,
}

/// Memory that a frame of a stack takes besides its texts, and a stack besides its frames.
const FRAME_BYTES: usize = 64;
const SITE_BYTES: usize = 320;

/// Functions in which programs enter the allocator.
const ENTRIES: [&str; 18] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "aligned_alloc",
    "memalign",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "free",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_memalign",
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
    "__rust_dealloc",
];

/// Whether a function is the allocator's.
fn is_own(function: &str) -> bool {
    let function = function.strip_prefix("__rustc::").unwrap_or(function);
    ENTRIES.contains(&function)
        || ["uslab::", "<uslab::", "uslab_", "operator new", "__rg_", "__rdl_"]
            .iter()
            .any(|start| function.starts_with(start))
}

impl Heap {
    /// The functions of a site, innermost first, without the allocator's own at their beginning.
    pub fn stack(&self, site: &Site) -> Vec<String> {
        self.frames(site).into_iter().map(|(line, _)| line.function).collect()
    }

    /// As [`Heap::stack`], with source lines and locations.
    pub fn frames(&self, site: &Site) -> Vec<(Line, usize)> {
        let mut frames = self.all_frames(site);
        let own = self.own_frames(&frames);
        // A program may itself be called like the allocator: keep at least its outermost frame.
        frames.drain(..own.min(frames.len().saturating_sub(1)));
        frames
    }

    fn all_frames(&self, site: &Site) -> Vec<(Line, usize)> {
        let mut frames = Vec::new();
        for &index in &site.locations {
            let Some(location) = self.locations.get(index) else { continue };
            if location.lines.is_empty() {
                frames.push((Line { function: self.address(location), ..Line::default() }, index));
            }
            frames.extend(location.lines.iter().map(|line| (line.clone(), index)));
        }
        frames
    }

    /// How many frames at the beginning are the allocator's.
    fn own_frames(&self, frames: &[(Line, usize)]) -> usize {
        let is_ours = |index: usize| {
            let path = self.mapping(&self.locations[index]).map_or("", |mapping| &mapping.path);
            path.rsplit('/').next().is_some_and(|name| name.starts_with("libuslab"))
        };
        frames.iter().take_while(|(line, index)| is_own(&line.function) || is_ours(*index)).count()
    }

    /// The allocator's functions at the beginning of stacks, except those that are called elsewhere
    /// too: pprof drops everything below a name in its list. `matched` is the part of a name that
    /// it compares.
    pub fn own_functions(&self, matched: fn(&str) -> &str) -> Vec<String> {
        let mut own: BTreeMap<String, bool> = BTreeMap::new();
        for site in &self.sites {
            let frames = self.all_frames(site);
            let count = self.own_frames(&frames).min(frames.len().saturating_sub(1));
            for (index, (line, _)) in frames.into_iter().enumerate() {
                *own.entry(matched(&line.function).to_owned()).or_insert(true) &= index < count;
            }
        }
        let own = own.into_iter().filter(|(name, is_own)| *is_own && !name.is_empty());
        own.map(|(name, _)| name).collect()
    }

    /// Refuses a profile whose call stacks would take too much memory when they are spelled out,
    /// as every format but pprof's does: few names can make many long stacks.
    pub fn check_size(&self) -> Result<(), String> {
        let of_line = |line: &Line| line.text_bytes() + FRAME_BYTES;
        // One without a name is shown by its file and offset.
        let of_location =
            |location: &Location| location.lines.iter().map(of_line).sum::<usize>().max(32 + FRAME_BYTES);
        let sizes: Vec<usize> = self.locations.iter().map(of_location).collect();
        let of_site = |site: &Site| -> usize {
            let of_frames = site.locations.iter().filter_map(|&at| sizes.get(at)).sum::<usize>();
            SITE_BYTES + site.cache.len() + of_frames
        };
        match self.sites.iter().map(of_site).fold(0, usize::saturating_add) {
            0..=MAX_TEXT_BYTES => Ok(()),
            _ => Err(format!("its call stacks take more than {} MiB", MAX_TEXT_BYTES >> 20)),
        }
    }

    pub fn mapping(&self, location: &Location) -> Option<&Mapping> {
        self.mappings.get(location.mapping?)
    }

    /// A place without a name: `libfoo.so+0x1234`.
    fn address(&self, location: &Location) -> String {
        match self.mapping(location) {
            Some(mapping) => {
                let name = mapping.path.rsplit('/').next().unwrap_or(&mapping.path);
                let offset = location.address.wrapping_sub(mapping.start).wrapping_add(mapping.file_offset);
                format!("{}+{offset:#x}", printable(name))
            }
            None => format!("{:#x}", location.address),
        }
    }

    /// One of the four values, of all sites.
    pub fn total(&self, value: usize) -> i64 {
        self.sites.iter().map(|site| site.values[value]).fold(0, i64::saturating_add)
    }

    /// What changed from `before` to `self`. Sites are matched by cache, size and functions, so the
    /// profiles may be of two runs.
    pub fn since(self, before: &Heap) -> Heap {
        let key = |heap: &Heap, site: &Site| (site.cache.clone(), site.object_bytes, heap.stack(site));
        let mut changes: BTreeMap<_, Site> = BTreeMap::new();
        for site in &self.sites {
            let sum =
                changes.entry(key(&self, site)).or_insert_with(|| Site { values: [0; 4], ..site.clone() });
            sum.add(site.values);
        }
        let mut whole = Heap { sites: Vec::new(), is_difference: true, ..self };
        for site in &before.sites {
            let sum = changes.entry(key(before, site)).or_insert_with(|| {
                let locations = site.locations.iter().filter_map(|&index| before.locations.get(index));
                let first = whole.locations.len();
                whole.locations.extend(locations.map(|l| Location { mapping: None, ..l.clone() }));
                Site { values: [0; 4], locations: (first..whole.locations.len()).collect(), ..site.clone() }
            });
            sum.add(site.values.map(i64::saturating_neg));
        }
        whole.sites = changes.into_values().filter(|site| site.values != [0; 4]).collect();
        whole.sites.iter_mut().for_each(|site| site.ages = None);
        whole
    }
}

impl Site {
    fn add(&mut self, values: [i64; 4]) {
        for (sum, value) in self.values.iter_mut().zip(values) {
            *sum = sum.saturating_add(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MAX_TEXT_BYTES;
    use crate::profile::dump::tests::sample;

    #[test]
    fn few_names_in_many_stacks_are_refused() {
        let mut heap = sample();
        assert_eq!(heap.check_size(), Ok(()));
        let size = super::FRAME_BYTES + heap.locations[1].lines[0].text_bytes();
        heap.sites[0].locations = vec![1; MAX_TEXT_BYTES / size];
        assert!(heap.check_size().is_err(), "frames take more memory than their names");
        heap.locations[1].lines[0].function = "x".repeat(1 << 20);
        heap.sites[0].locations = vec![1; MAX_TEXT_BYTES >> 20];
        assert_eq!(heap.check_size(), Err("its call stacks take more than 256 MiB".to_owned()));
    }

    #[test]
    fn the_allocators_frames_are_left_out() {
        let heap = sample();
        assert_eq!(heap.stack(&heap.sites[0]), ["leak_here", "main"]);
        assert_eq!(heap.own_functions(|name| name), ["malloc"]);
    }

    #[test]
    fn what_did_not_change_is_not_in_the_difference() {
        let (before, mut after) = (sample(), sample());
        assert!(after.clone().since(&before).sites.is_empty());
        after.sites[0].values = [110, 11_000, 60, 6000];
        after.sites.truncate(1);
        let change = after.since(&before);
        assert_eq!(change.sites.len(), 2);
        let site = |name: &str| change.sites.iter().find(|site| site.cache == name).expect("there");
        assert_eq!(site("malloc-64").values, [10, 10_000 - 5400, 10, 6000 - 3200]);
        assert_eq!(change.stack(site("session table")), ["fill", "main"]);
        assert!(site("session table").values[3] < 0);
    }
}
