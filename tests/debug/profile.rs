//! The heap profile of unmodified programs: ten sites, a child, another program, and the exit.

use super::*;
use std::collections::HashMap;
use std::fs;

/// The program of `profile.c`, compiled at the first call.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| super::compiled(("cc", "gcc"), "profile.c", "-std=gnu11"))
}

/// Bytes that each site of the program allocates, at least.
pub const SITE_BYTES: f64 = (8 << 20) as f64;

/// Runs the program with a sample in each KiB; returns the files that it wrote, and its output.
fn run(way: &str, mode: Mode) -> (Vec<String>, String) {
    let scratch = Scratch::new(&format!("profile-{way}"));
    let directory = scratch.private_dir("profiles");
    let outcome = Program::new(program())
        .arg(way)
        .env("USLAB_PROFILE", "1024")
        .env("USLAB_PROFILE_FILE", directory.join("heap"))
        .run_clean(&scratch, mode);
    outcome.expect(outcome.stderr().is_empty(), "nothing is reported");
    let names = fs::read_dir(&directory).expect("the directory").map(|entry| entry.expect("an entry").path());
    let texts = names.map(|path| fs::read_to_string(path).expect("a profile")).collect();
    (texts, outcome.stdout())
}

/// The bytes that each function's stacks allocated and have in use.
fn by_function(text: &str, addresses: &str) -> HashMap<usize, [f64; 2]> {
    let starts: Vec<usize> =
        addresses.split_whitespace().map(|start| usize::from_str_radix(start, 16).expect("hex")).collect();
    let mut found: HashMap<usize, [f64; 2]> = HashMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("site ")) {
        let words: Vec<&str> = line.split(' ').collect();
        let frames = words[11..].iter().map(|frame| usize::from_str_radix(frame, 16).expect("hex"));
        // The functions stand one behind the other; the last one is no longer than the others.
        let is_in = |frame: &usize| (starts[0]..starts[9] + 55).contains(frame);
        let site = { frames }.find(is_in).map(|frame| starts.partition_point(|&start| start <= frame) - 1);
        if let Some(site) = site {
            let [allocated, live] = [3, 5].map(|at| words[at].parse::<f64>().expect("a number"));
            let sum = found.entry(site).or_default();
            *sum = [sum[0] + allocated, sum[1] + live];
        }
    }
    found
}

/// Asserts that each of the ten sites is within 5 %: those with odd numbers keep what they get.
fn expect_sites(text: &str, addresses: &str) {
    let found = by_function(text, addresses);
    for site in 0..10 {
        let [allocated, live] = found.get(&site).copied().unwrap_or_default();
        let is_close = |estimate: f64| (estimate / SITE_BYTES - 1.0).abs() < 0.05;
        assert!(is_close(allocated), "site {site} allocated {allocated}: {text}");
        let is_right = if site % 2 == 1 { is_close(live) } else { live < 0.01 * SITE_BYTES };
        assert!(is_right, "site {site} has {live} in use");
    }
}

both_modes! {
    ten_sites_at_exit => |mode| {
        let (texts, addresses) = run("", mode);
        assert_eq!(texts.len(), 1);
        expect_sites(&texts[0], &addresses);
        assert!(texts[0].contains("period_bytes 1024\n") && texts[0].contains("samples_dropped 0\n"));
    },
    a_child_writes_its_own => |mode| {
        let (mut texts, addresses) = run("fork", mode);
        assert_eq!(texts.len(), 2);
        let grown = |text: &String| by_function(text, &addresses)[&9][0] as u64;
        texts.sort_by_key(grown);
        expect_sites(&texts[0], &addresses);
        assert!(grown(&texts[1]) > 3 * grown(&texts[0]) / 2, "the child goes on with its parent's");
    },
    another_program_starts_anew => |mode| {
        let (texts, output) = run("exec", mode);
        // The first program has no exit; the one that it became has the process id.
        assert_eq!(texts.len(), 1);
        let words: Vec<&str> = output.split_whitespace().collect();
        expect_sites(&texts[0], &words[10..].join(" "));
    },
}

/// A wrong value is one line, and no profile.
fn a_wrong_value(mode: Mode) {
    let scratch = Scratch::new("profile-wrong");
    let outcome = Program::new("/bin/true").env("USLAB_PROFILE", "1M").run_clean(&scratch, mode);
    let line = "uslab: USLAB_PROFILE is ignored: it is neither 1 nor a number of bytes\n";
    outcome.expect(outcome.stderr() == line, "one line");
}

both_modes! {
    wrong_value => a_wrong_value,
}
