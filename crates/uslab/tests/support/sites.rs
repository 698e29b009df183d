//! Reads the text of a heap profile, and compares estimates with exact figures.

use std::collections::HashMap;
use uslab::profile;

/// A site of the text, without its stack.
#[derive(Debug, Default, Clone)]
pub struct Site {
    pub alloc_objects: f64,
    pub alloc_bytes: f64,
    pub inuse_objects: f64,
    pub inuse_bytes: f64,
    pub samples: u64,
    pub live_samples: u64,
    pub ages: [u64; 3],
}

/// The profile: its header, and its sites by the name of their cache.
pub fn profile() -> (HashMap<String, String>, HashMap<String, Site>) {
    let mut text = Vec::new();
    profile::write(&mut |piece| text.extend_from_slice(piece)).expect("a profile was started");
    let text = String::from_utf8(text).expect("UTF-8");
    let (head, maps) = text.split_once("\nmaps\n").expect("the mappings");
    assert!(maps.lines().count() > 5 && maps.contains("[stack]"), "{maps}");
    assert!(head.starts_with("uslab-profile 1\npid "), "{head}");
    let mut sites: HashMap<String, Site> = HashMap::new();
    let mut header = HashMap::new();
    for line in head.lines().skip(1) {
        let (key, rest) = line.split_once(' ').expect("a key and a value");
        if key != "site" {
            header.insert(key.to_string(), rest.to_string());
            continue;
        }
        let words: Vec<&str> = rest.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        assert!(number(1) > 0 && words.len() > 12, "a size and two frames: {line}");
        assert!(words[11..].iter().all(|frame| usize::from_str_radix(frame, 16).is_ok()), "{line}");
        let site = sites.entry(words[0].replace("\\x20", " ")).or_default();
        site.alloc_objects += number(2) as f64;
        site.alloc_bytes += number(3) as f64;
        site.inuse_objects += number(4) as f64;
        site.inuse_bytes += number(5) as f64;
        site.samples += number(6);
        site.live_samples += number(7);
        site.ages = [number(8), number(9), number(10)];
        assert!(site.ages[0] <= site.ages[1] && site.ages[1] <= site.ages[2], "{line}");
    }
    (header, sites)
}

/// Asserts that an estimate from many samples is within 5 %.
pub fn is_close(what: &str, estimate: f64, exact: f64) {
    let error = (estimate - exact) / exact;
    println!("{what}: {exact} estimated as {estimate}, {:+.2} %", 100.0 * error);
    assert!(error.abs() < 0.05, "{what}: {estimate} for {exact}");
}

/// Bytes from one sample to the next.
pub const PERIOD: usize = 4096;
/// Bytes that each site of the tests allocates: some 10 000 samples, so 5 % are five deviations.
pub const SITE_BYTES: usize = 10_000 * PERIOD;
