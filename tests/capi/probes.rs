//! Static probes: their notes in every kind of file that contains the library, and each probe as
//! gdb meets it, with its arguments.

use super::*;
use crate::library::{prefix, rust_plugin};
use object::elf::{FileHeader64, NoteHeader64};
use object::read::elf::{ElfFile64, FileHeader, Note, SectionHeader};
use std::collections::BTreeMap;
use uslab_tests::harness::{Gdb, artifacts};

/// The probes and the number of their arguments, as `docs/guide/tracing.md` has them.
const PROBES: [(&str, usize); 11] = [
    ("refill", 3),
    ("flush", 3),
    ("slab_new", 4),
    ("slab_free", 4),
    ("drain", 3),
    ("purge", 2),
    ("pass_begin", 2),
    ("pass_done", 4),
    ("shrinker_call", 5),
    ("limit_hit", 2),
    ("order_fallback", 4),
];

/// Those whose first two arguments are no name.
const NAMELESS: [&str; 4] = ["purge", "pass_begin", "pass_done", "limit_hit"];

/// A note of `.note.stapsdt`: addresses of the place, the base and the semaphore; the arguments.
struct Probe {
    addresses: [u64; 3],
    arguments: String,
}

type Header = FileHeader64<object::Endianness>;

/// The probes of the provider `uslab` in a file, by name. Each must be there once.
fn probes_of(data: &[u8]) -> BTreeMap<String, Probe> {
    let file = ElfFile64::<object::Endianness>::parse(data).expect("an ELF file");
    let endian = file.endian();
    let sections = file.elf_header().sections(endian, data).expect("sections");
    let (_, section) = sections.section_by_name(endian, b".note.stapsdt").expect("notes of probes");
    let mut notes = section.notes(endian, data).expect("notes").expect("a section of notes");
    let mut found = BTreeMap::new();
    while let Some(note) = notes.next().expect("a note") {
        let note: Note<'_, Header> = note;
        assert_eq!((note.name(), note.n_type(endian).0), (&b"stapsdt"[..], 3));
        let (words, texts) = note.desc().split_at(3 * size_of::<u64>());
        let word = |at: usize| u64::from_le_bytes(words[8 * at..8 * at + 8].try_into().expect("8 bytes"));
        let texts: Vec<&str> = texts.split(|&b| b == 0).map(|t| std::str::from_utf8(t).unwrap()).collect();
        if texts[0] == "uslab" {
            let probe = Probe { addresses: [word(0), word(1), word(2)], arguments: texts[2].into() };
            let twice = found.insert(texts[1].to_owned(), probe).is_some();
            assert!(!twice, "{} has two places", texts[1]);
        }
    }
    found
}

/// Where a section of the file begins and ends in memory.
fn range_of(data: &[u8], name: &str) -> std::ops::Range<u64> {
    use object::{Object, ObjectSection};
    let file = object::File::parse(data).expect("an ELF file");
    let section = file.section_by_name(name).unwrap_or_else(|| panic!("no section {name}"));
    section.address()..section.address() + section.size()
}

#[test]
fn notes_name_all_probes_in_every_file() {
    assert_eq!(size_of::<NoteHeader64<object::Endianness>>(), 12, "the notes' words have 4 bytes");
    let lib = prefix().join("lib");
    for file in [
        artifacts().library.clone(),
        lib.join("libuslab.so"),
        program("probes-static", "tests/capi/probes.c", "c11", Link::Static),
        program("probes-whole", "tests/capi/probes.c", "c11", Link::Whole),
        rust_plugin(),
    ] {
        let data = std::fs::read(&file).expect("the file");
        let found = probes_of(&data);
        let (code, words, base) =
            (range_of(&data, ".text"), range_of(&data, ".probes"), range_of(&data, ".stapsdt.base"));
        assert_eq!(found.len(), PROBES.len(), "{}", file.display());
        for (name, count) in PROBES {
            let probe = &found[name];
            let [place, from, semaphore] = probe.addresses;
            assert!(code.contains(&place), "{}: {name} at {place:#x}", file.display());
            assert_eq!(from, base.start, "{}: {name}", file.display());
            assert!(words.contains(&semaphore), "{}: {name}", file.display());
            let registers = if cfg!(target_arch = "x86_64") {
                ["%rdi", "%rsi", "%rdx", "%rcx", "%r8"]
            } else {
                ["x0", "x1", "x2", "x3", "x4"]
            };
            let expected: Vec<_> = registers[..count].iter().map(|place| format!("8@{place}")).collect();
            assert_eq!(probe.arguments, expected.join(" "), "{name}");
        }
    }
}

/// Commands of gdb that print each probe's arguments and go on.
fn script() -> String {
    PROBES.iter().fold("set pagination off\nset breakpoint pending on\n".into(), |text, (name, count)| {
        let has_name = !NAMELESS.contains(name);
        let first = if has_name { 2 } else { 0 };
        let values: String = (first..*count).map(|at| format!(", $_probe_arg{at}")).collect();
        let places = " %lu".repeat(count - first);
        let subject = if has_name { "output/s (char[7])*$_probe_arg0\n" } else { "" };
        // gdb echoes a text with its quotes.
        format!(
            "{text}break -probe-stap uslab:{name}\ncommands\nsilent\necho \\n@{name} \n{subject}\
             printf \"{places}\\n\"{values}\ncontinue\nend\n"
        )
    })
}

#[test]
fn gdb_stops_at_each_probe() {
    let scratch = Scratch::new("capi-probes");
    let script = scratch.write("probes.gdb", script());
    for (rseq, link, name) in [("1", Link::Shared, "probes-gdb"), ("0", Link::Static, "probes-gdb-static")] {
        let program = program(name, "tests/capi/probes.c", "c11", link);
        let output = Gdb::new(&program, None)
            .run_to("main", &[("USLAB_RSEQ", rseq), ("USLAB_REAPER", "0")])
            .command(&format!("source {}", script.display()))
            .command("continue")
            .output(&scratch);
        assert!(output.contains("exited normally"), "{output}");
        let hits = |name: &str| -> Vec<Vec<u64>> {
            let start = format!("@{name}");
            let lines = output.lines().filter_map(|line| line.strip_prefix(&start));
            let lines = lines.filter(|line| line.starts_with(' ') || line.starts_with("\"session\""));
            lines.map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect()).collect()
        };
        let sum = |name: &str, at: usize| hits(name).iter().map(|values| values[at]).sum::<u64>();
        for (name, count) in PROBES.into_iter().filter(|(name, _)| *name != "order_fallback") {
            assert!(!hits(name).is_empty(), "{name} was not met:\n{output}");
            let has_all =
                hits(name).iter().all(|values| count - values.len() == 0 || count - values.len() == 2);
            assert!(has_all, "{name}:\n{output}");
        }
        // The program's figures: 3000 objects of 64 bytes, one at a time; a shrinker that frees
        // all; a pass for all memory.
        assert!((2500..4000).contains(&sum("refill", 0)), "{output}");
        assert!(sum("flush", 0) >= 2500 && sum("flush", 0) >= sum("drain", 0), "{output}");
        assert!(sum("slab_new", 1) >= 3000 * 64 && sum("slab_free", 1) <= sum("slab_new", 1), "{output}");
        assert_eq!(hits("pass_begin")[0], [u64::MAX, 0], "{output}");
        assert!(hits("shrinker_call").iter().any(|v| v[0] > 0 && v[1] == 10 && v[2] <= 12), "{output}");
        assert!(hits("limit_hit").iter().all(|v| v[0] + v[1] > 4 << 20), "{output}");
        // The objects wanted, and those needed: of the other cache, at the limit.
        assert!(output.contains("@order_fallback\"packets\" "), "{output}");
    }
}
