//! Names the functions of a profile, from the files that the process has mapped.
//!
//! A process in a container has files of its own: they are read through /proc/PID/root. A file is
//! used only if it still is the one that was mapped, by its inode; one that was replaced meanwhile
//! would give wrong names. The process chooses the paths: see [`crate::input`].

use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};

use super::damage::caught;
use super::heap::{Heap, Line, MAX_TEXT_BYTES, Mapping};
use crate::input::{Budget, Identified, find_here, find_in_process};
use crate::process::printable;

/// Letters of a function or path; more are cut.
const MAX_LETTERS: usize = 4096;
/// Places that are named at a time. Each takes long in a file that lost its pages.
const CHUNK_PLACES: usize = 64;

/// Adds function names, source lines and build ids.
pub fn resolve(heap: &mut Heap) {
    let new = || Symbolizer::builder().enable_auto_reload(false).build();
    let mut symbolizer = new();
    let budget = Budget::new(MAX_TEXT_BYTES);
    let mut places: Vec<Vec<usize>> = vec![Vec::new(); heap.mappings.len()];
    for (at, location) in heap.locations.iter().enumerate() {
        location.mapping.into_iter().for_each(|index| places[index].push(at));
    }
    // The symbolizer remembers files by path: the number of a closed one must not be used again.
    let mut files: Vec<Identified> = Vec::new();
    for (mapping, places) in heap.mappings.iter_mut().zip(places) {
        if places.is_empty() || budget.is_exceeded() {
            continue;
        }
        let Some(file) = file_of(mapping, heap.pid) else { continue };
        let path = file.path();
        files.push(file);
        if let Some(Ok(Some(id))) = caught(|| read_elf_build_id(&path)) {
            mapping.build_id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        }
        let offset = |address: u64| address.wrapping_sub(mapping.start).wrapping_add(mapping.file_offset);
        let offsets: Vec<u64> = places.iter().map(|&at| offset(heap.locations[at].address)).collect();
        let source = Source::Elf(Elf::new(&path));
        let within = |lines: &Vec<Line>| budget.allows(lines.iter().map(Line::text_bytes).sum());
        let named = |symbol: &Symbolized| symbol.as_sym().map(lines).filter(within).unwrap_or_default();
        for (places, offsets) in places.chunks(CHUNK_PLACES).zip(offsets.chunks(CHUNK_PLACES)) {
            let symbolize = || -> Option<Vec<Vec<Line>>> {
                let found = symbolizer.symbolize(&source, Input::FileOffset(offsets)).ok()?;
                Some(found.iter().map(named).collect())
            };
            // The file is damaged, or was truncated: the rest of its functions stay unnamed.
            let Some(Some(found)) = caught(symbolize) else {
                symbolizer = new();
                break;
            };
            for (&at, lines) in places.iter().zip(found) {
                heap.locations[at].lines = lines;
            }
        }
    }
}

/// The file behind a mapping, if it can still be read.
fn file_of(mapping: &Mapping, pid: u32) -> Option<Identified> {
    if !mapping.path.starts_with('/') {
        return None;
    }
    find_in_process(pid, &mapping.path, mapping.identity)
        .or_else(|| find_here(&mapping.path, mapping.identity))
}

/// Text that is safe to print, and not too long.
fn shown(text: &str) -> String {
    printable(text).chars().take(MAX_LETTERS).collect()
}

/// The functions at an address, the innermost first.
fn lines(symbol: &Sym) -> Vec<Line> {
    let line = |name: &str, code: Option<&CodeInfo>| Line {
        function: shown(name),
        file: code.map(|code| shown(&code.to_path().to_string_lossy())).unwrap_or_default(),
        line: code.and_then(|code| code.line).unwrap_or(0),
    };
    let inlined = symbol.inlined.iter().rev().map(|inner| line(&inner.name, inner.code_info.as_ref()));
    let mut lines: Vec<Line> = inlined.collect();
    lines.push(line(&symbol.name, symbol.code_info.as_deref()));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Identity;
    use crate::profile::heap::Location;
    use std::fs;

    #[test]
    fn a_function_of_this_program_is_named() {
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        let address = resolve as *const () as usize as u64 + 8;
        let text = format!(
            "uslab-profile 1\npid {}\nsite c 8 1 8 1 8 1 1 0 0 0 {address:x} 10\nmaps\n{maps}",
            std::process::id()
        );
        let mut heap = crate::profile::dump::parse(&text).expect("a profile");
        resolve(&mut heap);
        let line = heap.locations[0].lines.last().expect("a line");
        // Line tables name functions without their modules.
        assert!(line.function.ends_with("resolve"), "{line:?}");
        assert!(line.file.ends_with("symbols.rs"), "{line:?}");
        assert_eq!(heap.locations[1], Location { address: 0xf, ..Location::default() });
    }

    #[test]
    fn a_file_that_was_replaced_is_not_used() {
        let path = std::env::current_exe().expect("a path").to_str().expect("UTF-8").to_owned();
        let identity = Identity { device: 0, inode: 1 };
        assert!(file_of(&Mapping { path, identity, ..Mapping::default() }, 1).is_none());
        assert!(file_of(&Mapping { path: "[vdso]".into(), identity, ..Mapping::default() }, 1).is_none());
    }
}
